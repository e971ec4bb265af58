"""Readers of other programs' machine descriptions. Each converts a text into a `Sketch`, from which a topology file is
written.

A shipped system, the `LenderSystem`, supplies speeds and latencies that a file lacks.
"""
