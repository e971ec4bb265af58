"""Workloads run for real over gloo: right results, torch's buckets, and times that the model can be held against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import ROOT, simcoll
from extras import needs, needs_root
from workloads import points

from simcoll.accuracy.compare import compared
from simcoll.errors import InputError, RefusedError
from simcoll.formats.measured import read_measured
from simcoll.measurement import cases_of_points, real_run
from simcoll.measurement.rank_tasks import Job, Report, TaskResult
from simcoll.prediction.sweep import run_point
from simcoll.prediction.training_step import plan_on_all_ranks
from simcoll.scenario.scenario_files import Point, load
from simcoll.workload.workload_keys import SMALL, TEMPLATES

pytestmark = needs("torch")
torch = pytest.importorskip("torch")
compute_times = pytest.importorskip("simcoll.measurement.torch_backend.compute_times")

STEP = {
    "template": "ddp",
    "layers": [
        {"parameters": "16 KiB", "backward": "0.2 ms", "times": 5},
        {"parameters": "64 KiB", "backward": "1 ms"},
        {"parameters": "4 KiB", "backward": "0.1 ms", "times": 3},
    ],
    "forward": "1 ms",
    "optimizer": "1 ms",
}
TRAINING = {
    "template": "training",
    "model": {"layers": 2, "hidden": 64, "ffn": 256, "heads": 2, "vocab": 64},
    "parallel": {"tp": 2, "sequence_parallel": False},
    "batch": {"global": 2, "sequence": 16},
    "gpu": "v100",
}
FEW = {"repeats": 2, "warmup": 0}


def asked(workload: dict[str, Any], ranks: int = 2, **more: Any) -> list[Point]:
    """The points of a workload on this machine."""
    keys = {"topology": {"system": "loopback"}, "ranks": ranks, "measure": FEW, "workload": workload, **more}
    return points(keys)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_torch_sends_as_many_buckets_as_the_rule_says(ranks: int) -> None:
    """Whatever the layers and limits, a real step has the predicted buckets, gradients are the mean of what the ranks
    have by themselves, and replicas stay alike bit by bit: a run that is not so is refused."""
    steps = [
        *asked({**STEP, "bucket_cap": ["none", "20 KiB", "1 MiB"]}, ranks),
        *asked({**STEP, "bucket_cap": "20 KiB", "first_bucket": "4 KiB"}, ranks),
        *asked({**STEP, "bucket_cap": "20 KiB"}, ranks, measure={**FEW, "compute": "real"}),
    ]
    rows = real_run.run(steps)
    assert [row["buckets"] for row in rows] == [run_point(point)["buckets"] for point in steps]
    for row in rows:
        assert row["verified"]
        assert row["time_us"] == pytest.approx(row["compute_us"] + row["exposed_us"])
        assert len(row["computed_us"].split()) == 9 + 2
        if row["compute"] == "sleep":  # nothing sleeps for less than it is told
            assert row["compute_us"] > 1e3 * (1 + 5 * 0.2 + 1 + 3 * 0.1 + 1)


def test_a_prediction_computes_what_was_measured(tmp_path: Path) -> None:
    """A row that tells what its computations took is predicted with these: a table made by the model from other times
    is predicted without an error, and one of other layers is wrong input."""
    scenario = tmp_path / "step.yaml"
    head = "topology: {fabric: single-switch, hosts: 4, link: {bandwidth: 1 GB/s, latency: 5 us}}\n"
    workload = (
        "workload: {template: ddp, algorithm: ring, bucket_cap: [none, 64 KiB, 8 MiB], forward: %s,\n  layers: %s}\n"
    )
    took = "[{parameters: 1 MiB, backward: 2.5 ms}, {parameters: 3 MiB, backward: 0.5 ms, times: 2}]"
    scenario.write_text(head + workload % ("7 ms", took), encoding="utf-8")
    rows = [
        {**run_point(point), "size_bytes": 0, "computed_us": "7000 2500 500 500 0"} for point in load(str(scenario))
    ]
    planned = took.replace("2.5 ms", "0.1 ms").replace("0.5 ms", "9 ms")
    scenario.write_text(head + workload % ("1 ms", planned), encoding="utf-8")
    columns = ("collective", "workload", "ranks", "size_bytes", "time_us", "computed_us", "workload.bucket_cap")
    table = "\n".join([",".join(columns), *(",".join(str(row[c]) for c in columns) for row in rows)])
    found = compared(str(scenario), table, "table", [], [])
    assert len(found["points"]) == 3
    assert [point["error"] for point in found["points"]] == [0, 0, 0]
    with pytest.raises(InputError, match="does not fit the computations of the template ddp"):
        compared(str(scenario), table.replace("7000 2500 500 500 0", "7000 2500 500 0"), "table", [], [])


@pytest.mark.parametrize(
    ("workload", "more", "said"),
    [
        ({"template": "ddp", "model": "gpt2", "gpu": "h100"}, {}, "give `layers`"),
        ({**TRAINING, "parallel": {"pp": 2}}, {}, "its send_recv is only simulated; take all_reduce"),
        ({**STEP, "overlap": False}, {}, "leave out `overlap`"),
        (STEP, {"dtype": "int32"}, "take dtype: float32"),
        ({"template": "gather", "size": "1000 B"}, {"ranks": 3}, "a size of ranks × whole elements"),
        (
            {**STEP, "layers": [{"parameters": "36 B", "backward": "1 ms"}]},
            {"measure": {"compute": "real"}},
            "write powers of two",
        ),
    ],
)
def test_what_is_not_run_says_so(workload: dict[str, Any], more: dict[str, Any], said: str) -> None:
    """What torch does not do, or is not built here, is refused before a rank starts, with what can be done instead."""
    with pytest.raises(RefusedError, match=said):
        cases_of_points.cases(asked(workload, **more), "gloo")


EACH = {  # a small one of every template
    "ddp": STEP,
    "training": TRAINING,
    "operations": {"operations": [{"name": "a", "collective": "all_reduce", "size": "1 KiB"}]},
    **{name: {"template": name, "size": "1 KiB", "local": "1 ms"} for name in SMALL},
}


def written(folder: Path, template: str) -> Path:
    """A scenario file of one workload on this machine."""
    keys = {"name": template, "topology": {"system": "loopback"}, "measure": FEW, "workload": EACH[template]}
    (folder / "step.yaml").write_text(json.dumps(keys), encoding="utf-8")
    return folder / "step.yaml"


@pytest.mark.parametrize("template", TEMPLATES)
def test_measure_prints_every_template(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every workload is printed and written, whatever its ranks report."""

    def launched(job: Job, *_: object) -> Report:
        outcome = TaskResult([2_500_000], [0], alone=[[1_000_000, 2_000_000]])
        return Report([outcome] * len(job.tasks), 0, 1, True, {"library": "gloo"})

    monkeypatch.setattr(real_run, "launch", launched)
    done = simcoll("measure", written(tmp_path, template), "--ranks", 2, "--quiet", "-o", tmp_path / "made.csv")
    assert done.status == 0
    assert done.out.startswith(f"Measured over gloo: {template} on 2: 2.5 ms;")
    assert "2500" in done.out.splitlines()[-1]
    assert read_measured(tmp_path / "made.csv")[0].others["workload"] == template


