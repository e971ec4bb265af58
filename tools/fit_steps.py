"""Fit the parameters of GPUs and frameworks (gpus.yaml, frameworks.yaml) to published training steps, and say how well
steps are predicted that were not fitted.

    python tools/fit_steps.py points OUT.json [--every 1] [--only TABLE,…]   predicts rows, with slopes
    python tools/fit_steps.py fit OUT.json …                         prints fitted parameters, and errors held out

Every row is predicted by the same plan as any other step. The slope of its time in each parameter (both as
logarithms) parameter comes from the parts of the step. The fit is the least squares of this linear model, with
the weight of a row falling beyond an error of 4 %. A held-out error is that of the rows of a group (a model, a scale, a
source) with the parameters fitted to all other rows. After a fit, enter the values, and make the points again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import lsq_linear

from simcoll.accuracy.published_steps import Door, MissingError, keys_of, rows_of
from simcoll.errors import SimcollError
from simcoll.prediction.training_step import TrainingPrediction
from simcoll.units import PS_PER_S
from simcoll.workload.compute import gpus
from simcoll.workload.transformer import Transformer

FOLDER: Final = Path(__file__).parents[1] / "validation" / "steps"
BOUND: Final = 0.02  # share of waiting for launches from which they count as what binds
ERROR: Final = 0.04  # beyond it the weight of a row falls


def slopes(found: TrainingPrediction) -> dict[str, float]:
    """Return by how much the logarithm of a step's time rises with the logarithm of each parameter, from the parts of
    the step: what computes longer, lengthens the step by its share (bubble and waiting grow with the rest)."""
    planner, compute = found.planner, found.planner.compute
    way, kernel, source = compute.framework, compute.kernel, compute.of.source
    parts = found.breakdown
    busy = found.time_ps - parts["bubble"] - parts["wait"]
    name = found.step.framework.name
    own = "unfused" in way.attention
    share = {part: took / busy for part, took in parts.items()}
    made = {
        f"{source} interference": -share["interference"],
        f"{source} hbm_efficiency": -share["elementwise"] - share["optimizer"],
        f"{source} gemm {found.step.dtypes.compute}": share["gemm"],
        f"elementwise {name if own else compute.kernels}": share["elementwise"],
    }
    if kernel.score_bytes:
        made[f"{name} score_bytes"] = 0.7 * share["attention"]
    elif kernel.efficiency:
        made[f"{way.attention} {source}"] = -share["attention"]
    if found.step.overlap.tensor and way.tensor_shown < 1:
        made[f"{name} tensor_shown"] = share["tp"]
    if way.gap:
        made[f"{name} gap"] = share["launch"]
    elif share["launch"] > BOUND:  # the floor binds: it alone counts in blocks
        tp = found.step.parallel.tp
        base = way.launch.get(compute.kernels, 0.0)
        bound = share["launch"] + share["gemm"] + share["elementwise"] + share["attention"] + share["tp"]
        made = {key: value * 0.2 for key, value in made.items()}
        made[f"{name} launch"] = 0.9 * bound * base / planner.launch_s
        key = f"{name} launch_pipelined" if found.step.parallel.pp > 1 else f"{name} launch_tensor"
        if tp > 1 and planner.launch_s > base:
            made[key] = 0.9 * bound * (1 - base / planner.launch_s)
    return {key: value for key, value in made.items() if abs(value) > 1e-4}


def points(out: Path, every: int, only: Sequence[str]) -> None:
    """Predict rows of all tables, and write times, errors and slopes; finished rows of `out` are kept."""
    made: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for path in sorted(FOLDER.glob("*.csv")):
        if path.stem.startswith("memory") or (only and path.stem not in only):
            continue
        every_row = rows_of(path.read_text(), str(path))
        rows = [(line, row) for line, row in every_row if row["predictable"].startswith("yes")]
        door = Door()
        rows.sort(key=lambda each: (each[1]["gpus"].zfill(5), each[1].get("tp", "")))
        for _, row in rows[:: every if len(rows) > 20 else 1]:
            if row["id"] in made:
                continue
            start = time.perf_counter()
            try:
                made[row["id"]] = {"table": path.stem, **_point(row, door)}
            except (MissingError, SimcollError) as error:
                print(row["id"], error, file=sys.stderr)
                continue
            spent = time.perf_counter() - start
            print(f"{row['id']}: {100 * made[row['id']]['error']:+.1f} % ({spent:.1f} s)", file=sys.stderr, flush=True)
        out.write_text(json.dumps(made))


def _point(row: Any, door: Door) -> dict[str, Any]:
    found = door.ask(keys_of(row)[0])
    took = found.time_ps / PS_PER_S
    measured = float(row["d_step_time_s"])
    columns = ("model", "gpu", "gpus", "framework", "tp", "pp", "compute_dtype")
    return {**{c: row.get(c, "") for c in columns}, "measured": measured, "predicted": took,
            "error": took / measured - 1, "slopes": slopes(found)}  # fmt: skip


Point = dict[str, Any]


def fitted(rows: Sequence[Point], bounds: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Return the change of the logarithm of each parameter with which the rows fit best. Each table counts alike."""
    names = sorted({name for row in rows for name in row["slopes"]})
    matrix = np.array([[row["slopes"].get(name, 0.0) for name in names] for row in rows])
    off = -np.array([math.log1p(row["error"]) for row in rows])
    count = {table: sum(row["table"] == table for row in rows) for table in {row["table"] for row in rows}}
    weight = np.array([math.sqrt(60 / max(15, count[row["table"]])) for row in rows])
    low = [bounds.get(name, (-1.5, 1.5))[0] - 1e-9 for name in names]
    high = [bounds.get(name, (-1.5, 1.5))[1] + 1e-9 for name in names]
    change = np.zeros(len(names))
    for _ in range(12):  # least squares with weights that fall as 1 / error beyond ERROR
        left = np.abs(matrix @ change - off)
        robust = weight * np.sqrt(1 / np.maximum(1, left / ERROR))
        calm = 0.02 * np.eye(len(names))  # keeps what rows do not tell
        change = lsq_linear(np.vstack([matrix * robust[:, None], calm]),
                            np.concatenate([off * robust, np.zeros(len(names))]), bounds=(low, high)).x  # fmt: skip
    return dict(zip(names, change, strict=True))


