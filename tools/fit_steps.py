"""Fit the parameters of GPUs and frameworks (gpus.yaml, frameworks.yaml) to published training steps, and print how
well steps are predicted that were not fitted: the tables of validation/steps/README.md.

    python tools/fit_steps.py points FILE [--only TABLE,…]  plans the rows of the tables (minutes); keeps what FILE has
    python tools/fit_steps.py fit FILE                      prints fitted parameters, and the tables (minutes)

The rival llm-analysis is asked if it is installed when the points are made.

A step takes as long as the longest path through its plan. Each operation of a path takes a time that is linear in the
parameters, or the launch floor. `points` plans each row with several settings of the parameters, and keeps each
longest path with its parts: seconds of GEMMs, attention and so on at factor 1, and of exchanges. So `fit` computes the
time with any parameters as the longest of these paths, without planning again. It fits least squares of the logarithms
of the times; beyond an error of 4 % a row's weight falls. Each fit begins at the same neutral parameters (PARAMETERS),
within physical bounds. So no fit knows the rows that are held out of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import least_squares

from simcoll.accuracy.published_steps import Door, MissingError, keys_of, rows_of
from simcoll.errors import SimcollError
from simcoll.units import PS_PER_S
from simcoll.workload.compute import SPREAD, Compute, slowest
from simcoll.workload.training_plan import COMPUTE, OPTIMIZER_BYTES, PARTS, Planner, StepPlan

FOLDER: Final = Path(__file__).parents[1] / "validation" / "steps"
EVERY: Final = {"vtrain_single": 18, "nanotron": 2}  # of large tables, every so-many-th row is planned
FEW: Final = 12  # with fewer rows, the interval of a framework is that of all
ERROR: Final = 0.04  # beyond it the weight of a row falls
KINDS: Final = ("fixed", "gemm", "gemm bf16", "attention", "scores", "elementwise", "tp", "hidden", "state", "pass")
# What a parameter is called begins with its kind: neutral value, least, most.
PARAMETERS: Final = {
    "gemm": (1.1, 1.0, 1.25),  # a GEMM in a job is not faster than alone; clocks fall by a fifth at most
    "gemm h100-hbm2e": (1.3, 1.0, 1.5),  # at 500 W in place of the table's 700 W
    "hbm_efficiency": (0.75, 0.5, 1.0),  # no kernel exceeds the memory's bandwidth
    "interference": (3e11, 5e10, 3e12),
    "elementwise": (1.7, 1.0, 5.0),  # no kernels move less than the least
    "attention": (0.3, 0.1, 0.8),
    "score_bytes": (10.0, 4.0, 30.0),  # one write and one read of 16 bits at least
    "tensor_shown": (0.5, 0.0, 1.0),
    "launch eager": (8e-4, 0.0, 3e-3),  # 40 kernels, 20 us each
    "launch": (3e-4, 0.0, 3e-3),
    "skew": (2e-5, 0.0, 3e-4),
    "launch_late": (1e-4, 0.0, 2e-3),
    "gap": (1e-4, 0.0, 1e-3),
    "spread": (0.015, 0.0, 0.03),  # of GPUs of one kind, in GEMMs
}
SETTINGS: Final = ((1.0, 1.0, 0.0, 1e13), (1.3, 2.0, 5e-4, 2e11), (1.1, 4.0, 2e-3, 1e11), (1.0, 1.5, 0.0, 1e11))


# --- points ---


def setting(compute: Compute, gemm: float, elementwise: float, launch: float, interference: float) -> Compute:
    """Return the times of parts with other parameters; the others are neutral."""
    kernel, way = compute.kernel, compute.framework
    return dataclasses.replace(
        compute,
        of=compute.of.model_copy(
            update={"gemm": dict.fromkeys(compute.of.peak, gemm), "hbm_efficiency": 1.0, "interference": interference}
        ),
        framework=way.model_copy(
            update={
                "elementwise": {compute.kernels: elementwise},
                "launch": {compute.kernels: launch},
                "gap": 0.0,
                "launch_late": 0.0,
                "skew": 0.0,
                "tensor_shown": 1.0,
            }
        ),
        kernel=kernel.model_copy(update={"efficiency": dict.fromkeys(kernel.efficiency, 1.0)}),
    )


def longest(plan: StepPlan) -> list[int]:
    """Return the operations of the longest path."""
    timed = plan.timed()
    number: int | None = max(range(len(timed.ends)), key=timed.ends.__getitem__)
    found = []
    while number is not None:
        found.append(number)
        before = plan.operations[number].before
        number = max(before, key=timed.ends.__getitem__, default=None)
    return found


def path_of(planner: Planner, numbers: Iterable[int], raw: Planner) -> Counter[tuple[float, ...]]:
    """Return the parts of a path (in the order of KINDS), and how often each occurs. `raw`: a planner at factor 1."""
    passes: Counter[tuple[str, int, str, str]] = Counter()
    sums = dict.fromkeys(KINDS, 0.0)
    for number in numbers:
        each = planner.plan.operations[number]
        costs = dict(zip(PARTS, each.costs, strict=True))
        if each.call or each.stream != COMPUTE:
            sums["fixed"] += each.took / PS_PER_S
        elif each.kind == "optimizer":
            sums["state"] += OPTIMIZER_BYTES * planner.optimized(each.stage) / planner.compute.of.hbm
        sums["hidden"] += costs["interference"] / PS_PER_S * planner.compute.of.interference
        for unit, phase in each.parts:
            passes[unit.name, each.stage, unit.recompute, phase] += 1
    found = Counter([parts_of(**sums)])
    for which, count in passes.items():
        found[unit_of(raw, *which)] += count
    return found


def unit_of(raw: Planner, name: str, stage: int, recompute: str, phase: str) -> tuple[float, ...]:
    """Return the parts of a pass over a unit of the model, at factor 1."""
    unit = raw.unit(name, stage, recompute)
    costs = dict(zip(PARTS, unit.costs[phase], strict=True))
    took = {name: value / PS_PER_S for name, value in costs.items()}
    layer = name in ("dense", "mixture")
    launches = {"forward": 1, "backward": 2 + (recompute in ("operations", "full"))}.get(phase, 0) if layer else 0
    scores = 0.0
    if raw.compute.kernel.score_bytes:  # attention is FLOPs at 0.6 of the peak, and traffic
        without = setting(raw.compute, *SETTINGS[0])
        without = dataclasses.replace(without, kernel=raw.compute.kernel.model_copy(update={"score_bytes": 0.0,
            "efficiency": dict.fromkeys(raw.compute.kernel.efficiency, 1.0)}))  # fmt: skip
        flop = Planner(raw.spec, raw.layout, without, raw.call_time).unit(name, stage, recompute).costs[phase]
        alone = flop[PARTS.index("attention")] / PS_PER_S
        scores, took["attention"] = (took["attention"] - alone) / raw.compute.kernel.score_bytes, alone
    shown = took["tp"] if raw.tensor_overlap else 0.0
    head = name in ("head", "embedding")
    return parts_of(
        fixed=sum(took[name] for name in ("cp", "ep", "pp", "dp", "tp")) - shown,
        attention=took["attention"], scores=scores, elementwise=took["elementwise"], tp=shown,
        **{"gemm bf16" if head else "gemm": took["gemm"] / raw.slowest, "pass": launches},
    )  # fmt: skip


def parts_of(**parts: float) -> tuple[float, ...]:
    """Return parts in the order of KINDS."""
    return tuple(float(f"{parts.get(kind, 0.0):.6g}") for kind in KINDS)


def point(row: Any, planner: Planner) -> dict[str, Any]:
    """Return what a fit needs to know of a row."""
    made: Callable[[Sequence[float]], Planner] = lambda values: Planner(  # noqa: E731
        planner.spec, planner.layout, setting(planner.compute, *values), planner.call_time
    )
    raw, paths = made(SETTINGS[0]), []
    for values in SETTINGS:
        other = made(values)
        path = path_of(other, longest(other.planned()), raw)
        paths.append([[count, *parts] for parts, count in sorted(path.items())])
    compute, step = planner.compute, planner.spec
    group = planner.layout.groups("tp", 0)[0]
    columns = ("id", "model", "gpu", "gpus", "framework", "compute_dtype", "sharding", "tp", "pp", "vpp", "cp",
               "micro_batch", "seq_len", "activation_ckpt", "compile", "interconnect")  # fmt: skip
    batch = step.batch.global_
    return {**{column: row.get(column, "") for column in columns}, "measured": float(row["d_step_time_s"]),
            "batch": {"global_batch": batch, "grad_accum": planner.passes},
            "flop_token": step.model.flop(step.batch.sequence) / step.batch.sequence,
            "source": compute.of.source, "part": compute.gpu,
            "name": step.framework.name, "kernels": compute.kernels,
            "way": step.framework.attention or compute.framework.attention, "type": step.dtypes.compute,
            "table_attention": compute.kernel.table, "unfused": bool(compute.kernel.score_bytes),
            "graphs": compute.cuda_graphs, "ranks": len(group) if len(group) > 1 else 0,
            "remote": planner.layout.remote(group), "late": step.framework.late_hosts,
            "ideal": step.model.flop(step.batch.sequence) * batch
            / (compute.peak(step.dtypes.compute) * planner.layout.dense.size),
            "llm_analysis": by_llm_analysis(planner), "paths": paths}  # fmt: skip


def by_llm_analysis(planner: Planner) -> float | None:
    """Return the seconds that the package llm-analysis says, at the efficiency that it names for training (0.5), or
    None if it is not installed or cannot say the step: fp8, mixtures of experts, context parallelism, recomputation by
    operation, A100 and H100 only, and no more than it refuses itself."""
    try:
        analysis, config = (importlib.import_module(f"llm_analysis.{name}") for name in ("analysis", "config"))
    except ImportError:
        return None
    spec, gpu = planner.spec, planner.compute.of
    model, p, batch = spec.model, spec.parallel, spec.batch
    if spec.dtypes.compute != "bf16" or model.experts or p.cp > 1 or spec.recompute == "operations":
        return None
    nvlink = 300 if gpu.source == "a100" else 450
    nic = 25 * planner.layout.per_node if gpu.source == "a100" else 50 * planner.layout.per_node
    zero = {"none": 0, "zero1": 1, "zero2": 2, "fsdp": 3, "hsdp": 3}[p.sharding]
    again = {"none": 0, "selective": 1, "full": 2}[spec.recompute]
    try:
        found = analysis.LLMAnalysis(
            config.ModelConfig("row", model.layers, model.heads, model.hidden, model.vocab, batch.sequence, model.keys,
                               ffn_embed_dim=model.ffn),
            config.GPUConfig("gpu", gpu.memory / 1e9, gpu.hbm / 1e9, nvlink, 1e-5, gpu.peak["bf16"] / 1e12,
                             inter_node_bandwidth_in_GB_per_sec=nic),
            config.DtypeConfig(),
            config.ParallelismConfig(p.tp, p.pp, planner.dp, sp_size=p.tp if spec.split.sequence_parallel else 1),
            flops_efficiency=0.5,
        ).training(
            batch.micro, planner.passes, seq_len=batch.sequence, total_num_tokens=batch.global_ * batch.sequence,
            activation_recomputation=analysis.ActivationRecomputation(again), ds_zero=analysis.DSZeRO(zero),
            mlp_gated_linear_units=model.gated,
        )  # fmt: skip
    except (AssertionError, ValueError, ZeroDivisionError):
        return None
    return float(found["latency_per_iter"])


# --- fits ---

Point = dict[str, Any]
CONSTANTS: Final = (0.0, 0.6, 1.0)
# What a GPU or a type without rows is like, the nearest first.
LIKE: Final = {"a100": ("h100",), "h100": ("a100", "b200"), "h100-hbm2e": ("h100", "b200"), "b200": ("h100", "a100"),
               "nvfp4": ("fp8", "bf16"), "fp8": ("bf16",)}  # fmt: skip


def parameters_of(row: Point) -> dict[str, str | float]:
    """Return the names of the parameters that a row's time depends on, or constants in their place."""
    gpu, name, kernels, unfused = row["source"], row["name"], row["kernels"], row["unfused"]
    part = row["part"] if f"gemm {row['part']}" in PARAMETERS else gpu
    fused, none = kernels == "fused", 0.0
    by_table = 0.6 if unfused else 1.0
    return {
        "gemm": f"gemm {part} {row['type']}",
        "gemm bf16": f"gemm {part} bf16",
        "spread": "spread",
        "attention": by_table if unfused or row["table_attention"] else f"attention {row['way']} {gpu}",
        "scores": f"score_bytes {row['way']}" if unfused else none,
        "elementwise": f"elementwise {name if unfused else kernels}",
        "hbm": f"hbm_efficiency {gpu}",
        "tp": f"tensor_shown {name}",
        "hidden": f"interference {gpu}",
        "gap": f"gap {name}" if fused and not row["graphs"] else none,
        "launch": none if fused or row["graphs"] else f"launch {kernels} {name}",
        "skew": f"skew {name}" if row["remote"] else none,
        "late": f"launch_late {name}" if row["ranks"] and row["late"] and not row["graphs"] else none,
    }


