"""Plan training and inference jobs: computations and collectives on streams.

Takes the key `workload` of a scenario. Gives a `WorkloadPlan`: operations, the ranks that do them, and what each waits
for.
"""