def errors(rows: Sequence[Point], change: dict[str, float]) -> list[float]:
    """Return the relative errors of rows after a change of parameters."""
    return [
        math.exp(math.log1p(row["error"]) + sum(s * change.get(name, 0.0) for name, s in row["slopes"].items())) - 1
        for row in rows
    ]


def group_of(row: Point) -> str:
    """Return the group in which a row's error is reported."""
    if row["table"] == "nanotron":
        if int(row["pp"] or 1) > 1:
            return "nanotron, pipeline"
        return "nanotron, tp across nodes" if int(row["tp"] or 1) > 8 else "nanotron, tp ≤ 8"
    return str(row["table"])


def held_out(rows: Sequence[Point], key: Callable[[Point], object], bounds: Any) -> dict[str, list[float]]:
    """Return errors by group, each row predicted with the parameters of a fit without the rows of equal `key`."""
    found: dict[str, list[float]] = {}
    for value in sorted({str(key(row)) for row in rows}):
        change = fitted([row for row in rows if str(key(row)) != value], bounds)
        left = [row for row in rows if str(key(row)) == value]
        for row, error in zip(left, errors(left, change), strict=True):
            row.setdefault("held", {})[key.__name__] = error
            found.setdefault(group_of(row), []).append(error)
    return found


def model(row: Point) -> str:
    """Leave one model out: of all tables, under whatever name."""
    return str(row["model"]).lower().replace("llama31", "llama3").replace("nemotron4", "nemotron")


def scale(row: Point) -> str:
    """Leave a scale out: up to 16 GPUs, up to 64, up to 256, more."""
    return str(next(size for size in (16, 64, 256, 10**6) if int(row["gpus"]) <= size))


def source(row: Point) -> str:
    """Leave a source out: nothing is known of its framework but what others tell."""
    return str(row["table"])


