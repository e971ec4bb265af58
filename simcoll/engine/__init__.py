"""The clock: when every transfer of a schedule starts and ends on a topology.

Takes a program, that is a schedule bound to sizes, channels and routes. Gives a `Timeline` or `Totals`, in integer
picoseconds, the same from each engine; `event` is the definition, the others are compared with it by `==`.
"""
