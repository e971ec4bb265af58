"""Executors: schedules as one kernel runs them, with NCCL's primitives or by loads, and as sends and receives do."""

from __future__ import annotations

import csv
import functools
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from command import simcoll
from workloads import points

import simcoll as sc
from simcoll.accuracy.fit.calibrate import calibrate
from simcoll.errors import InputError, RefusedError
from simcoll.formats.schedules import schedule_json
from simcoll.nccl.kernel_costs import Kernels
from simcoll.prediction.predict import Prediction, predict, row
from simcoll.prediction.predictions import CallPrediction
from simcoll.scenario.profile import PullCosts, find_profile, load_profile, parse_profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.algorithms import build

MACHINES = {"dgx-a100": "nccl-ampere", "hgx-h100": "nccl-hopper", "hgx-b200": "nccl-blackwell"}
TABLES = {
    "dgx-a100": "a100_sxm_vllm-0.14.0.csv",
    "hgx-h100": "h100_sxm_vllm-0.24.0.csv",
    "hgx-b200": "b200_sxm_vllm-0.24.0.csv",
}
SIZES = [1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26]


def scenario(system: str = "hgx-h100", **keys: Any) -> Scenario:
    """A point of an all_reduce of 1 MiB with the system's profile."""
    usual = {"collective": "all_reduce", "algorithm": "two_shot", "size": "1 MiB", "profile": MACHINES[system]}
    topology = {"system": system, "nodes": keys.pop("nodes", 1)}
    (point,) = points({"topology": topology, **usual, **keys})
    return point.scenario


@functools.cache
def ran(system: str = "hgx-h100", **keys: Any) -> Prediction:
    """The prediction of such a point."""
    return predict(scenario(system, **keys))


def time_ps(nbytes: int, **keys: Any) -> int:
    """The time of such a point of so many bytes."""
    return ran(size=f"{nbytes} B", **keys).time_ps


# --- who runs a schedule ---


def test_a_kernel_uses_all_rails():
    """Across nodes a large ring goes by all NICs, as NCCL's channels do, and takes about as long, or less, as it has
    more blocks; with one copy, which leaves a node by one NIC, several times as long. As a workload of one operation it
    takes the same."""
    asked = {"algorithm": "ring", "size": "416 MiB", "nodes": 2}
    alone, own = (ran(**asked, executor=by).time_ps for by in ("msccl", "nccl"))
    assert 0.85 * own < alone < 1.25 * own
    one = scenario(**asked, executor="msccl")
    single = one.model_copy(update={"model": one.model.model_copy(update={"copies": 1})})
    assert predict(single).time_ps > 4 * alone
    operation = {"name": "a", "collective": "all_reduce", "size": "416 MiB", "algorithm": "ring"}
    plan = {"template": "operations", "operations": [operation]}
    topology = {"system": "hgx-h100", "nodes": 2}
    asked = {"topology": topology, "workload": plan, "executor": "msccl"}
    assert predict(Scenario.model_validate(asked)).time_ps == alone


