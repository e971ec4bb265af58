"""Readers of YAML and XML files as trees in which every value has its line and column; loader of compiled code.

The readers return validated values, or raise all mistakes at once, each with file, line, column and fix.
"""
