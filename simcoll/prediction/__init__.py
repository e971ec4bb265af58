"""Compute points, one or many, in order, in parallel, resumable.

It takes points, alone or a sweep. It gives predictions of calls and of steps (`predict`), rows of results (`row`,
`sweep`), and times under other costs (`Prediction.retimed`). Only `lowered_call` knows whether a call is run as NCCL's
kernels run it or as a plain schedule.
"""