@pytest.mark.ranks
def test_measure_runs_and_prints_a_step(tmp_path: Path) -> None:
    """A real step of two ranks, from the command to its table."""
    done = simcoll("measure", written(tmp_path, "ddp"), "--ranks", 2, "--quiet")
    assert done.status == 0
    assert done.out.startswith("Measured over gloo: ddp on 2: ")


@pytest.mark.ranks
def test_a_training_step_runs_by_its_plan() -> None:
    """All calls of the plan run and give the right results, and computations sleep no less than they are told."""
    (point,) = asked(TRAINING)
    (row,) = real_run.run([point])
    assert row["verified"]
    slept = sum(work.time_ps for work in plan_on_all_ranks(point.scenario).works if 0 in work.ranks and not work.call)
    assert slept / 1e6 < row["compute_us"] < row["time_us"]


def test_tables_of_computing_times_are_those_that_models_read() -> None:
    """On a processor, too, each product and attention gets a time."""
    here = torch.device("cpu")
    small, large = compute_times.gemms(here, tokens=(8, 512), widths=(512,))
    assert list(small) == ["dtype", "m", "n", "k", "torch_us"]
    assert min(small["torch_us"], large["torch_us"]) > 0
    rows = list(compute_times.attentions(here, sequences=(16,), heads=(2,)))
    assert [(row["head_dim"], row["seq"]) for row in rows] == [(64, 16), (128, 16)]
    assert all(row["torch_us"] > 0 for row in rows)


@needs_root
@pytest.mark.long
def test_the_plan_of_a_dry_run_takes_in_the_lab_what_was_predicted(tmp_path: Path) -> None:
    """The step that was recorded from a script with DDP is within 5 % of the median of five measured ones."""
    scenario, table = ROOT / "validation/cases/lab-dryrun.yaml", tmp_path / "step.csv"
    assert simcoll("lab", scenario, "-o", table, "--quiet").status == 0
    document = compared(str(scenario), table.read_text("utf-8"), str(table), [], [])
    assert all(abs(point["error"]) < 0.05 for point in document["points"])


@needs_root
@pytest.mark.long
def test_a_step_in_the_lab_overlaps(tmp_path: Path) -> None:
    """Between hosts on slow links a step with one bucket takes computing and sending in turn, and one with several
    hides most of the shorter; the model says the same."""
    scenario, table = ROOT / "validation/cases/lab-ddp-small.yaml", tmp_path / "step.csv"
    assert simcoll("lab", scenario, "-o", table, "--quiet").status == 0
    many, one = read_measured(table)
    sending = 512 * 1024 / 12.5e6 * 1e6
    assert one.time_us > float(one.others["compute_us"]) + 0.95 * sending
    assert many.time_us < one.time_us - 0.5 * sending
    document = compared(str(scenario), table.read_text("utf-8"), str(table), [], [])
    assert all(abs(point["error"]) < 0.25 for point in document["points"])
