"""Run points for real with torch.distributed: on this machine, on a cluster, or on hosts made of network namespaces.

From points and a backend the package makes real runs, checks every result, and returns rows of a measured table.
"""
