"""Read files of other programs: schedules, topologies, measured tables and logs.

Each format takes a text and returns a schedule, a topology file or measured rows of simcoll, or raises located
mistakes. Formats never import each other.
"""
