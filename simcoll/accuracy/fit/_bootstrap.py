"""Refit random draws of rows, all at once: their scatter is what chance does to fitted values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.fit.least_squares import Bounds, Line
from simcoll.config.arrays import Floats

DRAWS: Final = 400  # of the bootstrap: 20 lie beyond either end of a 90 % interval, which puts the ends within a few %
BATCH: Final = 1_000_000  # slopes of rows, of all draws that are refitted at once: 8 MB
STEPS: Final = 60  # of a refit at most, as in `refit`: most arrive within 15
ARRIVED: Final = 1e-7  # share of each value that the last step of a refit changes at most
TINY: Final = 1e-9  # keeps equations solvable where a draw has no row of a parameter: it then stays as it is

Draw = Callable[["np.random.Generator"], tuple[NDArray[np.int64], Floats]]
"""Draws row numbers with replacement, and their times, both (rows,)."""


def bootstrap(here: Line, bounds: Bounds, width: float, draw: Draw, *, seed: int = 0) -> Floats:
    """Refit each of DRAWS random draws of rows; returns (DRAWS, parameters), whose scatter is that of chance."""
    generator = np.random.default_rng(seed)
    drawn = [draw(generator) for _ in range(DRAWS)]
    rows, measured = np.stack([numbers for numbers, _ in drawn]), np.stack([times for _, times in drawn])
    batches = -(-rows.size * len(here.values) // BATCH)
    pairs = zip(np.array_split(rows, batches), np.array_split(measured, batches), strict=True)
    return np.concatenate([_refitted(here, numbers, times, bounds, width) for numbers, times in pairs])


def _refitted(here: Line, rows: NDArray[np.int64], measured: Floats, bounds: Bounds, width: float) -> Floats:
    """Return what `least_squares.refit` finds for each draw, (draws, parameters), from rows and times (draws, rows).

    All draws take the steps of Levenberg and Marquardt at once; values at a limit that would go beyond it stay.
    """
    goal, slopes, each = np.log(measured), here.slopes * bounds.scale, np.arange(len(here.values))
    lower, upper, begin = bounds.lower / bounds.scale, bounds.upper / bounds.scale, here.values / bounds.scale
    floor = here.times * 1e-6

    def at(values: Floats) -> tuple[Floats, Floats, Floats]:
        """Return times of the rows of each draw, residuals in widths, and the loss, soft L1, of each draw."""
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
        curved[:, each, each] = curved[:, each, each] * (1 + damping[:, None]) + TINY
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
