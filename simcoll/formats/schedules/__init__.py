"""Schedules of other programs, in and out, and our own file of them (`document`)."""
