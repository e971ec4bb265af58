"""`NCCL_ALGO` and `NCCL_PROTO`: which algorithms and protocols the user leaves to NCCL.

The text is a list for all collectives, lists of single ones, or both, the first one first:
`ring,tree`, `^nvls`, `allreduce:tree;broadcast:ring`, `^LL128;allreduce:LL128`. `^` means all but these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from simcoll.errors import InputError, did_you_mean
from simcoll.nccl.algorithm_names import COLLECTIVES, TunedCollective
from simcoll.schedule.names import ALGORITHMS, PROTOCOLS, NcclAlgorithm, Protocol

Name = TypeVar("Name", bound=str)


@dataclass(frozen=True)
class Selection:
    """Algorithms and protocols that may be used, by collective; a collective that is not named may use all."""

    algorithms: Mapping[TunedCollective, frozenset[NcclAlgorithm]] = field(default_factory=dict)
    protocols: Mapping[TunedCollective, frozenset[Protocol]] = field(default_factory=dict)
    said: str = field(default="", compare=False)  # the variables as a shell has them, for messages

    def allows(self, collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol) -> bool:
        """Whether the user left this pair in."""
        in_algorithms = algorithm in self.algorithms.get(collective, ALGORITHMS)
        return in_algorithms and protocol in self.protocols.get(collective, PROTOCOLS)

    def insists(self, collective: TunedCollective, protocol: Protocol) -> bool:
        """Whether the user asked for the protocol, also where NCCL would not take it by itself (LL128)."""
        return protocol in self.protocols.get(collective, ())


EVERYTHING: Final = Selection()


def parse(algo: str | None = None, proto: str | None = None) -> Selection:
    """The selection by the values of NCCL_ALGO and NCCL_PROTO; raises InputError for unknown names."""
    return Selection(
        _lists("NCCL_ALGO", algo, "algorithm", ALGORITHMS), _lists("NCCL_PROTO", proto, "protocol", PROTOCOLS)
    )


def _lists(variable: str, text: str | None, kind: str, names: Sequence[Name]) -> dict[TunedCollective, frozenset[Name]]:
    selected: dict[TunedCollective, frozenset[Name]] = {}
    for i, entry in enumerate((text or "").split(";") if text else ()):
        function, colon, listed = entry.rpartition(":")
        if not colon and i:
            raise InputError(
                f"{variable}: {entry!r} names no collective",
                "write e.g. allreduce:ring; only the first list may do without",
            )
        collectives = [_known(variable, function, "collective", COLLECTIVES)] if colon else COLLECTIVES
        selected.update(dict.fromkeys(collectives, _list(variable, listed, kind, names)))
    return selected


def _list(variable: str, text: str, kind: str, names: Sequence[Name]) -> frozenset[Name]:
    listed = text.strip().removeprefix("^")
    given = frozenset(_known(variable, word, kind, names) for word in listed.split(","))
    return frozenset(names) - given if text.strip().startswith("^") else given


def _known(variable: str, word: str, kind: str, names: Sequence[Name]) -> Name:
    by_spelling = {name.replace("_", "").lower(): name for name in names}  # as NCCL writes them, in any case
    spelling = word.strip().replace("_", "").lower()
    if spelling not in by_spelling:
        raise InputError(f"{variable}: {word.strip()!r} is no {kind}", did_you_mean(spelling, by_spelling))
    return by_spelling[spelling]
