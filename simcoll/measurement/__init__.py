"""Real runs: the points of a scenario executed by torch.distributed, on this machine, a cluster, or hosts made here.

Takes points and a backend. Gives rows of a measured table, checked for right results.
"""