class Times:
    """The times of rows as a function of parameters."""

    def __init__(self, rows: Sequence[Point]):
        used = [parameters_of(row) for row in rows]
        self.names = sorted({name for each in used for name in each.values() if isinstance(name, str)})
        kinds = [(" ".join(name.split()[:2]), name.split()[0]) for name in self.names]
        self.start = np.array([PARAMETERS.get(both, PARAMETERS[kind]) for both, kind in kinds])
        known: tuple[str | float, ...] = (*self.names, *CONSTANTS)
        at = {each: number for number, each in enumerate(known)}
        units = [
            (number, path, *unit) for number, row in enumerate(rows) for path, whole in enumerate(row["paths"])
            for unit in whole
        ]  # fmt: skip
        table = np.array(units)
        self.parts, self.count, which = table[:, 3:].T, table[:, 2], table[:, 0].astype(int)
        whole = [(number, path) for number, row in enumerate(rows) for path in range(len(row["paths"]))]
        order = {each: position for position, each in enumerate(whole)}
        self.path = np.array([order[int(a), int(b)] for a, b in table[:, :2]])
        self.first = np.array([order[number, 0] for number in range(len(rows))])
        self.index = {key: np.array([at[each[key]] for each in used])[which] for key in used[0]}
        self.ranks, self.remote = (np.array([row[key] for row in rows])[which] for key in ("ranks", "remote"))
        self.slowest = np.array([(slowest(int(row["gpus"])) - 1) / SPREAD for row in rows])[which]

    def seconds(self, values: Any) -> Any:
        """Return the times of the rows with parameters in the order of their names."""
        whole = np.concatenate([values, CONSTANTS])
        v = {key: whole[index] for key, index in self.index.items()}
        fixed, gemm, gemm16, attention, scores, elementwise, tp, hidden, state, passes = self.parts
        took = fixed + (gemm * v["gemm"] + gemm16 * v["gemm bf16"]) * (1 + v["spread"] * self.slowest)
        took = took + attention / v["attention"] + scores * v["scores"]
        took = took + (elementwise * v["elementwise"] + state) / v["hbm"] + tp * v["tp"] + hidden / v["hidden"]
        took = np.maximum(took + passes * v["gap"], passes * (v["launch"] + self.ranks * v["late"]))
        took += passes * self.remote * v["skew"]
        return np.maximum.reduceat(np.bincount(self.path, took * self.count), self.first)


