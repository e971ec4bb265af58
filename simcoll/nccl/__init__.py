"""NCCL and RCCL: which algorithm, protocol and channels their tuners choose, and how protocols move data.

Takes a communicator (ranks on nodes of a system) and a collective of some bytes. Returns the call as NCCL would run it.
The constants are YAML files beside the modules, each opening with its source.
"""
