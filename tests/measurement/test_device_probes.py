"""What one device tells, on the CPU by the same code as on a GPU; what needs a GPU says so."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import ROOT
from extras import Late, needs

from simcoll.errors import InputError
from simcoll.measurement import device_probes
from simcoll.measurement.launcher import on_one_gpu
from simcoll.scenario import scenario_files

pytestmark = needs("torch")
torch = Late("torch")
session = Late("simcoll.measurement.torch_backend.session")

SIZES = (4096, 1 << 20)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """A few probes of the CPU."""
    return [
        *device_probes.device("cpu", dtypes=("float32", "bfloat16"), sizes=SIZES, runs=3),
        *device_probes.one_rank("gloo", collectives=("all_reduce", "all_gather"), sizes=SIZES, runs=3),
    ]


@pytest.mark.ranks
def test_everything_is_probed(rows: list[dict[str, Any]]):
    """Launches for each type, copies and reductions for each size too, collectives of one rank: median and range."""
    asked = {(row["what"], row["dtype"], row["size_bytes"]) for row in rows}
    kinds = [("launch", "launch_queued"), ("copy", "reduce")]
    assert asked == {
        *((what, dtype, width) for what in kinds[0] for dtype, width in (("float32", 4), ("bfloat16", 2))),
        *((what, dtype, size) for what in kinds[1] for dtype in ("float32", "bfloat16") for size in SIZES),
        *((what, "float32", size) for what in ("all_reduce", "all_gather") for size in SIZES),
    }
    assert len(rows) == len(asked)
    for row in rows:
        assert tuple(row) == device_probes.COLUMNS or set(row) == set(device_probes.COLUMNS)
        assert 0 < row["time_us_min"] <= row["time_us"] <= row["time_us_max"]
        assert row["runs"] == 3
        assert row["GBps"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3)


@pytest.mark.ranks
def test_what_a_reduction_costs(rows: list[dict[str, Any]]):
    """gamma is the time of the largest reduction of a type over its size."""
    largest = next(row for row in rows if row["what"] == "reduce" and row["size_bytes"] == SIZES[-1])
    assert device_probes.gamma_ps_per_byte(rows) == pytest.approx(largest["time_us"] * 1e6 / SIZES[-1])
    with pytest.raises(InputError, match="the measured rows contain no reduction of int8"):
        device_probes.gamma_ps_per_byte(rows, "int8")


@pytest.mark.ranks
def test_the_table_says_where_it_comes_from(rows: list[dict[str, Any]], tmp_path: Path):
    """Device, versions, machine and clock stand in each row; the rows are read again as they were."""
    device_probes.write(tmp_path / "t.csv", rows, "cpu")
    table = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert all(row[fact] for row in table for fact in ("device", "torch", "clock_ns", "machine", "simcoll", "date"))
    assert [(row["what"], int(row["size_bytes"])) for row in table] == [
        (row["what"], row["size_bytes"]) for row in rows
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (lambda: device_probes.device("cuda"), "there is no GPU 0: torch sees none; run this where there is one"),
        (lambda: device_probes.device("cuda:3"), "there is no GPU 3: torch sees none"),
        (lambda: device_probes.device("tpu"), "'tpu' is no device; take cuda, cuda:1 or cpu"),
        (lambda: device_probes.several_on_one_gpu([]), "there is no GPU 0"),
        (lambda: device_probes.one_rank("nccl"), "--backend nccl needs a GPU"),
    ],
)
def test_without_a_gpu_it_says_so(probe: Callable[[], object], said: str):
    """Before anything is started."""
    if session.gpus():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match=said):
        probe()


def test_on_a_gpu(tmp_path: Path):
    """The same rows on a GPU, and rings, trees and naive by several NCCL ranks on it, checked on every rank."""
    if not session.gpus():
        pytest.skip("needs a GPU")
    rows = [*device_probes.device("cuda", sizes=SIZES, runs=3), *device_probes.one_rank("nccl", sizes=SIZES, runs=3)]
    device_probes.write(tmp_path / "gpu.csv", rows, "cuda")
    asked = scenario_files.load(
        str(ROOT / "validation" / "cases" / "one-gpu.yaml"), ["size=64 KiB", "measure.repeats=4"]
    )
    measured = device_probes.several_on_one_gpu(asked, timeout_s=60, limit_s=200)
    assert all(row["verified"] and row["library"] == "nccl" for row in measured)


def test_ranks_on_one_gpu_look_like_hosts():
    """Each rank has a host of its own for NCCL, all have the same GPU."""
    seen = [on_one_gpu().environment(rank) for rank in range(4)]
    assert len({one["NCCL_HOSTID"] for one in seen}) == 4
    assert len({one["CUDA_VISIBLE_DEVICES"] for one in seen}) == 1
    assert all(one["NCCL_NET"] == "Socket" for one in seen)
