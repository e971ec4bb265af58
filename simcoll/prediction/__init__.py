"""One point, and many: from a scenario to the row of results.

Takes points. Gives predictions and rows, in order, in parallel, resumable. Only this room knows whether a call is run
as NCCL runs it or as a plain schedule.
"""
