"""Score how well the model chooses the size of gradient buckets, on measured steps that differ in nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from simcoll.accuracy import scores
from simcoll.accuracy.studies.validate import Scored
from simcoll.schedule.names import WORKLOAD

CAP: Final = "workload.bucket_cap"
FEWEST: Final = 2  # sizes: with one there is no choice to score


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """Measured steps that differ in the size of buckets only, in the order of the table; `name` distinguishes the
    series.
    """

    name: str
    caps: tuple[str, ...]
    scored: tuple[Scored, ...]

    @property
    def measured(self) -> list[float]:
        """Measured times, in us."""
        return [row.point.measured_us for row in self.scored]

    @property
    def predicted(self) -> list[float]:
        """Predicted times, in us."""
        return [row.point.predicted_us for row in self.scored]

    @property
    def ratio(self) -> float:
        """The measured time of the worst size over that of the best: the most that a choice can win."""
        return max(self.measured) / min(self.measured)

    @property
    def best(self) -> str:
        """The size with the shortest measured time."""
        return self.caps[self.measured.index(min(self.measured))]

    @property
    def advised(self) -> str:
        """The size with the shortest predicted time."""
        return self.caps[self.predicted.index(min(self.predicted))]

    @property
    def regret(self) -> float:
        """The measured cost of following the model instead of the best choice, in percent."""
        return 100 * (self.measured[self.caps.index(self.advised)] / min(self.measured) - 1)

    @property
    def error(self) -> float:
        """The median absolute error, in percent."""
        return float(scores.errors(row.point.error for row in self.scored)["median"])

    def rows(self) -> list[dict[str, object]]:
        """Return one row for each size, for pictures."""
        return [
            {"name": self.name, "bucket_cap": cap, "measured_us": measured, "predicted_us": predicted}
            for cap, measured, predicted in zip(self.caps, self.measured, self.predicted, strict=True)
        ]


def steps(scored: Iterable[Scored]) -> list[MeasuredSteps]:
    """Group rows into series of two or more bucket sizes; empty where the size of buckets was not swept."""
    series: dict[tuple[str, ...], list[Scored]] = {}
    for row in scored:
        if row.point.collective == WORKLOAD and CAP in row.swept:
            others = [value for key, value in row.swept.items() if key != CAP]
            series.setdefault((row.case, f"{row.point.ranks} ranks", *others), []).append(row)
    return [
        MeasuredSteps(_named(*name), tuple(row.swept[CAP] for row in rows), tuple(rows))
        for name, rows in series.items()
        if len(rows) >= FEWEST
    ]


def _named(case: str, ranks: str, *others: str) -> str:
    """Name a series by its parts; a bare number is the number of hosts, which follows from the ranks, and
    is left out.
    """
    return ", ".join([case, ranks, *(text for text in others if not text.isdecimal())])
