"""Recommendations: crossovers, ties, and what NCCL would choose."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from networks import GB_PER_S
from workloads import mesh, points

import simcoll as sc
from simcoll.cli import main
from simcoll.errors import RefusedError
from simcoll.explanation.candidates import BUCKETS, candidates
from simcoll.explanation.recommendation import recommendations
from simcoll.formats.schedules import msccl_writer
from simcoll.prediction import sweep
from simcoll.prediction.predict import predict
from simcoll.report import recommendation_text
from simcoll.schedule.algorithms import build
from simcoll.schedule.registry import ALGORITHMS


def recommended(keys: dict[str, Any], among: list[str] | None = None) -> dict[str, Any]:
    """The document of the one recommendation for a scenario."""
    found = recommendations(points(keys), among)[0]
    found.simulate(1, lambda: None)
    return found.document()


def test_the_crossover_is_that_of_the_closed_forms() -> None:
    """Between recursive doubling and a ring the best changes where their closed forms are equal, within 1 %; the size
    is not one of those asked for."""
    entries = [ALGORITHMS["all_reduce"][name] for name in ("recursive_doubling", "ring")]
    n, alpha, beta = 8, 1e-6, 1 / (10 * GB_PER_S)

    def difference(m: float) -> float:
        known = {"n": n, "alpha": alpha, "beta": beta, "m": m, "log2": lambda x: x.bit_length() - 1}
        first, second = (eval(entry.cost, {"__builtins__": {}}, known) for entry in entries)
        return float(first - second)

    at = -difference(0) / (difference(1) - difference(0))
    sizes, one_port = {"from": "1 KiB", "to": "1 MiB", "factor": 4}, {"channels": 1, "copies": 1}
    keys = {"topology": mesh(), "collective": "all_reduce", "size": sizes, "model": one_port}
    found = recommended(keys, ["recursive_doubling", "ring"])
    assert [row["choice"] for row in found["ranges"]] == ["recursive_doubling", "ring"]
    assert found["ranges"][1]["from_bytes"] == pytest.approx(at, rel=0.01)


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranges_tile_the_sizes_and_hold_the_best(nodes: int) -> None:
    """Ranges follow one another from the smallest size on, and at each size the winner is the quickest of a direct
    sweep over all algorithms, or quicker, for settings of its own."""
    sizes = [1 << 10, 1 << 16, 1 << 22]
    keys = {
        "topology": {"system": "hgx-h100", "nodes": nodes},
        "collective": "all_gather",
        "size": [f"{size} B" for size in sizes],
    }
    found = recommended(keys)
    ranges = found["ranges"]
    assert [ranges[0]["from_bytes"], ranges[-1]["to_bytes"]] == [sizes[0], None]
    assert all(a["to_bytes"] == b["from_bytes"] for a, b in pairwise(ranges))
    rows = [sweep.run_point(point) for point in points({**keys, "algorithm": "all"})]
    for told in found["sizes"]:
        swept = [row for row in rows if row["status"] == "ok" and row["size_bytes"] == told["size_bytes"]]
        if swept:
            best = min(swept, key=lambda row: row.time_ps)
            assert told["time_us"] <= best.time_ps / 1e6
            assert told["algorithm"] == best["algorithm"] or told["time_us"] < best.time_ps / 1e6 or told["tie"]


@pytest.mark.parametrize(
    ("nodes", "size", "modelled", "tie"),
    [(1, "1 MiB", True, True), (1, "1 GiB", False, False), (2, "64 MiB", False, True)],  # the last by the second's
)
def test_what_is_nearer_than_the_error_of_the_model_is_a_tie(nodes: int, size: str, modelled: bool, tie: bool) -> None:
    """Law: the runner-up ties if, and only if, one of the two ends within the 90 % interval of the other, which for a
    modelled time is that of NCCL's quickest call; without a fit only equals tie."""
    keys = {"topology": {"system": "hgx-h100", "nodes": nodes}, "collective": "all_reduce", "size": size}
    (advice,) = recommendations(points(keys), ["ring", "tree"] if nodes > 1 else ["ring", "nvls", "swing", "two_shot"])
    advice.simulate(1, lambda: None)
    (best,) = advice.bests
    calls = [each for each in advice.timed[best.size].values() if each.high_us]
    quickest = min(calls, key=lambda each: each.time_ps)
    assert best.second_row
    known, second = (row if row.high_us else quickest for row in (best.row, best.second_row))
    longer = best.second_row.time_ps / best.row.time_ps
    assert known.high_us and known.time_us and second.low_us and second.time_us
    assert best.tie == (longer <= max(known.high_us / known.time_us, second.time_us / second.low_us))
    assert (best.row.high_us is None, best.tie) == (modelled, tie)
    (told,) = recommended({**keys, "profile": "one-port"}, ["ring", "tree"])["sizes"]
    assert told["margin"] > 0 and not told["tie"]