def test_limits_of_channels_hold_for_every_kernel():
    """Fewer channels than would be taken take longer; a limit above changes nothing."""
    free, *limited = (
        predict(scenario(size="16 MiB", env=env)).time_ps
        for env in ({}, {"NCCL_MAX_NCHANNELS": 1}, {"NCCL_MAX_NCHANNELS": 32})
    )
    assert limited[0] > 1.2 * free
    assert limited[1] == free


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["hgx-h100", "l40s-pcie", "mi300x"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_one_question_has_one_bound(system: str, collective: str):
    """The column `bound` is the same for all algorithms, protocols, executors and profiles of a call, also where a
    switch reduces and where links carry more than they are rated for; no time is below it."""
    answers: list[dict[str, str]] = [{"algorithm": name, "executor": "nccl"} for name in ("auto", "best")]
    names = ("ring", "two_shot") if collective == "all_reduce" else ("direct",)
    answers += [{"algorithm": name, "executor": "msccl"} for name in names]
    answers += [{"algorithm": names[0], "profile": profile} for profile in ("ideal", "one-port")]
    for nodes in (1, 2):
        point = {"topology": {"system": system, "nodes": nodes}, "collective": collective, "size": "32 MiB"}
        rows = [row(predict(Scenario.model_validate({**point, **answer}))) for answer in answers]
        assert len({each.lower_bound_us for each in rows}) == 1
        assert all((each.time_us or 0) >= (each.lower_bound_us or 0) > 0 for each in rows)


@pytest.mark.parametrize(
    ("keys", "executor"),
    [
        ({"algorithm": "auto"}, "nccl"),
        ({"algorithm": "ring"}, "nccl"),
        ({"algorithm": "chain_tree"}, "nccl"),  # the schedule of NCCL's tree
        ({"algorithm": "hierarchical"}, "msccl"),
        ({"algorithm": "naive"}, "msccl"),
        ({"algorithm": "ring", "executor": "msccl"}, "msccl"),
        ({"algorithm": "ring", "executor": "p2p"}, "p2p"),
        ({"algorithm": "hierarchical", "profile": "one-port"}, None),
    ],
)
def test_a_schedule_that_nccl_has_is_its_own_unless_another_is_named(keys: dict[str, str], executor: str | None):
    """The column `executor` says it, and times of other executors are `modelled`."""
    result = row(ran(**keys))
    assert result.executor == executor
    assert (result.confidence == "modelled") == (executor in ("msccl", "p2p"))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"profile": "one-port", "executor": "msccl"}, "'one-port' has no `kernels`"),
        (
            {"collective": "broadcast", "algorithm": "ring", "executor": "msccl"},
            "executor: msccl` runs only simcoll's schedules",
        ),
        ({"algorithm": "two_shot", "executor": "nccl"}, "NCCL has no two_shot for all_reduce"),
        ({"algorithm": "ring", "protocol": "pull", "executor": "nccl"}, "do not read peers' memory"),
        ({"protocol": "pull", "nodes": 2}, "within one node"),
        (
            {"collective": "all_gather", "algorithm": "nvls", "protocol": "pull"},
            "NVSwitches reduce only some dtypes of an all_reduce",
        ),
        ({"algorithm": "nvls", "protocol": "pull", "op": "product"}, "not all_reduce of float32 by product"),
        ({"executor": "p2p", "protocol": "LL"}, "sends and receives take no protocol"),
        ({"ranks": 1}, "two ranks or more"),
    ],
)
def test_what_an_executor_cannot_run_is_refused(keys: dict[str, Any], why: str):
    """With one reason."""
    with pytest.raises((RefusedError, InputError), match=why):
        ran(**keys)


def test_a_profile_without_costs_of_loads_names_them(tmp_path: Path):
    """Kernels alone do not say what a load costs."""
    own = tmp_path / "own.yaml"
    own.write_text("name: own\nkernels: {LL: {hop: 1 us, rate: 5 GB/s}}\n")
    with pytest.raises(InputError, match="has no costs of loads from peers' memory"):
        ran(profile=str(own), protocol="pull")


# --- one kernel with NCCL's primitives ---


@pytest.mark.parametrize("algorithm", ["ring", "all_pairs", "hierarchical"])
def test_the_protocol_is_the_quickest(algorithm: str):
    """Of those that the machine has."""
    for nbytes in SIZES[::2]:
        each = {
            p: time_ps(nbytes, algorithm=algorithm, executor="msccl", protocol=p) for p in ("LL", "LL128", "Simple")
        }
        best = ran(size=f"{nbytes} B", algorithm=algorithm, executor="msccl")
        assert best.time_ps == min(each.values()) == each[best.protocol]


@pytest.mark.parametrize("system", MACHINES)
@pytest.mark.parametrize(
    "how",
    [
        {"executor": "msccl"},
        {"executor": "msccl", "nodes": 2},
        {"executor": "p2p"},
        {"executor": "msccl", "protocol": "pull"},
        {"executor": "msccl", "protocol": "pull", "ranks": 4},
    ],
    ids=str,
)
def test_more_bytes_take_longer_and_never_less_than_the_links_need(system: str, how: dict[str, Any]):
    """Each GPU sends at least 2(n−1)/n of the buffer, over NVLink as the profile has it. Where proxies take all the
    time, sizes differ by the picoseconds to which transfers are rounded: by less than a nanosecond in all."""
    times = [time_ps(nbytes, system=system, **how) for nbytes in SIZES]
    assert all(longer > shorter - 1000 for shorter, longer in itertools.pairwise(times))
    one = ran(system=system, size=f"{SIZES[-1]} B", **how)
    rated = int(one.planned[0].lowered.rated.bandwidths.max())  # the memory's among them
    assert one.time_ps > 2 * (one.ranks - 1) / one.ranks * SIZES[-1] / rated * 1e12
    assert one.time_ps >= one.lower_bound_ps


