"""Run a PyTorch training script without GPUs and without other ranks, and predict what its step takes on a cluster.

Takes a script, a number of ranks and a machine. Gives the collectives of each recorded rank, and the recording of a
step as `formats.recordings` has it, which becomes a plan. Only this room needs torch; it imports torch when it runs.
"""
