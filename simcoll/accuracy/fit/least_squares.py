"""Parameters found from times: robust least squares on log residuals, and what the rows cannot tell.

Times of a schedule are sums and maxima of costs: linear in them as long as nothing overtakes anything else. So a model
is fitted by its own lines: linearise, fit the line, move there, until nothing moves. What is costly, running the
model, happens once a parameter and round; the bootstrap runs on the last line alone.

Everything here is numbers: `values` (parameters,) are costs, at least 0, times (rows,) are in any one unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.config.arrays import Floats
from simcoll.errors import InputError

ROUNDS: Final = 20  # linearisations at most
SETTLED: Final = 1e-4  # of each value: a smaller move ends the fit
LEAST_WIDTH: Final = 0.02  # log residuals below are noise, whatever the others are
SINE: Final = 0.01  # of the angle between a column and those before it, below which they are one
EFFECT: Final = 1e-3  # share of a time: a parameter that changes none by more has no effect
DRAWS: Final = 400
POLISHING: Final = 12  # steps
HALVINGS: Final = 5  # of a step that leads too far


class Bounds(NamedTuple):
    """Between what each value lies, and how large a change of it is one that counts; all (parameters,)."""

    lower: Floats
    upper: Floats
    scale: Floats


@dataclass(frozen=True, eq=False)
class Line:
    """A model near `values`: `times` (rows,) there, and how they change with each value, (rows, parameters)."""

    values: Floats
    times: Floats
    slopes: Floats

    def at(self, values: Floats) -> Floats:
        """Times at other values; never below a millionth of what they were."""
        moved: Floats = self.times + self.slopes @ (values - self.values)
        return np.maximum(moved, self.times * 1e-6)

    def of(self, rows: NDArray[Any]) -> Line:
        """The line of some rows."""
        return Line(self.values, self.times[rows], self.slopes[rows])

    def without(self, j: int, value: float) -> Line:
        """The line where parameter `j` has a value for good."""
        moved = self.at(self.values + (value - self.values[j]) * np.eye(len(self.values))[j])
        return Line(np.delete(self.values, j), moved, np.delete(self.slopes, j, axis=1))

    def relative(self, bounds: Bounds) -> Floats:
        """What a change of each value by its scale does, as a share of the time, (rows, parameters)."""
        shares: Floats = self.slopes * bounds.scale / self.times[:, None]
        return shares


ModelFunction = Callable[[Floats], Floats]


def line(model: ModelFunction, values: Floats, bounds: Bounds) -> Line:
    """The model and its slopes, by differences that are small against its values and large against a picosecond."""
    times = model(values)
    slopes = np.empty((len(times), len(values)))
    for j in range(len(values)):
        step = np.zeros(len(values))
        step[j] = 0.005 * max(values[j], bounds.scale[j])
        slopes[:, j] = (model(values + step) - times) / step[j]
    return Line(values, times, slopes)


def fit(model: ModelFunction, measured: Floats, start: Floats, bounds: Bounds) -> Line:
    """The line of the model at the values that fit best, found from `start` on; `begin` makes a good one."""
    values, wide, before = start, 0.0, None
    for turn in range(ROUNDS):
        here = before = in_effect(model, line(model, values, bounds), before, bounds)
        values = here.values
        wide = width(here, measured) if turn < ROUNDS // 2 else wide  # then fixed, so that it comes to an end
        wanted = refit(here, measured, bounds, wide)
        if (np.abs(wanted - values) <= SETTLED * np.maximum(values, 0.01 * bounds.scale)).all():
            break
        moved = _damped(model, here, measured, wanted, wide)
        if np.array_equal(moved, values):
            return _polished(model, here, measured, bounds, wide)
        values = moved
    return here


def _polished(model: ModelFunction, here: Line, measured: Floats, bounds: Bounds, width: float) -> Line:
    """From where lines lead no further, as times bend there: by small steps of the model itself."""
    from scipy.optimize import least_squares

    goal, scale = np.log(measured), np.maximum(here.values, 0.01 * bounds.scale)
    lower, upper = bounds.lower / scale, bounds.upper / scale
    found = least_squares(
        lambda x: np.log(model(x * scale)) - goal,
        np.clip(here.values / scale, lower + 1e-9, upper - 1e-9),
        bounds=(lower, upper),
        loss="soft_l1",
        f_scale=width,
        diff_step=0.01,
        max_nfev=POLISHING,
    )
    better = _cost(model(found.x * scale), measured, width) < _cost(here.times, measured, width)
    return line(model, found.x * scale, bounds) if better else here


def in_effect(model: ModelFunction, here: Line, before: Line | None, bounds: Bounds) -> Line:
    """The line, gone back with the values that have lost their effect on the way: a step too far, to where something
    else is slower, from where no slope leads back."""
    for _ in range(HALVINGS if before else 0):
        assert before is not None
        lost = _effects(before, bounds) & ~_effects(here, bounds)
        if not lost.any():
            break
        here = line(model, np.where(lost, (here.values + before.values) / 2, here.values), bounds)
    return here


def _effects(here: Line, bounds: Bounds) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.abs(here.relative(bounds)).max(axis=0, initial=0) >= EFFECT
    return found


def begin(here: Line, measured: Floats, bounds: Bounds) -> Floats:
    """Values to begin with: plain least squares on the relative residuals of a line."""
    from scipy.optimize import lsq_linear

    base = here.times - here.slopes @ here.values
    weighted = here.slopes * bounds.scale / measured[:, None]
    found = lsq_linear(weighted, 1 - base / measured, (bounds.lower / bounds.scale, bounds.upper / bounds.scale))
    values: Floats = np.clip(found.x * bounds.scale, bounds.lower, bounds.upper)
    return values


def refit(here: Line, measured: Floats, bounds: Bounds, width: float) -> Floats:
    """The values for which the line fits best; residuals far beyond `width` count less and less."""
    from scipy.optimize import least_squares

    goal, scale = np.log(measured), bounds.scale
    lower, upper = bounds.lower / scale, bounds.upper / scale
    inside = np.clip(here.values / scale, lower + 1e-9, upper - 1e-9)
    found = least_squares(
        lambda x: np.log(here.at(x * scale)) - goal,
        inside,
        lambda x: here.slopes * scale / here.at(x * scale)[:, None],
        (lower, upper),
        loss="soft_l1",
        f_scale=width,
        x_scale="jac",
        max_nfev=60,
    )
    values: Floats = found.x * scale
    return values


def _damped(model: ModelFunction, here: Line, measured: Floats, wanted: Floats, width: float) -> Floats:
    """As far towards `wanted` as the model itself gains by it."""
    before = _cost(here.times, measured, width)
    for halvings in range(HALVINGS):
        values: Floats = here.values + (wanted - here.values) / 2**halvings
        if _cost(model(values), measured, width) < before:
            return values
    return here.values


def _cost(times: Floats, measured: Floats, width: float) -> float:
    return float(np.sum(np.sqrt(1 + (np.log(times / measured) / width) ** 2) - 1))


def width(here: Line, measured: Floats) -> float:
    """Of the residuals, robustly; what repeats scatter by is in them."""
    return max(LEAST_WIDTH, spread(np.log(here.times / measured)))


def spread(residuals: Floats) -> float:
    """The standard deviation that normal residuals of this median distance would have."""
    return 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))


# --- what the rows tell ---


class Untold(NamedTuple):
    """A parameter that the rows do not tell: it has no effect on them, or the same as those `alike`."""

    number: int
    alike: tuple[int, ...]


def untold(here: Line, bounds: Bounds) -> list[Untold]:
    """The parameters that must be left out so that the others can be told apart; earlier ones have precedence.

    A parameter is told if its column of relative slopes has an angle to what the columns before it span.
    """
    shares, taken, found = here.relative(bounds), list[int](), list[Untold]()
    for j in range(shares.shape[1]):
        column = shares[:, j]
        if np.abs(column).max(initial=0) < EFFECT:
            found.append(Untold(j, ()))
            continue
        unit = column / np.linalg.norm(column)
        known = shares[:, taken] / np.linalg.norm(shares[:, taken], axis=0)
        weights = np.linalg.lstsq(known, unit, rcond=None)[0]
        if taken and np.linalg.norm(unit - known @ weights) < SINE:
            most = np.abs(weights).max()
            found.append(Untold(j, tuple(taken[i] for i in np.flatnonzero(np.abs(weights) > 0.2 * most))))
        else:
            taken.append(j)
    return found


def loss_without(here: Line, measured: Floats, bounds: Bounds, width: float, j: int, value: float) -> float:
    """How much worse the best fit is if parameter `j` has this value; for normal residuals as chi-squared is."""

    def best(line: Line, limits: Bounds) -> float:
        return 2 * _cost(line.at(refit(line, measured, limits, width)), measured, width)

    others = Bounds(*(np.delete(column, j) for column in bounds))
    return best(here.without(j, value), others) - best(here, bounds)


Draw = Callable[[np.random.Generator], tuple[NDArray[np.int64], Floats]]
"""Rows drawn once more, and their times."""


def bootstrap(here: Line, bounds: Bounds, width: float, draw: Draw, *, seed: int = 0, draws: int = DRAWS) -> Floats:
    """The values that fit each draw, (draws, parameters): how far chance has moved them."""
    generator = np.random.default_rng(seed)
    found = np.empty((draws, len(here.values)))
    for i in range(draws):
        rows, measured = draw(generator)
        found[i] = refit(here.of(rows), measured, bounds, width)
    return found


def version() -> str:
    """Which scipy has fitted."""
    import scipy

    return str(scipy.__version__)


def need_scipy() -> None:
    """Raise InputError where scipy is not installed."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise InputError("fitting needs scipy", 'pip install "simcoll[fit]"') from None
