"""The names of collectives, data types, and NCCL's algorithms and protocols, as each tool spells them.

There is one row for each thing. Its `name` is simcoll's name ("our name"); the other fields are the spellings of tools.
A field is empty if the tool has no name for the thing. Readers and writers of other tools' files look names up with
`spellings` (from our name to a tool's) and `names_by` (from a tool's spelling to our name).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeVar, get_args

NcclAlgorithm = Literal["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]
Protocol = Literal["LL", "LL128", "Simple"]

# In NCCL's order: NCCL's logs and tables number them so, and its tuner takes the first of equally fast ones.
ALGORITHMS: Final[tuple[NcclAlgorithm, ...]] = get_args(NcclAlgorithm)
PROTOCOLS: Final[tuple[Protocol, ...]] = get_args(Protocol)


class CollectiveNames(NamedTuple):
    """The names of one collective: simcoll's, then the spellings of other tools, empty if a tool has no name for it."""

    name: str
    kernel: str = ""  # in the names of NCCL's kernels, and in NCCL's log
    nccl_tests: str = ""  # nccl-tests and rccl-tests: the program's name without `_perf`
    tuner: str = ""  # NCCL_ALGO, NCCL_PROTO, and the CSV of NCCL's example tuner plugin
    msccl: str = ""  # MSCCL's XML
    mpi: tuple[str, ...] = ()  # titles of the OSU and Intel MPI benchmarks, see `squashed`
    torch: str = ""  # torch.profiler's record_param_comms (Kineto); empty: our name
    measured: tuple[str, ...] = ()  # further spellings that measured tables may have, see `squashed`


COLLECTIVES: Final = (
    CollectiveNames("all_reduce", "AllReduce", "all_reduce", "allreduce", "allreduce", ("allreduce",), "allreduce"),
    CollectiveNames("reduce", "Reduce", "reduce", "reduce", "reduce", ("reduce",)),
    CollectiveNames(
        "broadcast", "Broadcast", "broadcast", "broadcast", "broadcast", ("bcast", "broadcast"), measured=("bcast",)
    ),
    CollectiveNames(
        "all_gather", "AllGather", "all_gather", "allgather", "allgather", ("allgather",), "_allgather_base"
    ),
    CollectiveNames(
        "reduce_scatter", "ReduceScatter", "reduce_scatter", "reducescatter", "reducescatter",
        ("reducescatter", "reducescatterblock"), "_reduce_scatter_base",
    ),
    CollectiveNames("gather", nccl_tests="gather", msccl="gather", mpi=("gather",)),
    CollectiveNames("scatter", nccl_tests="scatter", msccl="scatter", mpi=("scatter",)),
    CollectiveNames("all_to_all", nccl_tests="alltoall", msccl="alltoall", mpi=("alltoall",), measured=("all2all",)),
    CollectiveNames("moe_dispatch"),
    CollectiveNames("moe_combine"),
    CollectiveNames("barrier", mpi=("barrier",)),
    CollectiveNames("send_recv", nccl_tests="sendrecv", torch="send", measured=("sendreceive",)),
)  # fmt: skip


WORKLOAD: Final = "workload"  # in place of a collective's name for a whole job; the size is 0


class DtypeNames(NamedTuple):
    """The names of a data type with `itemsize` bytes an element. PyTorch and NumPy (but for bfloat16) use our name."""

    name: str
    itemsize: int
    nccl_tests: str  # nccl-tests and rccl-tests
    kernel: str  # in the names of NCCL's kernels
    torch: str  # torch.profiler (Kineto)
    measured: tuple[str, ...] = ()  # further spellings that measured tables may have

    @property
    def floating(self) -> bool:
        """Whether values of this type are floating-point numbers."""
        return self.kernel.strip("0123456789") in ("f", "bf")


DTYPES: Final = (
    DtypeNames("float32", 4, "float", "f32", "Float", ("float", "fp32", "f32")),
    DtypeNames("float64", 8, "double", "f64", "Double", ("double", "fp64", "f64")),
    DtypeNames("float16", 2, "half", "f16", "Half", ("half", "fp16", "f16")),
    DtypeNames("bfloat16", 2, "bfloat16", "bf16", "BFloat16", ("bf16",)),
    DtypeNames("int8", 1, "int8", "i8", "Char", ("char",)),
    DtypeNames("uint8", 1, "uint8", "u8", "Byte"),
    DtypeNames("int32", 4, "int32", "i32", "Int", ("int",)),
    DtypeNames("int64", 8, "int64", "i64", "Long"),
)


ALGORITHM_SPELLINGS: Final[Mapping[str, str]] = {  # in NCCL's log; NCCL_ALGO takes them in any case
    "tree": "Tree",
    "ring": "Ring",
    "collnet_direct": "CollNetDirect",
    "collnet_chain": "CollNetChain",
    "nvls": "NVLS",
    "nvls_tree": "NVLSTree",
    "pat": "PAT",
}


Row = TypeVar("Row", CollectiveNames, DtypeNames)


def spellings(rows: Iterable[Row], tool: Callable[[Row], str]) -> dict[str, str]:
    """Return a dictionary from our names to a tool's spellings, without the names that the tool lacks.

    >>> spellings(COLLECTIVES, lambda row: row.msccl)["all_to_all"]
    'alltoall'
    """
    return {row.name: tool(row) for row in rows if tool(row)}


def names_by(rows: Iterable[Row], tool: Callable[[Row], Iterable[str]]) -> dict[str, str]:
    """Return a dictionary from each of a tool's spellings to our name.

    >>> names_by(DTYPES, lambda row: [row.kernel])["bf16"]
    'bfloat16'
    """
    return {spelling: row.name for row in rows for spelling in tool(row) if spelling}


def squashed(text: str) -> str:
    """Return a text in small letters, without spaces, `_` and `-`, to compare spellings.

    >>> squashed("Reduce-Scatter")
    'reducescatter'
    """
    return re.sub(r"[\s_-]", "", text.lower())


_SQUASHED: Final = {squashed(row.name): row.name for row in COLLECTIVES}
_IN_TABLES: Final = names_by(COLLECTIVES, lambda row: row.measured)


def collective_named(text: str, *, in_table: bool = False) -> str | None:
    """Return the collective that a text names; None if it names none.

    Case, spaces, `_` and `-` do not count. With `in_table`, names that only measured tables use are accepted, too.

    >>> collective_named("AllReduce"), collective_named("bcast"), collective_named("bcast", in_table=True)
    ('all_reduce', None, 'broadcast')
    """
    spelling = squashed(text)
    return _SQUASHED.get(spelling) or (_IN_TABLES.get(spelling) if in_table else None)
