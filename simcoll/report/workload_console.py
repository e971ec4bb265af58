"""Workloads as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import simcoll
from simcoll import units
from simcoll.config import text_table
from simcoll.prediction.result_rows import Row, swept

COLUMNS = ("workload", "algorithm", "ranks", "nodes", "buckets", "step_us", "compute_us", "exposed_us")
VARIED = ("time_us_p50", "time_us_p95", "time_us_p99", "due to")


def step_table(rows: Sequence[Row]) -> str:
    """The head, a line a point, and the point that is done first."""
    good = [{**row, **{name: _short(row.get(name)) for name in swept(rows)}} for row in rows if row["status"] == "ok"]
    columns = [column for column in COLUMNS if any(row.get(column) is not None for row in good)]
    shared = "   ".join(f"{name} {_either(rows, name)}" for name in ("topology", "profile", "sharing", "dtype"))
    parts = [f"# simcoll {simcoll.__version__}: {rows[0]['scenario']}", f"# {shared}"]
    parts.append("# step = compute (of the rank that computes most) + exposed (what communication adds)")
    parts += [text_table.render([*columns, *swept(rows)], good)] if good else []
    parts += dict.fromkeys(f"# {row['algorithm']}: {row['status']}" for row in rows if row["status"] != "ok")
    if len(good) > 1:
        best = min(good, key=lambda row: row["step_us"])
        what = ", ".join([str(best["algorithm"]), *(f"{name} {best[name]}" for name in swept(rows) if best.get(name))])
        slower = max(row["step_us"] for row in good) / best["step_us"]
        parts.append(f"# shortest step: {what}; the longest takes {slower:.2f} times as long")
    return "\n".join(parts)


def varied_table(rows: Sequence[Row]) -> str:
    """Quantiles of each point that was run many times, and whose fault it is; empty if none was."""
    good = [
        {**row, "due to": "  ".join(f"{cause} {share:.0%}" for cause, share in row["slowdown_shares"].items())}
        for row in rows
        if row.get("replications")
    ]
    columns = ["workload", "collective", "algorithm", "ranks", "size_bytes", "replications", "time_us", *VARIED]
    shown = [column for column in columns if any(row.get(column) for row in good)]
    return text_table.render([*shown, *swept(good)], good) if good else ""


def _short(value: object) -> object:
    """A size as one writes it: a range has counted its bytes."""
    is_size = isinstance(value, str) and units.kind_of(value) == "size"
    return units.format_size(units.parse(value, "size")) if is_size else value


def _either(rows: Sequence[Row], column: str) -> str:
    values = list(dict.fromkeys(str(row[column]) for row in rows if row.get(column) is not None)) or ["-"]
    return ", ".join(values[:3]) + (f", … ({len(values)})" if len(values) > 3 else "")