@pytest.mark.parametrize("system", MACHINES)
def test_a_ring_as_one_kernel_is_about_nccls_ring(system: str):
    """Within a factor of 2 from 1 KiB to 64 MiB: the same primitives, without NCCL's slices and fewer channels."""
    for nbytes in SIZES:
        own, nccl = (time_ps(nbytes, system=system, algorithm="ring", executor=who) for who in ("msccl", "nccl"))
        assert 0.5 < own / nccl < 2, nbytes


@pytest.mark.parametrize("transport", ["ib-ndr", "tcp"])
@pytest.mark.parametrize("nbytes", [8 << 10, 16 << 20])
def test_every_executor_pays_the_transport(transport: str, nbytes: int):
    """Messages between nodes go by the same proxies, whoever sends them: an all-to-all takes about as long."""
    keys: dict[str, Any] = {"collective": "all_to_all", "algorithm": "direct", "nodes": 2}
    took = {
        name: time_ps(nbytes, **keys, executor=name, profile=f"nccl-hopper+{transport}")
        for name in ("nccl", "msccl", "p2p")
    }
    assert max(took.values()) < 2 * min(took.values()), took


@pytest.mark.parametrize("executor", ["msccl", "p2p"])
def test_an_all_to_all_meets_congestion_whoever_runs_it(executor: str, tmp_path: Path):
    """Where every rank sends to all others the fabric carries less, and not where it sends to its neighbour."""
    profile = find_profile("nccl-hopper").read_text(encoding="utf-8")
    for name, share in (("free", "0 %"), ("crowded", "200 %")):
        law = f"{profile}\ntransport: {{latency: 4 us, congestion: {share}}}\n"
        (tmp_path / f"{name}.yaml").write_text(law, encoding="utf-8")

    def slower(collective: str, algorithm: str) -> float:
        keys = {"collective": collective, "algorithm": algorithm, "executor": executor, "nodes": 4}
        times = (time_ps(64 << 20, **keys, profile=str(tmp_path / f"{name}.yaml")) for name in ("crowded", "free"))
        return next(times) / next(times)

    assert slower("all_to_all", "direct") > 1.3
    assert slower("all_gather", "ring") == 1


def test_each_step_of_sends_and_receives_is_a_launch():
    """2(n−1) of a ring, one of all_pairs, which is wider: a block a rank; the host launches as often."""
    profile = load_profile("nccl-hopper")
    launch, kernels = profile.launch, profile.kernels
    assert kernels
    ring, direct = (ran(algorithm=name, executor="p2p", size="1 KiB") for name in ("ring", "all_pairs"))
    assert ring.lead["launch"] == 14 * launch
    assert direct.lead["launch"] == launch + kernels.grid - kernels.grid // 8
    paced = predict(scenario(algorithm="ring", executor="p2p", size="1 KiB", launch={"gpus_per_process": 1}))
    host = load_profile("nccl-hopper").host
    assert host
    assert paced.time_ps == max(paced.called_ps, 14 * host.launch)


# --- kernels that read peers' memory ---


@pytest.mark.parametrize("system", MACHINES)
@pytest.mark.parametrize("n", [2, 4, 8])
def test_one_shot_and_two_shot_have_closed_forms(system: str, n: int):
    """Launch, flags, loads: the data of n−1 peers once, or an nth of them twice with a load for each in between.

    A link serves pieces in turn, so the last peer's come a little later, but not by more than they take alone.
    """
    pull = load_profile(MACHINES[system]).pull or PullCosts()
    flags = pull.launch + round(pull.flag * math.log2(n))
    for nbytes in SIZES:
        one, two = (
            ran(system=system, algorithm=name, protocol="pull", ranks=n, size=f"{nbytes} B")
            for name in ("all_pairs", "two_shot")
        )
        assert isinstance(one, CallPrediction)
        rate = min(int(one.lowered.rated.bandwidths[link]) for link in one.lowered.rated.route(*one.devices[:2]))
        of_link, of_peer = rate * pull.reach / 1e12, 36 * 512 * 16 / pull.load  # B/ps
        stage = max((n - 1) * nbytes / of_link, nbytes / of_peer)
        assert 0.999 * (flags + stage) <= one.time_ps <= 1.001 * (flags + stage + nbytes / of_peer)
        block = nbytes / n
        stage = max((n - 1) * block / of_link, block / of_peer)
        waits = 4 * pull.load + (n - 1) * max(0.0, pull.load - block / of_link)
        whole = flags + waits + 2 * stage
        assert 0.999 * whole <= two.time_ps <= 1.001 * (whole + 2 * block / of_peer)


