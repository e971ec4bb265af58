"""The best choice by size: every candidate simulated at every size, and where the best changes found by bisection."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

from simcoll.errors import InputError, RefusedError
from simcoll.explanation.search_space import Candidate, candidates
from simcoll.prediction import sweep, workers
from simcoll.prediction.result_rows import ResultRow
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import Point, Scenario

SCHEMA: Final = "simcoll.recommend/1"
CLOSE: Final = 1.01  # a change of the best is known when the sizes on both sides of it are so close
NEAR: Final = 2.0  # candidates within so many times the best at one end are simulated in between

OnProgress = Callable[[], None]
Timed = dict[int, dict[Candidate, ResultRow]]


class Best(NamedTuple):
    """At one size: the best candidate, and the best of another algorithm or protocol, if there is one; their rows."""

    size: int
    winner: Candidate
    row: ResultRow
    second: Candidate | None
    second_row: ResultRow | None

    @property
    def margin(self) -> float | None:
        """How much longer the second takes, as a share."""
        return self.second_row.time_ps / self.row.time_ps - 1 if self.second_row else None

    @property
    def tie(self) -> bool:
        """Whether the second is as good as the best, as far as the profile can tell: within its 90 % interval."""
        if not self.second_row:
            return False
        high_us, second_ps = self.row.high_us, self.second_row.time_ps
        return second_ps == self.row.time_ps or (high_us is not None and second_ps / 1e6 <= high_us)


class Recommendation:
    """What is best for one collective on some ranks, from the smallest of `sizes` to the largest; of a workload there
    is one size, 0."""

    def __init__(self, scenario: Scenario, sizes: Sequence[int], of: Sequence[Candidate]):
        self.scenario, self.sizes, self.of = scenario, sorted(set(sizes)), list(of)
        self.timed: Timed = {}
        self.left_out: dict[str, str] = {}
        self.nccl: dict[int, ResultRow] = {}

    # --- simulating ---

    def simulate(self, jobs: int, done: OnProgress) -> None:
        """Run everything; raises InputError if nothing can be."""
        self._take([(size, one) for size in self.sizes for one in self.of], jobs, done)
        if not any(self.timed.values()):
            raise InputError(next(iter(self.left_out.values())), "choose another collective or topology")
        if not any(row.time_ps for rows in self.timed.values() for row in rows.values()):
            raise InputError("nothing takes any time", "ask for two ranks or more")
        if load_profile(self.scenario.profile).kernels and not self.scenario.workload:
            chosen = [self._point(size, Candidate("auto", "auto")) for size in self.sizes]
            self.nccl = {
                self.sizes[i]: row for i, row in workers.compute(sweep.run_point, dict(enumerate(chosen)), jobs)
            }
        while gaps := list(self._gaps()):
            self._take([(middle, one) for middle, some in gaps for one in some], jobs, done)

    def _take(self, asked: Sequence[tuple[int, Candidate]], jobs: int, done: OnProgress) -> None:
        points = {number: self._point(*pair) for number, pair in enumerate(asked)}
        found: dict[int, ResultRow] = {}
        for number, row in workers.compute(sweep.run_point, points, jobs):
            found[number] = row
            done()
        for number, (size, one) in enumerate(asked):
            rows = self.timed.setdefault(size, {})
            if found[number].status == "ok":
                rows[one] = found[number]
            else:
                self.left_out.setdefault(str(one), found[number].status)

    def _point(self, size: int, one: Candidate) -> Point:
        scenario = one.of(self.scenario)
        return Point(scenario if scenario.workload else scenario.model_copy(update={"size": size}))

    def _gaps(self) -> Iterator[tuple[int, list[Candidate]]]:
        """A size between each two of which the best differ, unless they are close, and who could be best there."""
        for low, high in pairwise(self.bests):
            middle = self._between(low.size, high.size)
            if low.winner != high.winner and middle and middle not in self.timed:
                yield middle, [one for one in self.of if self._near(one, low) or self._near(one, high)]

    def _near(self, one: Candidate, best: Best) -> bool:
        row = self.timed[best.size].get(one)
        return row is not None and row.time_ps <= NEAR * best.row.time_ps

    def _between(self, low: int, high: int) -> int | None:
        """Half way, of whole elements for each rank; None if there is none or they are close."""
        grain = self.scenario.itemsize * self.ranks
        middle = round(math.sqrt(low * high) / grain) * grain
        return middle if high > CLOSE * low and low < middle < high else None

    @cached_property
    def ranks(self) -> int:
        """How many take part."""
        return next(row.ranks or 0 for rows in self.timed.values() for row in rows.values())

    # --- what came out ---

    @property
    def bests(self) -> list[Best]:
        """The best at every size that was simulated, in order; of equals the one that was best before."""
        found: list[Best] = []
        for size in sorted(self.timed):
            its = self.timed[size]
            if not its:
                continue
            last = found[-1].winner if found else None
            order = {one: place for place, one in enumerate(self.of)}

            def rank(one: Candidate, its: Any = its, last: Any = last, order: Any = order) -> tuple[Any, ...]:
                return its[one].time_ps, one != last, order[one]

            winner = min(its, key=rank)
            others = [one for one in its if one.method != winner.method] or [one for one in its if one != winner]
            second = min(others, key=rank, default=None)
            found.append(Best(size, winner, its[winner], second, its[second] if second else None))
        return found

    def document(self) -> dict[str, Any]:
        """All of it, for scripts; see the README."""
        bests = self.bests
        first = bests[0].row
        names = ("scenario", "topology", "collective", "workload", "ranks", "nodes", "dtype", "profile", "sharing")
        confidence = dict.fromkeys(best.row.confidence or "uncalibrated" for best in bests)
        return {
            **{name: first[name] for name in names if first[name] is not None},
            "confidence": ", ".join(confidence),
            "ranges": list(self._ranges(bests)),
            "sizes": [self._told(best) for best in bests],
            **({"choices": self._choices()} if self.scenario.workload else {}),
            **self._regret(),
            "candidates": len(self.of),
            "left_out": self.left_out,
        }

    def _ranges(self, bests: Sequence[Best]) -> Iterator[dict[str, Any]]:
        runs = [list(its) for _, its in groupby(bests, lambda best: best.winner)]
        for number, its in enumerate(runs):
            margins = [best.margin for best in its if best.margin is not None]
            seconds = Counter(str(best.second) for best in its if best.second)
            yield {
                **({} if self.scenario.workload else {
                    "from_bytes": its[0].size,
                    "to_bytes": runs[number + 1][0].size if number + 1 < len(runs) else None,
                }),
                **_named(its[0].winner),
                "time_us": its[0].row.time_ps / 1e6,
                "runner_up": seconds.most_common(1)[0][0] if seconds else None,
                "margin_least": min(margins, default=None),
                "margin_most": max(margins, default=None),
                "tie": all(best.tie for best in its),
            }  # fmt: skip

    def _told(self, best: Best) -> dict[str, Any]:
        row, second = best.row, best.second_row
        row_of_nccl = self.nccl.get(best.size)
        chosen = row_of_nccl if row_of_nccl and row_of_nccl.status == "ok" else None
        return {
            **({} if self.scenario.workload else {"size_bytes": best.size}),
            **_named(best.winner),
            "time_us": row.time_ps / 1e6,
            "low_us": row.low_us,
            "high_us": row.high_us,
            "runner_up": str(best.second) if best.second else None,
            "runner_up_us": second.time_ps / 1e6 if second else None,
            "margin": best.margin,
            "tie": best.tie,
            **({
                "nccl_choice": f"{chosen.algorithm}/{chosen.protocol}",
                "nccl_us": chosen.time_ps / 1e6,
                "regret": chosen.time_ps / row.time_ps - 1,
            } if chosen else {}),
        }  # fmt: skip

    def _choices(self) -> list[dict[str, Any]]:
        """Everything that was tried at the one size of a workload, best first, and how much longer it takes."""
        ranked = sorted(self.timed[0].items(), key=lambda item: item[1].time_ps)
        best_ps = ranked[0][1].time_ps
        return [
            {**_named(one), "time_us": row.time_ps / 1e6, "longer": row.time_ps / best_ps - 1} for one, row in ranked
        ]

    def _regret(self) -> dict[str, Any]:
        told = [one for one in map(self._told, self.bests) if "regret" in one]
        if not told:
            return {}
        worst = max(told, key=lambda one: one["regret"])
        mean = sum(one["regret"] for one in told) / len(told)
        return {"regret": {"mean": mean, "worst": worst["regret"], "worst_size_bytes": worst["size_bytes"]}}

    def rows(self) -> Iterator[ResultRow]:
        """Runs of algorithms that NCCL has, by NCCL's names: what its tuner's CSV is made of. At sizes between those
        asked for not all of them ran, unless there are no others."""
        theirs = all(one.nccl for one in self.of)
        for size, its in sorted(self.timed.items()):
            if theirs or size in self.sizes:
                yield from (replace(row, algorithm=one.nccl) for one, row in its.items() if one.nccl)


def _named(one: Candidate) -> dict[str, Any]:
    told = {"choice": str(one), "algorithm": one.algorithm, "protocol": one.protocol, "nccl": one.nccl}
    return {**told, **one.settings}


def recommendations(points: Sequence[Point], among: Sequence[str] | None = None) -> list[Recommendation]:
    """What is to be recommended for a scenario: one for all of its points that differ in size and algorithm only, not
    yet simulated; those without a choice are left out. Raises InputError, and RefusedError if that leaves none."""
    groups: dict[str, list[Scenario]] = {}
    for point in points:
        plain = {"variability": None, "replications": None, "protocol": "none"}
        scenario = point.scenario.model_copy(update=plain)
        groups.setdefault(_key(scenario), []).append(scenario)
    found, refused = [], []
    for its in groups.values():
        named = list(dict.fromkeys(one.algorithm for one in its))
        sizes = [0] if its[0].workload else [one.nbytes for one in its]
        try:
            found.append(Recommendation(its[0], sizes, candidates(its[0], named, among)))
        except RefusedError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found


def _key(scenario: Scenario) -> str:
    """What is the same for all that one recommendation is about."""
    changed: dict[str, Any] = {"algorithm": "auto", "size": None}
    if scenario.workload:
        free = [name for name in ("algorithm", "bucket_cap", "prefetch") if hasattr(scenario.workload, name)]
        changed["workload"] = scenario.workload.model_copy(update=dict.fromkeys(free))
    return repr(scenario.model_copy(update=changed))
