"""Links that fail during a run: closed forms, what is told, and what is wrong input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import simcoll as command
from workloads import CABLE, STAR, ddp, points

from simcoll.errors import InputError, StuckError
from simcoll.prediction.predict import predict
from simcoll.prediction.predictions import Prediction
from simcoll.prediction.result_rows import ResultRow
from simcoll.prediction.sweep import run_point
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point

SHARINGS = pytest.mark.parametrize("sharing", ["fair", "fifo"])
TREE = {"fabric": "fat-tree", "levels": 2, "hosts": 4, "hosts_per_leaf": 2, "spines": 2, "link": CABLE}
SEND = {"collective": "broadcast", "algorithm": "naive", "size": "1 MB"}  # 100 us on each link
RING = {"collective": "all_reduce", "algorithm": "ring", "size": "1 MB"}
OUT = "host0->switch"


def given(*faults: dict[str, Any], **keys: Any) -> list[Point]:
    """Points of hosts around a switch, links of 10 GB/s and 1 us."""
    return points({"topology": STAR, "faults": list(faults) or None, **keys})


def row(*faults: dict[str, Any], **keys: Any) -> ResultRow:
    """The row of one point."""
    (point,) = given(*faults, **keys)
    return run_point(point)


def took(*faults: dict[str, Any], **keys: Any) -> float:
    """How long a point takes, in us; both engines say the same."""
    found = [row(*faults, engine=engine, **keys) for engine in ("fast", "event")]
    assert [one["status"] for one in found] == ["ok", "ok"]
    assert found[0].time_ps == found[1].time_ps
    assert [one["shortcut"] for one in found] == ["none", "none"]
    return float(found[0]["time_us"])


# --- closed forms: 1 MB from one host to the other takes 100 us and two latencies ---


@SHARINGS
@pytest.mark.parametrize(
    ("fault", "us"),
    [
        ({"kind": "slow", "factor": 2, "at": "50 us"}, 152),  # the second half takes twice as long
        ({"kind": "slow", "factor": 2, "at": "0 us"}, 202),
        ({"kind": "slow", "factor": 5, "at": "20 us", "until": "70 us"}, 142),  # 10 us' worth in 50 us
        ({"kind": "background", "share": "75 %", "at": "50 us"}, 252),
        ({"kind": "down", "at": "30 us", "until": "80 us"}, 152),  # just the outage
        ({"kind": "down", "at": "0 us", "until": "80 us"}, 182),
        ({"kind": "flap", "at": "10 us", "down_for": "10 us", "period": "20 us", "times": 3}, 132),
        ({"kind": "flap", "at": "10 us", "down_for": "10 us", "period": "20 us", "until": "55 us"}, 127),
        ({"kind": "down", "at": "101 us"}, 102),  # its last byte is through
        ({"kind": "slow", "factor": 2, "at": "500 us"}, 102),
    ],
)
def test_a_transfer_over_a_link_that_changes(fault: dict[str, Any], us: float, sharing: str) -> None:
    """What is left goes on at the new bandwidth, and not at all while the link is down."""
    found = took({"link": OUT, **fault}, **SEND, ranks=2, model={"sharing": sharing})
    assert found == pytest.approx(us, abs=2e-6)


@SHARINGS
def test_faults_of_one_link_multiply(sharing: str) -> None:
    """Half of a quarter is an eighth: 50 us' worth take 400."""
    slow, other = {"kind": "slow", "factor": 4, "at": "0 us"}, {"kind": "background", "share": "50 %", "at": "0 us"}
    both = [{"link": OUT, **fault} for fault in (slow, other)]
    assert took(*both, **SEND, ranks=2, model={"sharing": sharing}) == pytest.approx(802, abs=2e-6)


def trunk() -> str:
    """The link up from its leaf that the transfer from host 0 to host 2 takes."""
    (point,) = given(**SEND, topology=TREE, placement=["host0", "host2"])
    program = predict(point).program
    return str(program.link_names[program.route(0)[1]])


