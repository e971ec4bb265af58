"""How well the model chooses the size of gradient buckets: steps that differ in nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from simcoll.accuracy import scores
from simcoll.accuracy.studies.validate import Scored
from simcoll.formats.measured import WORKLOAD

CAP: Final = "workload.bucket_cap"
FEWEST: Final = 2  # sizes of which one can be chosen


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """Measured steps that differ in the size of buckets only, in the order of the table; `name` tells them apart."""

    name: str
    caps: tuple[str, ...]
    scored: tuple[Scored, ...]

    @property
    def measured(self) -> list[float]:
        """Times in us."""
        return [one.point.measured_us for one in self.scored]

    @property
    def predicted(self) -> list[float]:
        """Times in us."""
        return [one.point.predicted_us for one in self.scored]

    @property
    def ratio(self) -> float:
        """How many times the best the worst takes, as measured: what there is to win."""
        return max(self.measured) / min(self.measured)

    @property
    def best(self) -> str:
        """The size that was the quickest."""
        return self.caps[self.measured.index(min(self.measured))]

    @property
    def advised(self) -> str:
        """The size that is the quickest by the model."""
        return self.caps[self.predicted.index(min(self.predicted))]

    @property
    def regret(self) -> float:
        """What following the model costs over the best, as measured, in percent."""
        return 100 * (self.measured[self.caps.index(self.advised)] / min(self.measured) - 1)

    @property
    def error(self) -> float:
        """The median absolute error, in percent."""
        return float(scores.errors(one.point.error for one in self.scored)["median"])

    def rows(self) -> list[dict[str, object]]:
        """For pictures."""
        return [
            {"name": self.name, "bucket_cap": cap, "measured_us": measured, "predicted_us": predicted}
            for cap, measured, predicted in zip(self.caps, self.measured, self.predicted, strict=True)
        ]


def steps(scored: Iterable[Scored]) -> list[MeasuredSteps]:
    """The series of some rows; none where the size of buckets was not swept."""
    found: dict[tuple[str, ...], list[Scored]] = {}
    for one in scored:
        if one.point.collective == WORKLOAD and CAP in one.swept:
            others = [value for key, value in one.swept.items() if key != CAP]
            found.setdefault((one.case, f"{one.point.ranks} ranks", *others), []).append(one)
    several = {name: its for name, its in found.items() if len(its) >= FEWEST}
    return [
        MeasuredSteps(_named(*name), tuple(one.swept[CAP] for one in its), tuple(its)) for name, its in several.items()
    ]


def _named(case: str, ranks: str, *others: str) -> str:
    """What tells a series apart: its parts, without a number of hosts that is that of the ranks."""
    return ", ".join([case, ranks, *(text for text in others if not text.isdecimal())])


def worst_regret(every: Sequence[MeasuredSteps]) -> float | None:
    """Of all series, in percent; None without any."""
    return max((one.regret for one in every), default=None)
