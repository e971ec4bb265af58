"""Fit parameters to times: robust least squares on logarithmic residuals, with a check of what the rows determine.

Times of a schedule are sums and maxima of costs. They are linear in the costs as long as nothing overtakes anything
else. So the fit linearises the model, fits that line, moves to the result, and repeats this until nothing moves. Each
round runs the costly model once for each parameter; the bootstrap runs on the last line alone.

With a `Belief` the fit maximises the posterior probability: the less the rows say about a value, the more it is drawn
to the believed value.

Everything here is numbers: `values` (parameters,) are costs, at least 0; times (rows,) are in any one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import scipy  # scipy imports its parts when they are used, so `diagnose`, which fits nothing, need not wait for them
from numpy.typing import NDArray

from simcoll.config.numpy_helpers import Floats

ROUNDS: Final = 20  # most linearisations, against cycles: SETTLED ends a fit that goes well
SETTLED: Final = 1e-4  # relative move of each value that ends the fit: far below the width of any interval
# With a belief the fit ends if each value moves by a smaller share of its believed width.
SETTLED_FROM_BELIEF: Final = 0.02
LEAST_WIDTH: Final = 0.02  # smaller log residuals are noise of runs, however well the other rows fit
SINE: Final = 0.01  # a column at an angle with a smaller sine to the earlier columns counts as parallel to them
OWN_ERROR: Final = 0.05  # log residuals that the model itself leaves if it is fitted to another machine
EFFECT: Final = 1e-3  # share of a time: a parameter that changes no time by more has no effect
WEIGHINGS: Final = 100  # steps to the weights of rows that are alike: variances are then within 1 % of the least
TINY: Final = 1e-12  # keeps weights above 0, as a weight of 0 would stay 0
HALVINGS: Final = 5  # most halvings of a step that leads too far; a smaller step would be no progress
STEPS: Final = 60  # most steps in the refit of a line; usually 15 suffice
DRAWS: Final = 400  # bootstrap draws: 20 lie beyond either end of a 90 % interval, so the ends are within a few %
BATCH: Final = 1_000_000  # slopes in one batch of refitted draws: 8 MB
ARRIVED: Final = 1e-7  # a refit ends when no value changes by a larger share
LEAST_CURVED: Final = 1e-9  # keeps equations solvable if a draw has no row of a parameter, whose value then stays

Draw = Callable[["np.random.Generator"], tuple[NDArray[np.int64], Floats]]
"""Draws row numbers with replacement, and their times, both (rows,)."""


class Bounds(NamedTuple):
    """For each value its limits, and the size of a change that matters (`scale`); all of shape (parameters,)."""

    lower: Floats
    upper: Floats
    scale: Floats


@dataclass(frozen=True, eq=False)
class Line:
    """A model linearised at `values`: `times` (rows,) at these, and derivatives `slopes` (rows, parameters)."""

    values: Floats
    times: Floats
    slopes: Floats

    def at(self, values: Floats) -> Floats:
        """Return the times (rows,) at other values; none is below a millionth of the time at the line's own values."""
        moved: Floats = self.times + self.slopes @ (values - self.values)
        return np.maximum(moved, self.times * 1e-6)

    def of(self, rows: NDArray[Any]) -> Line:
        """Return the line for these rows only."""
        return Line(self.values, self.times[rows], self.slopes[rows])

    def without(self, j: int, value: float) -> Line:
        """Return the line with parameter `j` fixed at `value` and removed."""
        moved = self.at(self.values + (value - self.values[j]) * np.eye(len(self.values))[j])
        return Line(np.delete(self.values, j), moved, np.delete(self.slopes, j, axis=1))

    def relative(self, bounds: Bounds) -> Floats:
        """Return the change of each time, as a share of it, if a value changes by its scale: (rows, parameters)."""
        shares: Floats = self.slopes * bounds.scale / self.times[:, None]
        return shares


