"""Estimate parameters from measured rows: choose those that the rows determine, fit them, and give their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simcoll.accuracy.fit import _bootstrap, least_squares, left_out_errors, parameters, prior
from simcoll.accuracy.fit.fit_rows import Samples
from simcoll.accuracy.fit.least_squares import Bounds, Line
from simcoll.accuracy.fit.left_out_errors import Shown
from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.config.arrays import Floats
from simcoll.engine.timing_model import PS_PER_S, Params
from simcoll.errors import Diagnostic, InputError
from simcoll.prediction.confidence import Kind, student
from simcoll.scenario.profile import Profile
from simcoll.schedule.collectives import collective

INTERVAL: Final = (5.0, 95.0)  # percentiles: 90 %
NORMAL_68: Final = (15.87, 84.13)  # percentiles one standard deviation from the middle
LINKED: Final = 0.95  # correlation over the bootstrap from which on two parameters are reported as linked
LAUNCH, UPLOAD = parameters.OF_GRAPH
AT_LIMIT: Final = 0.999  # share of a limit from which on a cost stands at it; the solver stays just inside

NO_EFFECT: Final = "changes none of these rows"
HIDDEN: Final = "changes none of these rows where it stands, as something else is slower"
NO_SIGN: Final = "these rows show no sign of another value"


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
    return parameters.bounds(names, samples.measured, max(question.fastest for question in samples.questions))


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


def _typical(logarithms: Floats) -> float:
    """Return the root mean square over rows of the spread of their draws, (rows, draws)."""
    low, high = np.percentile(logarithms, NORMAL_68, axis=1)
    return float(np.sqrt(np.mean(((high - low) / 2) ** 2)))


class _Estimating:
    """State of an estimate: the names still to be fitted, the reasons why others are not, and the rows."""

    def __init__(self, samples: Samples, start: Profile, params: Params, free: Sequence[str], seed: int):
        self.samples, self.seed, self.asked = samples, seed, bool(free)
        self.before = ParameterSetting.of(start)
        self.left: dict[str, str] = {}
        self.felt: set[str] = set()  # parameters that change some row, if not where the fit begins
        self.null = starting_costs(samples, start, params, free)
        self.names = list(self.null)

    def run(self) -> Estimate:
        line = self._second_look(self._fitted(self._first()))
        while True:
            line = self._fitted(line)
            left = len(self.left)
            line = self._drop_unneeded(self._drop_undetermined(line))
            if len(self.left) == left:
                return self._estimate(line, self._draws(line))

    # --- fitting ---

    def _model(self, costs: Floats) -> Floats:
        return self.samples.times(self.before.at(dict(zip(self.names, costs.tolist(), strict=True))))

    @property
    def _bounds(self) -> Bounds:
        return bounds_of(self.samples, self.names)

    @property
    def _start(self) -> Floats:
        """Values to begin with, (parameters,): those of the profile, or a guess where the profile has none.

        The guesses: a cap where it begins to bind, a gap of the order of the shortest time, and a launch of the host
        that takes all of some row's time.
        """
        slowest = min(question.slowest for question in self.samples.questions)
        begins = {"channel_bandwidth": PS_PER_S / slowest, "g": 0.2 * float(self.samples.measured.min())}
        begins |= {"host.launch": self.samples.least_a_launch}
        return np.array([self.null[name] or begins.get(name, 0.0) for name in self.names])

    def _first(self) -> Line:
        """Take a first step from the start by plain least squares, on the parameters that the rows determine there."""
        line = least_squares.line(self._model, self._start, self._bounds)
        line = least_squares.felt(self._model, line, self._bounds) if self.asked else self._drop_undetermined(line)
        seen = np.abs(line.relative(self._bounds)).max(axis=0) >= least_squares.EFFECT
        self.felt = {name for name, effect in zip(self.names, seen.tolist(), strict=True) if effect}
        self._check_enough()
        values = least_squares.begin(line, self.samples.measured, self._bounds)
        return least_squares.in_effect(
            self._model, least_squares.line(self._model, values, self._bounds), line, self._bounds
        )

    def _fitted(self, start: Line) -> Line:
        return least_squares.fit(self._model, self.samples.measured, start.values, self._bounds)

    def _second_look(self, line: Line) -> Line:
        """Linearise again with all parameters: some had no effect where the fit began, but have one where it led."""
        if self.asked:
            return line
        values = {**self.null, **dict(zip(self.names, line.values.tolist(), strict=True))}
        self.names, self.left = list(self.null), {}
        return self._drop_undetermined(least_squares.line(self._model, np.array(list(values.values())), self._bounds))

    def _check_enough(self) -> None:
        if len(self.samples) <= len(self.names):
            problem = f"{len(self.samples)} rows are too few to fit {', '.join(self.names)}"
            raise InputError(problem, "give more rows, or name fewer parameters with --free")

    def _draws(self, line: Line) -> Floats:
        width = least_squares.width(line, self.samples.measured)
        return _bootstrap.bootstrap(line, self._bounds, width, self.samples.draw, seed=self.seed)

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
        for parameter in least_squares.undetermined(line, self._bounds):
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
        return bool((np.abs(self._model(back) / line.times - 1) > least_squares.EFFECT).any())

    def _drop_unneeded(self, line: Line) -> Line:
        """Leave out parameters that fit as well at the value they began with, unless they were asked for.

        By the Bayesian information criterion a parameter has to gain the logarithm of the number of rows. An efficiency
        always stays.
        """
        width = least_squares.width(line, self.samples.measured)
        while not self.asked and len(self.names) > 1:
            bounds = self._bounds
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
        return not np.abs(line.relative(self._bounds)[:, number]).max() >= least_squares.EFFECT and self._arrived(
            line, number
        )

    # --- the outcome ---

    def _estimate(self, line: Line, draws: Floats) -> Estimate:
        check_limits(self.names, line.values, self._bounds, self.null)
        low, high, least = self._ends(line, draws)
        costs, lows, highs = (
            dict(zip(self.names, column.tolist(), strict=True)) for column in (line.values, low, high)
        )
        scatter = max(least, _typical(np.log(np.array([line.at(values) for values in draws]) / line.times).T))
        near = prior.around(self.names, line, self._bounds)
        shown = left_out_errors.of_fit(line, self.samples.rows, self.samples.measured, self._bounds, near)
        notes = [*self._linked(draws), *above_rates(self.names, high, self.null), *self._ineffective(line)]
        return Estimate(costs, lows, highs, dict(self.left), notes, scatter, shown)

    def _ends(self, line: Line, draws: Floats) -> tuple[Floats, Floats, float]:
        """Return the ends of intervals of values, and the least spread of logarithms of times.

        Draws of few rows are alike, and those of rows without noise are all the same. So an interval is at least what
        noise leaves open, by Student's quantile for the rows beyond as many as there are parameters.
        """
        bounds, rows = self._bounds, len(line.times)
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
