"""The entry point of the engines: `run` chooses an engine for a program, and falls back to `event`.

    outcome = run(program, Policy(keep="totals"))
    outcome.totals.makespan_ps

Three engines return equal integers. `fast` runs most programs. `streamed` runs schedules that are too long for memory;
`looped` reduces such a schedule to the columns of one loop. `event` defines the timing: it is slow, and it explains a
deadlock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from simcoll.config.machine_limits import check_memory
from simcoll.config.numpy_helpers import Array
from simcoll.engine import fast, streamed
from simcoll.engine.binding import bind, written_out
from simcoll.engine.looped import LoopedProgram
from simcoll.engine.program import Program
from simcoll.engine.timeline import Timeline, Totals
from simcoll.engine.timing_model import NEVER, Params, piece_bytes
from simcoll.schedule.schedule import AnySchedule, StreamedSchedule
from simcoll.topology.graph import Topology

MOST_HELD: Final = 100_000  # transfers; longer schedules stay streams, and by default keep no timeline
LOOPED_BYTES: Final = 15  # of memory for each transfer of a loop: its time, a count of what it waits for, its state
MOST_BITS: Final = 62  # bits of a heap key

Keep = Literal["auto", "totals", "times", "hops"]


@dataclass(frozen=True)
class Policy:
    """How to run a program, and what to keep of the run. No choice changes a number in the result.

    `engine`: `event` forces the engine that defines the timing. `shortcuts` allows streaming and loops.
    `keep`: only `totals`, also the `times` of each transfer, or also its `hops`; `auto` keeps everything for up to
    `MOST_HELD` transfers, and only totals for more.
    """

    engine: Literal["auto", "event"] = "auto"
    shortcuts: bool = True
    keep: Keep = "auto"


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a run: its totals, and its timeline if the policy asked for one (`event` always keeps one).

    `program` is the program that ran, with the routes that transfers took in the end; None if only totals are kept.
    """

    engine: Literal["fast", "event"]
    totals: Totals
    kept: Timeline | None = None
    program: Program | None = None

    @property
    def timeline(self) -> Timeline:
        """The timeline; raises ValueError if the policy kept none."""
        if self.kept is None:
            raise ValueError("only totals were kept")
        return self.kept


@dataclass(frozen=True, eq=False)
class StreamedProgram:
    """A schedule or stream of steps that may be too long to bind at once, with the arguments of `bind`."""

    stream: AnySchedule
    network: Topology
    devices: Sequence[str]
    params: Params
    nbytes: int
    itemsize: int = 1
    arrivals: Mapping[int, int] = field(default_factory=dict)
    weights: object = None

    def bind(self) -> Program:
        """Return the program of all transfers."""
        whole = written_out(self.stream), self.network, self.devices, self.params, self.nbytes
        return bind(*whole, itemsize=self.itemsize, weights=self.weights, arrivals=self.arrivals)

    def parts(self) -> streamed.RoutedParts | None:
        """Return the steps with their routes, to replay them one after the other. None for a schedule in memory, for
        weights, and if channels are not numbered by chunk: one for each peer is the same if ranks have one peer."""
        params, stream = self.params, self.stream
        if not isinstance(stream, StreamedSchedule) or self.weights is not None or params.channels_by != "chunk":
            return None
        if not params.channels:
            if not streamed.has_single_peers(stream):
                return None
            params = dataclasses.replace(params, channels=1)
        return streamed.RoutedParts(stream, self.network, self.devices, params)

    @property
    def sizes(self) -> list[Array]:
        """For each loop the bytes of every slot, see `streamed.loop_sizes`. Raises InputError if they cannot be
        divided."""
        return streamed.loop_sizes(self.stream, self.nbytes, self.itemsize, self.params.chunk)

    def looped(self) -> LoopedProgram | None:
        """Return the program that `bind` would make, as one loop and the number of loops. Return None if there is only
        one loop, if some loop does not send every row, if a transfer moves several slots, or if a channel does not
        finish one loop before the next. Also None with barriers, with blocking sends, or without `fifo` sharing. Raises
        like `bind`."""
        schedule, params = written_out(self.stream), self.params
        waiting = params.sharing != "fifo" or params.barrier or params.blocking != "no"
        in_turn = params.channels > 1 and params.channels_by == "chunk"
        if not params.chunk or waiting or in_turn or schedule.transfers < int(schedule.count.sum()):
            return None
        one = dataclasses.replace(self, stream=schedule, params=dataclasses.replace(params, chunk=0, slots=0)).bind()
        piece = piece_bytes(params.chunk, self.itemsize)
        loops_of = -(-one.nbytes // piece)
        loops = int(loops_of.max(initial=0))
        found = LoopedProgram(one, loops, piece, params.slots)
        if loops < 2 or (loops_of < loops).any():
            return None
        steps = found.steps
        bits = found.row_bits + found.loop_bits + (int(steps.max(initial=0)) + loops).bit_length()
        if bits > MOST_BITS or (len(steps) and (steps != steps[found.first]).any()):
            return None
        what = f"{loops} loops of {len(one)} transfers"
        check_memory(len(found) * LOOPED_BYTES, what, "write a larger chunk", "model")
        return found

    @property
    def transfers(self) -> int:
        """The number of transfers in one loop."""
        return self.stream.transfers if isinstance(self.stream, StreamedSchedule) else len(self.stream)


def run(program: Program | StreamedProgram, policy: Policy = Policy()) -> Outcome:
    """Run a program on the fastest engine that `policy` allows; return its totals and, if kept, its timeline. Raises
    StuckError if the run cannot finish, InputError if it exceeds the clock's range or a size cannot be divided,
    TopologyError if there is no route."""
    if isinstance(program, StreamedProgram):
        totals = _streamed(program) if policy.engine != "event" and policy.shortcuts else None
        return Outcome("fast", totals) if totals else run(program.bind(), policy)
    keep = policy.keep
    if keep == "auto":
        keep = "hops" if len(program) <= MOST_HELD else "totals"
    if policy.engine != "event":
        if keep == "totals":
            if totals := fast.totals(program):
                return Outcome("fast", totals)
        elif timeline := fast.run(program, hops=keep == "hops"):
            return _outcome("fast", program, timeline)
    from simcoll.engine import event

    return _outcome("event", program, event.run(program))  # which also says why a run cannot finish


def makespan_ps(program: Program | StreamedProgram, shortcuts: bool = True, until: int = NEVER) -> int:
    """Return the end of a program in ps, or some time after `until` (ps) if it ends later. Raises like `run`."""
    if isinstance(program, StreamedProgram):
        totals = _streamed(program) if shortcuts else None
        return totals.makespan_ps if totals else makespan_ps(program.bind(), shortcuts, until)
    ended = None if program.changes else fast.end_ps(program, until)
    return ended or run(program, Policy(shortcuts=shortcuts, keep="totals")).totals.makespan_ps


def _outcome(engine: Literal["fast", "event"], program: Program, timeline: Timeline) -> Outcome:
    program = program.as_it_went(timeline.way)
    return Outcome(engine, program.totals(timeline.makespan_ps, "none"), timeline, program)


def _streamed(program: StreamedProgram) -> Totals | None:
    """Return the totals of a schedule of over `MOST_HELD` transfers that can be streamed or looped, or None."""
    if program.weights is not None:
        return None
    sizes = program.sizes
    if program.transfers * len(sizes) <= MOST_HELD:
        return None
    if parts := program.parts():
        streamed.check_steps(program.transfers * len(sizes))
        if replayed := streamed.run(parts, sizes, program.arrivals):
            return replayed
    whole = program.looped()
    return fast.totals(whole) if whole else None
