"""The tuner of NCCL, mirrored: latency and bandwidth of each pair of algorithm and protocol, and which pair it takes.

    time = latency + size / bandwidth

where the size is the largest buffer of a rank, as nccl-tests counts it. It knows neither the launch of a kernel nor
what the host does, so small sizes take longer than it says. CollNet, which needs a plugin for in-network reduction,
and the rule for fp8 are left out.

Source: NVIDIA/nccl, release 2.30, src/graph/tuning.cc; ROCm/rccl, release 2.21.5: formulas and figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from simcoll.errors import RefusedError
from simcoll.nccl import _tuner_bandwidth, _tuner_latency
from simcoll.nccl.call_names import COLLECTIVES, TunedCollective, refusal
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.env_filter import EVERYTHING, Selection
from simcoll.nccl.tuner_constants import NcclConstants, RcclConstants, read
from simcoll.schedule.names import ALGORITHMS, PROTOCOLS, NcclAlgorithm, Protocol
from simcoll.topology.nccl_graphs import PATHS

_SERVES: Final[Mapping[TunedCollective, tuple[NcclAlgorithm, ...]]] = {
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "all_reduce": ("tree", "ring", "nvls", "nvls_tree"),
}
_TREE_ENTRIES: Final = 23  # of the correction table that a tree reads
_MOST_GPUS_NVLS_BLOCKS: Final = 32  # a node, for NVLS all_gather and reduce_scatter
_ADDED_BY_SWITCHES: Final = ("int32", "int64", "float16", "bfloat16", "float32", "float64")
_COMPARED_BY_SWITCHES: Final = ("int32", "int64", "float16", "bfloat16")


@dataclass(frozen=True)
class TunerEntry:
    """One pair of the table: what a call costs, and the bandwidth of the buffer."""

    latency_us: float
    bandwidth_GBps: float  # noqa: N815


@dataclass(frozen=True)
class TunerTable:
    """The table that NCCL works out once for a communicator; pairs that it cannot use are left out."""

    communicator: Communicator
    constants: NcclConstants | RcclConstants
    entries: Mapping[tuple[TunedCollective, NcclAlgorithm, Protocol], TunerEntry]


@dataclass(frozen=True)
class TunerChoice:
    """The pair that NCCL takes, and the time that it reckons with."""

    algorithm: NcclAlgorithm
    protocol: Protocol
    time_us: float


def switch_reduces(dtype: str, op: str) -> bool:
    """Whether NVSwitches reduce such elements; without that NCCL takes NVLS and NVLSTree for all_gather only.

    `avg` is never reduced there: of floats it multiplies first, of integers it divides afterwards.
    Source: NVIDIA/nccl 2.27, src/include/device.h (ncclNvlsSupported).
    """
    return dtype in {"sum": _ADDED_BY_SWITCHES, "min": _COMPARED_BY_SWITCHES, "max": _COMPARED_BY_SWITCHES}.get(op, ())


def table(
    communicator: Communicator,
    version: str | None = None,
    selection: Selection = EVERYTHING,
    switch_reduces: bool = True,
) -> TunerTable:
    """Latency and bandwidth of every pair that the release (default: the newest known) could use.

    `selection`: what `NCCL_ALGO` and `NCCL_PROTO` leave; `switch_reduces`: whether NVSwitches reduce the elements.
    Raises InputError for a release that is not known.
    """
    constants = read(communicator.library, version)
    entries: dict[tuple[TunedCollective, NcclAlgorithm, Protocol], TunerEntry] = {}
    for collective, algorithm, protocol in _pairs(communicator, constants, selection, switch_reduces):
        graph = communicator.graph(algorithm)
        if graph is None or algorithm not in constants.base_us:
            continue
        width = _tuner_bandwidth.of(communicator, constants, graph, collective, algorithm, protocol)
        if width > 0:
            wait = _tuner_latency.of(communicator, constants, graph, collective, algorithm, protocol)
            entries[collective, algorithm, protocol] = TunerEntry(wait, width)
    return TunerTable(communicator, constants, entries)


def time_us(
    table: TunerTable, collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol, nbytes: int
) -> float:
    """The tuner's time for a call of `nbytes`, in us.

    Raises RefusedError for a pair that is not in the table.
    """
    entry = table.entries.get((collective, algorithm, protocol))
    comm, constants = table.communicator, table.constants
    if entry is None:
        raise RefusedError(refusal(comm.library, collective, algorithm, protocol))
    wait, width = entry.latency_us, entry.bandwidth_GBps
    width *= _correction(comm, constants, algorithm, protocol, nbytes)
    plateau = collective == "all_reduce" and algorithm == "ring" and protocol == "Simple" and comm.nodes > 1
    if plateau and _fills(comm, nbytes):
        wait *= constants.plateau.from_cc_80 if comm.capability >= 80 else constants.plateau.before
    return wait + nbytes / (1000 * width)


def choose(table: TunerTable, collective: TunedCollective, nbytes: int) -> TunerChoice | None:
    """The pair with the least time, of equals the one that NCCL looks at first; None where no pair is left."""
    best: TunerChoice | None = None
    for served, algorithm, protocol in table.entries:
        if served == collective:
            time = time_us(table, collective, algorithm, protocol, nbytes)
            if best is None or time < best.time_us:
                best = TunerChoice(algorithm, protocol, time)
    return best


# --- what can be used ---


def _pairs(
    comm: Communicator, constants: NcclConstants | RcclConstants, selection: Selection, switch_reduces: bool
) -> Iterator[tuple[TunedCollective, NcclAlgorithm, Protocol]]:
    """Everything that this communicator may use, in NCCL's order, whether there is a graph for it or not."""
    for collective in COLLECTIVES:
        for algorithm in ALGORITHMS:
            if algorithm in _SERVES[collective] and _possible(comm, collective, algorithm, switch_reduces):
                for protocol in PROTOCOLS if algorithm in ("ring", "tree") else ("Simple",):
                    insisted = selection.insists(collective, protocol)
                    if selection.allows(collective, algorithm, protocol) and (
                        protocol != "LL128" or insisted or _near_enough(comm, constants, algorithm)
                    ):
                        yield collective, algorithm, protocol


