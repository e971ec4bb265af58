"""Why it takes as long as it does: the critical path and its causes."""

from __future__ import annotations

import ast
import dataclasses
import json
import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import simcoll
from nccl_law import channel
from networks import GB_PER_S, full_mesh, program, star
from oracle import random_case, random_faults, random_tasks
from oracle_programs import changed, joint_program_of, program_of

from simcoll import api
from simcoll.cli import main
from simcoll.config import yaml_tree
from simcoll.engine import event, fast
from simcoll.engine.program import Program
from simcoll.engine.timing_model import service_ps
from simcoll.errors import Place, RefusedError
from simcoll.explanation._path_columns import CriticalPath, by_cause
from simcoll.explanation._search_space import BUCKETS, candidates
from simcoll.explanation.critical_path import critical_path
from simcoll.explanation.explain import explanation
from simcoll.explanation.explained_run import ALL_CAUSES, explained_run
from simcoll.explanation.recommendation import recommendations
from simcoll.explanation.what_if import answers
from simcoll.formats.schedules import msccl_writer
from simcoll.prediction import sweep
from simcoll.prediction.placing import rated_topology
from simcoll.prediction.predict import predict, row
from simcoll.prediction.result_rows import ResultRow
from simcoll.report import recommendation_text, result_tables
from simcoll.scenario import loading
from simcoll.scenario.loading import Point
from simcoll.scenario.profile import load_profile
from simcoll.schedule.algorithms import build
from simcoll.schedule.registry import ALGORITHMS
from simcoll.topology.graph import Link, Topology


def check(played: Program, seed: int) -> None:
    """The segments of one run."""
    times = fast.run(played).timeline
    assert times is not None
    path = critical_path(played, times)
    assert path.total_ps == times.makespan_ps, seed
    segments = list(path)
    assert segments[0].begin_ps == 0, seed
    assert segments[-1].end_ps == times.makespan_ps, seed
    assert all(a.end_ps == b.begin_ps for a, b in pairwise(segments)), seed
    assert all(s.begin_ps < s.end_ps for s in segments), seed
    assert sum(by_cause(path.shares()).values()) == times.makespan_ps, seed


@pytest.mark.parametrize("batch", [0, 1, *(pytest.param(batch, marks=pytest.mark.long) for batch in range(2, 10))])
def test_segments_add_up(batch: int) -> None:
    """Of random programs, of one operation and of several, the segments of the path meet without gap or overlap, from
    0 to the end of the run."""
    for seed in range(batch * 50, batch * 50 + 50):
        check(program_of(*random_case(random.Random(seed), contention=seed % 4 != 0)), seed)
        check(joint_program_of(*random_tasks(random.Random(seed), contention=seed % 4 != 0)), seed)


def check_changed(seed: int) -> None:
    """The segments of one run whose links change."""
    rng = random.Random(seed)
    if seed % 3:
        messages, links, rules, _ = random_case(rng, contention=seed % 4 != 0)
        plain = program_of(messages, links, rules, {})
    else:
        messages, links, rules, tasks = random_tasks(rng, contention=seed % 4 != 0)
        plain = joint_program_of(messages, links, rules, tasks)
    played = changed(plain, messages, random_faults(rng, messages, links, event.run(plain).makespan_ps))
    times = fast.run(played).timeline
    assert played.changes
    if times is not None:
        path = critical_path(played.as_it_went(times.way), times, played.changes.spans(played.bandwidths))
        assert path.total_ps == times.makespan_ps, seed
        assert all(a.end_ps == b.begin_ps for a, b in pairwise(path)), seed


@pytest.mark.parametrize("batch", [0, *(pytest.param(batch, marks=pytest.mark.long) for batch in range(1, 5))])
def test_segments_add_up_with_links_that_change(batch: int) -> None:
    """The same where links become slower, die, come back and are gone around."""
    for seed in range(batch * 60, batch * 60 + 60):
        check_changed(seed)


