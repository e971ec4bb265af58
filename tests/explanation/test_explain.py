"""Points explained, and what if; refusals of `explain`."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import simcoll
from nccl_law import channel
from workloads import mesh, points

from simcoll import api
from simcoll.cli import main
from simcoll.explanation.critical_path import by_cause
from simcoll.explanation.explain import explanation, text
from simcoll.explanation.explained_run import ALL_CAUSES, explained_run
from simcoll.explanation.what_if import answers
from simcoll.prediction import sweep
from simcoll.prediction.placed_topology import rated_topology
from simcoll.prediction.predict import predict, row
from simcoll.prediction.result_rows import ResultRow
from simcoll.report import result_tables
from simcoll.scenario.profile import load_profile
from simcoll.topology.graph import Link

RING: dict[str, Any] = {"topology": mesh(), "collective": "all_reduce", "algorithm": "ring", "size": "1 MiB"}
TREE: dict[str, Any] = {"fabric": "fat-tree", "hosts": 8, "hosts_per_leaf": 4, "spines": 4, "link": mesh()["link"]}
POINTS: dict[str, dict[str, Any]] = {
    "ring": RING,
    "tree": {"topology": TREE, "collective": "all_to_all", "size": "1 MiB"},
    "late": {**RING, "arrivals": {1: "9 us"}},
    "nccl": {"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "size": "1 MiB", "profile": "nccl-hopper"},
    "flapping": {
        **RING,
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


@pytest.mark.parametrize("nic", [0, 5])
@pytest.mark.parametrize("algorithm", ["ring", "nvls_tree"])
def test_a_slow_nic_is_the_one_that_is_named(algorithm: str, nic: int) -> None:
    """With one NIC at a fifth of its rate, its link is the busiest, is named by itself, and no other is drawn as
    dark."""
    slow = {
        f"node1.nic{nic}->rail{nic}": {"bandwidth": "10 GB/s"},
        f"rail{nic}->node1.nic{nic}": {"bandwidth": "10 GB/s"},
    }
    keys = {"topology": {"system": "hgx-h100", "nodes": 2, "links": slow}, "collective": "all_reduce"}
    found = explained_run(points({**keys, "profile": "nccl-hopper", "algorithm": algorithm, "size": "256 MiB"})[0])
    document, names = explanation(found, what_if=False), found.ran.links.names
    ways = {*slow}
    assert found.row["binding_link"] in ways and document["binds"]["link"] in ways
    most = max(document["places"], key=lambda place: place["time_ps"])
    assert (most["where"] in ways, most["alike"]) == (True, 1)
    busy = dict(zip(names, found.ran.busy, strict=True))
    assert all(busy[way] > 2 * busy[name] for way in ways for name in names if "rail" in name and name not in ways)


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
    in which links serve, and win or lose 4 % by it: slower links, by a few percent, may let another chunk go first."""
    keys = {"topology": {"system": system, "nodes": nodes}, "collective": "all_reduce"}
    found = explained_run(points({**keys, "algorithm": algorithm, "size": size})[0])
    took, rated = found.path.total_ps, rated_topology(found.scenario)
    on_links: Counter[str] = Counter()
    for (_, where), ps in found.shares().items():
        if where in found.kinds:
            on_links[found.kinds[where]] += ps
    causes, turned = by_cause(found.shares()), 0.04 if "tree" in algorithm else 0.001

    def again(kind: str, factor: float) -> int:
        def faster(link: Link) -> Link:
            return dataclasses.replace(link, bandwidth=round(factor * link.bandwidth)) if link.kind == kind else link

        return predict(found.scenario, rated.with_links(map(faster, rated.every_link))).totals.makespan_ps

    for kind in ("nvlink", "pcie", "cable"):
        times = {factor: again(kind, factor) for factor in (0.5, 0.95, 1.05, 2)}
        for factor, time in times.items():
            assert time >= took + on_links[kind] * (1 / factor - 1) - turned * took, (kind, factor)
        if on_links[kind] == max([*on_links.values(), *causes.values()]):
            assert times[2] < 0.99 * took, kind
    if on_links and (found.row.binding_busy or 0) >= result_tables.MOSTLY:  # blocks of rings may be slower than links
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


@pytest.mark.parametrize(("system", "taken"), [("hgx-h100", ["hop", "proxy"]), ("gh200-4", ["proxy", "hop"])])
def test_a_proxy_is_no_link(system: str, taken: list[str]) -> None:
    """Where proxies bring small messages to NICs more slowly than links could, they take the time, and links from GPUs
    to NICs none. Proxies that copy through the host's memory take most of a call; others keep up with hops of rings."""
    keys = {"topology": {"system": system, "nodes": 2}, "collective": "all_reduce", "algorithm": "ring"}
    found = explained_run(points({**keys, "size": "64 KiB"})[0])
    assert list(by_cause(found.shares()))[:2] == taken
    assert {found.kinds[where] for _, where in found.shares() if where} <= {"nvlink", "cable"}


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
    ("tree", "messages spread evenly over equal routes", {"topology": {**TREE, "routing": "adaptive"}}),
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


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("at", ["0 us", "30 us"])
def test_a_slowed_link_is_busy_by_the_rate_it_has(sharing: str, at: str) -> None:
    """A link that is slow from some time on carries bytes all the time, binds, and is never busier than the run is
    long."""
    slow = {"link": "host1->host2", "at": at, "kind": "slow", "factor": 3}
    run = explained_run(points({**RING, "model": {"sharing": sharing}, "size": "64 MiB", "faults": [slow]})[0])
    bound = explanation(run, what_if=False)["binds"]
    assert bound["link"] == run.row["binding_link"] == "host1->host2"
    assert bound["busy"] == pytest.approx(run.row["binding_busy"])
    assert 0.99 < bound["busy"] <= 1


def test_answers_come_in_order_of_gain() -> None:
    """The first answer gains most."""
    factors = [one.factor for one in answers(explained_run(points(POINTS["two nodes"])[0]))]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 1


def test_no_change_is_0_times_as_fast() -> None:
    """A change that makes a point a thousand times slower is told by how much, and not as `0.00 x`."""
    document = explanation(explained_run(points(RING)[0]), what_if=False)
    slow = [{"change": f"algorithm {number}", "time_us": 1.0, "factor": 10.0**-number} for number in range(6)]
    told = text([{**document, "what_if": slow}])
    assert "algorithm 2 0.01 x; algorithm 3 0.001 x; algorithm 4 0.0001 x" in told
    assert "0.00 x" not in told


def test_a_step_is_computation_and_exposed_communication() -> None:
    """Of a data-parallel step whose buckets are sent when the backward pass is over, the path computes as long as the
    ranks do, and the rest is what communication adds."""
    keys = {**POINTS["ddp"], "workload": {**POINTS["ddp"]["workload"], "overlap": False}}
    found = explained_run(points(keys)[0])
    computed = sum(ps for (cause, _), ps in found.shares().items() if cause == "computation")
    assert computed / 1e6 == found.row["compute_us"]
    assert (found.time_ps - computed) / 1e6 == pytest.approx(found.row["exposed_us"])


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


OF_CALLS = {"collective", "size_bytes", "op", "root", "in_place", "steps", "algbw_GBps", "busbw_GBps"}
OF_STEPS = {"workload", "step_us", "compute_us", "waiting_us", "exposed_us"}


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
