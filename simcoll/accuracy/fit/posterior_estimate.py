"""Estimate parameters that were fitted before: the most probable values, given the rows and the profile.

A parameter that the rows do not show keeps its value. The rows decide how far the others may move. Groups of rows (a
rank count, a collective, a node count, some sizes) are predicted from the other rows, and the fit leaves the profile
only as far as these predictions improve. A cost that fits some rows and spoils others is not the machine's. Costs move
in three parts: first those of a process that launches for several GPUs, which depend on the host; then network costs,
of which little is known before a fit; then those of GPUs and links in a node, which differ little between machines.

The network may be of another kind than the profile's, with very different costs. So slopes are taken over the believed
width, as ports may hide a slower cable, and the belief gives way to rows that contradict it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.fit import least_squares, prior
from simcoll.accuracy.fit.estimate import (
    NEW,
    NO_EFFECT,
    Estimate,
    Fitting,
    above_rates,
    check_limits,
    errors_left_out,
)
from simcoll.accuracy.fit.least_squares import Belief, Line
from simcoll.accuracy.fit.parameters import with_costs
from simcoll.accuracy.fit.prior import Part
from simcoll.accuracy.fit.rows_to_fit import Samples
from simcoll.config.grouping import grouped
from simcoll.config.numpy_helpers import Floats
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError
from simcoll.formats.measured import MeasuredRow
from simcoll.measurement.cases_of_points import Tell
from simcoll.prediction import confidence
from simcoll.prediction.confidence import FAR, NORMAL_90
from simcoll.scenario.profile import CABLE, Profile

SIZE_EDGES: Final = (64 << 10, 16 << 20)  # bytes: latency dominates up to the first, bandwidth from the last on
COARSE: Final = 48  # sizes over all series: more would hardly say more about a dozen parameters
ROUNDS: Final = 4  # linearisations: the fit begins near its end
NARROWED: Final = 0.9  # rows say hardly anything about a parameter that keeps a larger share of its believed width
BOLDNESS: Final = (0.1, 0.3, 1.0)  # factors of the believed widths that are tried on left-out rows
# Number of believed widths over which slopes are taken at first: costs are seldom hidden over more. Blocks of rings
# hide cables down to 78 % of their rate.
REACH, REACH_OF_CABLES = 2.0, 3.0
MOST_OUTLIERS: Final = 0.25  # share of rows that may be far off by chance; if more are, they count fully
BETTER: Final = 0.9  # a fit must lower the error to this share of the earlier error: a smaller gain may be chance
# One group's error may grow by this share of the groups' mean gain, for costs of the network and of GPUs. On 71 splits
# of published tables on several nodes, a half gives the least error for the network. If no error may grow, fits do not
# find the costs of synthetic machines (shipped tables with changed costs): a loss of 0.2 points vetoes a gain of 20.
OF_NETWORK, OF_GPUS = 0.5, 0.05
SHARES: Final[Mapping[Part, float]] = {"launches": OF_NETWORK, "network": OF_NETWORK, "GPUs": OF_GPUS}
# For network costs, a group's error may also grow by the model's own error. Without the one collective on which a
# slow cable has an effect, the fit explains its rows by other costs, which is no evidence against the slow cable. If
# rows lack a zone of sizes (small, middle, large), predictions will be for that zone, too, and no error may grow.
SLACK: Final = least_squares.OWN_ERROR


_Ways = Sequence[Sequence[NDArray[np.int64]]]  # partitions for cross-validation: row numbers by partition and group
NO_BETTER: Final = "another value does not improve predictions of left-out rows"
HARDLY: Final = "these rows hardly determine it"
MESSAGES: Final = "messages cannot distinguish it from `P2P.reach`; add rows of other collectives"


def estimate(
    samples: Samples,
    start: Profile,
    params: Params,
    known: Mapping[str, tuple[str, str]],
    tell: Tell,
) -> Estimate:
    """Fit the parameters that the rows show, near the values of the fitted profile `start`.

    `known` are the 90 % intervals of that fit. Raises InputError if no parameter has an effect or one is at a limit.
    """
    return _FromPrior(samples.of(coarse(samples.rows)), start, params, known, tell).run()


class _FromPrior(Fitting):
    """A fit to few rows (`coarse`) that begins at a profile which was fitted before."""

    def __init__(
        self,
        samples: Samples,
        start: Profile,
        params: Params,
        known: Mapping[str, tuple[str, str]],
        tell: Tell,
    ):
        super().__init__(samples, start, params)
        self.known, self.tell = known, tell
        self.left = self._shared() if start.kernels else {}
        self.names = [name for name in self.null if name not in self.left and not prior.zero(name, self.null)]
        self.found: dict[str, float] = {}  # values that differ from the profile's; `times` are the times with them
        self.times = np.zeros(0)
        self.evaluated = 0

    def run(self) -> Estimate:
        measured = self.samples.measured
        first = self._seen(self._line(self._values))
        every, known = self.names, self._belief
        self.tell(f"{len(every)} parameters, {len(measured)} rows; {_error(first.times, measured)} before the fit")
        moved, times = dict[str, float](), first.times
        for part in SHARES:
            self.names = [name for name in every if prior.part_of(name) == part]
            if not self.names:
                continue
            boldness = self._fitted(times, part)
            if boldness == 0:
                self.left |= dict.fromkeys(self.names, NO_BETTER)
                continue
            moved |= dict.fromkeys(self.names, boldness)
            times = self.times
        self.tell(f"{_error(times, measured)} after {self.evaluated} predictions of these rows")
        self.names = [name for name in every if name in moved]
        if not moved:
            self.names = every
            kept = self._at(first, known, ["the values before the fit predict left-out rows best: nothing is changed"])
            return replace(kept, costs={}, low={}, high={})
        belief = self._belief
        belief = belief._replace(widths=belief.widths * [moved[name] for name in self.names])
        values = np.array([self.found[name] for name in self.names])
        return self._at(self._line(values), belief, [])

    def _fitted(self, times: Floats, part: Part) -> float:
        """Fit the costs of one `part` and keep the others. Return the factor of the believed widths that was used, 0 if
        nothing changed. `times` (rows,) are the predicted times before, in ps."""
        measured, bounds, belief = self.samples.measured, self.bounds, self._belief
        of_cables = [name == f"efficiency.{CABLE}" for name in self.names]
        steps = np.where(of_cables, REACH_OF_CABLES, REACH) * belief.widths if part == "network" else None
        line = least_squares.fit(self.model, measured, self._values, bounds, belief, ROUNDS, steps)
        boldness = self._boldness(times, line, part)
        if 0 < boldness < 1:
            belief = _kept(belief, boldness)
            values = least_squares.refit(line, measured, bounds, least_squares.OWN_ERROR, belief)
            line = Line(values, self.model(values), line.slopes)
        if boldness:
            self.times = line.times
            self.found |= dict(zip(self.names, line.values.tolist(), strict=True))
        return boldness

    # --- the model ---

    def _line(self, values: Floats) -> Line:
        """Return the line at `values`. Slopes for network costs span the believed widths: others may hide them."""
        near, far = least_squares.near(values, self.bounds), self._belief.widths
        return least_squares.line(
            self.model, values, self.bounds, np.where(list(map(prior.of_network, self.names)), far, near)
        )

    def model(self, costs: Floats) -> Floats:
        """Return the predicted times of the rows at these costs and the costs found so far, in ps."""
        self.evaluated += 1
        asked = {**self.found, **dict(zip(self.names, costs.tolist(), strict=True))}
        return self.samples.times(with_costs(self.before, asked))

    @property
    def _values(self) -> Floats:
        return np.array([self.null[name] for name in self.names])

    @property
    def _belief(self) -> Belief:
        return prior.belief(self.names, self.null, self.known, self.samples.rows, self.bounds)

    # --- choice of parameters ---

    def _shared(self) -> dict[str, str]:
        """Return parameters not to fit, with the reason, if all rows are point-to-point messages: links of a node serve
        rings and trees too, and the share that messages reach is another parameter (P2P.reach)."""
        if any(row.collective not in confidence.PAIRS for row in self.samples.rows):
            return {}
        cables = f"efficiency.{CABLE}"
        return {name: MESSAGES for name in self.null if name.startswith("efficiency.") and name != cables}

    def _seen(self, line: Line) -> Line:
        """Leave out parameters that change no row, and GPU parameters about which the rows say hardly anything.

        All network costs stay, since rows may determine them only together. Without one of them, the others would take
        its place, and be wrong on other numbers of nodes.
        """
        shares = np.abs(line.relative(self.bounds)).max(axis=0)
        line = self._leaving(line, shares < least_squares.EFFECT, NO_EFFECT)
        if not self.names:
            raise InputError("no parameter has an effect on these rows", "name some with --free")
        belief = self._belief
        after = np.sqrt(np.diag(least_squares.posterior(line, line.times, belief)))
        hardly = (after > NARROWED * belief.widths) & ~np.array([prior.of_network(name) for name in self.names])
        return line if hardly.all() else self._leaving(line, hardly, HARDLY)

    def _leaving(self, line: Line, which: NDArray[np.bool_], why: str) -> Line:
        """Return the line without the flagged parameters, which keep their values; record the reason."""
        self.left |= {name: why for name, leave in zip(self.names, which.tolist(), strict=True) if leave}
        self.names = [name for name in self.names if name not in self.left]
        return Line(line.values[~which], line.times, line.slopes[:, ~which])

    # --- distance from the profile ---

    def _boldness(self, times: Floats, line: Line, part: Part) -> float:
        """Return the factor of the believed widths with which the fit predicts left-out rows best, over all ways to
        leave rows out. 0 means that the values stay, which predict `times` (rows,).

        A bolder fit must be better on the whole, where each way counts once. No group may lose more than a share of
        this gain, as nobody knows what new calls will be like.
        """
        rows, measured = self.samples.rows, self.samples.measured
        of_network = part == "network"
        ways = _ways_to_leave_out(rows, of_network)
        if not ways:
            return 1.0
        share, slack = SHARES[part], SLACK if of_network and _in_all_zones(rows) else 0.0
        counts = np.concatenate([np.full(len(groups), 1 / len(groups) / len(ways)) for groups in ways])
        usual = float(np.quantile(np.abs(np.log(times / measured)), 1 - MOST_OUTLIERS))
        most = FAR * max(least_squares.OWN_ERROR, usual)  # an outlier must not hide what other rows gain
        before = _off([times] * len(ways), measured, ways, most)
        best, least = 0.0, BETTER * float(counts @ before)
        for boldness in BOLDNESS:
            errors = _off([self._left_out(line, groups, boldness) for groups in ways], measured, ways, most)
            mean = float(counts @ errors)
            if mean < least and (errors <= before + share * (counts @ before - mean) + slack).all():
                best, least = boldness, mean
        return best

    def _left_out(self, line: Line, groups: Sequence[NDArray[np.int64]], boldness: float) -> Floats:
        """Return times (rows,): each group of rows is predicted from the other rows, along a line."""
        measured, belief = self.samples.measured, self._belief
        belief = _kept(belief, boldness)
        times = np.ones(len(measured))  # times of rows outside all groups are not used
        for group in groups:
            others = np.setdiff1d(np.arange(len(measured)), group)
            own = least_squares.OWN_ERROR
            values = least_squares.refit(line.of(others), measured[others], self.bounds, own, belief)
            times[group] = line.of(group).at(values)
        return times

    def _at(self, line: Line, belief: Belief, notes: Sequence[str]) -> Estimate:
        """Return the estimate at a line's values, with intervals of the posterior distribution.

        The intervals use the whole prior belief, and not the narrower `belief` of the fit: the boldness that predicts
        other rows best does not say how sure a value is.
        """
        bounds = self.bounds
        check_limits(self.names, line.values, bounds, self.null)
        rows, measured = self.samples.rows, self.samples.measured
        alike, known = [prior.zone(row) for row in rows], self._belief
        single = np.eye(len(self.names))[:, None]
        widths = np.sqrt(least_squares.variances(line, measured, known, alike, single))
        slopes = line.slopes / line.times[:, None] / np.sqrt(len(rows))
        scatter = float(np.sqrt(least_squares.variances(line, measured, known, alike, slopes[None])[0]))
        shown = errors_left_out(line, rows, measured, bounds, belief)
        ends = [np.clip(line.values + sign * NORMAL_90 * widths, bounds.lower, bounds.upper) for sign in (-1, 1)]
        costs, low, high = (dict(zip(self.names, each.tolist(), strict=True)) for each in (line.values, *ends))
        return Estimate(
            costs, low, high, self.left, [*notes, *above_rates(self.names, ends[1], self.null)], scatter, shown
        )


def _kept(belief: Belief, boldness: float) -> Belief:
    """Return the belief without tails and with its widths times `boldness` (below 1): fits then stay nearer to it."""
    return belief if boldness == 1 else belief._replace(widths=belief.widths * boldness, tails=False)


def coarse(rows: Sequence[MeasuredRow]) -> NDArray[np.bool_]:
    """Return flags of the rows of about COARSE sizes: every n-th size of each series, and its smallest and largest.

    All rows of a size stay together, so that the order of repeated runs does not matter.
    """
    series = [
        sorted(grouped(own, lambda i: rows[i].size_bytes).items())
        for own in grouped(range(len(rows)), lambda i: prior.series(rows[i])).values()
    ]
    step = -(-sum(map(len, series)) // COARSE)
    flags = np.zeros(len(rows), bool)
    for of_size in series:
        for _, runs in (*of_size[::step], of_size[-1]):
            flags[runs] = True
    return flags


def _ways_to_leave_out(rows: Sequence[MeasuredRow], of_network: bool) -> _Ways:
    """Return the ways to divide rows into groups for cross-validation: by rank count, collective, node count and size,
    each if it gives several groups.

    Groups of sizes are zones (small, middle, large). For network costs, if rows are in all zones, every second doubling
    of the size is left out instead: these costs act in some zones only, and predictions will be for sizes between the
    rows' sizes. A group with none or all of the rows on which the network has an effect is dropped.
    """
    zones = [_zone(row) for row in rows]
    labels: list[list[object]] = [[getattr(row, key) or 1 for row in rows] for key in NEW.values()]
    between = of_network and _in_all_zones(rows)
    doublings = [row.size_bytes.bit_length() for row in rows]
    order = {doubling: number for number, doubling in enumerate(sorted(set(doublings)))}
    labels.append([order[doubling] % 2 for doubling in doublings] if between else [*zones])
    every = [[tuple(group) for group in grouped(range(len(rows)), of_rows.__getitem__).values()] for of_rows in labels]
    showing = {i for i, row in enumerate(rows) if (row.nodes or 1) > 1 or not of_network}
    ways = [[group for group in groups if 0 < len(showing & set(group)) < len(showing)] for groups in every]
    different = dict.fromkeys(tuple(groups) for groups in ways if groups)  # ranks and nodes may give equal groups
    return [[np.array(group) for group in groups] for groups in different]


def _zone(row: MeasuredRow) -> int:
    return bisect_left(SIZE_EDGES, row.size_bytes)


def _in_all_zones(rows: Sequence[MeasuredRow]) -> bool:
    return len(set(map(_zone, rows))) > len(SIZE_EDGES)


def _off(times: Sequence[Floats], measured: Floats, ways: _Ways, most: float) -> Floats:
    """Return the mean error of each group of each way, from the times that this way predicts; a row's error counts as
    `most` at most."""
    errors = [np.minimum(np.abs(np.log(of_way / measured)), most) for of_way in times]
    return np.array([each[group].mean() for each, groups in zip(errors, ways, strict=True) for group in groups])


def _error(times: Floats, measured: Floats) -> str:
    return f"mean error {100 * np.mean(np.abs(times / measured - 1)):.1f} %"
