"""Read what running jobs record of their calls: PyTorch's flight recorder, NCCL Inspector, RAS, watchdogs.

Readers turn files into the events of `events`; analyses see events alone, and not which program wrote them.
"""
