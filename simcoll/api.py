"""The Python API: what `import simcoll` offers.

>>> import simcoll
>>> points = simcoll.load("quickstart", ["size=1 MiB", "algorithm=ring"])
>>> results = simcoll.run(points)
>>> results[0]["algorithm"], results[0]["confidence"]
('ring', 'interpolated')
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcoll.config import yaml_tree
from simcoll.errors import Place, SimcollError
from simcoll.prediction import sweep
from simcoll.prediction.predict import Prediction, predict
from simcoll.prediction.result_rows import COLUMNS, ResultRow, swept, to_csv, write_atomically
from simcoll.report import torch_benchmark
from simcoll.report.exports import arrow
from simcoll.scenario import loading
from simcoll.scenario.loading import Point
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.algorithms import build
from simcoll.schedule.ir import Schedule, Transfer
from simcoll.schedule.proof import prove
from simcoll.schedule.registry import Request, register
from simcoll.schedule.steps import Step, send
from simcoll.topology.graph import Link, Topology

__all__ = [
    "Link",
    "Point",
    "Prediction",
    "Request",
    "Results",
    "Scenario",
    "Schedule",
    "SimcollError",
    "Step",
    "Topology",
    "Transfer",
    "build",
    "load",
    "predict",
    "prove",
    "register",
    "run",
    "send",
]


class Results(list[dict[str, Any]]):
    """Rows with the columns of results.csv, numbers as numbers."""

    def _rows(self) -> list[ResultRow]:
        known = {*COLUMNS, *swept(self), "time_ps"}  # keys that a user has added are in no file
        return [
            ResultRow.of({k: value for k, value in row.items() if k in known and value is not None}) for row in self
        ]

    def to_pandas(self) -> Any:
        """A pandas DataFrame; pandas is yours to install."""
        import pandas

        return pandas.DataFrame(self, columns=[*COLUMNS, *swept(self)])

    def to_parquet(self, path: str | Path) -> None:
        """Write a Parquet file; needs the extra `parquet`. Raises SimcollError where that is missing."""
        write_atomically(Path(path), arrow.parquet(self._rows()))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface: polars, pandas, DuckDB and others take the rows as they are. Needs the extra
        `parquet`."""
        return arrow.table(self._rows()).__arrow_c_stream__(requested_schema)

    def to_torch(self) -> list[Any]:
        """A torch.utils.benchmark.Measurement for each row that has a time. Raises SimcollError without torch."""
        return torch_benchmark.measurements(self._rows())

    def to_csv(self, path: str | Path) -> None:
        """Write a results.csv."""
        write_atomically(Path(path), to_csv(self._rows()))


def load(source: str | Path | dict[str, Any], assignments: Sequence[str] = ()) -> list[Point]:
    """The points of a scenario: a YAML file, the name of a shipped one, or its keys as a dict.

    `assignments` are `--set`-like "path=value". Raises InputError with every mistake.
    """
    if isinstance(source, dict):
        return loading.points(yaml_tree.located(source, Place("scenario", 1, 1)), assignments)
    return loading.load(str(source), assignments)


def run(points: Sequence[Point], jobs: int = 1, cluster: str | None = None) -> Results:
    """Simulate points, in order; an impossible one is a row whose `status` says why.

    `jobs` processes share the work (-1: one a core), or the workers of the Dask scheduler at the address `cluster`.
    """
    rows = sweep.ordered({index: row for index, row, _ in sweep.sweep(points, jobs, cluster=cluster)})
    return Results({**row, "time_ps": row.time_ps if row.status == "ok" else None} for row in rows)