@SHARINGS
@pytest.mark.parametrize(("at", "detection"), [(50, 100), (0, 20), (50, 0), (200, 1)])
def test_a_dead_link_is_gone_around(at: int, detection: int, sharing: str) -> None:
    """What was lost, until the fault is found out, and the whole transfer once more over the other spine. In `fifo` the
    host's link is held for as long as what is lost takes over it."""
    again = max(at + detection, 100 if sharing == "fifo" else 0) if at < 100 else 0
    fault = {"link": trunk(), "kind": "down", "at": f"{at} us", "on_failure": "reroute", "detection": f"{detection} us"}
    keys = {**SEND, "topology": TREE, "placement": ["host0", "host2"], "model": {"sharing": sharing}}
    assert took(fault, **keys) == pytest.approx(again + 104, abs=2e-6)


def test_a_link_that_is_back_before_it_is_missed() -> None:
    """An outage shorter than the detection is waited for."""
    fault = {"link": trunk(), "kind": "down", "at": "50 us", "until": "60 us", "on_failure": "reroute"}
    assert took(fault, **SEND, topology=TREE, placement=["host0", "host2"]) == pytest.approx(114, abs=2e-6)


def test_bytes_are_counted_where_they_went() -> None:
    """The way around counts, and the busiest link is one that was taken."""
    fault = {"link": trunk(), "kind": "down", "at": "0 us", "on_failure": "reroute", "detection": "0 us"}
    found = row(fault, **SEND, topology=TREE, placement=["host0", "host2"])
    assert found["wire_bytes"] == 4_000_000
    (point,) = given(fault, **SEND, topology=TREE, placement=["host0", "host2"])
    assert trunk() not in [predict(point).topology.link_names[link] for link in predict(point).program.route(0)]


# --- failures ---


@SHARINGS
@pytest.mark.parametrize("on_failure", ["fail", "reroute"])
def test_a_failed_run_is_told(sharing: str, on_failure: str) -> None:
    """Without a way around, or where none is taken, the row names the link, the rank, the step, and when that was given
    up; it has no time."""
    fault = {"link": "host2->*", "kind": "down", "at": "40 us", "timeout": "2 ms", "on_failure": on_failure}
    found = row(fault, **RING, model={"sharing": sharing})
    assert "step 1: rank 2, sending chunk 0 to rank 3, waits for link host2->switch, which is down" in found["status"]
    assert "since 40 us; timed out at" in found["status"]
    assert "after 2 ms" in found["status"]
    assert found.get("time_us") is None


def test_the_other_rows_still_run(tmp_path: Path) -> None:
    """A point that fails leaves the others alone; the exit status says that one failed."""
    file = tmp_path / "one.yaml"
    file.write_text(
        "topology: {fabric: single-switch, hosts: [3, 4], link: {bandwidth: 10 GB/s, latency: 1 us}}\n"
        "collective: broadcast\nalgorithm: naive\nsize: 1 MB\nranks: 3\n"
        "faults: [{link: 'switch->host2', at: 10 us, kind: down}]\nplacement: [host0, host1, host2]\n"
        "root: [0, 2]\n"
    )
    said = command("run", str(file), "--set", "topology.hosts=3", "--json")
    assert said.status == 1
    assert '"status": "ok"' in said.out
    assert "waits for link switch->host2" in said.err


def test_workloads_have_faults_too() -> None:
    """A step waits for an outage while gradients are on their way; with a link that stays down it fails."""
    plain = row(workload=ddp(4))
    outage = {"link": "host1->*", "kind": "down", "at": "0 us", "until": "30 ms"}
    held = row(outage, workload=ddp(4))
    assert plain["step_us"] < 30_000 < held["step_us"]
    dead = row({"link": "host1->*", "kind": "down", "at": "0 us"}, workload=ddp(4))
    assert "waits for link host1->switch" in dead["status"]


# --- runs that differ ---


def test_faults_are_a_cause() -> None:
    """With a probability some runs have the fault; those take what a run with it takes, and shares add to one."""
    fault = {"link": OUT, "kind": "down", "at": "30 us", "until": "80 us"}
    sometimes = {**fault, "probability": "50 %"}
    found = row(sometimes, **SEND, ranks=2, replications=40)
    assert found["time_us"] == pytest.approx(102)
    assert (found["time_us_p99"], found["slowdown_shares"]) == (pytest.approx(152, abs=2e-6), {"faults": 1.0})
    skew = {"launch_skew": {"distribution": "exponential", "mean": "20 us"}}
    both = row(sometimes, **SEND, ranks=2, replications=40, variability=skew)
    assert set(both["slowdown_shares"]) == {"launch_skew", "faults"}
    assert sum(both["slowdown_shares"].values()) == pytest.approx(1)
    steps = row({**outage_of(), "probability": "50 %"}, workload=ddp(4), replications=10)
    assert steps["slowdown_shares"] == {"faults": 1.0}


