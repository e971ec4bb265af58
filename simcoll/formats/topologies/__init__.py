"""Readers of other programs' machine descriptions. Each turns a text into a `Sketch`, a topology file in the making.

A shipped system, the `LenderSystem`, supplies speeds and latencies that a file does not carry.
"""
