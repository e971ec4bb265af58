"""Estimate parameters from measured rows: choose those that the rows determine, fit them, and give their intervals.

The model's own error on calls that were not fitted is learnt by leaving rows out. In turn the rows of one rank count,
collective or node count are left out, and predicted along the line of the fit to the others. For each left-out group
and zone (range of sizes) the median error counts, so that noise and outliers do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.fit import least_squares, parameters, prior
from simcoll.accuracy.fit.least_squares import Belief, Bounds, Line
from simcoll.accuracy.fit.rows_to_fit import Samples
from simcoll.config.grouping import grouped
from simcoll.config.numpy_helpers import Floats, Numbers
from simcoll.engine.timing_model import PS_PER_S, Params
from simcoll.errors import Diagnostic, InputError
from simcoll.formats.measured import MeasuredRow
from simcoll.prediction.confidence import Kind, Noise, noise, student
from simcoll.scenario.profile import CostSetting, Profile
from simcoll.schedule.collectives import collective

INTERVAL: Final = (5.0, 95.0)  # percentiles: 90 %
NORMAL_68: Final = (15.87, 84.13)  # percentiles one standard deviation from the middle
LINKED: Final = 0.95  # two parameters with a higher correlation over the bootstrap are reported as linked
LAUNCH, UPLOAD = parameters.OF_GRAPH
AT_LIMIT: Final = 0.999  # a cost beyond this share of a limit counts as at the limit; the solver stays just inside

# What may be new in a call beside its size, and its column in measured rows.
NEW: Final[dict[Kind, str]] = {"ranks": "ranks", "collectives": "collective", "nodes": "nodes"}

NO_EFFECT: Final = "changes none of these rows"
HIDDEN: Final = "near its present value it changes none of these rows, because something else is slower"
NO_SIGN: Final = "these rows show no sign of another value"


class Shown(NamedTuple):
    """What a cross-validation showed: the median log error in each zone (rows of a series with similar sizes) of each
    group left out of the fit, and the number of these groups."""

    errors: list[float]
    groups: int

    def and_of(self, other: Shown) -> Shown:
        """Return both cross-validations' errors in one, and the sum of their groups."""
        return Shown(self.errors + other.errors, self.groups + other.groups)


@dataclass(frozen=True)
class Estimate:
    """Fitted costs of parameters with the ends of their 90 % intervals; why others were `left` out; and remarks.

    `scatter` is the standard deviation of the logarithms of times due to the parameters. `shown` holds the errors of
    the cross-validation.
    """

    costs: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    left: Mapping[str, str]
    notes: Sequence[str]
    scatter: float
    shown: Mapping[Kind, Shown]


def estimate(samples: Samples, start: Profile, params: Params, free: Sequence[str], seed: int) -> Estimate:
    """Fit the parameters named by `free`, or all that the rows determine, from the costs of `start` and `params`.

    Raises InputError if the rows do not determine a parameter that was asked for, or are too few.
    """
    return _Estimating(samples, start, params, free, seed).run()


