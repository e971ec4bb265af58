"""Which parameters some rows tell, what they are, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simcoll import fitting, parameters
from simcoll.collectives import collective
from simcoll.errors import Diagnostic, InputError
from simcoll.fitting import Array, Bounds, Line
from simcoll.model import PS_PER_S, Params
from simcoll.parameters import Setting
from simcoll.profile import Profile
from simcoll.samples import Samples

INTERVAL: Final = (5.0, 95.0)  # percentiles: 90 %
LINKED: Final = 0.95  # correlation over the bootstrap from which on two parameters are told to hang together
AT_LIMIT: Final = 0.999

NO_EFFECT: Final = "changes none of these rows"
NO_SIGN: Final = "these rows show no sign of another value"


@dataclass(frozen=True)
class Estimate:
    """Costs of the fitted parameters with the ends of their 90 % intervals; why others were `left`, and remarks."""

    costs: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    left: Mapping[str, str]
    notes: Sequence[str]


def estimate(some: Samples, start: Profile, params: Params, free: Sequence[str], seed: int) -> Estimate:
    """Fit the parameters named by `free`, or those that the rows tell, beginning at a profile and its parameters.

    Raises InputError if one that was asked for cannot be told from the rows, and if there are too few rows.
    """
    return _Estimating(some, start, params, free, seed).run()


class _Estimating:
    """The names still to be fitted, why others are not, and what they are fitted to."""

    def __init__(self, some: Samples, start: Profile, params: Params, free: Sequence[str], seed: int):
        self.some, self.seed, self.asked = some, seed, bool(free)
        self.before = Setting({}, start.launch, start.links)
        self.left: dict[str, str] = {}
        reduces = any(collective(row.collective).reduces for row in some.rows)
        self.names = parameters.named(free, some.kinds) if free else parameters.candidates(some.kinds, reduces)
        self.null = {name: parameters.cost(name, start, params) for name in self.names}
        self._check_given()

    def _check_given(self) -> None:
        """A parameter that rows of the table give themselves is not to be fitted."""
        given = {key.removeprefix("model.") for row in self.some.rows for key in row.others if key.startswith("model.")}
        if clash := [name for name in self.names if name in given and self.asked]:
            raise InputError(f"--free: {clash[0]} is given by the table's column model.{clash[0]}", "leave it out")
        for name in given & set(self.names):
            self.names.remove(name)
            self.left[name] = "the table gives it"

    def run(self) -> Estimate:
        self._drop_untold(self._line())
        while True:
            line = self._fitted()
            if not self._drop_untold(line) and not self._drop_unneeded(line):
                return self._estimate(line, self._draws(line))

    # --- fitting ---

    def _model(self, costs: Array) -> Array:
        return self.some.times(self.before.at(dict(zip(self.names, costs.tolist(), strict=True))))

    @property
    def _bounds(self) -> Bounds:
        fastest = max(question.fastest for question in self.some.questions)
        return parameters.bounds(self.names, self.some.measured, fastest)

    @property
    def _start(self) -> Array:
        """Where the profile stands; a cap where it begins to bind, a gap of the order of the shortest time."""
        slowest = min(question.slowest for question in self.some.questions)
        begins = {"channel_bandwidth": PS_PER_S / slowest, "g": 0.2 * float(self.some.measured.min())}
        return np.array([self.null[name] or begins.get(name, 0.0) for name in self.names])

    def _line(self) -> Line:
        self._check_enough()
        return fitting.line(self._model, self._start, self._bounds)

    def _fitted(self) -> Line:
        self._check_enough()
        return fitting.fit(self._model, self.some.measured, self._start, self._bounds)

    def _check_enough(self) -> None:
        if len(self.some) <= len(self.names):
            what = f"{len(self.some)} rows are too few to fit {', '.join(self.names)}"
            raise InputError(what, "give more rows, or name fewer parameters with --free")

    def _draws(self, line: Line) -> Array:
        width = fitting.width(line, self.some.measured)
        return fitting.bootstrap(line, self._bounds, width, self.some.draw, seed=self.seed)

    # --- leaving out ---

    def _leave(self, name: str, why: str) -> None:
        self.names.remove(name)
        self.left[name] = why

    def _drop_untold(self, line: Line) -> bool:
        """Leave out what the rows do not tell, or refuse it if it was asked for."""
        reasons = {}
        for untold in fitting.untold(line, self._bounds):
            alike = " and ".join(self.names[i] for i in untold.alike)
            reasons[self.names[untold.number]] = f"these rows cannot tell it from {alike}" if alike else NO_EFFECT
        if reasons and self.asked:
            cure = "free less, or add rows of other rank counts, algorithms or sizes"
            raise InputError(Diagnostic(f"--free: {name}: {why}", cure) for name, why in reasons.items())
        for name, why in reasons.items():
            self._leave(name, why)
        if not self.names:
            raise InputError("no parameter has an effect on these rows", "name some with --free")
        return bool(reasons)

    def _drop_unneeded(self, line: Line) -> bool:
        """Leave out, unless it was asked for, what fits as well where it began (by the Bayesian information criterion:
        a parameter has to gain the logarithm of the number of rows). An efficiency stays."""
        width, dropped = fitting.width(line, self.some.measured), False
        while not self.asked and len(self.names) > 1:
            bounds = self._bounds
            loss = {
                name: fitting.loss_without(line, self.some.measured, bounds, width, j, self.null[name])
                for j, name in enumerate(self.names)
                if not name.startswith("efficiency")
            }
            least = min(loss, key=loss.__getitem__, default=None)
            if least is None or loss[least] > np.log(len(self.some)):
                break
            line = line.without(self.names.index(least), self.null[least])
            self._leave(least, NO_SIGN)
            dropped = True
        return dropped

    # --- telling ---

    def _estimate(self, line: Line, draws: Array) -> Estimate:
        low, high = np.percentile(draws, INTERVAL, axis=0)
        costs, lows, highs = (
            dict(zip(self.names, column.tolist(), strict=True)) for column in (line.values, low, high)
        )
        return Estimate(costs, lows, highs, dict(self.left), [*self._linked(draws), *self._limited(line)])

    def _linked(self, draws: Array) -> list[str]:
        """Parameters that the rows tell apart only just."""
        together = np.atleast_2d(np.corrcoef(draws, rowvar=False))
        return [
            f"{a} and {b} hang together (correlation {together[i, j]:.2f}): their sum is surer than either"
            for i, a in enumerate(self.names)
            for j, b in enumerate(self.names[:i])
            if abs(together[i, j]) > LINKED
        ]

    def _limited(self, line: Line) -> list[str]:
        """Links that carry more than they are said to, and values that stand at what is allowed."""
        notes = []
        for name, value, upper in zip(self.names, line.values.tolist(), self._bounds.upper.tolist(), strict=True):
            if name.startswith("efficiency") and value < AT_LIMIT:
                notes.append(f"{name} is above 100 %: the topology understates its links, or another schedule ran")
            elif value > AT_LIMIT * upper:
                notes.append(f"{name} stands at the most that is allowed: the model lacks what these rows show")
        return notes
