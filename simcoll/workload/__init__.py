"""Training and inference jobs: computation and collectives on streams.

Takes the key `workload` of a scenario. Gives a `Plan`: operations, the ranks that do them, and which wait for which.
"""