class Belief(NamedTuple):
    """Prior knowledge of the values: each is normal around `values` with standard deviation `widths`, both
    (parameters,). A row counts as `share` of an independent row, because the model errs alike in similar rows.

    Values flagged in `tails` (parameters,) may be far off, as on another kind of machine: the belief pulls far values
    no more strongly than near ones.
    """

    values: Floats
    widths: Floats
    share: float
    tails: NDArray[np.bool_] | bool = False

    def off(self, values: Floats) -> Floats:
        """Return the distances (parameters,) of values from the believed ones, in widths."""
        distances: Floats = (values - self.values) / self.widths
        return distances

    def loss(self, squares: Floats) -> Floats:
        """Return the loss for squares of `off`, and its first and second derivatives: (3, parameters)."""
        root = np.sqrt(1 + squares)
        of_normal = [squares, np.ones_like(squares), np.zeros_like(squares)]
        return np.where(self.tails, [2 * (root - 1), 1 / root, -0.5 / root**3], of_normal)

    def weights(self, values: Floats) -> Floats:
        """Return how strongly the belief pulls at these values, (parameters,), relative to a normal distribution."""
        shares: Floats = self.loss(self.off(values) ** 2)[1]
        return shares


ModelFunction = Callable[[Floats], Floats]


def line(model: ModelFunction, values: Floats, bounds: Bounds, steps: Floats | None = None) -> Line:
    """Return the model linearised at `values`, by differences over upward `steps` (parameters,); default: `near`."""
    times = model(values)
    steps = near(values, bounds) if steps is None else steps
    slopes = [(model(values + step) - times) / step.max() for step in np.diag(steps)]
    return Line(values, times, np.array(slopes).reshape(-1, len(times)).T)


def near(values: Floats, bounds: Bounds) -> Floats:
    """Return steps (parameters,) for differences, small against the values and large against a picosecond."""
    steps: Floats = 0.005 * np.maximum(values, bounds.scale)
    return steps


def felt(model: ModelFunction, here: Line, bounds: Bounds) -> Line:
    """Return the line with new slopes for costs whose small changes have no effect because a slower part hides them:
    slopes over steps as large as the costs themselves."""
    hidden = ~_effects(here, bounds)
    steps = np.where(hidden, np.maximum(here.values, bounds.scale), near(here.values, bounds))
    return line(model, here.values, bounds, steps) if hidden.any() else here


def fit(
    model: ModelFunction,
    measured: Floats,
    start: Floats,
    bounds: Bounds,
    belief: Belief | None = None,
    rounds: int = ROUNDS,
    steps: Floats | None = None,
) -> Line:
    """Fit the model; return its line at the best values. `start` (parameters,) should come from `begin` or the belief.

    In the first round slopes are taken over `steps` (parameters,); each later round halves the steps.
    """
    values, wide, before = start, 0.0, None
    for turn in range(rounds):
        over = None if steps is None else steps / 2**turn
        here = before = in_effect(model, line(model, values, bounds, over), before, bounds)
        values = here.values
        if belief:
            wide = OWN_ERROR
        elif turn < ROUNDS // 2:  # fixed in the second half, so that the fit ends
            wide = width(here, measured)
        wanted = refit(here, measured, bounds, wide, belief)
        # The scale of a cost is a time of the rows, far above a message's cost where all rows are large.
        least = np.maximum(values, 0.01 * bounds.scale) if belief is None else belief.widths
        if (np.abs(wanted - values) <= (SETTLED if belief is None else SETTLED_FROM_BELIEF) * least).all():
            break
        moved = _damped(model, here, measured, wanted, wide, belief)
        if np.array_equal(moved, values):
            return here
        values = moved
    return here


def in_effect(model: ModelFunction, here: Line, before: Line | None, bounds: Bounds) -> Line:
    """Return the line with those values moved halfway back that lost the effect which they had in the line `before`.

    The last step moved them too far: another part is slower there, and no slope leads back.
    """
    for _ in range(HALVINGS if before else 0):
        assert before is not None
        lost = _effects(before, bounds) & ~_effects(here, bounds)
        if not lost.any():
            break
        here = line(model, np.where(lost, (here.values + before.values) / 2, here.values), bounds)
    return here


