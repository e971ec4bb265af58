"""Files of other programs: schedules, topologies, measured tables and logs.

Takes their text. Gives schedules, topology files and rows of ours, or one located complaint. Formats never import each
other.
"""
