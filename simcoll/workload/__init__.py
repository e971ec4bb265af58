"""Plan training and inference jobs: computations and collectives on streams.

From a scenario's key `workload` the package makes a `WorkloadPlan`: operations with ranks, streams and dependencies.
"""
