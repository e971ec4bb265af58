"""Read and write schedules of other programs, and simcoll's own schedule files (`schedule_json`)."""
