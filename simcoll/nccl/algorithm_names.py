"""Names of NCCL's collectives and algorithms, and of simcoll's schedules that implement these algorithms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from simcoll.schedule.names import NcclAlgorithm

TunedCollective = Literal["broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"]
NcclName = NcclAlgorithm | Literal["p2p"]  # point-to-point messages are sent without an algorithm

COLLECTIVES: Final[tuple[TunedCollective, ...]] = get_args(TunedCollective)
MESSAGES: Final = ("all_to_all", "gather", "scatter", "send_recv")  # point to point: not tuned
# simcoll's schedule for each algorithm of NCCL and collective.
SCHEDULES: Final[dict[tuple[NcclName, str], str]] = {
    ("ring", "all_reduce"): "ring",
    ("ring", "all_gather"): "ring",
    ("ring", "reduce_scatter"): "ring",
    ("ring", "broadcast"): "chain",
    ("ring", "reduce"): "chain",
    ("tree", "all_reduce"): "chain_tree",
    ("nvls", "all_reduce"): "nvls",
    ("nvls_tree", "all_reduce"): "nvls_tree",
    ("pat", "all_gather"): "pat",
    ("pat", "reduce_scatter"): "pat",
    ("nvls", "all_gather"): "nvls",
    ("nvls", "reduce_scatter"): "nvls",
    ("p2p", "all_to_all"): "direct",
    ("p2p", "gather"): "direct",
    ("p2p", "scatter"): "direct",
    ("p2p", "send_recv"): "ring",
}


def names(collective: str) -> Mapping[str, NcclName]:
    """Return a dictionary from algorithm names in scenarios, results and tables to NCCL's algorithms for a collective.

    The names equal NCCL's, except for point-to-point messages: NCCL has no name, so the schedule's name is used.

    >>> names("all_reduce")["tree"], names("all_to_all")
    ('tree', {'direct': 'p2p'})
    """
    return {
        schedule if algorithm == "p2p" else algorithm: algorithm
        for (algorithm, served), schedule in SCHEDULES.items()
        if served == collective
    }


def name_of(algorithm: str, collective: str) -> str:
    """Convert the name of a schedule into the name of the NCCL algorithm it implements; return other names unchanged.

    >>> name_of("chain_tree", "all_reduce"), name_of("chain", "broadcast"), name_of("auto", "broadcast")
    ('tree', 'ring', 'auto')
    """
    by_schedule = {SCHEDULES[called, collective]: name for name, called in names(collective).items()}
    return by_schedule.get(algorithm, algorithm)


def refusal(
    library: str,
    collective: str,
    algorithm: str,
    protocol: str,
    under: object = "",
    has: Iterable[tuple[str, str]] = (),
) -> str:
    """Return the message for an unsupported call: the request, variables that restrict it (`under`), and the pairs of
    algorithm and protocol that are supported (`has`).

    >>> refusal("nccl", "all_reduce", "nvls", "LL", has=[("ring", "LL"), ("ring", "Simple"), ("nvls", "Simple")])
    'NCCL runs no all_reduce by nvls with LL here; it has ring (LL, Simple), nvls (Simple)'
    >>> refusal("rccl", "all_reduce", "auto", "auto", "NCCL_ALGO=PAT")
    'RCCL runs no all_reduce here under NCCL_ALGO=PAT'
    """
    asked = (f" by {algorithm}" * (algorithm != "auto"), f" with {protocol}" * (protocol not in ("auto", "none")))
    with_protocols: dict[str, list[str]] = {}
    for name, each in has:
        with_protocols.setdefault(name, []).append(each)
    pairs = ", ".join(f"{name} ({', '.join(each)})" for name, each in with_protocols.items())
    conditions = f" under {under}" if str(under) else ""
    sentence = f"{library.upper()} runs no {collective}{''.join(asked)} here{conditions}"
    return sentence + (f"; it has {pairs}" if pairs else "")
