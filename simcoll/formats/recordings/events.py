"""The events of a recorded job: which rank took part in which call, with which data, from where in the code, when; and
what its streams did in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.schedule.names import DTYPES

Shapes = tuple[tuple[int, ...], ...]  # of the tensors that a rank hands in, or gets

UNNAMED: Final = "?"  # the group of calls whose group the file does not name: the groups of all such calls in one
_BYTES: Final = {row.torch: row.itemsize for row in DTYPES} | {
    "Bool": 1,
    "Short": 2,
    "UInt16": 2,
    "UInt32": 4,
    "UInt64": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
}


@dataclass(frozen=True, eq=False)
class Group:
    """A group of ranks that call collectives together. `ranks` in ascending order; empty: the file does not say. `n`
    and `nodes`: how many ranks and hosts it has, of recorders that do not know the ranks; 0: not known.

    Groups are compared by identity, for speed; `key` is equal in the files of all ranks.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    n: int = 0
    nodes: int = 0

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        """What tells groups apart: several may have one name, e.g. those of a split."""
        return self.name, self.description, self.ranks

    def __str__(self) -> str:
        shown = self.description if self.description not in ("", "undefined") else ""
        return f"{self.name} ({shown})" if shown else self.name


class What(NamedTuple):
    """What a rank hands to a call. All ranks of a call must name the same collective, type and amount of data.

    `collective` is simcoll's name, `send`, `recv`, `coalesced`, or the recorder's own name. `peers` are the ranks
    within the group from and to which data goes (point-to-point alone). `size`: bytes as nccl-tests counts them, of
    recorders that know no shapes. `root`: a rank within the group; None: not recorded.
    """

    collective: str
    inputs: Shapes = ()
    outputs: Shapes = ()
    dtypes: tuple[str, ...] = ()
    peers: tuple[int, int] | None = None
    size: int = 0
    root: int | None = None

    def __str__(self) -> str:
        arrow = f" {self.peers[0]}->{self.peers[1]}" if self.peers else ""
        counts = elements(self.inputs or self.outputs)
        types = "/".join(self.dtypes)
        return f"{self.collective}{arrow}" + (f" of {counts} {types}".rstrip() if counts else "")

    def nbytes(self, ranks: int) -> int:
        """Return the size as nccl-tests counts it (of gathered and scattered data the whole), 0 if it is not known."""
        if self.size:
            return self.size
        item = max((_BYTES.get(dtype, 0) for dtype in self.dtypes), default=0)
        part = {"all_gather": self.inputs, "gather": self.inputs, "scatter": self.outputs}.get(self.collective)
        if self.collective == "reduce_scatter":
            part = self.outputs
        return item * (elements(part) * ranks if part is not None else elements(self.inputs or self.outputs))


class Event(NamedTuple):
    """The part of one rank in one call. Times are ns since 1970 on the clock of the rank's host; 0: not recorded.

    `number` counts the calls of a group; several events of a rank with one number are one coalesced call. `place` is
    the line of the user's code, `file:line`. `took_us` is the measured duration, waiting for other ranks included.
    """

    group: Group
    number: int
    what: What
    place: str
    done: bool
    created: int
    started: int = 0
    ended: int = 0
    took_us: float = 0.0
    p2p: bool = False


class Interval(NamedTuple):
    """What a rank did on one of its streams: a computation of `took` ns, as measured or as a dry run estimates it, or
    the kernel of a `call`, whose time includes waiting for other ranks.

    `kind` is `compute`, `host` (of the host, which launches what comes `after` it) or `copy` (of memory). Intervals
    of a stream run one after another, in the order of `Recording.intervals`. `after` lists the numbers there of earlier
    intervals that this one waits for. Ranks whose intervals have equal names, streams and calls run one program.
    """

    name: str
    stream: str
    took: int = 0
    after: tuple[int, ...] = ()
    call: Event | None = None
    kind: str = "compute"


@dataclass
class Recording:
    """What one rank recorded. `whole`: no event was lost because a buffer was full.

    `reached`: the number of the last call of groups, which also counts lost events. `timed_out`: the rank gave up
    waiting for an unfinished call. `intervals`: one step of the rank, in the order of launch, from recorders that know
    what streams did. `world`: the number of ranks of the job; 0: not known.
    """

    source: str
    rank: int | None
    events: Sequence[Event] = ()
    whole: bool = True
    reached: dict[Group, int] = field(default_factory=dict)
    timed_out: bool = False
    intervals: Sequence[Interval] = ()
    world: int = 0


def elements(shapes: Shapes) -> int:
    """Return the number of elements of all tensors together."""
    return sum(math.prod(shape) for shape in shapes)
