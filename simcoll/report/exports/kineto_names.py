"""Collectives by the names and arguments that they have in traces of torch.profiler (Kineto)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from simcoll.schedule import names

_KERNELS: Final = names.spellings(names.COLLECTIVES, lambda row: row.kernel)
_RECORDED: Final = names.spellings(names.COLLECTIVES, lambda row: row.torch)
_TYPES: Final = {row.name: row for row in names.DTYPES}
_OPERATORS: Final = {"sum": "Sum", "product": "Prod", "min": "MinMax", "max": "MinMax", "avg": "PreMulSum"}
_PARTS_IN: Final = frozenset({"all_gather", "gather"})  # a rank gives its part of what the size counts
_PARTS_OUT: Final = frozenset({"reduce_scatter", "scatter"})  # a rank gets its part of it


class Ran(NamedTuple):
    """A collective that the `ranks` ran: `nbytes` as nccl-tests counts it, `algorithm` and `protocol` as NCCL calls
    them, or simcoll where NCCL has none; no protocol is `none`."""

    collective: str
    op: str
    dtype: str
    itemsize: int
    nbytes: int
    ranks: Sequence[int]
    algorithm: str
    protocol: str = "none"


def kernel_name(ran: Ran) -> str:
    """The name of NCCL's kernel: the collective, reduction and type, algorithm and protocol.

    >>> kernel_name(Ran("all_reduce", "sum", "float32", 4, 64, [0, 1], "ring", "LL"))
    'ncclDevKernel_AllReduce_Sum_f32_RING_LL'
    """
    kernel = _KERNELS.get(ran.collective, "SendRecv")
    parts = ["ncclDevKernel", kernel]
    if kernel.endswith("Reduce") or kernel == "ReduceScatter":
        parts += [_OPERATORS.get(ran.op, ran.op.title()), _TYPES[ran.dtype].kernel]
    if kernel != "SendRecv":
        parts += [_plain(ran.algorithm).upper()] + ([ran.protocol.upper()] if ran.protocol != "none" else [])
    return "_".join(parts)


def _plain(algorithm: str) -> str:
    """Strip the options off an algorithm."""
    return algorithm.partition("(")[0].strip()


def arguments(ran: Ran, rank: int) -> dict[str, Any]:
    """Arguments that torch.profiler records of a collective on one rank (`record_param_comms`); elements, not bytes."""
    elements, n = ran.nbytes // ran.itemsize, len(ran.ranks)
    return {
        "Collective name": _RECORDED.get(ran.collective, ran.collective),
        "In msg nelems": elements // n if ran.collective in _PARTS_IN else elements,
        "Out msg nelems": elements // n if ran.collective in _PARTS_OUT else elements,
        "Group size": n,
        "dtype": _TYPES[ran.dtype].torch,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": ",".join(map(str, ran.ranks)),
        "Process Group Description": "simcoll",
        "Process Group Ranks": str([int(member) for member in ran.ranks]),
        "Rank": rank,
        "collective": ran.collective,
        "algorithm": ran.algorithm,
        "protocol": ran.protocol,
        "size_bytes": ran.nbytes,
    }
