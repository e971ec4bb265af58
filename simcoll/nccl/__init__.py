"""Models of NCCL and RCCL: the algorithm, protocol and channels that their tuners choose, and how data move.

From a communicator (ranks on nodes of a system) and a collective of some bytes the package derives the call as NCCL
would run it. The constants are in YAML files beside the modules; each file begins with its source.
"""
