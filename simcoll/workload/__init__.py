"""Plan training and inference jobs: computations and collectives on streams.

From the key `workload` of a scenario the package makes a `WorkloadPlan`: operations with their ranks, streams and
dependencies.
"""