def starting_costs(samples: Samples, start: Profile, params: Params, free: Sequence[str]) -> dict[str, float]:
    """Return the parameters to fit (named by `free`, or all that such rows can show) with their costs in the profile.

    Parameters that are columns of the table are left out. Raises InputError if the user asked for one of these, or if a
    graph's launch would be fitted while the cost of its upload is unknown.
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
        why = f"{start.name!r} has no cost {UPLOAD}, so the fit would count that cost as a part of {LAUNCH}"
        cure = f"fit {UPLOAD} too, to rows of several launch.replays or numbers of GPUs a process"
        raise InputError([Diagnostic(why, cure, LAUNCH)])
    given = {key.removeprefix("model.") for row in samples.rows for key in row.others if key.startswith("model.")}
    if clash := [name for name in names if name in given and free]:
        raise InputError(f"--free: {clash[0]} is given by the table's column `model.{clash[0]}`", "leave it out")
    return {name: parameters.cost(name, start, params) for name in names if name not in given}


def bounds_of(samples: Samples, names: Sequence[str]) -> Bounds:
    """Return the limits and scales of the parameters for these rows."""
    return parameters.bounds(names, samples.measured, max(point.speeds[1] for point in samples.points))


def check_limits(names: Sequence[str], values: Floats, bounds: Bounds, null: Mapping[str, float]) -> None:
    """Raise InputError if fitted values are at a limit. `null` are the costs before the fit.

    Zero is a limit for costs that every call has and that were not zero before; other costs may be zero.
    """
    wrong = []
    limits = zip(names, values.tolist(), bounds.lower.tolist(), bounds.upper.tolist(), strict=True)
    for name, cost, least, most in limits:
        gone = parameters.always(name) and cost < (1 - AT_LIMIT) * null[name]
        fast = gone or AT_LIMIT * cost < least
        if fast or cost > AT_LIMIT * most:
            more, how = "more" if fast == parameters.falls(name) else "less", "faster" if fast else "slower"
            limit = parameters.text(name, least if fast else most)
            why = f"the best fit is {more} than its limit, {limit}: the rows are {how} than the model allows"
            cure = "check that --topology names the machine and that times are in us, or leave such rows out"
            wrong.append(Diagnostic(why, cure, name))
    if wrong:
        raise InputError(wrong)


def above_rates(names: Sequence[str], high: Floats, null: Mapping[str, float]) -> list[str]:
    """Return remarks on links that surely carry more than rated, and more than before. `high`: upper ends of costs."""
    return [
        f"{name} is above 100 %: the topology understates its links, or another schedule ran"
        for name, end in zip(names, high.tolist(), strict=True)
        if name.startswith("efficiency") and end < min(1.0, null[name])
    ]


class Fitting:
    """State of a fit: the rows, the costs before it (`null`), the parameters to fit, and why others were `left` out."""

    def __init__(self, samples: Samples, start: Profile, params: Params, free: Sequence[str] = ()):
        self.samples, self.before = samples, CostSetting.of(start)
        self.null = starting_costs(samples, start, params, free)
        self.names = list(self.null)
        self.left: dict[str, str] = {}

    def model(self, costs: Floats) -> Floats:
        """Return the predicted times of the rows at these `costs` (parameters,), in ps."""
        asked = dict(zip(self.names, costs.tolist(), strict=True))
        return self.samples.times(parameters.with_costs(self.before, asked))

    @property
    def bounds(self) -> Bounds:
        """The limits and scales of the parameters."""
        return bounds_of(self.samples, self.names)


class _Estimating(Fitting):
    """A fit from the rows alone, without prior knowledge of the values."""

    def __init__(self, samples: Samples, start: Profile, params: Params, free: Sequence[str], seed: int):
        super().__init__(samples, start, params, free)
        self.seed, self.asked = seed, bool(free)
        self.felt: set[str] = set()  # parameters that change some row at the start of the fit

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
        """The values (parameters,) at which the fit starts: the profile's, or a guess if the profile has none.

        A cap is guessed just at the slowest link, a gap as 0.2 times the shortest time, and a host launch such that it
        takes all of some row's time.
        """
        slowest = min(point.speeds[0] for point in self.samples.points)
        begins = {"channel_bandwidth": PS_PER_S / slowest, "g": 0.2 * float(self.samples.measured.min())}
        begins |= {"host.launch": self.samples.least_a_launch}
        return np.array([self.null[name] or begins.get(name, 0.0) for name in self.names])

    def _first(self) -> Line:
        """Return the linearised model after a step of plain least squares, for parameters that rows determine."""
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
        """Linearise again with all parameters: some had no effect at the start, but have one at fitted values."""
        if self.asked:
            return line
        values = {**self.null, **dict(zip(self.names, line.values.tolist(), strict=True))}
        self.names, self.left = list(self.null), {}
        return self._drop_undetermined(least_squares.line(self.model, np.array(list(values.values())), self.bounds))

    # --- leaving out ---

    def _leave(self, line: Line, name: str, why: str) -> Line:
        """Remove a parameter from the fit: it keeps its start value, and the reason `why` is recorded."""
        line = line.without(self.names.index(name), self.null[name])
        self.names.remove(name)
        self.left[name] = why
        return line

    def _drop_undetermined(self, line: Line) -> Line:
        """Remove parameters that the rows do not determine. Raises InputError if the user asked for one of them."""
        reasons = {}
        for parameter in least_squares.undetermined(line, self.bounds):
            if not parameter.alike and self._arrived(line, parameter.number):
                continue
            name, alike = self.names[parameter.number], " and ".join(self.names[i] for i in parameter.alike)
            none = HIDDEN if name in self.felt else NO_EFFECT
            reasons[name] = f"these rows cannot distinguish it from {alike}" if alike else none
        if reasons and self.asked:
            cure = "fit fewer, or add rows of other rank counts, algorithms or sizes"
            raise InputError(Diagnostic(why, cure, name) for name, why in reasons.items())
        for name, why in reasons.items():
            line = self._leave(line, name, why)
        if not self.names:
            raise InputError("no parameter has an effect on these rows", "name some with --free")
        return line

    def _arrived(self, line: Line, number: int) -> bool:
        """Return whether a parameter has an effect at its start value; at the fitted one another part is slower."""
        back = line.values.copy()
        back[number] = self.null[self.names[number]]
        return bool((np.abs(self.model(back) / line.times - 1) > least_squares.EFFECT).any())

    def _drop_unneeded(self, line: Line) -> Line:
        """Remove parameters without which the fit is hardly worse, unless the user asked for them.

        By the Bayesian information criterion, a parameter must lower the loss by the logarithm of the number of rows.
        Efficiencies always stay.
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
        """Return whether the fit has moved a parameter to a value where it has no effect."""
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
        """Return the lower and upper ends of the values' intervals, and the least spread of the logarithms of times.

        Draws of few rows differ little, and draws of rows without noise not at all. So the noise sets a least width of
        intervals: the standard error times Student's quantile with (rows - parameters) degrees of freedom.
        """
        bounds, rows = self.bounds, len(line.times)
        covariance = least_squares.least_covariance(line, self.samples.measured, bounds)
        beyond = student(rows - len(self.names)) * np.sqrt(np.diag(covariance))
        low, high = np.percentile(draws, INTERVAL, axis=0)
        slopes = line.slopes / line.times[:, None]
        spread = float(np.sqrt(np.mean(np.sum(slopes @ covariance * slopes, axis=1))))
        free = np.abs(line.relative(bounds)).max(axis=0) < least_squares.EFFECT  # lower costs have no effect either
        low, high = np.minimum(low, line.values - beyond), np.maximum(high, line.values + beyond)
        low, high = (np.clip(ends, bounds.lower, bounds.upper) for ends in (low, high))
        return np.where(free, bounds.lower, low), high, spread

    def _linked(self, draws: Floats) -> list[str]:
        """Return remarks on pairs of parameters whose effects the rows can hardly distinguish."""
        with np.errstate(invalid="ignore"):  # a parameter that does not move has no correlation
            together = np.corrcoef(draws, rowvar=False).reshape(len(self.names), len(self.names))
        return [
            f"{a} and {b} are correlated ({together[i, j]:.2f}): their sum is known better than either"
            for i, a in enumerate(self.names)
            for j, b in enumerate(self.names[:i])
            if abs(together[i, j]) > LINKED
        ]

    def _ineffective(self, line: Line) -> list[str]:
        """Return remarks on parameters that have no effect at their values."""
        return [
            f"{name} has no effect beyond its present value: something else is slower"
            for j, name in enumerate(self.names)
            if self._stuck(line, j)
        ]


