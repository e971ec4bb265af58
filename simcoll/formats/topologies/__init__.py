"""Machines as other programs describe them, as topology files of ours: a reader is a function from text to a `Sketch`.

Speeds and latencies that a file does not carry are those of a shipped system: the `Pattern`.
"""