def fitted(rows: Sequence[Point]) -> dict[str, float]:
    """Return the parameters with which the rows fit best, from neutral ones on. Each table counts alike."""
    times = Times(rows)
    neutral, low, high = times.start.T
    span = high - low
    measured = np.log([row["measured"] for row in rows])
    count = Counter(row["table"] for row in rows)
    weight = np.sqrt([60 / max(15, count[row["table"]]) for row in rows])

    def off(at: Any) -> Any:
        errors = (np.log(times.seconds(low + at * span)) - measured) / ERROR
        return np.concatenate([weight * errors, 0.3 * (at - (neutral - low) / span)])  # keeps what rows do not tell

    found = least_squares(off, (neutral - low) / span, bounds=(0, 1), loss=_robust, x_scale=1.0)
    return dict(zip(times.names, (low + found.x * span).tolist(), strict=True))


def nearest(name: str, values: dict[str, float], neutral: float) -> float:
    """Return the value of a parameter, or of the nearest GPU and type that have one."""
    words = [(word, *LIKE.get(word, ())) for word in name.split()]
    return next((values[" ".join(each)] for each in itertools.product(*words) if " ".join(each) in values), neutral)


def _robust(z: Any) -> Any:  # Huber
    far = np.maximum(z, 1)
    return np.array([np.where(z <= 1, z, 2 * np.sqrt(far) - 1), far**-0.5, np.where(z <= 1, 0, -0.5 * far**-1.5)])