def _effects(here: Line, bounds: Bounds) -> NDArray[np.bool_]:
    """Return flags (parameters,): whether a change of the value by its scale changes some time by EFFECT or more."""
    flags: NDArray[np.bool_] = np.abs(here.relative(bounds)).max(axis=0, initial=0) >= EFFECT
    return flags


def begin(here: Line, measured: Floats, bounds: Bounds) -> Floats:
    """Return start values (parameters,): plain least squares on the line's relative residuals."""
    base = here.times - here.slopes @ here.values
    weighted = here.slopes * bounds.scale / measured[:, None]
    limits = bounds.lower / bounds.scale, bounds.upper / bounds.scale
    solution = scipy.optimize.lsq_linear(weighted, 1 - base / measured, limits)
    values: Floats = np.clip(solution.x * bounds.scale, bounds.lower, bounds.upper)
    return values


def refit(here: Line, measured: Floats, bounds: Bounds, width: float, belief: Belief | None = None) -> Floats:
    """Return the values (parameters,) at which the line fits best; residuals far beyond `width` count less and less."""
    goal, scale = np.log(measured), bounds.scale
    lower, upper = bounds.lower / scale, bounds.upper / scale
    inside = np.clip(here.values / scale, lower + 1e-9, upper - 1e-9)
    # The belief's residuals follow the rows', in units that let each row count for its share.
    unit = np.zeros(0) if belief is None else width / belief.widths / np.sqrt(belief.share)
    believed = np.zeros(0) if belief is None else belief.values

    def residuals(x: Floats) -> Floats:
        of_rows = np.log(here.at(x * scale)) - goal
        return of_rows if belief is None else np.concatenate([of_rows, (x * scale - believed) * unit])

    def slopes(x: Floats) -> Floats:
        of_rows = here.slopes * scale / here.at(x * scale)[:, None]
        return of_rows if belief is None else np.concatenate([of_rows, np.diag(scale * unit)])

    def loss(squares: Floats) -> Floats:
        """Return the soft-L1 loss of the rows and the belief's loss, each with its first and second derivatives."""
        root = np.sqrt(1 + squares)
        parts = np.array([2 * (root - 1), 1 / root, -0.5 / root**3])
        if belief is not None:  # the loss is scaled by 1 / share, like the squares
            each = np.array([[1 / belief.share], [1.0], [belief.share]])
            parts[:, len(goal) :] = each * belief.loss(belief.share * squares[len(goal) :])
        return parts

    solution = scipy.optimize.least_squares(
        residuals,
        inside,
        slopes,
        (lower, upper),
        loss="soft_l1" if belief is None else loss,
        f_scale=width,
        x_scale="jac",
        max_nfev=STEPS,
    )
    values: Floats = solution.x * scale
    return values


def _damped(
    model: ModelFunction, here: Line, measured: Floats, wanted: Floats, width: float, belief: Belief | None = None
) -> Floats:
    """Return values as far towards `wanted` as the model itself fits better; unchanged after HALVINGS halvings."""

    def cost(values: Floats, times: Floats) -> float:
        doubt = 0.0 if belief is None else float(belief.loss(belief.off(values) ** 2)[0].sum()) / 2 / belief.share
        return _cost(times, measured, width) + doubt

    before = cost(here.values, here.times)
    for halvings in range(HALVINGS):
        values: Floats = here.values + (wanted - here.values) / 2**halvings
        if cost(values, model(values)) < before:
            return values
    return here.values


def _cost(times: Floats, measured: Floats, width: float) -> float:
    """Return the soft-L1 loss summed over rows; residuals are logarithms in units of `width`."""
    return float(np.sum(np.sqrt(1 + (np.log(times / measured) / width) ** 2) - 1))


