"""The Python API: what `import simcoll` offers.

>>> import simcoll
>>> points = simcoll.load("quickstart", ["size=1 MiB", "algorithm=ring"])
>>> results = simcoll.run(points)
>>> results[0]["messages"]
112
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcoll import config, results, scenario, sweep
from simcoll.algorithms import build
from simcoll.errors import Place, SimcollError
from simcoll.executors import benchmark
from simcoll.executors.proof import prove
from simcoll.formats.outputs import arrow
from simcoll.prediction import Prediction, predict
from simcoll.registry import Request, register
from simcoll.scenario import Point, Scenario
from simcoll.schedule import Schedule, Transfer
from simcoll.steps import Step, send
from simcoll.topology import Link, Topology

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

    def to_pandas(self) -> Any:
        """A pandas DataFrame; pandas is yours to install."""
        import pandas

        return pandas.DataFrame(self, columns=[*results.COLUMNS, *results.swept(self)])

    def to_parquet(self, path: str | Path) -> None:
        """Write a Parquet file; needs the extra `parquet`. Raises SimcollError where that is missing."""
        results.write_atomically(Path(path), arrow.parquet(self, results.kinds(self)))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface: polars, pandas, DuckDB and others take the rows as they are. Needs the extra
        `parquet`."""
        return arrow.table(self, results.kinds(self)).__arrow_c_stream__(requested_schema)

    def to_torch(self) -> list[Any]:
        """A torch.utils.benchmark.Measurement for each row that has a time. Raises SimcollError without torch."""
        return benchmark.measurements(self)

    def to_csv(self, path: str | Path) -> None:
        """Write a results.csv."""
        results.write_atomically(Path(path), results.to_csv(self))


def load(source: str | Path | dict[str, Any], assignments: Sequence[str] = ()) -> list[Point]:
    """The points of a scenario: a YAML file, the name of a shipped one, or its keys as a dict.

    `assignments` are `--set`-like "path=value". Raises InputError with every mistake.
    """
    if isinstance(source, dict):
        return scenario.points(config.located(source, Place("scenario", 1, 1)), assignments)
    return scenario.load(str(source), assignments)


def run(points: Sequence[Point], jobs: int = 1, cluster: str | None = None) -> Results:
    """Simulate points, in order; an impossible one is a row whose `status` says why.

    `jobs` processes share the work (-1: one a core), or the workers of the Dask scheduler at the address `cluster`.
    """
    found = {index: row for index, row, _ in sweep.sweep(points, jobs, cluster=cluster)}
    return Results(results.public(row) | {"time_ps": row.get("time_ps")} for row in sweep.ordered(found))
