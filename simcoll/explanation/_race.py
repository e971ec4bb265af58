"""Branch and bound over candidates: those of the least time run first, until no other can change the answer; and what
runs have taken."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

from simcoll.config.machine_time import check_time
from simcoll.errors import SimcollError
from simcoll.explanation.candidates import Candidate
from simcoll.prediction import least
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Scenario


class Spent:
    """The runs of all recommendations that are asked for together, and what they have taken."""

    def __init__(self) -> None:
        self.runs, self.seconds = 0, 0.0

    def check(self, left: int, cure: str) -> None:
        """Raise InputError where runs are left, and those before took as long as all may: few ranks that differ may
        take longer than was reckoned with."""
        if left:
            what = f"{self.runs} of {self.runs + left} runs, one for each choice and size,"
            check_time(self.seconds, what, cure, "algorithm")


class LeastTimes:
    """Times in ps that candidates do not beat, by size; `beaten` are those of what did not have to run."""

    def __init__(self, scenario: Scenario):
        self.known: dict[int, dict[Candidate, int]] = {}
        self.beaten: dict[int, dict[Candidate, int]] = {}
        self.grow = not scenario.workload and least.grows(scenario)
        self.fitted = load_profile(scenario.profile).calibration is not None

    def below(self, size: int) -> dict[Candidate, int]:
        """The least times of smaller sizes, where they are those of larger ones, too."""
        found: dict[Candidate, int] = {}
        for smaller in sorted(other for other in self.known if other < size) if self.grow else ():
            found |= self.known[smaller]
        return found

    def find(self, size: int, candidate: Candidate, scenario: Scenario) -> int:
        """The least time of a candidate at a size; 0 where none is known, also of what running it will refuse."""
        try:
            found = least.least_ps(scenario)
        except SimcollError:
            found = 0
        self.known.setdefault(size, {})[candidate] = found
        return found


class Race:
    """Candidates `left` to run at a size, with their least times; `rows` are those of what ran. `looked_at`: least
    times are not found, but taken from smaller sizes."""

    def __init__(
        self,
        least: LeastTimes,
        rows: Mapping[Candidate, ResultRow],
        size: int,
        of: Sequence[Candidate],
        looked_at: bool,
    ):
        self.least, self.rows, self.size, self.of = least, rows, size, of
        known = least.below(size)
        self.left = [(known.get(each, 0), place, looked_at) for place, each in enumerate(of)]
        heapq.heapify(self.left)

    def next(self, count: int, scenario: Callable[[Candidate], Scenario]) -> list[Candidate]:
        """So many candidates at most that have to run, best first; those that need not are left out."""
        found: list[Candidate] = []
        while self.left and len(found) < count:
            least_ps, place, looked_at = heapq.heappop(self.left)
            candidate = self.of[place]
            if not self._may_matter(candidate, least_ps):
                self.least.beaten.setdefault(self.size, {})[candidate] = least_ps
            elif looked_at:
                found.append(candidate)
            else:
                own_ps = self.least.find(self.size, candidate, scenario(candidate))
                heapq.heappush(self.left, (max(least_ps, own_ps), place, True))
        return found

    def _may_matter(self, candidate: Candidate, least_ps: int) -> bool:
        """Whether a candidate may be the best, or the best of another method or of those that NCCL has, or say how well
        a time is known: what one kernel runs of a schedule was not measured, unless it reads its peers' memory."""
        if not least_ps:
            return True
        by_time = sorted(self.rows, key=lambda each: self.rows[each].time_ps)
        decisive = [next((each for each in by_time if each.method != by_time[0].method), None)]
        if candidate.nccl:
            decisive.append(next((each for each in by_time if each.nccl), None))
        if self.least.fitted and (candidate.executor not in ("msccl", "p2p") or candidate.protocol == "pull"):
            decisive.append(next((each for each in by_time if self.rows[each].high_us), None))
        return any(each is None or least_ps <= self.rows[each].time_ps for each in decisive)