def predicted(rows: Sequence[Point], values: dict[str, float]) -> list[float]:
    """Return the times of rows, in seconds. A parameter that is not given is that of the nearest GPU and type, as in
    gpus.yaml, or neutral."""
    times = Times(rows)
    whole = [nearest(name, values, neutral) for name, neutral in zip(times.names, times.start[:, 0], strict=True)]
    return list(times.seconds(np.array(whole)).tolist())


# --- tables ---

SIZES: Final = ("gpus", "tp", "pp", "seq_len", "micro_batch")
Column = dict[str, float]  # relative error of a row, by id
KEYS: Final[dict[str, Callable[[Point], str]]] = {
    "model held out": lambda row: row["model"].lower().replace("llama31", "llama3").replace("nemotron4", "nemotron"),
    "scale held out": lambda row: str(next(size for size in (16, 64, 256, 10**6) if int(row["gpus"]) <= size)),
    "source held out": lambda row: row["table"],
}
SAME: Final = (
    *("table", "model", "gpu", "framework", "compute_dtype", "sharding", "tp", "pp", "vpp", "cp"),
    *("micro_batch", "seq_len", "activation_ckpt", "compile", "interconnect"),
)


def held_out(rows: Sequence[Point], key: Callable[[Point], str]) -> Column:
    """Return errors, each row predicted with the parameters of a fit without the rows of equal key."""
    found: Column = {}
    for value in sorted({key(row) for row in rows}):
        left = [row for row in rows if key(row) == value]
        values = fitted([row for row in rows if key(row) != value])
        times = predicted(left, values)
        found |= {row["id"]: took / row["measured"] - 1 for row, took in zip(left, times, strict=True)}
    return found


