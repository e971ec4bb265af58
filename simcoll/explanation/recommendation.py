"""Recommend the best choice for each size: simulate all candidates, and bisect between sizes with different winners."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

from simcoll.config.grouping import grouped
from simcoll.errors import Diagnostic, InputError, RefusedError
from simcoll.explanation.candidates import Candidate, candidates, distinct, nccl_choice, rank_count
from simcoll.prediction import sweep, workers
from simcoll.prediction.result_rows import ResultRow
from simcoll.prediction.summary_sentence import TIE
from simcoll.prediction.work_limits import check_runs
from simcoll.scenario import caveats
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import SYNTHESIZED, Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.synthesis.synthesize import COLLECTIVES

SCHEMA: Final = "simcoll.recommend/1"
CLOSE: Final = 1.01  # the bisection ends when sizes on both sides of a change differ by at most 1 %
APART: Final = 8  # between sizes further apart than this factor another winner is possible, though both have the same
MOST_ATTAINED: Final = 64  # ranks, up to which a schedule is synthesised to compare with
NEAR: Final = 2.0  # between two sizes only candidates within twice the best time at one of them are simulated

_IDENTITY: Final = (
    *("scenario", "topology", "collective", "workload", "ranks", "nodes"),
    *("dtype", "profile", "transport", "sharing"),
)

OnProgress = Callable[[], None]
Timed = dict[int, dict[Candidate, ResultRow]]


class Best(NamedTuple):
    """The best candidate at one size, and the best candidate with another algorithm or protocol, if any, with their
    rows. `tie`: one time lies in the other's 90 % interval, so the profile cannot tell which candidate is faster."""

    size: int
    winner: Candidate
    row: ResultRow
    second: Candidate | None
    second_row: ResultRow | None
    tie: bool

    @property
    def margin(self) -> float | None:
        """Return how much longer the second candidate takes than the best, as a share of the best time: 0.1 is 10 %."""
        return self.second_row.time_ps / self.row.time_ps - 1 if self.second_row else None