# --- errors of the model itself ---


def errors_left_out(
    line: Line, rows: Sequence[MeasuredRow], measured: Floats, bounds: Bounds, belief: Belief
) -> dict[Kind, Shown]:
    """Return the errors of a cross-validation by what is new in the rows left out: rank count, collective, node count
    or size. Each group of rows is predicted by a fit to the other rows.

    If the other rows do not determine a value, it stays near the fit to all rows, as far as `belief` holds it.
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
    """Return the errors on rows that were not fitted, by the only thing new in a row ("sizes" if nothing else is new).

    `off` (rows,) are the logarithms of measured / predicted. Rows with several new things do not count.
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
    """Return the spread of the model's own error, and the number of groups behind it, by what is new in a row; both are
    0 if there are no groups."""
    seen = {kind: each for kind, each in shown.items() if each.errors}
    spreads = {kind: float(np.sqrt(np.mean(np.square(each.errors)))) for kind, each in seen.items()}
    groups = {kind: each.groups for kind, each in seen.items()}
    return {kind: round(spreads.get(kind, 0.0), 5) for kind in shown}, {kind: groups.get(kind, 0) for kind in shown}


def noise_of(off: Floats, rows: Sequence[MeasuredRow]) -> tuple[Noise, NDArray[np.bool_]]:
    """Return the rows' noise, and outliers as flags (rows,); `off` (rows,) are log(measured / predicted)."""
    return noise(off, [prior.series(row) for row in rows], [row.size_bytes for row in rows])


def _shown(off: Floats, rows: Sequence[MeasuredRow], groups: Sequence[Numbers], odd: NDArray[np.bool_]) -> Shown:
    errors: list[float] = []
    for group in groups:
        zones = grouped(group[~odd[group]].tolist(), lambda i: prior.zone(rows[i]))
        errors += [float(np.median(off[numbers])) for numbers in zones.values()]
    return Shown(errors, len(groups))


def _groups(rows: Sequence[MeasuredRow], kind: Kind) -> list[Numbers]:
    """Return the groups of row numbers to leave out together: by the column `kind`, for sizes by series."""

    def label(number: int) -> object:
        return prior.series(rows[number]) if kind == "sizes" else getattr(rows[number], NEW[kind]) or 1

    numbers = grouped(range(len(rows)), label)
    return [np.array(group, np.int64) for group in numbers.values()]
