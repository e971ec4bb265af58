"""Programs as engines ran them, and the run of one schedule, which may be a stream of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simcoll.engine import bounds
from simcoll.engine.binding import bind, written_out
from simcoll.engine.program import Program
from simcoll.engine.run import MOST_HELD, Keep, Outcome, Policy, StreamedProgram, run
from simcoll.engine.timeline import Timeline
from simcoll.errors import BoundError, ScheduleError, wrong
from simcoll.prediction._schedule_source import agents_of, source_of
from simcoll.prediction.placing import arrivals_of
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.collectives import collective, cut
from simcoll.schedule.streamed import AnySchedule, StreamedSchedule
from simcoll.topology.graph import Topology


class ProgramRun:
    """A program that an engine ran for a point. The timeline of a large one, and what was not kept of it, is made when
    asked for."""

    def __init__(self, point: Scenario, make: Callable[[], Program], outcome: Outcome, program: Program | None = None):
        self.point, self.make, self.totals, self.engine = point, make, outcome.totals, outcome.engine
        if program:
            self.program = program
        if outcome.kept:
            self.timeline = outcome.kept

    @cached_property
    def program(self) -> Program:
        """The program, as it was bound."""
        return self.make()

    @cached_property
    def timeline(self) -> Timeline:
        """Times of everything that happened."""
        return run(self.program, policy(self.point, "hops")).timeline

    @property
    def went(self) -> Program:
        """The program with the ways that its transfers took in the end, which are those of the timeline."""
        return self.program.as_it_went(self.timeline.way)

    @property
    def timed(self) -> bool:
        """Whether the timeline is at hand."""
        return "timeline" in vars(self)


def policy(point: Scenario, keep: Keep = "auto") -> Policy:
    """The engine and the shortcuts that a point allows."""
    return Policy("event" if point.engine == "event" else "auto", point.shortcuts == "on", keep)


# --- one schedule ---


@dataclass(frozen=True, eq=False)
class ScheduleRun:
    """A schedule that was run by itself: its source, the level of its proof, and the devices of ranks and agents."""

    source: AnySchedule
    proved: str
    devices: tuple[str, ...]
    run: ProgramRun


def _may_be_long(source: AnySchedule, point: Scenario) -> bool:
    """Whether a schedule may have too many transfers, in all its loops, to be run as a program."""
    if isinstance(source, StreamedSchedule):
        return True
    chunk = point.params().chunk
    loops = 1 + point.nbytes // chunk if chunk else 1
    return len(source) * loops > MOST_HELD and not point.subgroups


def _check_weights(point: Scenario, ranks: int) -> None:
    """Raise InputError where the weights of a point are not those of so many ranks."""
    blocks = collective(point.collective).blocks(ranks)
    try:
        cut(0, ranks, blocks, 1, point.weights, blocks)
    except ValueError as error:
        raise wrong("weights", str(error), f"there are {ranks} ranks") from None


def run_schedule(
    point: Scenario, network: Topology, places: Sequence[str], launch_ps: int, keep: Keep = "auto"
) -> ScheduleRun:
    """The run of the schedule of a point on ranks at `places`; faults count from `launch_ps` before its begin.

    Raises RefusedError when the algorithm cannot serve, StuckError when the run cannot finish, ScheduleError when the
    proof fails, BoundError when the run is quicker than possible.
    """
    source, proved = source_of(point, network, places)
    devices = (*places, *agents_of(point, network, places)[: source.agents])
    if point.weights is not None:
        _check_weights(point, source.n)
    arrivals = arrivals_of(point, source.n)

    def make() -> Program:
        schedule = written_out(source)
        options: dict[str, Any] = {"itemsize": point.itemsize, "weights": point.weights, "arrivals": arrivals}
        program = bind(schedule, network, devices, point.params(), point.nbytes, **options)
        if not point.striking:
            return program
        from simcoll.scenario.faults import struck

        return struck(program, network, point.striking, launch_ps)

    if point.weights is None and not point.striking and _may_be_long(source, point):
        stream = StreamedProgram(source, network, devices, point.params(), point.nbytes, point.itemsize, arrivals)
        outcome = run(stream, policy(point, keep))
        program = outcome.program
    else:
        program = make()
        outcome = run(program, policy(point, keep))
    took_ps, asked = outcome.totals.makespan_ps, (point.nbytes, point.itemsize, point.weights)
    bound = bounds.beaten(took_ps, source, network, devices, *asked)
    if bound is not None:
        took = f"{source.name}: {took_ps} ps is below the lower bound of {bound} ps"
        if proved == "off":
            raise ScheduleError(f"{took}: it cannot do what {source.collective} promises; proof: full says where")
        raise BoundError(f"{took}: a bug of simcoll")
    held = program if program is not None and len(program) <= MOST_HELD else None
    ran = ProgramRun(point, make, outcome, held)
    return ScheduleRun(source, proved, devices, ran)
