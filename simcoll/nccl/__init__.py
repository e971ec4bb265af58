"""NCCL and RCCL: what their tuners reckon with and choose, what graph search finds, how protocols move data.

The figures are YAML files beside the modules, each opening with its source.
"""
