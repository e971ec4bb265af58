"""Run a script as one of several gloo ranks, and write down which collectives torch is asked for: what a dry run must
find. Usage: gloo_calls.py OUT.json SCRIPT ARGS…, with the environment of torchrun."""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather", "_allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather", "reduce_scatter": "reduce_scatter", "broadcast": "broadcast",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter", "reduce": "reduce",
    "gather": "gather", "scatter": "scatter", "alltoall_base": "all_to_all", "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all", "send": "send", "recv": "recv", "barrier": "barrier",
}  # fmt: skip


def nbytes(value):
    """Return the bytes of nested tensors."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(nbytes, value)) if isinstance(value, list | tuple) else 0


class Calls(TorchDispatchMode):
    """Writes down collectives while it is active."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        kind = KINDS.get(func.overloadpacket.__name__.rstrip("_"))
        if func.namespace in ("c10d", "_c10d_functional") and kind:
            names = [each.name for each in func._schema.arguments]
            given = dict(zip(names, args, strict=False))
            group = given.get("process_group", given.get("group_name"))
            if isinstance(group, str):
                group = dist.distributed_c10d._resolve_process_group(group)
            elif not isinstance(group, dist.ProcessGroup):
                group = dist.ProcessGroup.unbox(group)
            ranks = dist.get_process_group_ranks(group)
            receives = kind == "recv" or (kind in ("broadcast", "scatter") and self.away(given, ranks))
            wanted = ("out", "tensor") if receives else ("input", "tensor")
            size = sum(nbytes(value) for name, value in given.items() if name.startswith(wanted))
            self.rows.append([kind, 0 if kind == "barrier" else size, ranks])
        return func(*args, **(kwargs or {}))

    @staticmethod
    def away(given, ranks):
        """Return whether this rank is not the root."""
        root = given.get("root_rank", given.get("src"))
        return ranks[root] != dist.get_rank()


out, script, *rest = sys.argv[1:]
sys.argv = [script, *rest]
with Calls() as calls:
    runpy.run_path(script, run_name="__main__")
Path(out).write_text(json.dumps(calls.rows))
os._exit(0)  # an interpreter that ends may abort in a thread of gloo
