"""What a network allows, and how to get it: the exact bound of a collective with the cut that proves it, and schedules
of trees that reach it.

In: a topology, and the devices of the ranks. Out: bounds (`bounds.py`), and schedules (`synthesize.py`).
"""
