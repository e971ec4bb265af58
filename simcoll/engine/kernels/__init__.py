"""The loops of the fast and the streamed engine, in the subset of Python that numba compiles.

Takes columns of integers. Gives the times of transfers in the same columns, or totals.
"""