def report(paths: Sequence[Path]) -> None:
    """Print fitted parameters and errors by group."""
    named = {name: row for path in paths for name, row in json.loads(path.read_text()).items()}
    rows = [*named.values()]
    bounds = {}  # a GEMM in a job is not faster than alone; no kernel exceeds the memory's bandwidth
    for name, gpu in gpus().items():
        if gpu.table == name:
            bounds[f"{name} hbm_efficiency"] = (math.log(0.5 / gpu.hbm_efficiency), math.log(1 / gpu.hbm_efficiency))
            for kind, factor in gpu.gemm.items():
                bounds[f"{name} gemm {kind}"] = (-math.log(factor), 0.5)
    change = fitted(rows, bounds)
    print("parameter: factor to multiply it with")
    for name, value in change.items():
        print(f"  {name}: {math.exp(value):.3f}")
    beside = rivals(named)
    heads = ["rows", "n", "shipped", "fitted", "model held out", "scale held out", "source held out", *beside]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    columns = [held_out(rows, key, bounds) for key in (model, scale, source)] + [*beside.values()]
    for group in sorted({group_of(row) for row in rows}):
        of = [row for row in rows if group_of(row) == group]
        cells = [[row["error"] for row in of], errors(of, change), *(column[group] for column in columns)]
        print(f"| {group} | {len(of)} | " + " | ".join(map(_pair, cells)) + " |")
    intervals(rows)


def rivals(rows: dict[str, Point]) -> dict[str, dict[str, list[float]]]:
    """Return errors, by rival and group, of predictions without a simulator; none has seen the row's model.

    `constant MFU`: mean of the GPU and type of compute. `nearest`: the MFU of the row with the least distance: 1.5 for
    another framework, 2 for another type of compute, 0.5 for each factor of two in FLOPs of a token, 0.25 in GPUs, tp,
    sequence and micro batch. `roofline`: the peak."""
    texts = {path: path.read_text() for path in sorted(FOLDER.glob("*.csv")) if not path.stem.startswith("memory")}
    found: dict[str, dict[str, list[float]]] = {}
    known = []
    for path, text in texts.items():
        for _, row in rows_of(text, str(path)):
            if row["id"] in rows:
                work = keys_of(row)[0]["workload"]
                batch, shape = work["batch"], Transformer(**work["model"])
                peak = gpus()[work["gpu"]].peak[work["dtypes"]["compute"]] * int(row["gpus"])
                at = [math.log2(shape.flop(batch["sequence"]) / batch["sequence"]) * 2, math.log2(int(row["gpus"]))]
                at += [math.log2(x) for x in (work["parallel"]["tp"], batch["sequence"], batch["micro"])]
                ideal = shape.flop(batch["sequence"]) * batch["global"] / peak
                known.append((rows[row["id"]], ideal, (work["gpu"], work["dtypes"]["compute"]), at))
    for point, ideal, kind, at in known:
        others = [each for each in known if model(each[0]) != model(point)]
        alike = [each for each in others if each[2] == kind] or [each for each in others if each[2][0] == kind[0]]
        rates = [each[1] / each[0]["measured"] for each in alike] or [0.4]

        def distance(each: Any, kind: Any = kind, at: Any = at, point: Point = point) -> float:
            gap = 0.25 * sum(abs(a - b) for a, b in zip(each[3], at, strict=True))
            gap += 2 * (each[2][1] != kind[1]) + 3 * (each[2][0] != kind[0])
            return float(gap + 1.5 * (each[0]["framework"] != point["framework"]))

        near = min(others, key=distance)
        guesses = {"constant MFU": statistics.fmean(rates), "nearest": near[1] / near[0]["measured"], "roofline": 1.0}
        for name, rate in guesses.items():
            errors_ = found.setdefault(name, {}).setdefault(group_of(point), [])
            errors_.append(ideal / rate / point["measured"] - 1)
    return found


def intervals(rows: Sequence[Point]) -> None:
    """Print between what factors of the prediction 90 % of the times of a framework lie, the row's model held out."""
    by: dict[str, list[float]] = {}
    for row in rows:
        by.setdefault(row["framework"], []).append(1 / (1 + row["held"]["model"]))
    for name, factors in by.items():
        low, high = np.quantile(factors, [0.05, 0.95])
        print(f"holds of {name}: [{low:.2f}, {high:.2f}] ({len(factors)} rows)")


def _pair(found: Sequence[float]) -> str:
    sizes = [100 * abs(error) for error in found]
    return f"{statistics.fmean(sizes):.1f} / {statistics.median(sizes):.1f}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["points", "fit"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    if asked.what == "points":
        points(asked.files[0], asked.every, [name for name in asked.only.split(",") if name])
    else:
        report(asked.files)


if __name__ == "__main__":
    main()
