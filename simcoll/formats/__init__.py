"""Read files of other programs: schedules, topologies, measured tables and logs.

Each reader converts a text into a schedule, a topology file or measured rows of simcoll, or raises InputError with the
places of all mistakes. Formats never import each other, but for `debug_logs`: lines of NCCL's log also stand
between the rows of measured tables.
"""