def rivals(rows: Sequence[Point]) -> dict[str, Column]:
    """Return errors of predictions that do not simulate; none has seen the row's model.

    `constant MFU`: the mean of the GPU and type of compute. `nearest`: the MFU of the row with the least distance: 3
    for another GPU, 2 for another type of compute, 1.5 for another framework, 0.5 for each factor of two in FLOPs of a
    token, 0.25 in GPUs, tp, pp, sequence and micro batch. `roofline`: the peak."""
    model = KEYS["model held out"]
    found: dict[str, Column] = {"constant MFU": {}, "nearest": {}, "roofline": {}}
    found["llm-analysis"] = {
        row["id"]: row["llm_analysis"] / row["measured"] - 1 for row in rows if row["llm_analysis"]
    }
    at = [[2 * math.log2(row["flop_token"]), *(math.log2(int(row[name] or 1)) for name in SIZES)] for row in rows]
    places = np.array(at)
    names = np.array([[row[name] for name in ("gpu", "type", "framework", "table")] for row in rows])
    models = np.array([model(row) for row in rows])
    mfu = np.array([row["ideal"] / row["measured"] for row in rows])
    for number, row in enumerate(rows):
        others = np.flatnonzero(models != models[number])
        apart = names[others] != names[number]
        far = 0.25 * np.abs(places[others] - places[number]).sum(1) + apart[:, :3] @ np.array([3, 2, 1.5])
        alike = others[~apart[:, :2].any(1)] if (~apart[:, :2].any(1)).any() else others
        rates = {"constant MFU": mfu[alike].mean(), "nearest": mfu[others[far.argmin()]], "roofline": 1.0}
        for name, rate in rates.items():
            found[name][row["id"]] = row["ideal"] / rate / row["measured"] - 1
    return found


