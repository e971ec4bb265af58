"""Real runs: the points of a scenario executed by torch.distributed, on this machine, a cluster, or hosts made here."""