def outage_of() -> dict[str, Any]:
    """A link that is down for 30 ms."""
    return {"link": "host1->*", "kind": "down", "at": "0 us", "until": "30 ms"}


def test_runs_that_fail_take_their_time_out_and_are_counted() -> None:
    """A run that fails ends when it is given up."""
    fault = {"link": OUT, "kind": "down", "at": "30 us", "timeout": "1 s", "probability": "50 %"}
    found = row(fault, **SEND, ranks=2, replications=40)
    assert 5 < found["failed_runs"] < 35
    assert found["time_us_p99"] == pytest.approx(1_000_030)
    assert found["status"] == "ok"


# --- what is wrong ---

DOWN = {"link": OUT, "kind": "down", "at": "1 us"}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({**DOWN, "at": "-1 us"}, "is negative"),
        ({**DOWN, "until": "0.5 us"}, "`until` must be later than `at`"),
        ({**DOWN, "until": "700 s"}, "recovers after `timeout`"),
        ({**DOWN, "kind": "dwon"}, "'dwon' is not known"),
        ({**DOWN, "kind": "slow"}, "slow needs factor"),
        ({**DOWN, "factor": 2}, "down takes no factor"),
        ({**DOWN, "detection": "1 ms"}, "`detection` needs `on_failure: reroute`"),
        ({**DOWN, "kind": "flap"}, "flap needs down_for and period"),
        (
            {**DOWN, "kind": "flap", "down_for": "2 us", "period": "1 us", "times": 2},
            "`down_for` must be less than `period`",
        ),
        ({**DOWN, "kind": "flap", "down_for": "1 us", "period": "2 us"}, "either `until` or `times`"),
        ({**DOWN, "probability": "50 %"}, "faults with a `probability` need replications"),
        ({**DOWN, "lnik": 1}, "did you mean 'link'"),
    ],
)
def test_what_is_wrong_is_told(fault: dict[str, Any], said: str) -> None:
    """Each mistake by name."""
    with pytest.raises(InputError, match=said):
        given(fault, **RING)


@pytest.mark.parametrize(
    ("faults", "keys"),
    [
        ([{"link": OUT, "kind": "slow", "at": "1 us", "factor": 2}], {}),
        ([], {"engine": "event"}),
        ([], {"shortcuts": "off"}),
    ],
)
def test_what_no_memory_holds_is_refused_before_its_topology_is_built(
    faults: list[dict[str, Any]], keys: dict[str, Any]
) -> None:
    """A ring of many hosts stays a stream, but not where all its transfers are run: that is said before what is wrong
    with its links, which only the topology knows."""
    topology = {**STAR, "hosts": 40_000, "links": {"no->where": {"bandwidth": "1 GB/s"}}}
    found = row(*faults, **RING, **keys, topology=topology)
    assert "3.2 billion transfers take 1120 GB of memory, and this machine has" in found["status"]
    found = row(*faults, **RING, **keys, topology={**topology, "hosts": 4})
    assert "no->where" in found["status"]


