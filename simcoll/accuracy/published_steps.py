"""Tables of published training steps: each row becomes a step of `template: training`, which is predicted and compared
with the published time, or with the memory that the step took."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Model
from simcoll.errors import InputError, Place, SimcollError, did_you_mean
from simcoll.prediction.training_step import CallTimes, TrainingPrediction, planner_of, predict_training
from simcoll.scenario import scenario_files
from simcoll.scenario.scenario import Scenario
from simcoll.topology.topology_builder import load_system
from simcoll.units import PS_PER_S
from simcoll.workload.training_memory import between_steps, memory_of
from simcoll.workload.training_plan import Planner

SCHEMA: Final = "simcoll.accuracy.steps/1"
Row = Mapping[str, str]
Document = dict[str, Any]


class _GpuWord(Model):
    gpu: str
    system: str


class _FrameworkWord(Model):
    begins: str = ""
    name: str
    sharding: str
    gradients: Literal["bf16", "fp32"]
    sequence_parallel: bool = True
    tensor: bool = False
    selective: Literal["selective", "operations"] = "selective"
    cuda_graphs: bool = False
    balance: str | None = None
    overlap: dict[str, bool] = Field({})
    shapes: dict[str, Any] = Field({})
    of_models: str | None = None
    gpu: str | None = None
    system: str | None = None
    recompute: str = "none"
    prompt: float = 0.0


class _Words(Model):
    gpus: dict[str, _GpuWord]
    sharding: dict[str, str]
    frameworks: tuple[_FrameworkWord, ...]
    divided: _FrameworkWord
    others: _FrameworkWord


class MissingError(Exception):
    """A row that cannot be predicted; the message says what is missing."""


@functools.cache
def _words() -> _Words:
    tree = yaml_tree.read(Path(__file__).parent / "published_steps.yaml")
    return yaml_tree.validate(_Words, [tree])[0]


def rows_of(text: str, source: str, where: Sequence[str] = ()) -> list[tuple[int, Row]]:
    """Return the rows of a CSV table with their lines in the file; `where` are conditions such as `gpu=A100,H100`.
    Raises InputError for a table of other columns, and for a condition that keeps nothing."""
    reader = csv.DictReader(io.StringIO(text))
    columns = reader.fieldnames or []
    if absent := [column for column in ("layers", "hidden", "gpus") if column not in columns]:
        problem = f"the table has no column {', '.join(absent)}"
        raise InputError(
            problem, "give a table of training steps, a CSV with layers, hidden, gpus, …", Place(source, 1, 1)
        )
    rows: list[tuple[int, Row]] = [
        (reader.line_num, {k: (v or "").strip() for k, v in row.items() if k}) for row in reader
    ]
    for condition in where:
        column, values = yaml_tree.condition(condition)
        if column not in columns:
            raise InputError(f"--where {condition}: no column {column!r}", did_you_mean(column, columns))
        wanted = {value.strip() for value in values.split(",")}
        there = sorted({row[column] for _, row in rows})
        rows = [(line, row) for line, row in rows if row[column] in wanted]
        if not rows:
            listed = ", ".join(there[:8]) + (", …" if len(there) > 8 else "")
            raise InputError(f"--where {condition} keeps no row of {source}", f"{column} is {listed} there")
    return rows


# --- a row as a scenario ---


def _number(row: Row, column: str, default: int | None = None) -> int:
    """Return a whole number of the row. Raises MissingError if it is not stated, or no number."""
    text = row.get(column, "")
    if text == "" and default is not None:
        return default
    try:
        number = float(text)
    except ValueError:
        raise MissingError(f"{column} is not stated" if not text else f"{column}: {text!r} is no number") from None
    if number != int(number) or number < 0:
        raise MissingError(f"{column}: {text} is no whole number from 0 on")
    return int(number)


def _time(row: Row) -> float | None:
    """Return the published seconds of a step, if the row has them."""
    for column in ("d_step_time_s", "step_time_s_as_given", "step_time_s"):
        if row.get(column):
            try:
                return float(row[column])
            except ValueError:
                raise MissingError(f"{column}: {row[column]!r} is no number") from None
    return None


def _framework(row: Row) -> _FrameworkWord:
    said, model = row.get("framework", ""), row.get("model", "")
    for word in _words().frameworks:
        if (said and said.startswith(word.begins)) or (
            not said and word.of_models and model.startswith(word.of_models)
        ):
            return word
    divided = any(_number(row, degree, 1) > 1 for degree in ("tp", "pp", "ep"))
    return _words().divided if divided else _words().others


def _gpu(word: str) -> str:
    """Return the known word for a GPU, e.g. A100-40GB for NVIDIA A100-SXM4-40GB."""
    known, said = _words().gpus, re.sub(r"\W", "", word).upper()
    for name in (word, *sorted(known, key=len, reverse=True)):
        if name in known and all(part.upper() in said for part in name.split("-")):
            return name
    raise MissingError(f"the GPU {word!r} is unknown; known are {', '.join(known)}")


def keys_of(row: Row) -> tuple[dict[str, Any], list[str]]:
    """Return the scenario of a row, as a mapping, and what it assumes in words. Raises MissingError, which says what is
    missing."""
    way = _framework(row)
    assumed: list[str] = []
    if (task := row.get("task", "") or "pretrain") != "pretrain":
        raise MissingError(f"the task is {task}, not pretraining: frozen weights or packed sequences are not stated")
    ranks = _number(row, "gpus")
    if way in (_words().divided, _words().others):
        said = f"{row['framework']!r} is unknown" if row.get("framework") else "is not stated"
        assumed.append(f"the framework {said}: as {way.name}")
    said = row.get("gpu") or way.gpu or ""
    if (word := _gpu(said)) != said:
        assumed.append(f"the GPU {said!r}: as {word}")
    gpu = _words().gpus[word]
    tp, pp, cp, ep = (_number(row, name, 1) for name in ("tp", "pp", "cp", "ep"))
    vpp = _number(row, "vpp", 1)
    if ranks % (tp * pp * cp):
        raise MissingError(f"{ranks} GPUs are no multiple of tp · pp · cp = {tp * pp * cp}")
    dp = ranks // (tp * pp * cp)
    micro = _number(row, "micro_batch", 0)
    batch = _number(row, "global_batch", 0)
    passes = _number(row, "grad_accum", 0) or _number(row, "d_grad_accum", 0)
    if not micro and batch and passes:
        micro = batch // (dp * passes)
    if not micro:
        raise MissingError("micro_batch is not stated")
    batch = batch or micro * dp * (passes or 1)
    sequence = _number(row, "seq_len")
    compute = row.get("compute_dtype", "") or "bf16"
    recompute = row.get("activation_ckpt", "")
    recompute = way.selective if recompute == "selective" else recompute
    if row.get("framework") and not recompute:
        recompute = way.recompute
        assumed.append(f"recomputation is not stated: {recompute}")
    sharding = row.get("sharding", "")
    if sharding and sharding not in _words().sharding:
        raise MissingError(f"the sharding {sharding!r} is unknown; known are {', '.join(_words().sharding)}")
    shard = _words().sharding[sharding] if sharding else way.sharding
    if "zero_stage" in row:
        shard = {0: "none", 1: "zero1", 2: "zero2", 3: "fsdp"}[_number(row, "zero_stage")]
    parallel = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "sharding": shard}
    if ep > 1:
        parallel["ep"] = ep
    if tp > 1:
        parallel["sequence_parallel"] = row["sp"] == "true" if row.get("sp") else way.sequence_parallel
    if row.get("fsdp_group") and shard == "hsdp":
        parallel["shard_group"] = _number(row, "fsdp_group")
    overlap = {**way.overlap}
    if tp > 1 and parallel["sequence_parallel"]:
        overlap["tensor"] = row["tp_overlap"] in ("true", "async") if row.get("tp_overlap") else way.tensor
    framework: dict[str, Any] = {"name": way.name, "cuda_graphs": way.cuda_graphs}
    tested = re.search(r"([\d.]+) GB/s all-reduce in the node", row.get("notes", ""))
    if tested and float(tested[1]) < way.prompt:
        framework["late_hosts"] = True
    if "without flash attention" in row.get("notes", ""):
        framework["attention"] = "unfused-deepspeed"
    if row.get("compile") in ("true", "false") and way.name != "megatron":
        framework["kernels"] = "compiled" if row["compile"] == "true" else "eager"
    workload: dict[str, Any] = {
        "template": "training",
        "gpu": gpu.gpu,
        "model": _shapes(row, way, sequence),
        "parallel": parallel,
        "batch": {"global": batch, "micro": micro, "sequence": sequence},
        "recompute": recompute or "none",
        "dtypes": {"compute": compute, "gradients": row.get("grad_reduce_dtype") or way.gradients},
        "overlap": overlap,
        "framework": framework,
        "memory": "ignore",
    }
    if row.get("param_gather_dtype"):
        workload["dtypes"]["parameters"] = row["param_gather_dtype"]
    schedule: dict[str, Any] = {"kind": "interleaved", "stages_per_rank": vpp} if vpp > 1 and pp > 1 else {}
    if way.balance and pp > 1:
        schedule["balance"] = way.balance
    if schedule:
        workload["schedule"] = schedule
    return {"topology": _machine(row, way.system or gpu.system, ranks), "ranks": ranks, "workload": workload}, assumed


def _machine(row: Row, system: str, ranks: int) -> dict[str, Any]:
    full = load_system(system).counts["gpu"]
    machine: dict[str, Any] = {"system": system}
    nodes = -(-ranks // full)  # the column `nodes` may count trays of a rack
    if nodes > 1:
        machine["nodes"] = nodes
        if ranks // nodes != full:
            machine["gpus"] = ranks // nodes
        said = row.get("interconnect", "")
        if each := re.search(r"(\d+) ?Gb/s per GPU", said):
            machine["nic_bandwidth"] = f"{each[1]} Gb/s"
        elif whole := re.match(r"(\d+) ?Gbps", said):  # of a node
            machine["nic_bandwidth"] = f"{int(whole[1]) / full:g} Gb/s"
    return machine


def _shapes(row: Row, way: _FrameworkWord, sequence: int) -> dict[str, Any]:
    optional = ("kv_heads", "head_dim")
    shapes: dict[str, Any] = {name: _number(row, name) for name in ("layers", "hidden", "ffn", "heads", "vocab")}
    shapes |= {name: _number(row, name) for name in optional if row.get(name)}
    shapes |= way.shapes
    if shapes.get("positions") == "sequence":
        shapes["positions"] = sequence
    shapes["gated"] = _number(row, "mlp_mats", 3) == 3
    if _number(row, "experts", 0):
        shapes |= {
            "experts": _number(row, "experts"),
            "active_experts": _number(row, "topk"),
            "shared_experts": _number(row, "shared_experts", 0),
            "expert_ffn": _number(row, "moe_ffn"),
            "dense_layers": _number(row, "dense_layers", 0),
        }
        if not row.get("head_dim"):
            raise MissingError("the shapes of latent attention are not stated")
    if "tied" in row:
        shapes["tied"] = row["tied"].lower() == "true"
    elif said := re.search(r"embedding and head (tied|apart)", row.get("notes", "")):
        shapes["tied"] = said[1] == "tied"
    return shapes


# --- predictions ---


def predicted(text: str, source: str, where: Sequence[str] = ()) -> Document:
    """Predict each row of a table of published steps, and return the document that `simcoll steps --json` prints.
    Raises InputError for a table that is none of training steps."""
    rows = rows_of(text, source, where)
    door = Door()
    points = [_point(line, row, source, door) for line, row in rows]
    return {"schema": SCHEMA, "points": points, "summary": _summary(points)}


def _point(line: int, row: Row, source: str, door: Door) -> Document:
    point: Document = {"row": row.get("id") or row.get("job_id") or f"{source}:{line}"}
    point |= {name: row.get(name, "") for name in ("model", "gpu", "gpus", "framework")}
    point |= dict.fromkeys(("measured_s", "predicted_s", "error", "low_s", "high_s", "mfu", "memory_GB", "fits"))
    try:
        point["measured_s"] = _time(row)
        keys, assumed = keys_of(row)
        judged = row.get("status") in ("Success", "OOM") and point["measured_s"] is None
        found = None if judged else door.ask(keys)
        planner = found.planner if found else door.planner(keys)
        memory, limit = memory_of(planner), planner.compute.memory_bytes
    except (MissingError, SimcollError) as error:
        return point | {"status": f"refused: {error}"}
    point |= {"memory_GB": memory.total / 1e9, "fits": memory.total <= limit}
    if found:
        point |= {"predicted_s": found.time_ps / PS_PER_S, "mfu": found.facts["mfu"]}
        ends: Document = {end: found.facts[f"{end}_us"] for end in ("low", "high")}
        point |= {f"{end}_s": us / 1e6 if us else None for end, us in ends.items()}
    if found and point["measured_s"]:
        point["error"] = point["predicted_s"] / point["measured_s"] - 1
    if row.get("status") in ("Success", "OOM") or point["measured_s"]:
        point["fits_right"] = point["fits"] == (row.get("status") != "OOM")
    if row.get("mem_alloc_GB"):  # what stays allocated between steps
        point["measured_GB"] = float(row["mem_alloc_GB"])
        point["memory_GB"] = between_steps(planner) / 1e9
    return point | {"status": "; ".join(["ok", *assumed])}


class Door:
    """Predicts steps as any other point. Times of calls on a machine are kept, as rows of a table share machines."""

    def __init__(self) -> None:
        self.times: dict[str, CallTimes] = {}

    def ask(self, keys: Mapping[str, Any]) -> TrainingPrediction:
        """Return the prediction of a scenario. Raises the errors of `predict`."""
        scenario, times = self._asked(keys)
        return predict_training(scenario, None, times.costs, times)

    def planner(self, keys: Mapping[str, Any]) -> Planner:
        """Return the planner of a scenario; calls are not timed."""
        return planner_of(*self._asked(keys))

    def _asked(self, keys: Mapping[str, Any]) -> tuple[Scenario, CallTimes]:
        (point,) = scenario_files.points(yaml_tree.located(dict(keys), Place("the row", 1, 1)))
        machine = json.dumps([keys["topology"], keys["ranks"]])
        if machine not in self.times:
            self.times[machine] = CallTimes(point.scenario)
        return point.scenario, self.times[machine]


def _summary(points: Sequence[Document]) -> Document:
    errors = [abs(point["error"]) for point in points if point["error"] is not None]
    judged = [point["fits_right"] for point in points if "fits_right" in point]
    memory = [abs(p["memory_GB"] / p["measured_GB"] - 1) for p in points if p.get("measured_GB")]
    summary: Document = {
        "mape": 100 * statistics.fmean(errors) if errors else None,
        "median": 100 * statistics.median(errors) if errors else None,
        "rows": len(points),
        "refused": sum(not point["status"].startswith("ok") for point in points),
    }
    held = [p["low_s"] <= p["measured_s"] <= p["high_s"] for p in points if p["low_s"] and p["measured_s"]]
    summary |= {"held": statistics.fmean(held)} if held else {}
    summary |= {"fits_right": statistics.fmean(judged)} if judged else {}
    return summary | ({"memory_mape": 100 * statistics.fmean(memory)} if memory else {})
