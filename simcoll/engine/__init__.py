"""The clock: it finds when every transfer of a schedule starts and ends on a topology.

It takes a program: a schedule bound to sizes, channels and routes. `run.run(program, policy)` gives totals and, if
asked for, a timeline, in integer picoseconds: the same from each engine, as tests compare them with `event` by `==`.
"""
