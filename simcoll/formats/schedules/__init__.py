"""Read and write schedules of other programs, and simcoll's own file of a schedule (`schedule_json`)."""
