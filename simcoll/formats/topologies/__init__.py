"""Machines as other programs describe them, made into topology files: a reader is a function from text to a `Sketch`.

Speeds and latencies that a file does not carry are those of a shipped system, the `LenderSystem`.
"""
