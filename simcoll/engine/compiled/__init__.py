"""The inner loops of the fast and the streamed engine, in the subset of Python that numba compiles.

They take columns of integers, and write the times of transfers into columns or return totals.
"""