def path_of(name: str, topology: Topology, nbytes: int, **params: Any) -> tuple[Program, CriticalPath]:
    """The path of a collective on all hosts of a topology."""
    played = program(name, topology, nbytes, **params)
    times = event.run(played)
    path = critical_path(played, times)
    assert path.total_ps == times.makespan_ps
    return played, path


def blamed(played: Program, path: CriticalPath, cause: str) -> dict[str, int]:
    """What each link takes of a cause, in ps."""
    return {played.link_names[where]: ps for (its, where), ps in path.shares().items() if its == cause}


FAST_LINK = Link(100 * GB_PER_S, 1_000_000)
SHARINGS = pytest.mark.parametrize("sharing", ["fair", "fifo"])


@SHARINGS
def test_a_slow_link_is_blamed(sharing: str) -> None:
    """Where one link of a ring is a hundred times as slow as the others, nearly all of the time goes by on it."""
    slow = ("h2", "h3")
    topology = full_mesh(4, FAST_LINK, {slow: Link(GB_PER_S, 1_000_000)})
    played, path = path_of("all_reduce/ring", topology, 1 << 24, sharing=sharing)
    assert blamed(played, path, "serialisation")["h2->h3"] > 0.97 * path.total_ps


@SHARINGS
def test_without_bandwidth_limits_all_is_latency_and_overhead(sharing: str) -> None:
    """On links that are as good as infinitely fast a ring takes its steps' latencies and overheads, exactly, but for
    the picosecond that a service takes at least."""
    topology = full_mesh(4, Link(10**18, 1_000_000))
    params = {"sharing": sharing, "o_send": 200_000, "o_recv": 300_000}
    _, path = path_of("all_reduce/ring", topology, 1 << 10, **params)
    steps = 6
    its = {"latency": steps * 1_000_000, "o_send": steps * 200_000, "o_recv": steps * 300_000, "serialisation": steps}
    assert by_cause(path.shares()) == its


@SHARINGS
def test_an_incast_is_contention_on_its_link(sharing: str) -> None:
    """Of n − 1 messages that meet on the way to the root each takes a share of its link: but for latency, one of n − 1
    parts of the time is service, and the others are contention on that link."""
    played, path = path_of("reduce/naive", star(5, FAST_LINK), 1 << 24, sharing=sharing)
    causes = by_cause(path.shares())
    assert blamed(played, path, "contention") == {"switch->h0": causes["contention"]}
    assert causes["contention"] == pytest.approx(3 * causes["serialisation"], rel=1e-3)


@SHARINGS
@pytest.mark.parametrize("name", ["broadcast/chain", "all_reduce/ring", "send_recv/direct"])
@pytest.mark.parametrize("slow", [("h0", "switch"), ("switch", "h1"), ("h1", "switch")])
def test_one_pair_alone_waits_for_nobody(sharing: str, name: str, slow: tuple[str, str]) -> None:
    """Where a network carries one channel of one pair of ranks, pieces that queue before its slow link are its own: no
    contention."""
    topology = star(2, FAST_LINK, {slow: Link(GB_PER_S, 1_000_000)})
    _, path = path_of(name, topology, 1 << 20, sharing=sharing, chunk=1 << 14)
    assert "contention" not in by_cause(path.shares())


def test_a_queue_behind_others_is_contention_behind_ones_own_service() -> None:
    """Two send pieces over links as quick as that to the root, which is never idle: half of what it serves is the
    other's, and half of the time is contention, exactly. Without the other it would take half as long."""
    played, path = path_of("reduce/naive", star(3, FAST_LINK), 1 << 20, sharing="fifo", chunk=1 << 12)
    assert set(blamed(played, path, "contention")) == {"switch->h0"}
    causes = by_cause(path.shares())
    assert causes["serialisation"] == causes["contention"]
    alone = event.run(program("reduce/naive", star(2, FAST_LINK), 1 << 20, sharing="fifo", chunk=1 << 12)).makespan_ps
    assert path.total_ps - alone == causes["contention"]


