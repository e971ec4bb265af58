"""Run points for real with torch.distributed: on this machine, on a cluster, or on hosts made of network namespaces.

Takes points and a backend. Runs them, checks every result, and returns rows of a measured table.
"""
