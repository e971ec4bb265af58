"""Read scenarios: a YAML file in, the points of its sweep out.

Takes YAML files and assignments. Gives one `Point` for each combination of values, with profile, faults, placement and
launch resolved.
"""