def bootstrap(here: Line, bounds: Bounds, width: float, draw: Draw, *, seed: int = 0) -> Floats:
    """Return the values refitted to random draws of rows, (DRAWS, parameters); their scatter is due to chance."""
    generator = np.random.default_rng(seed)
    drawn = [draw(generator) for _ in range(DRAWS)]
    rows, measured = np.stack([numbers for numbers, _ in drawn]), np.stack([times for _, times in drawn])
    batches = -(-rows.size * len(here.values) // BATCH)
    pairs = zip(np.array_split(rows, batches), np.array_split(measured, batches), strict=True)
    return np.concatenate([_refitted(here, numbers, times, bounds, width) for numbers, times in pairs])


def _refitted(here: Line, rows: NDArray[np.int64], measured: Floats, bounds: Bounds, width: float) -> Floats:
    """Return what `refit` gives for each draw, (draws, parameters), from row numbers and times, both (draws, rows).

    All draws take their Levenberg-Marquardt steps together. Values at a limit do not go beyond it.
    """
    goal, slopes, each = np.log(measured), here.slopes * bounds.scale, np.arange(len(here.values))
    lower, upper, begin = bounds.lower / bounds.scale, bounds.upper / bounds.scale, here.values / bounds.scale
    floor = here.times * 1e-6

    def at(values: Floats) -> tuple[Floats, Floats, Floats]:
        """Return for each draw the times of its rows, the residuals in widths, and the soft-L1 loss."""
        moved = np.maximum(here.times + (values - begin) @ slopes.T, floor)
        times = np.take_along_axis(moved, rows, axis=1)
        off = (np.log(times) - goal) / width
        return times, off, np.sum(np.sqrt(1 + off**2) - 1, axis=1)

    values = np.tile(np.clip(begin, lower, upper), (len(rows), 1))
    times, off, loss = at(values)
    damping = np.full(len(rows), 1e-2)
    for _ in range(STEPS):
        shares = slopes[rows] / times[..., None] / width
        root = np.sqrt(1 + off**2)
        descent = -np.einsum("drp,dr->dp", shares, off / root)
        held = ((values <= lower) & (descent < 0)) | ((values >= upper) & (descent > 0))
        curved = np.where(
            held[:, :, None] | held[:, None, :], 0.0, (shares / root[..., None] ** 3).transpose(0, 2, 1) @ shares
        )
        curved[:, each, each] = curved[:, each, each] * (1 + damping[:, None]) + LEAST_CURVED
        step = np.linalg.solve(curved, np.where(held, 0.0, descent)[..., None])[..., 0]
        wanted = np.clip(values + step, lower, upper)
        if (np.abs(wanted - values) <= ARRIVED * np.maximum(np.abs(values), 0.01)).all():
            break
        there = at(wanted)
        better = there[2] <= loss
        damping = np.where(better, damping / 10, damping * 10)
        values = np.where(better[:, None], wanted, values)
        times, off = (np.where(better[:, None], new, old) for new, old in zip(there[:2], (times, off), strict=True))
        loss = np.minimum(loss, there[2])
    found: Floats = values * bounds.scale
    return found


def posterior(here: Line, measured: Floats, belief: Belief) -> Floats:
    """Return the covariance (parameters, parameters) of the values given the rows, for small errors around the line
    (Laplace's approximation). Rows with large residuals count less, as in the fit."""
    slopes = here.slopes / here.times[:, None]
    weights = belief.share / np.sqrt(1 + (np.log(here.times / measured) / OWN_ERROR) ** 2) / OWN_ERROR**2
    scaled = slopes * belief.widths  # in believed widths, so that the inverted matrix has numbers of similar size
    information = scaled.T @ (weights[:, None] * scaled) + np.diag(belief.weights(here.values))
    covariance: Floats = np.linalg.inv(information) * np.outer(belief.widths, belief.widths)
    return covariance


def variances(here: Line, measured: Floats, belief: Belief, alike: Sequence[Hashable], asked: Floats) -> Floats:
    """Return the variances (sums,) of sums of the values, given the rows. `asked` (sums, terms, parameters) holds the
    factors of each term; a sum's variance is the sum of its terms' variances.

    Rows with equal labels in `alike` have errors with an unknown correlation. Together they count as one row, with the
    weights that determine the sum best, so that more rows never make a sum less sure. The weights are those of a
    c-optimal design, by the multiplicative algorithm (Silvey, Titterington and Torsney 1978).
    """
    far = np.sqrt(1 + (np.log(here.times / measured) / OWN_ERROR) ** 2)  # rows far off count less, as in the fit
    telling = here.slopes / here.times[:, None] * belief.widths / OWN_ERROR / np.sqrt(far)[:, None]
    sums, (_, groups) = asked * belief.widths, np.unique(list(map(str, alike)), return_inverse=True)
    weights, believed = np.ones((len(sums), len(groups))), np.diag(belief.weights(here.values))
    for _ in range(WEIGHINGS):
        totals = np.zeros((len(sums), groups.max() + 1))
        np.add.at(totals.T, groups, weights.T)
        weights /= totals[:, groups]
        information = np.einsum("sr,ra,rb->sab", weights, telling, telling) + believed
        known = np.linalg.solve(information, sums.transpose(0, 2, 1))
        found: Floats = np.einsum("sta,sat->s", sums, known)
        weights *= np.sqrt(np.sum(np.einsum("ra,sat->srt", telling, known) ** 2, axis=2)) + TINY
    return found


def least_covariance(here: Line, measured: Floats, bounds: Bounds) -> Floats:
    """Return the least covariance (parameters, parameters) of values fitted to such rows: no unbiased fit knows them
    better (Cramér and Rao). The entries of a value without effect on the rows are 0, which means nothing."""
    shares = here.relative(bounds)
    covariance: Floats = np.linalg.pinv(shares.T @ shares) * np.outer(bounds.scale, bounds.scale)
    return width(here, measured) ** 2 * covariance


def width(here: Line, measured: Floats) -> float:
    """Return the spread of the rows' log residuals, at least LEAST_WIDTH; it includes the scatter of repeated runs."""
    return max(LEAST_WIDTH, spread(np.log(here.times / measured)))


def spread(residuals: Floats) -> float:
    """Return the standard deviation of normal residuals with the same median absolute deviation."""
    return 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))  # 1/0.6745, the normal upper quartile


