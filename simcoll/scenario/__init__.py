"""Scenarios: read a YAML file and expand its sweep into points.

From a file and assignments (`--set`) the package makes one `Point` for each combination of values, with profile,
faults, placement and launch resolved.
"""