def of_nccl(algorithm: str, *faults: dict[str, Any], **more: Any) -> Prediction:
    """The prediction of a call of NCCL on two nodes."""
    call = {"collective": "all_reduce", "size": "64 MiB", "algorithm": algorithm, "faults": faults, **more}
    return predict(Scenario.model_validate({"topology": {"system": "hgx-h100", "nodes": 2}, **call}))


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls_tree"])
def test_faults_in_time_strike_the_channels_of_their_nic(algorithm: str) -> None:
    """Law: a call of NCCL waits for a NIC that fails, longer than for one that is slow; a fault of the whole run takes
    as long as the machine with this link, a later one less; all channels that are struck alike are as late as one."""
    nic = {"link": "node1.nic3->*"}
    healthy, begun = of_nccl(algorithm).time_ps, {**nic, "at": "200 us"}
    slow = of_nccl(algorithm, {**begun, "kind": "slow", "factor": 4}).time_ps
    lasting = [{**nic, "kind": "slow", "factor": 4, "at": "0 us", **until} for until in ({}, {"until": "1 s"})]
    always, at_first = (of_nccl(algorithm, fault).time_ps for fault in lasting)
    assert healthy < slow < always == at_first
    every = of_nccl(algorithm, {**begun, "link": "*nic*->*", "kind": "slow", "factor": 4}).time_ps
    assert slow == every if algorithm == "ring" else slow <= every  # trees go both ways at the same time
    out = of_nccl(algorithm, {**begun, "kind": "down", "until": "400 us"})
    assert healthy < out.time_ps <= healthy + 210_000_000
    with pytest.raises(StuckError, match=r"link node1\.nic3->\S+, which is down since 200 us; timed out"):
        of_nccl(algorithm, {**begun, "kind": "down"})
    drawn = {"replications": 4, "faults": [{**begun, "kind": "slow", "factor": 4, "probability": 0.5}]}
    point = {"topology": {"system": "hgx-h100", "nodes": 2}, "collective": "all_reduce", "size": "64 MiB"}
    times = run_point(Point(Scenario.model_validate({**point, "algorithm": algorithm, **drawn})))
    assert {times["time_us_p50_low"], times["time_us_p50_high"]} <= {healthy / 1e6, slow / 1e6}


def test_channels_share_the_nic_to_which_others_turn() -> None:
    """A ring that goes around a dead NIC shares another with the channels there: both have half of it from then on."""
    gone = {"link": "node1.nic3->*", "kind": "down", "at": "0 us", "on_failure": "reroute", "detection": "1 us"}
    healthy, around = (of_nccl("ring", *faults, size="1 GiB").time_ps for faults in ((), (gone,)))
    assert 1.7 * healthy < around < 2.3 * healthy


def test_faults_in_time_of_a_workload_of_nccl_are_refused() -> None:
    """What does not go yet is named, with what does."""
    plan = {"template": "operations", "operations": [{"name": "a", "collective": "all_reduce", "size": "1 MiB"}]}
    with pytest.raises(ValueError, match="faults of a workload are links that are slow in the whole run; write"):
        Scenario.model_validate({"topology": {"system": "hgx-h100", "nodes": 2}, "workload": plan, "faults": [DOWN]})


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls_tree"])
def test_a_slow_rail_of_many_slows_a_call_of_nccl(algorithm: str) -> None:
    """Law: a call of NCCL ends with its slowest channel, whichever NIC is slow, by a fault, in every replication, or
    in a workload; eight times as slow takes longer by far, and a factor just above 1 hardly anything."""
    call = {"collective": "all_reduce", "size": "256 MiB", "algorithm": algorithm}
    point = {"topology": {"system": "hgx-h100", "nodes": 2}}
    healthy = predict(Scenario.model_validate({**point, **call})).time_ps

    def slow(nic: int, factor: float, **more: Any) -> int:
        fault = {"link": f"node1.nic{nic}->rail*", "kind": "slow", "factor": factor, "at": "0 us"}
        return predict(Scenario.model_validate({**point, **(more or call), "faults": [fault]})).time_ps

    # Four: at half its speed a NIC still carries what a tree's channel asks of it.
    same = pytest.approx(slow(5, 4), rel=0.01 if algorithm == "nvls_tree" else 0)  # its channels serve NICs in turn
    assert healthy < slow(0, 4) == same and slow(5, 4) < slow(5, 8)
    assert slow(5, 8) > 2 * healthy
    assert slow(3, 1.0001) == pytest.approx(healthy, rel=0.001)
    plan = {"template": "operations", "operations": [{"name": "a", **call}]}
    assert slow(5, 4, workload=plan) == slow(5, 4)
    links = {"slow_links": [{"link": "node1.nic5->rail*", "factor": 4}]}
    for what in (call, {"workload": plan}):  # which may call over another NIC without the slow link
        drawn = run_point(Point(Scenario.model_validate({**point, **what, "variability": links, "replications": 2})))
        assert drawn["time_us_p50"] == slow(5, 4) / 1e6