@SHARINGS
def test_who_comes_late_is_waited_for(sharing: str) -> None:
    """The time until a rank comes that comes much later than the others is spent waiting for that rank."""
    late = 10**9
    topology = full_mesh(4, FAST_LINK)
    _, path = path_of("all_reduce/ring", topology, 1 << 20, sharing=sharing, arrivals={2: late})
    first = next(iter(path))
    assert (first.cause, first.rank, first.begin_ps, first.end_ps) == ("straggler", 2, 0, late)
    assert by_cause(path.shares())["straggler"] == late


def test_reductions_and_caps_are_told_apart() -> None:
    """What a reduction at gamma takes is a reduction, what the cap of a channel takes is the channel's, and the links,
    which are faster, take nothing but latency."""
    params = {"gamma": 5 * GB_PER_S, "channel_bandwidth": 10 * GB_PER_S}
    _, path = path_of("reduce/naive", full_mesh(2, FAST_LINK), 1 << 20, **params)
    its = {"reduction": service_ps(1 << 20, 5 * GB_PER_S), "channel": service_ps(1 << 20, 10 * GB_PER_S)}
    assert by_cause(path.shares()) == {**its, "latency": 1_000_000}


@pytest.mark.parametrize("blocking", ["sends-first", "even-odd"])
def test_blocking_sends_have_a_path(blocking: str) -> None:
    """With blocking sends, too, the segments add up."""
    path_of("all_reduce/tree", star(7, FAST_LINK), 1 << 16, blocking=blocking)


# --- points, and what if ---


def points(keys: dict[str, Any], *sets: str) -> list[Point]:
    """The points of a scenario given as a mapping."""
    return loading.points(yaml_tree.located({"name": "test", **keys}, Place("test", 1, 1)), sets)


def mesh(bandwidth: str = "10 GB/s", latency: str = "1 us", hosts: int = 8) -> dict[str, Any]:
    """Hosts joined each with each."""
    return {"fabric": "full-mesh", "hosts": hosts, "link": {"bandwidth": bandwidth, "latency": latency}}


