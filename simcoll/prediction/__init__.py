"""Compute the results of points (single simulations), one or many: in order, in parallel, resumable.

This room takes points. It gives predictions of collective calls and of training steps (`predict`), rows of results
(`row`, `sweep`), and the time of a prediction under other costs (`Prediction.retimed`). Only the module `lowered_call`
decides whether a call is simulated as NCCL's kernels run it or as a plain schedule.
"""