@pytest.mark.parametrize("system", ["hgx-h100", "hgx-b200"])
@pytest.mark.parametrize("n", [2, 8])
def test_an_all_reduce_by_loads_that_the_switch_adds_has_a_closed_form(system: str, n: int):
    """Launch, flags, two copies in memory, four loads between, and all data and an nth of them over each link; the
    second stage follows in sixteenths at most, and waits a load for its first."""
    profile = load_profile(MACHINES[system])
    pull, reach = profile.pull or PullCosts(), (profile.kernels or Kernels()).NVLS.reach
    for nbytes in SIZES:
        result = ran(system=system, algorithm="nvls", protocol="pull", ranks=n, size=f"{nbytes} B")
        assert isinstance(result, CallPrediction)
        rated, (first, second) = result.lowered.rated, result.devices[:2]
        link, memory = rated.route(first, second)[0], rated.route(first, first)[0]
        copy = int(rated.latencies[memory]) + nbytes * 1e12 / int(rated.bandwidths[memory])
        moving = nbytes * (1 + 1 / n) / (int(rated.bandwidths[link]) * reach) * 1e12
        waits = 4 * pull.load + max(0.0, pull.load - moving)
        whole = pull.launch + pull.flag * math.log2(n) + 2 * copy + waits + moving
        assert 0.999 * whole <= result.time_ps <= 1.001 * (whole + max(moving / 16, min(moving, 1e5)))


@pytest.mark.parametrize(("system", "most"), [("dgx-a100", 8), ("hgx-h100", 5), ("hgx-b200", 8)])
def test_all_reduces_of_eight_gpus_are_predicted_that_were_not_fitted(system: str, most: float):
    """vLLM's all-reduce in CUDA graphs, 256 B to 8 MiB, whatever kernel it takes; fitted to its own on 2 and 4 GPUs."""
    words = ("--where", "ranks=8")
    assert simcoll("compare", f"system={system}", TABLES[system], *words, "--max-mape", most).status == 0
    assert simcoll("compare", f"system={system}", TABLES[system], *words, "--max-mape", 2).status == 1


def test_a_kernel_that_pulls_is_launched_in_a_graph_however_it_is_asked_for():
    """Time and interval are the same with `launch.graph`, which the fitted launch is of, and without."""
    keys = {"algorithm": "two_shot", "protocol": "pull"}
    one, other = row(ran(**keys)), row(predict(scenario(**keys, launch={"graph": True})))
    assert (one.time_us, one.low_us, one.high_us) == (other.time_us, other.low_us, other.high_us)


