"""Readers of YAML and XML files as trees whose values know their place; loader of compiled code.

The readers return validated values, or raise all mistakes at once, each with file, line, column and what to write
instead.
"""
