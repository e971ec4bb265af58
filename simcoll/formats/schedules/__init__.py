"""Schedules of other programs, in and out, and simcoll's own file of them (`schedule_json`)."""
