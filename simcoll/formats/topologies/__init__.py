"""Readers of other programs' machine descriptions. Each converts a text into a `Sketch` of a topology file.

A shipped system, the `LenderSystem`, supplies speeds and latencies that a file lacks.
"""
