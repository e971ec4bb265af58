"""`algorithm: best` and `simcoll tune --profile`: the quickest of what NCCL could do, and what its own choice costs."""

from __future__ import annotations

import pytest
from command import simcoll

SIZES = "[4 KiB, 256 KiB, 4 MiB, 64 MiB]"


def times(collective: str, algorithm: str, *sets: str, protocol: str = "auto") -> dict[int, dict[str, object]]:
    """Rows by size, on eight H100."""
    words = ["--size", SIZES, "--algorithm", algorithm, "--set", "profile=nccl-hopper", "--set", f"protocol={protocol}"]
    found = simcoll("predict", collective, "--on", "hgx-h100", *words, "--json")
    return {row["size_bytes"]: row for row in found.json["points"] if row["status"] == "ok"}


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_best_is_the_quickest_pair(collective: str):
    """`best` takes what the quickest algorithm with the quickest protocol takes, and NCCL's choice takes no less."""
    names = {"all_reduce": ["ring", "nvls"], "all_gather": ["ring", "nvls"], "all_to_all": ["direct"]}[collective]
    best, auto = times(collective, "best"), times(collective, "auto")
    pairs = [times(collective, name, protocol=protocol) for name in names for protocol in ("LL", "LL128", "Simple")]
    for size, row in best.items():
        others = [found[size]["time_us"] for found in pairs if size in found]
        assert row["time_us"] <= min(others)
        assert row["time_us"] <= auto[size]["time_us"]
        same = times(collective, str(row["algorithm"]), protocol=str(row["protocol"]))
        assert same[size]["time_us"] == row["time_us"]


def test_best_of_one_protocol():
    """With a protocol `best` is the quickest algorithm of that protocol."""
    assert {row["protocol"] for row in times("all_reduce", "best", protocol="LL").values()} == {"LL"}


def test_best_without_kernels_is_auto():
    """Where calls are not run as NCCL runs them, `auto` is the quickest already."""
    rows = simcoll(
        "predict", "all_reduce", "--on", "hgx-h100", "--size", "1 MiB", "--algorithm", "[auto, best]", "--json"
    )
    auto, best = rows.json["points"]
    assert auto["time_us"] == best["time_us"]


@pytest.mark.thorough
def test_regret_is_what_nccl_s_choice_takes_longer():
    """Of each size: NCCL's choice as the table has it, the best pair, both times, and their ratio."""
    found = simcoll("tune", "hgx-h100", "--profile", "nccl-hopper", "--json").json
    choice = {(c["collective"], c["size_bytes"]): (c["algorithm"], c["protocol"]) for c in found["choice"]}
    assert {row["collective"] for row in found["regret"]} >= {"all_reduce", "all_gather", "reduce_scatter"}
    for row in found["regret"]:
        assert choice[row["collective"], row["size_bytes"]] == (row["algorithm"], row["protocol"])
        assert row["regret"] == pytest.approx(row["time_us"] / row["best_us"] - 1)
        assert row["regret"] >= 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--profile", "nccl-hoper"], "nccl-hopper"),
        (["--profile", "ideal"], "no NCCL kernels"),
    ],
)
def test_wrong_input_is_told(words: list[str], complaint: str):
    """Bad input gets one clear error and status 2."""
    found = simcoll("tune", "hgx-h100", *words)
    assert found.status == 2
    assert complaint in found.err