POINTS: dict[str, dict[str, Any]] = {
    "ring": {"topology": mesh(), "collective": "all_reduce", "algorithm": "ring", "size": "1 MiB"},
    "late": {
        "topology": mesh(),
        "collective": "all_reduce",
        "algorithm": "ring",
        "size": "1 MiB",
        "arrivals": {1: "9 us"},
    },
    "nccl": {"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "size": "1 MiB", "profile": "nccl-hopper"},
    "flapping": {
        "topology": mesh(),
        "collective": "all_reduce",
        "algorithm": "ring",
        "size": "1 MiB",
        "faults": [{"link": "host1->host2", "at": "10 us", "until": "500 us", "kind": "down"}],
    },
    "two nodes": {
        "profile": "one-port",
        "topology": {"system": "hgx-h100", "nodes": 2},
        "collective": "all_gather",
        "algorithm": "hierarchical",
        "size": "1 MiB",
        "model": {"sharing": "fifo", "o_send": "1 us", "gamma": "500 GB/s", "chunk": "32 KiB", "slots": 2},
    },
    "ddp": {
        "topology": {"system": "hgx-h100"},
        "profile": "nccl-hopper",
        "workload": {"template": "ddp", "model": "mlp", "gpu": "h100"},
    },
}


@pytest.mark.parametrize("name", POINTS)
def test_parts_add_up_to_the_row(name: str) -> None:
    """Launch, segments and shares of a point add up to the time of its row, whatever its profile and kind."""
    point = points(POINTS[name])[0]
    found = explained_run(point)
    assert found.time_ps == sweep.run_point(point).time_ps
    parts = list(found.parts())
    assert (parts[0].begin_ps, parts[-1].end_ps) == (0, found.time_ps)
    assert all(a.end_ps == b.begin_ps for a, b in pairwise(parts))
    assert sum(found.shares().values()) == found.time_ps
    assert {part.cause for part in parts} <= set(ALL_CAUSES)


def test_a_call_of_nccl_is_launch_start_and_hops() -> None:
    """With kernels a call of a ring is its launch, with what so many blocks take longer, what its protocol takes once,
    a hop for each of its 2(n − 1) steps, and what links take."""
    found = explained_run(points({**POINTS["nccl"], "algorithm": "ring", "protocol": "LL128", "size": "64 KiB"})[0])
    costs = load_profile("nccl-hopper").kernels
    assert costs
    channels = channel(found.ran).call.channels
    shares = {cause: ps for (cause, where), ps in found.shares().items() if where is None}
    assert shares["launch"] == load_profile("nccl-hopper").launch + costs.grid - costs.grid // channels
    assert shares["hop"] == 14 * (costs.LL128.hop + 1)  # the second link of a way takes 1 ps
    assert sum(shares.values()) == found.ran.launch_ps + shares["hop"]


@pytest.mark.parametrize("algorithm", ["ring", "nvls_tree"])
def test_a_call_of_nccl_goes_by_all_its_rails(algorithm: str) -> None:
    """Each way out of a node is as busy as the others, and together they carry what the call sends between nodes;
    the explanation lists them all, and a picture of links colours them alike."""
    keys = {"topology": {"system": "hgx-h100", "nodes": 2}, "profile": "nccl-hopper", "collective": "all_reduce"}
    found = explained_run(points({**keys, "algorithm": algorithm, "size": "16 MiB"})[0])
    ran, names = found.ran, found.ran.topology.link_names
    out = [number for number, name in enumerate(names) if re.fullmatch(r"node0\.nic\d->rail\d", name)]
    busy = ran.busy[out]
    assert len(out) == 8
    assert busy.min() > 0
    assert busy.min() == pytest.approx(busy.max())
    sent = float((busy * ran.topology.bandwidths[out]).sum()) * ran.time_ps / 1e12
    assert sent == pytest.approx(float(ran.totals.carried[out].sum()))
    listed = {row["where"]: row["alike"] for row in explanation(found, what_if=False)["places"] if row["where"]}
    ways = [alike for name, alike in listed.items() if "rail" in name or "nic" in name]
    assert all(alike == (8 if algorithm == "ring" else 1) for alike in ways)


def test_a_ring_of_nccl_waits_for_no_other_flow() -> None:
    """A channel's ring over NVSwitches and rails has each link to one pair of ranks: what waits for a NIC waits for the
    channel's own earlier messages."""
    keys = {"topology": {"system": "hgx-h100", "nodes": 2}, "profile": "nccl-hopper", "collective": "all_reduce"}
    found = explained_run(points({**keys, "algorithm": "ring", "protocol": "Simple", "size": "256 MiB"})[0])
    assert "contention" not in by_cause(found.shares())
    assert sum(found.shares().values()) == found.time_ps


CALLS = [
    *(
        ("hgx-h100", nodes, name)
        for nodes, names in ((1, "ring tree nvls"), (2, "ring tree"))
        for name in names.split()
    ),
    *((system, 2, name) for system in ("dgx-a100", "gh200-4") for name in ("ring", "tree")),
    ("hgx-h100", 2, "nvls_tree"),
    ("rtx-pro-6000", 1, "ring"),  # through the host's memory, which takes its time beside the links
]


@pytest.mark.parametrize(("system", "nodes", "algorithm"), CALLS)
@pytest.mark.parametrize("size", ["64 KiB", pytest.param("4 MiB", marks=pytest.mark.long), "256 MiB"])
def test_slower_and_faster_links_make_the_difference_that_is_said(
    system: str, nodes: int, algorithm: str, size: str
) -> None:
    """Law: with links of a kind f times as fast a call of NCCL takes at least its time less the share of that kind
    times 1 − 1/f, be f below 1 or above, so no kind is said to take more than it does, nor less; of a kind that takes
    most, twice the speed gains. A link that binds is of the kind that takes most of all links. Trees may turn the order
    in which links serve, and win or lose 3 % by it."""
    keys = {"topology": {"system": system, "nodes": nodes}, "collective": "all_reduce"}
    found = explained_run(points({**keys, "algorithm": algorithm, "size": size})[0])
    took, rated = found.path.total_ps, rated_topology(found.scenario)
    on_links: Counter[str] = Counter()
    for (_, where), ps in found.shares().items():
        if where in found.kinds:
            on_links[found.kinds[where]] += ps
    causes = by_cause(found.shares())

    def again(kind: str, factor: float) -> int:
        def faster(link: Link) -> Link:
            return dataclasses.replace(link, bandwidth=round(factor * link.bandwidth)) if link.kind == kind else link

        return predict(found.scenario, rated.with_links(map(faster, rated.every_link))).totals.makespan_ps

    for kind in ("nvlink", "pcie", "cable"):
        times = {factor: again(kind, factor) for factor in (0.5, 0.95, 1.05, 2)}
        for factor, time in times.items():
            assert time >= took + on_links[kind] * (1 / factor - 1) - 0.03 * took, (kind, factor)
        if on_links[kind] == max([*on_links.values(), *causes.values()]):
            assert times[2] < 0.99 * took, kind
    if (found.row.binding_busy or 0) >= result_tables.MOSTLY:
        assert found.kinds[str(found.row.binding_link)] == max(on_links, key=lambda kind: on_links[kind])


@pytest.mark.parametrize(
    ("system", "nodes", "collective", "size", "algorithm"),
    [
        ("mi300x", 1, "all_to_all", "96 MiB", "auto"),  # links are busy, and wait for channels
        ("dgx1-v100", 1, "broadcast", "96 MiB", "auto"),  # links are less busy, as blocks take turns, and bind
        ("hgx-h100", 1, "broadcast", "64 MiB", "auto"),
        ("dgx1-v100", 1, "all_to_all", "48 KiB", "auto"),  # a wide launch takes nearly all
        ("gh200-4", 4, "all_to_all", "4 MiB", "auto"),
        ("hgx-h100", 1, "all_gather", "64 KiB", "auto"),
        ("dgx1-v100", 1, "all_reduce", "4 MiB", "halving_doubling"),  # by messages, a launch a step
    ],
)
def test_what_binds_and_what_launches_take_is_what_faster_ones_gain(
    system: str, nodes: int, collective: str, size: str, algorithm: str
) -> None:
    """Law: the sentence names the kind of links on which bytes take at least half of the path, and none else. Where it
    names none, no kind twice as fast gains more than a quarter of the time, or 3 % by the order on links; where one, it
    gains. Launches that take no time gain what is said of launches, to the picosecond."""
    topology = {"system": system, "nodes": nodes}
    executor = "nccl" if algorithm == "auto" else "p2p"
    answer = api.explain(topology=topology, collective=collective, size=size, algorithm=algorithm, executor=executor)
    (found,) = answer["points"]
    on_links = Counter[str]()
    for place in found["places"]:
        if place["cause"] in ("serialisation", "contention"):
            on_links[place["kind"]] += 2 * place["time_ps"]
    binding = [kind for kind, twice in on_links.items() if twice >= found["time_ps"]]
    assert [kind for kind in on_links if f"{kind} binds (node0" in answer.verdict.lower()] == binding
    assert ("no link binds" in answer.verdict) == (not binding)
    told = {each["change"]: each for each in found["what_if"]}
    for kind in {each["kind"] for each in found["links"]}:
        factor = told[f"links of kind {kind} twice as fast"]["factor"]
        assert factor > 1.05 if kind in binding else 1 / factor > 0.72, kind
    launch = next(each["time_us"] for each in found["causes"] if each["cause"] == "launch")
    assert found["time_us"] - told["launches take no time"]["time_us"] == pytest.approx(launch, abs=1e-6)


@pytest.mark.parametrize(("system", "nodes"), [("hgx-h100", 2), ("mi300x", 1)])
def test_a_call_of_a_plan_has_the_causes_of_the_call(system: str, nodes: int) -> None:
    """Law: behind a computation a call takes of each cause what it takes by itself, to the picosecond."""
    where, call = {"topology": {"system": system, "nodes": nodes}}, {"collective": "all_gather", "size": "4 MiB"}
    alone = explained_run(points({**where, **call})[0])
    works = [{"name": "work", "time": "1 us"}, {"name": "call", "after": ["work"], **call}]
    behind = explained_run(points({**where, "workload": {"operations": works}})[0])
    assert by_cause(behind.shares()) == {"computation": 1_000_000, **by_cause(alone.shares())}


def test_a_proxy_is_no_link() -> None:
    """Where proxies bring small messages to NICs more slowly than PCIe could, they take the time, and PCIe none."""
    keys = {"topology": {"system": "hgx-h100", "nodes": 2}, "collective": "all_reduce", "algorithm": "ring"}
    found = explained_run(points({**keys, "size": "64 KiB"})[0])
    assert next(iter(by_cause(found.shares()))) == "proxy"
    assert "pcie" not in {found.kinds.get(where or "") for _, where in found.shares()}


def test_a_workload_with_a_fitted_profile_is_modelled() -> None:
    """Its calls were fitted and the whole was not measured; without a fit, or with other parameters, nobody knows."""
    step = {"template": "ddp", "layers": [{"parameters": "1 MiB", "backward": "1 ms"}], "forward": "1 ms"}
    fitted = explained_run(points({**POINTS["ddp"], "workload": step})[0])
    assert (fitted.row["confidence"], explanation(fitted, what_if=False)["confidence"]) == ("modelled", "modelled")
    ideal = {**POINTS["ddp"], "workload": step, "profile": "ideal"}
    assert sweep.run_point(points(ideal)[0])["confidence"] is None


BY_HAND = [
    ("ring", "links of kind cable twice as fast", {"topology": mesh("20 GB/s")}),
    ("ring", "latencies of links halved", {"topology": mesh(latency="0.5 us")}),
    ("ring", "algorithm tree", {"algorithm": "tree"}),
    ("late", "no rank late", {"arrivals": {}}),
    ("flapping", "no faults", {"faults": []}),
    ("flapping", "latencies of links halved", {"topology": mesh(latency="0.5 us")}),
    ("nccl", "algorithm ring, protocol Simple", {"algorithm": "ring", "protocol": "Simple"}),
    ("two nodes", "chunks of 64 KiB", {"model": {**POINTS["two nodes"]["model"], "chunk": "64 KiB"}}),
    ("two nodes", "4 slots", {"model": {**POINTS["two nodes"]["model"], "slots": 4}}),
    ("ddp", "buckets of 50 MiB", {"workload": {**POINTS["ddp"]["workload"], "bucket_cap": "50 MiB"}}),
]


@pytest.mark.parametrize(("name", "change", "changed"), BY_HAND)
def test_an_answer_is_the_ratio_of_two_runs(name: str, change: str, changed: dict[str, Any]) -> None:
    """How many times as fast a change makes a point is the ratio of two runs: of the point, and of one whose scenario
    says so."""
    plain, other = (sweep.run_point(points(keys)[0]).time_ps for keys in (POINTS[name], {**POINTS[name], **changed}))
    answer = next(one for one in answers(explained_run(points(POINTS[name])[0])) if one.change == change)
    assert (answer.time_ps, answer.factor) == (other, plain / other)


def test_launches_of_a_step_cost_no_more_than_launches(tmp_path: Path) -> None:
    """What a step gains where launches take no time is what it gains under a profile that has none: hops between GPUs
    and what blocks begin with stay."""
    free, fitted = tmp_path / "free.yaml", Path(api.__file__).parents[1] / "scenario/profiles/nccl-hopper.yaml"
    text = re.sub(r"(?m)^(launch|  grid): .*", r"\1: 0 us", fitted.read_text(encoding="utf-8"))
    free.write_text(text, encoding="utf-8")
    answer = next(one for one in answers(explained_run(points(POINTS["ddp"])[0])) if one.change.startswith("launches"))
    (other,) = points({**POINTS["ddp"], "profile": str(free)})
    assert answer.time_ps == sweep.run_point(other).time_ps


def test_a_fault_is_blamed_on_its_link() -> None:
    """While a link of a ring is down, the time goes by waiting for that link: what is left of the outage when the path
    comes there."""
    found = explained_run(points(POINTS["flapping"])[0])
    ring = explained_run(points(POINTS["ring"])[0])
    shares = found.shares()
    assert 0 < shares["fault", "host1->host2"] <= 490_000_000
    assert shares["fault", "host1->host2"] == found.time_ps - ring.time_ps


VARIES = {
    "launch_skew": {"distribution": "uniform", "low": "20 us", "high": "90 us"},
    "slow": [{"rank": 3, "factor": 5}],
}


@pytest.mark.parametrize("name", ["two nodes", "ddp"])
def test_a_replication_is_explained_as_it_was_drawn(name: str) -> None:
    """Of a scenario with variability one run is explained: it takes what that run takes, and the rank that is always
    slow is on its path."""
    varied = {**POINTS[name], "variability": VARIES, "replications": 1}
    point = points(varied)[0]
    found = explained_run(point, replication=0)
    assert found.time_ps / 1e6 == sweep.run_point(point)["time_us_p50"]
    assert sum(found.shares().values()) == found.time_ps
    parts = list(found.parts())
    assert parts[0].rank == 3 or name == "two nodes"
    assert parts[0].cause in ("straggler", "computation")
    assert max(answers(found), key=lambda one: one.factor).factor > 1


def test_answers_come_in_order_of_gain() -> None:
    """The first answer gains most."""
    factors = [one.factor for one in answers(explained_run(points(POINTS["two nodes"])[0]))]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 1


def test_a_step_is_computation_and_exposed_communication() -> None:
    """Of a data-parallel step whose buckets are sent when the backward pass is over, the path computes as long as the
    ranks do, and the rest is what communication adds."""
    keys = {**POINTS["ddp"], "workload": {**POINTS["ddp"]["workload"], "overlap": False}}
    found = explained_run(points(keys)[0])
    computed = sum(ps for (cause, _), ps in found.shares().items() if cause == "computation")
    assert computed / 1e6 == found.row["compute_us"]
    assert (found.time_ps - computed) / 1e6 == pytest.approx(found.row["exposed_us"])


# --- recommendations ---


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
    with pytest.raises(RefusedError, match="protocol LL needs a profile with kernels"):
        recommended({**keys, "protocol": "LL", "profile": "ideal"})


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
    asked = [64 << 10, 1 << 30]
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


# --- the command line ---


def test_explain_prints_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`explain --json` prints one document whose shares add up to 1; without --json it is told in words."""
    run = ["explain", "quickstart", "--set", "algorithm=ring", "--set", "size=[1 KiB, 1 MiB]", "--quiet"]
    assert main([*run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], len(found["points"])) == ("simcoll.explain/1", 2)
    for one in found["points"]:
        assert sum(row["time_ps"] for row in one["causes"]) == one["time_ps"]
        assert one["path"][-1]["end_ps"] == one["time_ps"]
    assert main([*run, "--no-what-if"]) == 0
    assert "what if" not in capsys.readouterr().out


LARGE = [
    "topology={fabric: single-switch, hosts: 2400, link: {bandwidth: 50 GB/s, latency: 1 us}}",
    "profile=one-port",
    "algorithm=ring",
    "size=1 MiB",
    "proof=off",
]
REFUSED = {
    "too many points": (["explain", "quickstart"], "35 points"),
    "too many messages": (
        ["explain", "quickstart", *(word for text in LARGE for word in ("--set", text))],
        "can be explained",
    ),
    "no such run": (["explain", "stragglers", "--replication", "200"], "give 0 … 199"),
    "no runs": (["explain", "two-node-h100", "--set", "algorithm=ring", "--replication", "0"], "leave it out"),
    "an unknown name": (["recommend", "quickstart", "--among", "rings"], "did you mean 'ring'"),
    "nowhere to write": (["recommend", "quickstart", "--to", "nccl-tuner"], "-o"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what is wrong, and the status is 2."""
    command, said = REFUSED[name]
    assert main([*command, "--quiet"]) == 2
    assert said in capsys.readouterr().err


def test_a_step_of_nccl_is_explained_on_several_nodes():
    """Calls of a step have views of the links; what would help names the links themselves."""
    sets = ["workload.bucket_cap=25 MiB", "workload.algorithm=ring"]
    found = simcoll("explain", "ddp-buckets", *(word for text in sets for word in ("--set", text)))
    assert found.status == 0
    assert "links beyond a node" in found.out.replace("\n#   ", " ")


@pytest.mark.parametrize("system", ["gh200-4", "hgx-h100"])
def test_a_step_of_one_call_has_the_answers_of_the_call(system: str):
    """A plan's only operation has the causes and the what-if answers of the call by itself, also where the operation
    names its algorithm, and where a call sees a mesh in its own way."""
    call = {"collective": "all_reduce", "size": "4 MiB", "algorithm": "tree"}
    doors = call, {"workload": {"operations": [{"name": "sum", **call}]}}
    machine = {"name": "t", "topology": {"system": system, "nodes": 2}}
    runs = [explained_run(points({**machine, **door})[0]) for door in doors]
    alone, step = ({each.change: each.time_ps for each in answers(run)} for run in runs)
    assert runs[0].shares() == runs[1].shares()
    assert [run.row.workload for run in runs] == [None, "operations"]
    assert len([change for change in alone if "twice as fast" in change]) > 2
    assert step == alone


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


@pytest.mark.parametrize("registered", [True, False])
def test_a_symmetric_kernel_comes_with_the_way_to_register_buffers(registered: bool) -> None:
    """No variable asks for it: where it is recommended, and windows were asked for, the lines that make them in torch
    stand below, and they are Python."""
    launch = {"graph": True, "registered": registered}
    call = {"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "size": "16 MiB", "launch": launch}
    (advice,) = recommendations(points(call), ["symmetric"] if registered else ["ring"])
    advice.simulate(1, lambda: None)
    text = recommendation_text.text([advice.document()], [advice])
    assert all((line in text.splitlines()) == registered for line in recommendation_text.WINDOWS)
    assert ast.parse("\n".join(recommendation_text.WINDOWS))


OF_CALLS = {"collective", "size_bytes", "op", "root", "in_place", "steps", "algbw_GBps", "busbw_GBps"}
OF_STEPS = {"workload", "step_us", "compute_us", "exposed_us"}


@pytest.mark.parametrize(
    ("system", "keys"),
    [
        ("hgx-h100", {"algorithm": "tree"}),
        ("l40s-pcie", {"collective": "all_to_all"}),
        ("gh200-4", {"algorithm": "auto"}),
        ("mi300x", {"algorithm": "ring", "profile": "ideal"}),
    ],
)
def test_a_step_of_one_call_has_the_row_of_the_call(system: str, keys: dict[str, str]):
    """Law: the rows of a call, and of a workload that is this call, have the same in all columns but those that only
    calls, or only workloads have: links, intervals, confidence, what was asked for, counts."""
    profile = {"profile": keys["profile"]} if "profile" in keys else {}
    call = {"collective": "all_reduce", "size": "4 MiB", **keys}
    call.pop("profile", None)
    machine = {"name": "t", "topology": {"system": system, "nodes": 2}, **profile}
    doors = call, {"workload": {"operations": [{"name": "sum", **call}]}}
    alone, step = (row(predict(points({**machine, **door})[0])) for door in doors)
    names = [each.name for each in dataclasses.fields(ResultRow)]
    differ = {name for name in names if getattr(alone, name) != getattr(step, name)}
    assert differ <= OF_CALLS | OF_STEPS
    assert alone.binding_link and (alone.low_us or profile)
