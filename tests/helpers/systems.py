"""Shipped systems by which laws are tested one by one."""

from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import load_system

# Those whose files are written in full. Others are `like` these, and tests/topology/test_systems.py runs each of them.
WHOLE = {name: file for name in shipped_systems() if not (file := load_system(name)).like}
# Those with several GPUs a node, so that one node communicates.
WITH_GPUS = [name for name, file in WHOLE.items() if file.counts.get("gpu", 0) > 1]