class Recommendation:
    """The best candidates for one collective on some ranks, from the smallest of `sizes` (bytes) to the largest. A
    workload has the single size 0. `own` is the recommendation among NCCL's own calls, if other executors also have
    candidates."""

    def __init__(self, point: Point, sizes: Sequence[int], of: Sequence[Candidate]):
        self.scenario, self.places = point.scenario, point.places
        self.sizes, self.of = sorted(set(sizes)), list(of)
        self.timed: Timed = {}
        self.left_out: dict[str, str] = {}
        self.nccl: dict[int, ResultRow] = {}
        self.made: ResultRow | None = None
        self.made_by: list[str] = []  # the assignments that give `made`
        self.halves: list[Best] = []
        own = [candidate for candidate in of if self._by_nccl(candidate)]
        self.own = Recommendation(point, sizes, own) if own and len(own) < len(of) else None

    def _by_nccl(self, candidate: Candidate) -> bool:
        """Whether NCCL itself runs a candidate. `auto`, NCCL's own choice for a workload's calls, counts too."""
        left_to_it = candidate.algorithm == "auto" and load_profile(self.scenario.profile).as_nccl
        return (candidate.executor or self.scenario.executor or ("nccl" if left_to_it else None)) == "nccl"

    # --- simulating ---

    def simulate(self, jobs: int, done: OnProgress) -> None:
        """Simulate all candidates at all sizes. For a workload, all algorithms run with the scenario's settings first;
        then candidates that share the algorithm or the settings of the best so far run, until none is better. Raises
        InputError if no candidate can run, or if nothing takes any time."""
        step = self.scenario.workload is not None
        asked = [each for each in self.of if not step or each.settings == self.of[0].settings]
        while asked:
            self._take([(size, candidate) for size in self.sizes for candidate in asked], jobs, done)
            asked = list(self._beside()) if step else []
        if not any(self.timed.values()):
            reason = next(iter(self.left_out.values())).removeprefix("failed: ")
            raise InputError([Diagnostic.of(reason, cure="choose another collective or topology")])
        if not any(row.time_ps for rows in self.timed.values() for row in rows.values()):
            raise InputError("all calls take no time", "ask for two ranks or more")
        if nccl := nccl_choice(self.scenario):
            points = [self._point(size, nccl) for size in self.sizes]
            rows = workers.compute(sweep.run_point, dict(enumerate(points)), jobs)
            self.nccl = {self.sizes[number]: row for number, row in rows}
        self._attain(jobs)
        if self.own:
            for size, timed in self.timed.items():
                self.own.timed[size] = {each: row for each, row in timed.items() if self._by_nccl(each)}
            self.own.nccl = self.nccl
            self.own._bisect(jobs)
        self._bisect(jobs)

    def _attain(self, jobs: int) -> None:
        """Simulate at the largest size what named algorithms can be compared with: a synthesised schedule, and for an
        all_reduce the best reduce_scatter followed by the best all_gather, with the settings of the winner. Only under
        profiles of plain schedules."""
        scenario, size = self.scenario, self.sizes[-1]
        free = not (scenario.workload or load_profile(scenario.profile).as_nccl or scenario.weights)
        if not free or scenario.subgroups or scenario.collective not in COLLECTIVES or self.of_one_method:
            return
        if (ranks := max(row.ranks or 0 for row in self.timed[size].values())) <= MOST_ATTAINED:
            point, profile = self._point(size, Candidate(SYNTHESIZED)), load_profile(scenario.profile)
            ways: list[dict[str, object]] = [{}] if profile.bound else [{}, {"channels": 0}, {"channels_by": "port"}]
            models = [scenario.model.model_copy(update=way) for way in ways]
            points = [replace(point, scenario=point.scenario.model_copy(update={"model": model})) for model in models]
            rows = [row for _, row in sorted(workers.compute(sweep.run_point, dict(enumerate(points)), jobs))]
            way, self.made = min(zip(ways, rows, strict=True), key=lambda each: each[1].time_ps or math.inf)
            self.made_by = [
                f"algorithm={SYNTHESIZED}",
                *(f"model.{key}={value or 'per-peer'}" for key, value in way.items()),
            ]
        if scenario.collective == "all_reduce" and ranks <= MOST_ATTAINED:
            for half in ("reduce_scatter", "all_gather"):
                own = scenario.model_copy(update={"collective": half, "algorithm": "auto", "size": size})
                settings = self.bests[-1].winner.settings
                of = [each for each in candidates(own, ["auto"], None) if each.settings == settings]
                parts = Recommendation(Point(own, places=self.places), [size], of)
                parts._take([(size, each) for each in parts.of], jobs, lambda: None)
                self.halves += [parts.bests[0]] if parts.bests else []

    @property
    def of_one_method(self) -> bool:
        """Whether all candidates are one algorithm, so that nothing else was asked for."""
        return len({candidate.algorithm for candidate in self.of}) < 2

    def _attained(self) -> dict[str, Any]:
        """Return how far the best choice at the largest size is from what can be had there."""
        best = self.bests[-1] if self.bests else None
        if best is None or self.made is None or self.made.status != "ok":
            return {}
        bound_us = max(self.made.lower_bound_us or 0, best.row.lower_bound_us or 0)
        return {
            "attainable": {
                "topology": self.scenario.topology.file or self.scenario.topology.title,
                "size_bytes": best.size,
                "choice": str(best.winner),
                "time_us": best.row.time_ps / 1e6,
                "synthesized_us": self.made.time_ps / 1e6,
                "synthesized_by": self.made_by,
                "lower_bound_us": bound_us,
                "bound_kind": self.made.bound_kind,
                **({
                    "halves": [str(half.winner) for half in self.halves],
                    "halves_us": sum(half.row.time_ps for half in self.halves) / 1e6,
                } if len(self.halves) == 2 else {}),
            }
        }  # fmt: skip

    def _beside(self) -> Iterator[Candidate]:
        """Yield a workload's candidates that have not run and share the algorithm or settings of the best so far."""
        for best in self.bests:
            for each in self.of:
                alike = each.method == best.winner.method or each.settings == best.winner.settings
                if alike and each not in self.timed[best.size] and str(each) not in self.left_out:
                    yield each

    def _bisect(self, jobs: int) -> None:
        while gaps := list(self._gaps()):
            self._take([(middle, each) for middle, near in gaps for each in near], jobs, lambda: None)

    def _take(self, asked: Sequence[tuple[int, Candidate]], jobs: int, done: OnProgress) -> None:
        points = {number: self._point(*pair) for number, pair in enumerate(asked)}
        results: dict[int, ResultRow] = {}
        for number, row in workers.compute(sweep.run_point, points, jobs):
            results[number] = row
            done()
        for number, (size, candidate) in enumerate(asked):
            rows = self.timed.setdefault(size, {})
            if results[number].status == "ok":
                rows[candidate] = results[number]
            else:
                self.left_out.setdefault(str(candidate), results[number].status)

    def _point(self, size: int, candidate: Candidate) -> Point:
        scenario = candidate.of(self.scenario)
        own: dict[str, Any] = {} if scenario.workload else {"size": size}
        if scenario.moe:
            own["moe"] = scenario.moe.model_copy(update={"tokens": size // self.of_token})
        return Point(scenario.model_copy(update=own), places=self.places)

    @property
    def of_token(self) -> int:
        """Return the bytes of a token with a copy for each of its experts; 0 for other collectives."""
        moe = self.scenario.moe
        return moe.nbytes(self.scenario.collective) // moe.tokens if moe else 0

    def _gaps(self) -> Iterator[tuple[int, list[Candidate]]]:
        """Yield a size between each pair of sizes that `_changes` yields, and the candidates to simulate there."""
        for low, high in self._changes():
            middle = self._between(low.size, high.size)
            assert middle
            yield middle, [each for each in self.of if self._between_is_best(each, low, high)]

    def _changes(self) -> Iterator[tuple[Best, Best]]:
        """Yield pairs of neighbouring sizes that have different winners and are not close, or that are far apart."""
        for low, high in pairwise(self.bests):
            middle = self._between(low.size, high.size)
            apart = low.winner != high.winner or high.size > APART * low.size
            if apart and middle and middle not in self.timed:
                yield low, high

    def _between_is_best(self, candidate: Candidate, low: Best, high: Best) -> bool:
        """Whether a candidate may be the best between two sizes. It must be near the best at one of them. At the lower
        size it must take no longer than the best at the higher size, as times grow with sizes."""
        at_low, at_high = (self.timed[best.size].get(candidate) for best in (low, high))
        if candidate in (low.winner, high.winner):
            return True
        near = any(row and row.time_ps <= NEAR * best.row.time_ps for row, best in ((at_low, low), (at_high, high)))
        return near and at_low is not None and at_low.time_ps <= high.row.time_ps

    def _between(self, low: int, high: int) -> int | None:
        """Return the geometric mean of two sizes (bytes), in whole elements per rank, or in whole tokens; None if they
        are close."""
        grain = self.of_token or self.scenario.itemsize * self.ranks
        middle = round(math.sqrt(low * high) / grain) * grain
        return middle if high > CLOSE * low and low < middle < high else None

    @cached_property
    def ranks(self) -> int:
        """Return the number of ranks that take part."""
        return next(row.ranks or 0 for rows in self.timed.values() for row in rows.values())

    # --- what came out ---

    @property
    def bests(self) -> list[Best]:
        """Return the best at each simulated size, in order of size. The winner of the size before wins ties."""
        bests: list[Best] = []
        for size, rows in sorted(self.timed.items()):
            if rows:
                winner, *others = self._ranked(rows, bests[-1].winner if bests else None)
                left = others[:1] if size in self.sizes else []  # at other sizes the other methods did not run
                second = next((each for each in others if each.method != winner.method), left[0] if left else None)
                tie = second is not None and self._tie(size, rows, rows[winner], rows[second])
                bests.append(Best(size, winner, rows[winner], second, rows[second] if second else None, tie))
        return bests

    def _tie(self, size: int, rows: Mapping[Candidate, ResultRow], best: ResultRow, second: ResultRow) -> bool:
        """Whether two times are equal, or one lies in the 90 % interval of the other, so that either may be faster."""
        most, least = self._like(size, rows, best), self._like(size, rows, second)
        to_high = most.high_us / most.time_us if most and most.high_us and most.time_us else TIE
        to_low = least.low_us / least.time_us if least and least.low_us and least.time_us else 1.0
        return second.time_ps <= best.time_ps * to_high or second.time_ps * to_low <= best.time_ps

    def _like(self, size: int, rows: Mapping[Candidate, ResultRow], row: ResultRow) -> ResultRow | None:
        """Return the row whose 90 % interval applies to a row's time. A modelled row has no interval. As its costs are
        those of NCCL's calls, it gets the interval of the fastest row at this size, or of NCCL's choice at the nearest
        size. None for a workload."""
        fitted = [row] if row.high_us else sorted(rows.values(), key=lambda row: row.time_ps)
        nearest = sorted(self.nccl, key=lambda other: abs(math.log(other / size)))
        fitted += [self.nccl[other] for other in nearest]
        return next((row for row in fitted if row.high_us and row.time_us), None)

    def _ranked(self, rows: Mapping[Candidate, ResultRow], last: Candidate | None) -> list[Candidate]:
        """Sort candidates by time. Of equal ones the `last` winner comes first, then the one that is listed first."""
        order = {candidate: place for place, candidate in enumerate(self.of)}
        return sorted(rows, key=lambda each: (rows[each].time_ps, each != last, order[each]))

    def document(self) -> dict[str, Any]:
        """Return the recommendation as a JSON document for scripts; docs/recommend.md describes its keys."""
        bests = self.bests
        first = bests[0].row
        notes = caveats.notes([self.scenario.model_copy(update={"algorithm": "auto"})])  # whichever algorithm it names
        confidence = dict.fromkeys(best.row.confidence or "uncalibrated" for best in bests)
        return {
            **{name: first[name] for name in _IDENTITY if first[name] is not None},
            "confidence": ", ".join(confidence),
            "ranges": list(self._ranges(bests)),
            "sizes": [self._size(best) for best in bests],
            **({"choices": self._choices()} if self.scenario.workload else {}),
            **self._regret(),
            **self._attained(),
            **(
                {"nccl_ranges": list(self.own._ranges(self.own.bests)), "nccl_regret": self.own._regret().get("regret")}
                if self.own and self.own.bests
                else {}
            ),
            "candidates": len(self.timed[0]) + len(self.left_out) if self.scenario.workload else len(self.of),
            "left_out": self.left_out,
            **({"notes": notes} if notes else {}),
        }

    def _ranges(self, bests: Sequence[Best]) -> Iterator[dict[str, Any]]:
        runs = [list(run) for _, run in groupby(bests, lambda best: best.winner)]
        for number, run in enumerate(runs):
            margins = [best.margin for best in run if best.margin is not None]
            seconds = Counter(str(best.second) for best in run if best.second)
            yield {
                **({} if self.scenario.workload else {
                    "from_bytes": run[0].size,
                    "to_bytes": runs[number + 1][0].size if number + 1 < len(runs) else None,
                }),
                **({
                    "from_tokens": run[0].size // self.of_token,
                    "to_tokens": runs[number + 1][0].size // self.of_token if number + 1 < len(runs) else None,
                } if self.of_token else {}),
                **_choice(run[0].winner),
                "env": run[0].winner.env,
                "time_us": run[0].row.time_ps / 1e6,
                "runner_up": seconds.most_common(1)[0][0] if seconds else None,
                "margin_least": min(margins, default=None),
                "margin_most": max(margins, default=None),
                "tie": all(best.tie for best in run),
            }  # fmt: skip

    def _size(self, best: Best) -> dict[str, Any]:
        """Return the document's entry for one size: the best candidate, and NCCL's choice there."""
        row, second = best.row, best.second_row
        row_of_nccl = self.nccl.get(best.size)
        chosen = row_of_nccl if row_of_nccl and row_of_nccl.status == "ok" else None
        return {
            **({} if self.scenario.workload else {"size_bytes": best.size}),
            **_choice(best.winner),
            "time_us": row.time_ps / 1e6,
            "low_us": row.low_us,
            "high_us": row.high_us,
            "runner_up": str(best.second) if best.second else None,
            "runner_up_us": second.time_ps / 1e6 if second else None,
            "margin": best.margin,
            "tie": best.tie,
            **({
                "nccl_choice": f"{chosen.algorithm} {chosen.protocol}",
                "nccl_us": chosen.time_ps / 1e6,
                "regret": chosen.time_ps / row.time_ps - 1,
            } if chosen else {}),
        }  # fmt: skip

    def _choices(self) -> list[dict[str, Any]]:
        """List all candidates of a workload, best first, with how much longer than the best each takes."""
        ranked = sorted(self.timed[0].items(), key=lambda item: item[1].time_ps)
        best_ps = ranked[0][1].time_ps
        return [
            {**_choice(candidate), "time_us": row.time_ps / 1e6, "longer": row.time_ps / best_ps - 1}
            for candidate, row in ranked
        ]

    def _regret(self) -> dict[str, Any]:
        sizes = [size for size in map(self._size, self.bests) if "regret" in size]
        if not sizes:
            return {}
        worst = max(sizes, key=lambda size: size["regret"])
        mean = math.fsum(size["regret"] for size in sizes) / len(sizes)
        return {"regret": {"mean": mean, "worst": worst["regret"], "worst_size_bytes": worst["size_bytes"]}}

    def rows(self) -> Iterator[ResultRow]:
        """Yield each size's best row among algorithms of NCCL, with NCCL's names, for the CSV of its tuner plugin.

        At sizes found by bisection not all candidates ran. Such sizes count only if all candidates are NCCL's.
        """
        if self.scenario.workload:  # its calls have sizes of their own
            return
        if self.own:
            yield from self.own.rows()
            return
        all_nccl, last = all(candidate.nccl for candidate in self.of), None
        for size, rows in sorted(self.timed.items()):
            known = {each: row for each, row in rows.items() if each.nccl}
            if known and (all_nccl or size in self.sizes):
                last = self._ranked(known, last)[0]
                yield replace(known[last], algorithm=last.nccl)


def _choice(candidate: Candidate) -> dict[str, Any]:
    names = {name: getattr(candidate, name) for name in ("algorithm", "protocol", "executor", "nccl")}
    return {"choice": str(candidate), **names, **candidate.settings}


def recommendations(points: Sequence[Point], among: Sequence[str] | None = None) -> list[Recommendation]:
    """Make one recommendation, not yet simulated, for all points that differ only in size, algorithm and protocol. If
    the points name protocols, only these are tried.

    Points for which nothing can be chosen are left out. Raises InputError for points and names that do not fit, and
    RefusedError if no point is left.
    """
    plain = {"variability": None, "replications": None}
    made, refused = [], []
    alike = [replace(point, scenario=point.scenario.model_copy(update=plain)) for point in points]
    for asked in grouped(alike, lambda point: _key(point.scenario)).values():
        group = [point.scenario for point in asked]
        by_protocol = {scenario.protocol: scenario for scenario in group}
        first = group[0] if len(by_protocol) == 1 else group[0].model_copy(update={"protocol": "none"})
        named = list(dict.fromkeys(scenario.algorithm for scenario in group))
        sizes = [0] if first.workload else [scenario.nbytes for scenario in group]
        try:
            with asked[0].placing():
                of = [each for one in by_protocol.values() for each in candidates(one, named, among)]
            made.append((Point(first, places=asked[0].places), sizes, list(dict.fromkeys(of))))
        except RefusedError as error:
            refused.append(_at(error, asked[0]))
    if not made:
        raise refused[0]
    _check_choices(made)
    return [Recommendation(first, sizes, _distinct(first, of)) for first, sizes, of in made]


def _distinct(point: Point, of: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates as `distinct` does; if the topology refuses, InputError gives the place in the file."""
    try:
        return distinct(point.scenario, of)
    except RefusedError as error:
        raise _at(error, point) from None


def _at(error: RefusedError, point: Point) -> RefusedError:
    """Return the error; raises InputError with the key's place in the file if a key needs what the topology lacks."""
    if error.path:
        raise InputError([point.placed(Diagnostic.of(error, error.path))]) from None
    return error


def _check_choices(asked: Sequence[tuple[Point, Sequence[int], Sequence[Candidate]]]) -> None:
    """Raise InputError if simulating all candidates takes too long; called before a large topology is built."""
    runs = [len(set(sizes)) * len(of) for _, sizes, of in asked]
    rank_runs = sum(count * rank_count(point.scenario) for count, (point, _, _) in zip(runs, asked, strict=True))
    what = f"{sum(runs)} runs, one for each choice and size,"
    named = f"name fewer choices with --among, e.g. {asked[0][2][0].algorithm}"
    check_runs(rank_runs, what, f"{named}, or the number of `groups`, or fewer sizes")


def _key(scenario: Scenario) -> str:
    """Return a text that is equal for points that differ only in size (or tokens), algorithm and protocol."""
    changed: dict[str, Any] = {"algorithm": "auto", "size": None, "protocol": "none"}
    if scenario.moe:
        tokens = {} if scenario.moe.routing.counts else {"tokens": None}  # a file counts the tokens of one number
        changed |= {"executor": None, "sms": None, "moe": scenario.moe.model_copy(update=tokens)}
    if scenario.workload:
        free = [name for name in ("algorithm", "bucket_cap") if hasattr(scenario.workload, name)]
        changed["workload"] = scenario.workload.model_copy(update=dict.fromkeys(free))
    return repr(scenario.model_copy(update=changed))