@pytest.mark.parametrize(("system", "n", "threshold"), [("hgx-h100", 8, 256 << 10), ("hgx-b200", 8, 1 << 20)])
def test_auto_takes_the_switch_where_vllm_does(system: str, n: int, threshold: int):
    """Among all schedules whose ranks pull, from the size on at which vLLM takes kernels whose loads switches add."""

    def taken(nbytes: int) -> str:
        return ran(system=system, algorithm="auto", protocol="pull", ranks=n, size=f"{nbytes} B").algorithm

    assert taken(threshold // 2) == "all_pairs"
    assert taken(threshold * 2) == "nvls"


@pytest.mark.parametrize("system", ["dgx-a100", "hgx-h100"])
@pytest.mark.parametrize(("n", "threshold"), [(4, 512 << 10), (8, 256 << 10)])
def test_two_shot_overtakes_one_shot_where_vllm_changes_over(system: str, n: int, threshold: int):
    """Within a factor of 2 in size; on 2 GPUs one-shot is quicker at all sizes of the kernel."""

    def quicker(nbytes: int, ranks: int) -> str:
        names = ("all_pairs", "two_shot")
        return min(names, key=lambda name: time_ps(nbytes, system=system, algorithm=name, protocol="pull", ranks=ranks))

    assert quicker(threshold // 2, n) == "all_pairs"
    assert quicker(threshold * 2, n) == "two_shot"
    assert {quicker(nbytes, 2) for nbytes in (1 << 10, 1 << 18, 4 << 20)} == {"all_pairs"}


@pytest.mark.thorough
def test_a_fit_finds_the_costs_of_loads(tmp_path: Path):
    """From times that they make, beginning at other values; the rest of the profile stays."""
    truth = {"launch": 4_000_000, "flag": 300_000, "load": 900_000, "reach": 0.7}
    base = load_profile("nccl-hopper")
    table = tmp_path / "made.csv"
    head = ["collective", "algorithm", "protocol", "ranks", "nodes", "dtype", "size_bytes", "time_us"]
    rows = []
    profile = tmp_path / "law.yaml"
    text = "name: law\nkernels: {}\npull: {launch: 4 us, flag: 0.3 us, load: 0.9 us, reach: 70 %}\n"
    profile.write_text(text)
    for n in (2, 4):
        for nbytes in (1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22):
            for name in ("all_pairs", "two_shot"):
                how = {"algorithm": name, "ranks": n, "protocol": "pull", "dtype": "bfloat16"}
                made = ran(profile=str(profile), size=f"{nbytes} B", **how).time_ps / 1e6
                rows.append(["all_reduce", name, "pull", n, 1, "bfloat16", nbytes, made])
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    free = [f"pull.{name}" for name in truth]
    fitted = calibrate([table], "hgx-h100", fit=["ranks=2,4"], free=free)
    found = parse_profile(fitted.text, "fitted")
    assert found.pull
    for name, value in truth.items():
        assert getattr(found.pull, name) == pytest.approx(value, rel=0.02), name
    assert found.kernels == base.kernels


@pytest.mark.parametrize("how", [{"executor": "msccl"}, {"executor": "p2p"}, {"protocol": "pull"}], ids=str)
def test_a_call_takes_as_long_in_a_plan_as_alone(how: dict[str, str]):
    """To the picosecond: launches, hops and links are the call's own there, too."""
    call = {"collective": "all_reduce", "algorithm": "two_shot", "size": "1 MiB"}
    keys = {"profile": "nccl-hopper", "topology": {"system": "hgx-h100"}, **how}
    workload = {"template": "operations", "operations": [{"name": "a", **call}]}
    (point,) = points({**keys, "workload": workload})
    assert predict(point).time_ps == ran(**how).time_ps


@pytest.mark.thorough
@pytest.mark.parametrize("how", [{"executor": "msccl"}, {"executor": "p2p"}, {"protocol": "pull"}], ids=str)
def test_causes_of_a_kernels_time_add_up(how: dict[str, str], tmp_path: Path):
    """Each has a text, and together they are the time."""
    file = tmp_path / "file.yaml"
    head = "topology: {system: hgx-h100}\ncollective: all_reduce\nalgorithm: two_shot\nranks: 4\n"
    lines = "".join(f"{key}: {value}\n" for key, value in how.items())
    file.write_text(f"{head}size: 256 KiB\nprofile: nccl-hopper\n{lines}")
    assert simcoll("explain", file).status == 0
    (point,) = simcoll("explain", file, "--json").json["points"]
    assert sum(cause["time_us"] for cause in point["causes"]) == pytest.approx(point["time_us"], rel=1e-6)


def test_a_schedule_of_ones_own_runs_as_one_of_the_registry_does(tmp_path: Path):
    """A file holds the same transfers; so do imported programs."""
    own = tmp_path / "own.json"
    own.write_text(schedule_json.dump(build("all_reduce", "two_shot", 8)))
    assert ran(algorithm=str(own)).time_ps == ran(algorithm="two_shot").time_ps
    assert row(ran(algorithm=str(own))).executor == "msccl"


def test_a_file_in_which_switches_add_is_run_by_loads(tmp_path: Path) -> None:
    """A schedule of a file that has a switch add takes the protocol that its kernel has, as the shipped one does; no
    protocol of messages serves it."""
    (tmp_path / "own.json").write_text(schedule_json.dump(build("all_reduce", "nvls", 8, agents=1)))
    keys = {"on": "hgx-h100", "size": "16 MiB", "algorithm": str(tmp_path / "own.json")}
    (row,) = sc.run("all_reduce", **keys)
    assert (row["status"], row["protocol"]) == ("ok", "pull")
    assert sc.run("all_reduce", **keys, protocol="LL")[0]["status"].startswith("refused: NVSwitches reduce loads")


KEYS = {"sharing": "fair", "o_send": "1 ms", "channels": 3, "copies": 2}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "asked", [{"executor": "nccl"}, {"executor": "msccl"}, {"executor": "p2p"}, {"profile": "ideal"}]
)
def test_keys_of_the_model_that_change_nothing_are_said(asked: dict[str, str], key: str) -> None:
    """A note stands where a profile with costs of its own reads no such key, and nowhere else."""
    call = {"topology": "hgx-h100", "collective": "all_reduce", "algorithm": "ring", "size": "64 MiB", **asked}
    plain, changed = sc.run(**call), sc.run(**call, model={key: KEYS[key]})
    said = [note for note in changed.notes if note.startswith(f"model.{key} changes nothing")]
    read = asked == {"profile": "ideal"} or (key == "copies" and asked != {"executor": "nccl"})
    assert bool(said) != read
    assert read or plain["time"] == changed["time"]
