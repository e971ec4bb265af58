"""`simcoll diagnose`: faults that were simulated, with noise, are found again; what was measured on sound machines is
healthy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import simcoll

from simcoll.nccl.call import OURS
from simcoll.profile import find_profile

H100 = ("all_reduce", "hgx-h100", 1, "nccl-hopper")
A100X2 = ("all_reduce", "dgx-a100", 2, "nccl-ampere")
L40S = ("all_reduce", "l40s-pcie", 1, "nccl-pcie")
SIZES = [2**exponent for exponent in range(9, 30)]
LARGE = [2**exponent for exponent in range(20, 31)]
Setup = tuple[str, str, int, str]


def times(setup: Setup, sizes: Sequence[int] = SIZES, **keys: str) -> dict[int, float]:
    """What the simulator says of a set-up, us by size."""
    collective, system, nodes, profile = setup
    listed = ", ".join(f"{size} B" for size in sizes)
    given = {"dtype": "float16", "profile": profile, **keys}
    sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    words = ["--on", system, "--nodes", nodes, "--size", f"[{listed}]", *sets, "--json"]
    found = simcoll("predict", collective, *words)
    assert found.status == 0, found.err
    return {row["size_bytes"]: row["time_us"] for row in found.json["points"]}


def left(setup: Setup, *options: str) -> dict[int, float]:
    """What the simulator says where NCCL chooses as `simcoll tune` says with these options."""
    collective, system, nodes, _ = setup
    told = simcoll("tune", system, "--nodes", nodes, *options, "--json").json["choice"]
    found: dict[int, float] = {}
    for choice in told:
        if choice["collective"] == collective and choice["size_bytes"] in SIZES:
            ours = OURS[choice["algorithm"], collective]
            found |= times(setup, [choice["size_bytes"]], algorithm=ours, protocol=choice["protocol"])
    return found


def slow_links(setup: Setup, pattern: str, bandwidth: str, sizes: Sequence[int] = SIZES) -> dict[int, float]:
    """With the links that match, there and back, at another bandwidth."""
    u, v = pattern.split("->")
    slower = {"bandwidth": bandwidth}
    return times(setup, sizes, **{"topology.links": json.dumps({f"{u}->{v}": slower, f"{v}->{u}": slower})})


def slow_kernels(folder: Path) -> dict[int, float]:
    """With everything that blocks of threads do twice as slow."""
    text = find_profile("nccl-hopper").read_text(encoding="utf-8")
    head, _, rest = text.partition("kernels:")
    kernels, _, tail = rest.partition("fitted:")
    kernels = re.sub(r"(start|hop): ([\d.]+) us", lambda m: f"{m[1]}: {2 * float(m[2])} us", kernels)
    kernels = re.sub(r"(first|rate): ([\d.]+) GB/s", lambda m: f"{m[1]}: {float(m[2]) / 2} GB/s", kernels)
    path = folder / "slow.yaml"
    path.write_text(f"{head}kernels:{kernels}fitted:{tail}", encoding="utf-8")
    return times((*H100[:3], str(path)))


def table(folder: Path, setup: Setup, took: dict[int, float], seed: int = 0) -> Path:
    """A measured table with noise of 3 %."""
    collective, _, nodes, _ = setup
    generator = np.random.default_rng(seed)
    lines = ["collective,ranks,nodes,dtype,size_bytes,time_us,timing"]
    for size, time in took.items():
        noisy = time * np.exp(generator.normal(0, 0.03))
        lines.append(f"{collective},{8 * nodes},{nodes},float16,{size},{noisy:.3f},nccl-tests")
    path = folder / "measured.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def diagnosed(path: object, system: str, *words: str) -> dict[str, Any]:
    """What `diagnose --json` prints."""
    found = simcoll("diagnose", path, "--topology", system, *words, "--json")
    assert found.status in (0, 1), found.err
    assert (found.status == 0) == (found.json["verdict"] == "healthy")
    return dict(found.json)


FAULTS: dict[str, tuple[Setup, Callable[[Path], dict[int, float]]]] = {
    "healthy": (H100, lambda folder: times(H100)),
    "nvls off": (H100, lambda folder: left(H100, "--algo", "^nvls")),
    "no LL": (H100, lambda folder: left(H100, "--proto", "^LL")),
    "no LL128": (A100X2, lambda folder: left(A100X2, "--proto", "^LL128")),
    "no Simple": (H100, lambda folder: left(H100, "--proto", "^Simple")),
    "only LL": (H100, lambda folder: left(H100, "--proto", "LL")),
    "launch": (H100, lambda folder: {size: time + 15 for size, time in times(H100).items()}),
    "host": (H100, lambda folder: {size: max(time, 40.0) for size, time in times(H100).items()}),
    "slow nvlink": (H100, lambda folder: slow_links(H100, "node0.gpu3->node0.nvswitch0", "185.4 GB/s")),
    "slow gpu": (H100, slow_kernels),
    "pcie": (H100, lambda folder: times(("all_reduce", "rtx-pro-6000", 1, "nccl-pcie"))),
    "p2p off": (L40S, lambda folder: times(L40S, p2p_level="LOC")),
    "nic missing": (A100X2, lambda folder: slow_links(A100X2, "*nic*->rail*", "21.875 GB/s", LARGE)),
    "ethernet": (A100X2, lambda folder: slow_links(A100X2, "*nic*->rail*", "12.5 GB/s", LARGE)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_simulated_fault_comes_first(tmp_path: Path, fault: str):
    """Of a table made by the simulator with a fault, and noise, that fault is the best explanation."""
    setup, simulated = FAULTS[fault]
    found = diagnosed(table(tmp_path, setup, simulated(tmp_path)), setup[1])
    assert fault in (found["verdict"], *found["also"])
    assert fault == "healthy" or "healthy" not in (found["verdict"], *found["also"])
    healthy = next(h for h in found["hypotheses"] if h["hypothesis"] == "healthy")
    assert found["hypotheses"][0]["error"] <= healthy["error"]
    assert found["hypotheses"][0]["error"] < 0.06


def test_numbers_of_a_fault_come_back(tmp_path: Path):
    """What a launch takes longer, and the share of its rate that a link has, are found."""
    launch = diagnosed(table(tmp_path, *_at("launch", tmp_path)), "hgx-h100")["hypotheses"][0]
    assert launch["launch_us"] == pytest.approx(15, abs=1)
    link = diagnosed(table(tmp_path, *_at("slow nvlink", tmp_path)), "hgx-h100")["hypotheses"][0]
    assert link["value"] == "one at 50%"


def _at(fault: str, folder: Path) -> tuple[Setup, dict[int, float]]:
    setup, simulated = FAULTS[fault]
    return setup, simulated(folder)


def test_regions_say_where_it_is_off(tmp_path: Path):
    """A slow link shows where bandwidth binds, a slow launch where latency does, and the other way round not."""
    off = {}
    for fault in ("slow nvlink", "launch"):
        regions = diagnosed(table(tmp_path, *_at(fault, tmp_path)), "hgx-h100")["regions"]
        off[fault] = {region["region"] for region in regions if region["off"]}
    assert "bandwidth-bound" in off["slow nvlink"] - off["launch"]
    assert "latency-bound" in off["launch"] - off["slow nvlink"]


def test_bad_rows_are_flagged_apart(tmp_path: Path):
    """A row that took more than 1.1 times as long as that of twice the size is neither judged nor counted."""
    took = times(H100)
    plain = diagnosed(table(tmp_path, H100, took), "hgx-h100")
    found = diagnosed(table(tmp_path, H100, {**took, 2**24: 5 * took[2**24]}), "hgx-h100")
    verdicts = {point["size_bytes"]: point["verdict"] for point in found["points"]}
    assert [size for size, verdict in verdicts.items() if verdict == "bad row"] == [2**24]
    assert sum(region["points"] for region in found["regions"]) == len(SIZES) - 1
    assert found["verdict"] == plain["verdict"] == "healthy"


def test_bad_rows_of_nccl_tests(tmp_path: Path):
    """What nccl-tests prints beside sizes and times, counts of elements, does not hide a bad row."""
    half = "time   algbw   busbw #wrong"
    lines = [
        "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20",
        f"#       size         count      type   redop    root     {half}     {half}",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    for size, time in ((2**20, 25.0), (2**21, 90.0), (2**22, 50.0), (2**26, 320.0)):
        lines.append(f"{size} {size // 4} float sum -1 {time:.2f} 41.94 73.40 0 {time:.2f} 41.94 73.40 0")
    path = tmp_path / "printed.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = diagnosed(path, "hgx-h100", "--where", "collective=all_reduce", "--where", "ranks=8")
    assert [point["verdict"] == "bad row" for point in found["points"]] == [False, True, False, False]


def test_what_nothing_explains(tmp_path: Path):
    """Times that no hypothesis makes are said to be that, with status 1."""
    generator = np.random.default_rng(1)
    took = {size: time * 12 ** float(generator.uniform(-1, 1)) for size, time in times(H100).items()}
    path = table(tmp_path, H100, took)
    assert diagnosed(path, "hgx-h100")["verdict"] is None
    assert "# nothing explains it" in simcoll("diagnose", path, "--topology", "hgx-h100").out


SHIPPED = {
    "a100_sxm_nccl-2.27.3.csv": "dgx-a100",
    "h100_sxm_nccl-2.27.3.csv": "hgx-h100",
    "b200_sxm_nccl-2.29.2.csv": "hgx-b200",
    "l40s_nccl-2.27.3.csv": "l40s-pcie",
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tables_are_healthy(name: str):
    """What was measured on sound machines is healthy: all-reduces, and no region is off."""
    found = diagnosed(name, SHIPPED[name], "--where", "dtype=float16", "--where", "collective=all_reduce")
    assert found["verdict"] == "healthy"
    assert not any(region["off"] for region in found["regions"])


@pytest.mark.long
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tables_are_healthy_as_a_whole(name: str):
    """All collectives and rank counts in one diagnosis."""
    found = diagnosed(name, SHIPPED[name], "--where", "dtype=float16")
    assert found["verdict"] == "healthy"
    assert not any(region["off"] for region in found["regions"])


def test_text_ends_with_the_verdict(tmp_path: Path):
    """The printed table tells each point, regions, hypotheses, and the verdict last."""
    found = simcoll("diagnose", table(tmp_path, *_at("nvls off", tmp_path)), "--topology", "hgx-h100")
    assert found.status == 1
    assert found.out.splitlines()[-1].startswith("# verdict: nvls off")
    for word in ("latency-bound", "expected", "slow", "hypothesis"):
        assert word in found.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere.csv", "--topology", "hgx-h100"], "nowhere.csv"),
        (["h100_sxm_nccl-2.27.3.csv", "--topology", "hgx-h10"], "did you mean 'hgx-h100'"),
        (["h100_sxm_nccl-2.27.3.csv", "--topology", "hgx-h100", "--where", "rank=8"], "ranks"),
        (["h100_sxm_nccl-2.27.3.csv", "--topology", "l40s-pcie", "--where", "ranks=3"], "row"),
        (["h100_sxm_nccl-2.27.3.csv", "--topology", "loopback", "--where", "ranks=8"], "has no profile"),
    ],
)
def test_wrong_input_is_told(words: list[str], complaint: str):
    """Bad input gets one clear error and status 2."""
    found = simcoll("diagnose", *words)
    assert found.status == 2
    assert complaint in found.err
    assert "Traceback" not in found.err
