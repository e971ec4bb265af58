"""Compute points, one or many, in order, in parallel, resumable.

Takes points, alone or a sweep; gives predictions (`predict`), rows of results (`row`, `sweep`), and times under other
costs (`Prediction.retimed`). A collective is a plan of one operation; only `lowering` knows whether its call is run as
NCCL's kernels run it or as a plain schedule.
"""
