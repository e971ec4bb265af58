"""Compute points, one or many, in order, in parallel, resumable.

It takes points, alone or a sweep; it gives predictions (`predict`), rows of results (`row`, `sweep`), and times under
other costs (`Prediction.retimed`). A collective and a workload give the same kind of prediction; only `lowering` knows
whether a call is run as NCCL's kernels run it or as a plain schedule.
"""