def group_of(row: Point) -> str:
    """Return the group in which a row's error is reported."""
    if row["table"] != "nanotron":
        return str(row["table"])
    if int(row["tp"] or 1) > 8:
        return "nanotron, tp across nodes"
    return "nanotron, pipeline" if int(row["pp"] or 1) > 1 else "nanotron, one stage, tp ≤ 8"


def table(rows: Sequence[Point], columns: dict[str, Column], head: str, group: Callable[[Point], str]) -> None:
    """Print mean and median absolute errors in percent of each group."""
    print(f"\n| {head} | n | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
    for name in sorted({group(row) for row in rows}):
        of = [row["id"] for row in rows if group(row) == name]
        cells = [_pair([each[which] for which in of if which in each]) for each in columns.values()]
        print(f"| {name} | {len(of)} | {' | '.join(cells)} |")


def report(file: Path) -> None:
    """Print fitted parameters and the tables of the study."""
    rows = list(json.loads(file.read_text()).values())
    print("| parameter | fitted |\n|---|---|")
    values = fitted(rows)
    for name, value in values.items():
        print(f"| {name} | {value:.3g} |")
    times = predicted(rows, values)
    columns = {"fitted": {row["id"]: took / row["measured"] - 1 for row, took in zip(rows, times, strict=True)}}
    columns |= {name: held_out(rows, key) for name, key in KEYS.items()} | rivals(rows)
    table(rows, columns, "rows", group_of)
    sources = sorted({row["table"] for row in rows})
    means = []
    for column in columns.values():
        parts = [[100 * abs(column[row["id"]]) for row in rows if row["table"] == source and row["id"] in column]
                 for source in sources]  # fmt: skip
        of_source = [(statistics.fmean(part), statistics.median(part)) for part in parts if part]
        means.append(" / ".join(f"{statistics.fmean(each):.1f}" for each in zip(*of_source, strict=True)) or "–")
    print(f"| mean over sources | {len(sources)} | {' | '.join(means)} |")
    some = {name: columns[name] for name in ("model held out", "constant MFU", "nearest")}
    table(rows, some, "GPU", lambda row: str(row["gpu"]))
    table(rows, some, "GPUs", lambda row: f"to {KEYS['scale held out'](row)}".replace("to 1000000", "more"))
    series(rows, columns)
    intervals(rows, columns)


def series(rows: Sequence[Point], columns: dict[str, Column]) -> None:
    """Print by how much the ratios of times within a series are missed: rows that differ in the number of GPUs only,
    over the one with fewest."""
    print("\n| series | ratios | fitted | model held out |\n|---|---|---|---|")
    for title, same in (("batch grows with GPUs", "grad_accum"), ("batch fixed", "global_batch")):
        groups: dict[tuple[str, ...], list[Point]] = {}
        for row in rows:
            groups.setdefault((*(row.get(name, "") for name in SAME), row["batch"][same]), []).append(row)
        errors: dict[str, list[float]] = {"fitted": [], "model held out": []}
        for group in groups.values():
            least = min(group, key=lambda row: int(row["gpus"]))
            for row in group:
                if int(row["gpus"]) > int(least["gpus"]):
                    for name, found in errors.items():
                        column = columns[name]
                        found.append((1 + column[row["id"]]) / (1 + column[least["id"]]) - 1)
        print(f"| {title} | {len(errors['fitted'])} | {' | '.join(map(_pair, errors.values()))} |")


def intervals(rows: Sequence[Point], columns: dict[str, Column]) -> None:
    """Print between what factors of the prediction 90 % of the measured times of a framework lie, each row's model held
    out, or, of a framework with one model, its scale; and how many rows of each table lie between the factors of all
    other models (or scales) of the framework, or, if there are few, of all frameworks."""
    of_all = [1 / (1 + error) for error in columns["model held out"].values()]
    holds, right, widths = {}, dict[tuple[str, str], list[bool]](), []
    for name in sorted({row["name"] for row in rows}):
        of = [row for row in rows if row["name"] == name]
        left_out = "model held out" if len({KEYS["model held out"](row) for row in of}) > 1 else "scale held out"
        factor = {row["id"]: 1 / (1 + columns[left_out][row["id"]]) for row in of}
        holds[name] = between(list(factor.values()) if len(of) >= FEW else of_all)
        for row in of:
            others = [factor[each["id"]] for each in of if KEYS[left_out](each) != KEYS[left_out](row)]
            low, high = between(others if len(others) >= FEW else of_all)
            right.setdefault((name, row["table"]), []).append(low <= factor[row["id"]] <= high)
            widths.append(high - low)
    print("\n| framework | holds | rows | n | of models left out |\n|---|---|---|---|---|")
    for (name, source), found in right.items():
        low, high = holds[name]
        share = f"{100 * statistics.fmean(found):.0f} %"
        print(f"| {name} | [{low:.2f}, {high:.2f}] | {source} | {len(found)} | {share} |")
    inside = statistics.fmean(itertools.chain(*right.values()))
    print(f"\nIntervals hold {100 * inside:.0f} % of the rows; mean width {100 * statistics.fmean(widths):.0f} %.")


def between(factors: Sequence[float]) -> tuple[float, float]:
    """Return the shortest interval that holds 90 % of the factors, and of one more that is not known."""
    ordered = sorted(factors)
    most = min(len(ordered), math.ceil(0.9 * (len(ordered) + 1)))
    return min(zip(ordered, ordered[most - 1 :], strict=False), key=lambda ends: ends[1] - ends[0])


def _pair(errors: Sequence[float]) -> str:
    sizes = [100 * abs(error) for error in errors]
    return f"{statistics.fmean(sizes):.1f} / {statistics.median(sizes):.1f}" if sizes else "–"


def points(out: Path, only: Sequence[str]) -> None:
    """Plan rows of all tables that can be predicted; finished rows of `out` are kept."""
    made: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for path in sorted(FOLDER.glob("*.csv")):
        if path.stem.startswith("memory") or (only and path.stem not in only):
            continue
        rows = [row for _, row in rows_of(path.read_text(), str(path)) if row["predictable"].startswith("yes")]
        rows.sort(key=lambda row: (int(row["gpus"]), row.get("tp", "")))
        door = Door()
        for row in rows[:: EVERY.get(path.stem, 1)]:
            if row["id"] not in made:
                try:
                    made[row["id"]] = {"table": path.stem, **point(row, door.planner(keys_of(row)[0]))}
                except (MissingError, SimcollError) as error:
                    print(row["id"], error, file=sys.stderr)
        out.write_text(json.dumps(made))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["points", "fit"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    if asked.what == "points":
        points(asked.file, [name for name in asked.only.split(",") if name])
    else:
        report(asked.file)


if __name__ == "__main__":
    main()
