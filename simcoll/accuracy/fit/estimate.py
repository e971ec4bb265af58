"""Estimate parameters from measured rows: choose those that the rows determine, fit them, and give their intervals.

Errors on rows that a fit left out show how wrong the model is where nothing was fitted: rank counts, collectives and
node counts are left out in turn, and predicted from the others along the line of the fit. Of each left-out group and
zone of sizes the median error counts, so that noise and outliers do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.fit import least_squares, parameters, prior
from simcoll.accuracy.fit.fit_rows import Samples
from simcoll.accuracy.fit.least_squares import Belief, Bounds, Line
from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.config.arrays import Floats, Numbers
from simcoll.config.groups import grouped
from simcoll.engine.timing_model import PS_PER_S, Params
from simcoll.errors import Diagnostic, InputError
from simcoll.formats.measured import MeasuredRow
from simcoll.prediction.confidence import Kind, Noise, noise, student
from simcoll.scenario.profile import Profile
from simcoll.schedule.collectives import collective

INTERVAL: Final = (5.0, 95.0)  # percentiles: 90 %
NORMAL_68: Final = (15.87, 84.13)  # percentiles one standard deviation from the middle
LINKED: Final = 0.95  # correlation over the bootstrap from which on two parameters are reported as linked
LAUNCH, UPLOAD = parameters.OF_GRAPH
AT_LIMIT: Final = 0.999  # share of a limit from which on a cost stands at it; the solver stays just inside

# what a call may have new beside its size, and the column of measured rows that tells it
NEW: Final[dict[Kind, str]] = {"ranks": "ranks", "collectives": "collective", "nodes": "nodes"}

NO_EFFECT: Final = "changes none of these rows"
HIDDEN: Final = "changes none of these rows where it stands, as something else is slower"
NO_SIGN: Final = "these rows show no sign of another value"


class Shown(NamedTuple):
    """Median errors, as logarithms, of the zones of left-out groups, and how many groups there are."""

    errors: list[float]
    groups: int

    def and_of(self, other: Shown) -> Shown:
        """Return these and others."""
        return Shown(self.errors + other.errors, self.groups + other.groups)


@dataclass(frozen=True)
class Estimate:
    """Fitted costs of parameters with the ends of their 90 % intervals; why others were `left`, and remarks.

    `scatter` is the standard deviation of the logarithms of times that comes from the parameters, `shown` the errors of
    rows that were left out.
    """

    costs: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    left: Mapping[str, str]
    notes: Sequence[str]
    scatter: float
    shown: Mapping[Kind, Shown]


def estimate(samples: Samples, start: Profile, params: Params, free: Sequence[str], seed: int) -> Estimate:
    """Fit the parameters named by `free`, or all that the rows determine, beginning at a profile and its parameters.

    Raises InputError if the rows do not determine a parameter that was asked for, and if there are too few rows.
    """
    return _Estimating(samples, start, params, free, seed).run()


def starting_costs(samples: Samples, start: Profile, params: Params, free: Sequence[str]) -> dict[str, float]:
    """Return the parameters to fit, those named by `free` or all that rows of this kind can show, with their costs in a
    profile. Those whose values columns of the table give are left out; raises InputError if one of them was asked for,
    and where the launch of a graph would be fitted with an upload of which nothing is said.
    """
    reduces = any(collective(row.collective).reduces for row in samples.rows)
    launches = samples.launches
    if set(launches) & set(parameters.OF_HOST):
        launches.extend(parameters.BY_SIZE)
    names = (
        parameters.named(free, samples.kinds)
        if free
        else [*parameters.candidates(samples.kinds, reduces, start.kernels is not None), *launches]
    )
    if LAUNCH in names and UPLOAD not in names and any(samples.uploads) and not (start.graph and start.graph.upload):
        why = f"{start.name!r} does not say what {UPLOAD} takes, which would be taken for a part of it"
        cure = f"fit {UPLOAD} too, to rows of several launch.replays or numbers of GPUs a process"
        raise InputError([Diagnostic(why, cure, LAUNCH)])
    given = {key.removeprefix("model.") for row in samples.rows for key in row.others if key.startswith("model.")}
    if clash := [name for name in names if name in given and free]:
        raise InputError(f"--free: {clash[0]} is given by the table's column model.{clash[0]}", "leave it out")
    return {name: parameters.cost(name, start, params) for name in names if name not in given}


def bounds_of(samples: Samples, names: Sequence[str]) -> Bounds:
    """Return limits and scales of parameters for these rows."""
    return parameters.bounds(names, samples.measured, max(point.speeds[1] for point in samples.points))


def check_limits(names: Sequence[str], values: Floats, bounds: Bounds, null: Mapping[str, float]) -> None:
    """Raise InputError for values that stand at a limit. `null` are the costs before the fit.

    A cost of zero is at its limit where no call goes without it and there was one; others may not be there.
    """
    wrong = []
    limits = zip(names, values.tolist(), bounds.lower.tolist(), bounds.upper.tolist(), strict=True)
    for name, cost, least, most in limits:
        gone = parameters.always(name) and cost < (1 - AT_LIMIT) * null[name]
        fast = gone or AT_LIMIT * cost < least
        if fast or cost > AT_LIMIT * most:
            more, how = "more" if fast == parameters.falls(name) else "less", "faster" if fast else "slower"
            limit = parameters.text(name, least if fast else most)
            why = f"the rows ask for {more} than {limit}, its limit: they are {how} than the model allows"
            cure = "see whether --topology is the machine and times are in us, without a factor, or leave such rows out"
            wrong.append(Diagnostic(why, cure, name))
    if wrong:
        raise InputError(wrong)


def above_rates(names: Sequence[str], high: Floats, null: Mapping[str, float]) -> list[str]:
    """Report links that surely carry more than their rates, and than before the fit; `high`: the ends of costs."""
    return [
        f"{name} is above 100 %: the topology understates its links, or another schedule ran"
        for name, end in zip(names, high.tolist(), strict=True)
        if name.startswith("efficiency") and end < min(1.0, null[name])
    ]


class Fitting:
    """State of a fit: the rows, the costs before it (`null`), the names still to be fitted, and why others are not."""

    def __init__(self, samples: Samples, start: Profile, params: Params, free: Sequence[str] = ()):
        self.samples, self.before = samples, ParameterSetting.of(start)
        self.null = starting_costs(samples, start, params, free)
        self.names = list(self.null)
        self.left: dict[str, str] = {}

    def model(self, costs: Floats) -> Floats:
        """Predict the rows at these costs of the parameters, in ps."""
        return self.samples.times(self.before.at(dict(zip(self.names, costs.tolist(), strict=True))))

    @property
    def bounds(self) -> Bounds:
        """Limits and scales of the parameters."""
        return bounds_of(self.samples, self.names)


class _Estimating(Fitting):
    """A fit by the rows alone."""

    def __init__(self, samples: Samples, start: Profile, params: Params, free: Sequence[str], seed: int):
        super().__init__(samples, start, params, free)
        self.seed, self.asked = seed, bool(free)
        self.felt: set[str] = set()  # parameters that change some row, if not where the fit begins

    def run(self) -> Estimate:
        line = self._second_look(self._fitted(self._first()))
        while True:
            line = self._fitted(line)
            left = len(self.left)
            line = self._drop_unneeded(self._drop_undetermined(line))
            if len(self.left) == left:
                width = least_squares.width(line, self.samples.measured)
                draws = least_squares.bootstrap(line, self.bounds, width, self.samples.draw, seed=self.seed)
                return self._estimate(line, draws)

    # --- fitting ---

    @property
    def _start(self) -> Floats:
        """Values to begin with, (parameters,): those of the profile, or a guess where the profile has none.

        The guesses: a cap where it begins to bind, a gap of the order of the shortest time, and a launch of the host
        that takes all of some row's time.
        """
        slowest = min(point.speeds[0] for point in self.samples.points)
        begins = {"channel_bandwidth": PS_PER_S / slowest, "g": 0.2 * float(self.samples.measured.min())}
        begins |= {"host.launch": self.samples.least_a_launch}
        return np.array([self.null[name] or begins.get(name, 0.0) for name in self.names])

    def _first(self) -> Line:
        """Take a first step from the start by plain least squares, on the parameters that the rows determine there."""
        line = least_squares.line(self.model, self._start, self.bounds)
        line = least_squares.felt(self.model, line, self.bounds) if self.asked else self._drop_undetermined(line)
        seen = np.abs(line.relative(self.bounds)).max(axis=0) >= least_squares.EFFECT
        self.felt = {name for name, effect in zip(self.names, seen.tolist(), strict=True) if effect}
        if len(self.samples) <= len(self.names):
            problem = f"{len(self.samples)} rows are too few to fit {', '.join(self.names)}"
            raise InputError(problem, "give more rows, or name fewer parameters with --free")
        values = least_squares.begin(line, self.samples.measured, self.bounds)
        return least_squares.in_effect(
            self.model, least_squares.line(self.model, values, self.bounds), line, self.bounds
        )

    def _fitted(self, start: Line) -> Line:
        return least_squares.fit(self.model, self.samples.measured, start.values, self.bounds)

    def _second_look(self, line: Line) -> Line:
        """Linearise again with all parameters: some had no effect where the fit began, but have one where it led."""
        if self.asked:
            return line
        values = {**self.null, **dict(zip(self.names, line.values.tolist(), strict=True))}
        self.names, self.left = list(self.null), {}
        return self._drop_undetermined(least_squares.line(self.model, np.array(list(values.values())), self.bounds))

    # --- leaving out ---

    def _leave(self, line: Line, name: str, why: str) -> Line:
        """Fix a parameter at the value that it began with, and record why."""
        line = line.without(self.names.index(name), self.null[name])
        self.names.remove(name)
        self.left[name] = why
        return line

    def _drop_undetermined(self, line: Line) -> Line:
        """Leave out parameters that the rows do not determine; refuse if they were asked for."""
        reasons = {}
        for parameter in least_squares.undetermined(line, self.bounds):
            if not parameter.alike and self._arrived(line, parameter.number):
                continue
            name, alike = self.names[parameter.number], " and ".join(self.names[i] for i in parameter.alike)
            none = HIDDEN if name in self.felt else NO_EFFECT
            reasons[name] = f"these rows cannot tell it from {alike}" if alike else none
        if reasons and self.asked:
            cure = "fit fewer, or add rows of other rank counts, algorithms or sizes"
            raise InputError(Diagnostic(why, cure, name) for name, why in reasons.items())
        for name, why in reasons.items():
            line = self._leave(line, name, why)
        if not self.names:
            raise InputError("no parameter has an effect on these rows", "name some with --free")
        return line

    def _arrived(self, line: Line, number: int) -> bool:
        """Whether a parameter has no effect only where the fit has led it, because something else is slower there."""
        back = line.values.copy()
        back[number] = self.null[self.names[number]]
        return bool((np.abs(self.model(back) / line.times - 1) > least_squares.EFFECT).any())

    def _drop_unneeded(self, line: Line) -> Line:
        """Leave out parameters that fit as well at the value they began with, unless they were asked for.

        By the Bayesian information criterion a parameter has to gain the logarithm of the number of rows. An efficiency
        always stays.
        """
        width = least_squares.width(line, self.samples.measured)
        while not self.asked and len(self.names) > 1:
            bounds = self.bounds
            loss = {
                name: least_squares.loss_without(line, self.samples.measured, bounds, width, j, self.null[name])
                for j, name in enumerate(self.names)
                if not name.startswith("efficiency") and not self._stuck(line, j)
            }
            least = min(loss, key=loss.__getitem__, default=None)
            if least is None or loss[least] > np.log(len(self.samples)):
                break
            line = self._leave(line, least, NO_SIGN)
        return line

    def _stuck(self, line: Line, number: int) -> bool:
        """Whether the fit has led a parameter to where it has no effect."""
        return not np.abs(line.relative(self.bounds)[:, number]).max() >= least_squares.EFFECT and self._arrived(
            line, number
        )

    # --- the outcome ---

    def _estimate(self, line: Line, draws: Floats) -> Estimate:
        check_limits(self.names, line.values, self.bounds, self.null)
        low, high, least = self._ends(line, draws)
        costs, lows, highs = (
            dict(zip(self.names, column.tolist(), strict=True)) for column in (line.values, low, high)
        )
        drawn = np.log(np.array([line.at(values) for values in draws]) / line.times)
        down, up = np.percentile(drawn, NORMAL_68, axis=0)  # of each row
        scatter = max(least, float(np.sqrt(np.mean(((up - down) / 2) ** 2))))
        near = prior.around(self.names, line, self.bounds)
        shown = errors_left_out(line, self.samples.rows, self.samples.measured, self.bounds, near)
        notes = [*self._linked(draws), *above_rates(self.names, high, self.null), *self._ineffective(line)]
        return Estimate(costs, lows, highs, dict(self.left), notes, scatter, shown)

    def _ends(self, line: Line, draws: Floats) -> tuple[Floats, Floats, float]:
        """Return the ends of intervals of values, and the least spread of logarithms of times.

        Draws of few rows are alike, and those of rows without noise are all the same. So an interval is at least what
        noise leaves open, by Student's quantile for the rows beyond as many as there are parameters.
        """
        bounds, rows = self.bounds, len(line.times)
        covariance = least_squares.least_covariance(line, self.samples.measured, bounds)
        beyond = student(rows - len(self.names)) * np.sqrt(np.diag(covariance))
        low, high = np.percentile(draws, INTERVAL, axis=0)
        slopes = line.slopes / line.times[:, None]
        spread = float(np.sqrt(np.mean(np.sum(slopes @ covariance * slopes, axis=1))))
        free = np.abs(line.relative(bounds)).max(axis=0) < least_squares.EFFECT  # something else is slower: so is less
        low, high = np.minimum(low, line.values - beyond), np.maximum(high, line.values + beyond)
        low, high = (np.clip(ends, bounds.lower, bounds.upper) for ends in (low, high))
        return np.where(free, bounds.lower, low), high, spread

    def _linked(self, draws: Floats) -> list[str]:
        """Report pairs of parameters that the rows barely distinguish."""
        with np.errstate(invalid="ignore"):  # of a parameter that does not move there is no correlation
            together = np.corrcoef(draws, rowvar=False).reshape(len(self.names), len(self.names))
        return [
            f"{a} and {b} hang together (correlation {together[i, j]:.2f}): their sum is surer than either"
            for i, a in enumerate(self.names)
            for j, b in enumerate(self.names[:i])
            if abs(together[i, j]) > LINKED
        ]

    def _ineffective(self, line: Line) -> list[str]:
        """Report values without effect."""
        return [
            f"{name} has no effect from where it stands on: something else is slower"
            for j, name in enumerate(self.names)
            if self._stuck(line, j)
        ]


# --- errors of the model itself ---


def errors_left_out(
    line: Line, rows: Sequence[MeasuredRow], measured: Floats, bounds: Bounds, belief: Belief
) -> dict[Kind, Shown]:
    """Leave out each group of the rows of a fit in turn, for each kind of what a call may have new.

    A fit without some rows stays near the whole fit where the others say nothing: as near as `belief` has it.
    """
    odd = noise_of(np.log(measured / line.times), rows)[1]
    near, wide = belief._replace(values=line.values), least_squares.width(line, measured)
    every = np.arange(len(rows))
    shown: dict[Kind, Shown] = {"sizes": _shown(np.log(measured / line.times), rows, _groups(rows, "sizes"), odd)}
    for kind in NEW:
        off, left_out = np.zeros(len(rows)), _groups(rows, kind)
        for group in left_out if len(left_out) > 1 else []:
            others = np.setdiff1d(every, group)
            values = least_squares.refit(line.of(others), measured[others], bounds, wide, near)
            off[group] = np.log(measured[group] / line.of(group).at(values))
        shown[kind] = _shown(off, rows, left_out if len(left_out) > 1 else [], odd)
    return shown


def errors_held_out(off: Floats, rows: Sequence[MeasuredRow], fitted: NDArray[np.bool_]) -> dict[Kind, Shown]:
    """Return the errors `off` (rows,), logarithms of measured / predicted, of rows that were not fitted, by what they
    have that no fitted row has: one thing only, or else nothing but the size.
    """
    seen = {
        kind: {getattr(row, key) for row, used in zip(rows, fitted, strict=True) if used} for kind, key in NEW.items()
    }
    new = [[kind for kind, key in NEW.items() if getattr(row, key) not in seen[kind]] or ["sizes"] for row in rows]
    shown: dict[Kind, Shown] = {}
    odd = noise_of(off, rows)[1]
    for kind in get_args(Kind):
        chosen = np.array([not used and kinds == [kind] for used, kinds in zip(fitted.tolist(), new, strict=True)])
        of_kind = [rows[i] for i in np.flatnonzero(chosen).tolist()]
        shown[kind] = _shown(off[chosen], of_kind, _groups(of_kind, kind), odd[chosen])
    return shown


def own_errors(shown: Mapping[Kind, Shown]) -> tuple[dict[Kind, float], dict[Kind, int]]:
    """Return the spread of the model's own error for each kind, and the number of groups that show it; 0 of none."""
    seen = {kind: each for kind, each in shown.items() if each.errors}
    spreads = {kind: float(np.sqrt(np.mean(np.square(each.errors)))) for kind, each in seen.items()}
    groups = {kind: each.groups for kind, each in seen.items()}
    return {kind: round(spreads.get(kind, 0.0), 5) for kind in shown}, {kind: groups.get(kind, 0) for kind in shown}


def noise_of(off: Floats, rows: Sequence[MeasuredRow]) -> tuple[Noise, NDArray[np.bool_]]:
    """Return the noise of rows, and flag the outliers; `off` (rows,) are logarithms of measured / predicted."""
    return noise(off, [prior.series(row) for row in rows], [row.size_bytes for row in rows])


def _shown(off: Floats, rows: Sequence[MeasuredRow], groups: Sequence[Numbers], odd: NDArray[np.bool_]) -> Shown:
    errors: list[float] = []
    for group in groups:
        zones = grouped(group[~odd[group]].tolist(), lambda i: prior.zone(rows[i]))
        errors += [float(np.median(off[numbers])) for numbers in zones.values()]
    return Shown(errors, len(groups))


def _groups(rows: Sequence[MeasuredRow], kind: Kind) -> list[Numbers]:
    """Return the numbers of rows that are alike in what is left out; of sizes, those of each series."""

    def label(number: int) -> object:
        return prior.series(rows[number]) if kind == "sizes" else getattr(rows[number], NEW[kind]) or 1

    numbers = grouped(range(len(rows)), label)
    return [np.array(group, np.int64) for group in numbers.values()]
