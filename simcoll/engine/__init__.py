"""The engines compute when every transfer of a schedule starts and ends on a topology.

Their input is a program: a schedule bound to sizes, channels and routes. `run.run(program, policy)` returns totals and,
if the policy keeps one, a timeline, in integer picoseconds. All engines return the same numbers, which tests compare.
"""