def _possible(comm: Communicator, collective: TunedCollective, algorithm: NcclAlgorithm, switch_reduces: bool) -> bool:
    if algorithm in ("nvls", "nvls_tree") and collective != "all_gather" and not switch_reduces:
        return False
    if algorithm == "nvls":
        return comm.nodes == 1 and (collective == "all_reduce" or comm.gpus <= _MOST_GPUS_NVLS_BLOCKS)
    if algorithm == "nvls_tree":
        return comm.nodes > 1
    return algorithm != "pat" or comm.gpus == 1


def _near_enough(comm: Communicator, constants: NcclConstants | RcclConstants, algorithm: NcclAlgorithm) -> bool:
    """LL128 relies on stores that arrive whole, and so on short paths."""
    graph = comm.graph(algorithm)
    farthest = PATHS.index("PXN" if comm.capability >= 90 else "PXB")
    if graph is None:
        return False
    knows_p2c = isinstance(constants, RcclConstants) or constants.knows_p2c
    by_c2c = any(each.type_inter == "P2C" for each in comm.graphs.values())  # then all do, or by PXN
    inter = "PHB" if by_c2c and not knows_p2c else graph.type_inter
    return (
        comm.capability >= 70 and PATHS.index(inter) <= farthest and PATHS.index(graph.type_intra) <= PATHS.index("NVB")
    )


# --- what depends on the size ---


def _correction(
    comm: Communicator,
    constants: NcclConstants | RcclConstants,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
    nbytes: int,
) -> float:
    """The share of its bandwidth that a call of that size gets. NCCL corrects trees, and so all-reduces only; RCCL
    corrects rings over several nodes too, whatever they carry."""
    entry = (nbytes // 64).bit_length() - 1
    if entry < 0:
        return 1.0
    if isinstance(constants, RcclConstants):
        if algorithm == "ring" and comm.nodes == 1:
            return 1.0
        row = constants.correction[algorithm][protocol]
        return row[min(entry, len(row) - 1)]
    row = constants.correction[protocol]
    if algorithm == "tree":
        return row[entry] if entry < _TREE_ENTRIES else 1.0
    on_blackwell = comm.generation == "blackwell" and comm.cpu in ("intel", "amd")
    corrected = algorithm == "nvls_tree" and on_blackwell and constants.corrects_nvls_tree
    return row[entry] if corrected and entry < len(row) else 1.0


def _fills(comm: Communicator, nbytes: int) -> bool:
    """Whether each channel of each rank has a line to send."""
    return nbytes // (comm.channels * comm.ranks) >= 64