def test_only_protocols_that_are_named_are_recommended() -> None:
    """One, or several, each as a run of it; without kernels there are none."""
    keys = {"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "size": ["64 KiB"]}
    among = ["ring", "tree", "all_pairs", "two_shot"]
    free, *forced = (recommended({**keys, "protocol": asked}, among) for asked in ("auto", "Simple", "LL", "pull"))
    for found, protocol in zip(forced, ("Simple", "LL", "pull"), strict=True):
        assert {told["protocol"] for told in found["sizes"]} == {protocol}
    both = recommended({**keys, "protocol": ["Simple", "LL"]}, among)
    best = [found["sizes"][0]["time_us"] for found in (free, *forced, both)]
    assert best[4] == min(best[1:3]) >= best[0]
    with pytest.raises(RefusedError, match="protocol LL needs a profile with NCCL kernels"):
        recommended({**keys, "protocol": "LL", "profile": "ideal"})


@pytest.mark.thorough
def test_with_a_profile_of_nccl_the_regret_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With NCCL's kernels pairs of algorithm and protocol are recommended, at each size no slower than what NCCL takes;
    and the CSV for its tuner says the same of NCCL's own, range by range, also from the JSON file."""
    (tmp_path / "s.yaml").write_text(
        "topology: {system: hgx-h100}\ncollective: all_reduce\nprofile: nccl-hopper\nsize: [4 KiB, 256 KiB, 64 MiB]\n"
    )
    run = ["recommend", str(tmp_path / "s.yaml"), "--quiet", "--among", "ring,tree,nvls,two_shot"]
    assert main([*run, "-o", str(tmp_path / "t.csv"), "--to", "nccl-tuner"]) == 0
    assert main([*run, "-o", str(tmp_path / "r.json"), "--json"]) == 0
    found = json.loads((tmp_path / "r.json").read_text())["recommendations"][0]
    assert all(told["regret"] >= 0 for told in found["sizes"] if "regret" in told)
    assert found["regret"]["worst"] >= found["regret"]["mean"] >= 0
    capsys.readouterr()
    for sizes, times in ("[256 KiB, 64 MiB]", 2), ("64 MiB", 1):  # where NCCL's best is the best of all, once
        assert main([*run, "--set", f"size={sizes}"]) == 0
        assert capsys.readouterr().out.count("# NCCL's own choice takes longer") == times
    lines = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    starts = [(int(line[1]), line[3], line[4]) for line in lines]
    told = [(row["from_bytes"], row["nccl"], row["protocol"].lower()) for row in found["nccl_ranges"]]
    assert starts == [(0, *told[0][1:]), *told[1:]]
    capsys.readouterr()
    assert main(["export", str(tmp_path / "r.json"), "--to", "nccl-tuner"]) == 0
    assert capsys.readouterr().out == (tmp_path / "t.csv").read_text()


def test_schedules_are_held_against_nccl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a fitted system the best of all is no slower than the best of either executor alone, each choice takes as long
    as a run of the same, and a schedule's line writes a program that runs its protocol in the nodes' groups."""
    asked = [64 << 10, 128 << 20]
    keys = {"topology": {"system": "hgx-h100", "nodes": 2}, "collective": "all_reduce"}
    sizes = {"size": [f"{size} B" for size in asked]}
    among = ["hierarchical", "ring"]
    found = recommended({**keys, **sizes}, among)
    alone = [recommended({**keys, **sizes, "executor": by}, few) for by, few in (("nccl", ["ring"]), ("msccl", among))]
    times = [{size["size_bytes"]: size["time_us"] for size in each["sizes"]} for each in (found, *alone)]
    assert all(times[0][size] == min(times[1][size], times[2][size]) for size in asked)
    for told in found["ranges"]:
        own = {name: told[name] for name in ("algorithm", "protocol", "executor")}
        (point,) = points({**keys, **own, "size": f"{told['from_bytes']} B"})
        assert sweep.run_point(point)["time_us"] == told["time_us"]
    assert [found["ranges"][at]["executor"] for at in (0, -1)] == ["msccl", "nccl"]

    (tmp_path / "s.yaml").write_text(json.dumps({**keys, "size": "64 KiB"}))
    assert main(["recommend", str(tmp_path / "s.yaml"), "--quiet", "--among", "hierarchical"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("simcoll export")]
    assert main(line.partition(" -o ")[0].split()[1:]) == 0
    written = capsys.readouterr().out
    assert 'proto="LL"' in written
    groups = (tuple(range(8)), tuple(range(8, 16)))
    assert written == msccl_writer.dump(build("all_reduce", "hierarchical", 16, groups=groups), "LL")


def test_bucket_sizes_are_recommended() -> None:
    """For a data-parallel step the choice with the least time of all is recommended; all its sizes of buckets were
    tried, and all algorithms with its size."""
    layers = [{"parameters": "1 MiB", "backward": "0.1 ms", "times": 6}]
    keys = {"topology": mesh(), "workload": {"template": "ddp", "layers": layers, "forward": "0.2 ms"}}
    found = recommended(keys, ["ring", "tree", "recursive_doubling"])
    times = [row["time_us"] for row in found["choices"]]
    assert found["ranges"][0]["time_us"] == times[0] == min(times)
    best = found["choices"][0]
    own = {**keys["workload"], "algorithm": best["algorithm"], "bucket_cap": f"{best['bucket_cap']} B"}
    assert sweep.run_point(points({**keys, "workload": own})[0])["time_us"] == times[0]
    beside = {(row["algorithm"], row["bucket_cap"]) for row in found["choices"]}
    assert len({cap for name, cap in beside if name == best["algorithm"]}) == len({25 << 20, *BUCKETS})
    assert len({name for name, cap in beside if cap == best["bucket_cap"]}) == 3


@pytest.mark.parametrize(
    ("keys", "offered"),
    [
        ({}, True),
        ({"launch": {"graph": True}}, False),
        ({"library_version": "2.26"}, False),
        ({"op": "max"}, False),
        ({"protocol": "LL"}, False),
        ({"topology": {"system": "dgx-a100"}}, False),
    ],
)
def test_symmetric_kernels_are_offered_where_nccl_takes_them(keys: dict[str, Any], offered: bool):
    """Law: a symmetric kernel is a choice where NCCL's own choice is one, in that time; no variable asks for it."""
    call = {"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "size": "16 MiB"}
    (point,) = points({**call, "launch": {"graph": True, "registered": True}, **keys})
    chosen = predict(point)
    assert (chosen.algorithm == "symmetric") == offered
    assert ("symmetric" in {each.algorithm for each in candidates(point.scenario, [])}) == offered
    if offered:
        (advice,) = recommendations([point], ["symmetric"])
        advice.simulate(1, lambda: None)
        assert (str(advice.bests[0].winner), advice.bests[0].winner.env) == ("symmetric (nccl)", {})
        assert advice.bests[0].row.time_ps == chosen.time_ps


def test_variables_are_named_only_where_they_are_better_than_none() -> None:
    """Of a workload whose calls NCCL serves best by different algorithms, which one setting of variables forbids, the
    best of its own choices is to set none."""
    calls = [
        {"name": name, "collective": "all_reduce", "size": size} for name, size in (("a", "64 MiB"), ("b", "1 KiB"))
    ]
    step = {"topology": "hgx-h100", "workload": {"operations": [calls[0], {**calls[1], "after": ["a"]}]}}
    (advice,) = recommendations(points({"name": "t", **step}))
    advice.simulate(1, lambda: None)
    document = advice.document()
    assert document["ranges"][0]["choice"] == "auto"
    assert document.get("nccl_ranges", document["ranges"])[0]["env"] == {}
    assert "NCCL_ALGO" not in recommendation_text.text([document], [advice])


ONE_CALL = {
    "kernels": {"topology": {"system": "hgx-h100", "nodes": 2}},
    "messages": {"topology": {"system": "hgx-h100", "nodes": 2}, "collective": "all_to_all"},
    "a protocol": {"topology": {"system": "hgx-h100", "nodes": 2}, "protocol": "Simple"},
    "schedules": {"topology": mesh(), "collective": "all_gather"},
}


@pytest.mark.parametrize("keys", ONE_CALL.values(), ids=ONE_CALL)
def test_a_step_of_one_call_has_the_choices_of_the_call(keys: dict[str, Any]) -> None:
    """All its algorithms, protocols and executors, beside what the step has; one of them takes as long in both."""
    call = {"collective": "all_reduce", **keys, "size": "64 MiB"}
    operation = {"name": "a", **{key: call[key] for key in ("collective", "size")}}
    machine = {key: value for key, value in keys.items() if key != "collective"}
    doors = call, {**machine, "workload": {"operations": [operation]}}
    alone, step = (recommendations(points({"name": "t", **door}))[0] for door in doors)
    own = {each for each in step.of if each.algorithm == "auto" and not each.executor}
    assert set(step.of) - own == {each for each in alone.of if not each.settings}
    among = "direct" if keys.get("collective") == "all_to_all" else "ring"
    times = []
    for door in doors:
        found = recommended(door, [among])
        row = found["choices"][0] if "choices" in found else found["ranges"][0]
        times.append((row["time_us"], row["choice"]))
    if keys is not ONE_CALL["schedules"]:  # of which a call tries chunks and copies, too
        assert times[0] == times[1]


def test_sizes_far_apart_hide_no_winner_between() -> None:
    """Where the same choice of NCCL's is the best of the smallest and the largest size, another between is found:
    what can be pasted for a size is the best of NCCL's own there."""
    asked = {"on": "hgx-h100", "among": ["ring", "tree", "nvls"]}
    found = sc.recommend("all_reduce", size=["64 KiB", "64 MiB"], **asked)["recommendations"][0]["nccl_ranges"]
    ends = [choice["algorithm"] for choice in found]
    assert ends[0] == ends[-1] == "nvls" and "ring" in ends
    (ring,) = (choice for choice in found if choice["algorithm"] == "ring")
    size = f"{ring['from_bytes'] * 5 // 4} B"
    ran = sc.run("all_reduce", on="hgx-h100", algorithm=["ring", "nvls"], size=size)
    times = {row["algorithm"]: row["time_us"] for row in ran}
    assert times["ring"] < times["nvls"]