# --- parameters that the rows determine ---


class Undetermined(NamedTuple):
    """A parameter that the rows do not determine: it has no effect, or the same effect as the parameters `alike`."""

    number: int
    alike: tuple[int, ...]


def undetermined(here: Line, bounds: Bounds) -> list[Undetermined]:
    """Return the parameters to leave out so that the rows determine the others; earlier ones have precedence.

    A parameter is determined if its column of relative slopes has an angle to the span of earlier columns.
    """
    shares, taken, excluded = here.relative(bounds), list[int](), list[Undetermined]()
    for j in range(shares.shape[1]):
        column = shares[:, j]
        if np.abs(column).max(initial=0) < EFFECT:
            excluded.append(Undetermined(j, ()))
            continue
        unit = column / np.linalg.norm(column)
        known = shares[:, taken] / np.linalg.norm(shares[:, taken], axis=0)
        weights = np.linalg.lstsq(known, unit, rcond=None)[0]
        if taken and np.linalg.norm(unit - known @ weights) < SINE:
            most = np.abs(weights).max()
            excluded.append(Undetermined(j, tuple(taken[i] for i in np.flatnonzero(np.abs(weights) > 0.2 * most))))
        else:
            taken.append(j)
    return excluded


def loss_without(here: Line, measured: Floats, bounds: Bounds, width: float, j: int, value: float) -> float:
    """Return by how much the loss grows if parameter `j` is fixed at `value`; chi-squared for normal residuals."""

    def best(line: Line, limits: Bounds) -> float:
        return 2 * _cost(line.at(refit(line, measured, limits, width)), measured, width)

    others = Bounds(*(np.delete(column, j) for column in bounds))
    return best(here.without(j, value), others) - best(here, bounds)
