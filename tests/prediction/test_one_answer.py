"""One question, one answer: a call takes as long alone as in a plan, and calls contend for the links that both use."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from systems import WITH_GPUS
from workloads import ddp, layers

from simcoll.errors import RefusedError
from simcoll.nccl import algorithm_names
from simcoll.prediction.placed_topology import rated_topology
from simcoll.prediction.predict import Prediction, predict, row
from simcoll.scenario.scenario import Scenario
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import build, load_system
from simcoll.topology.topology_keys import TopologySpec

FITTED = {name: load_system(name) for name in WITH_GPUS}
CALLED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "send_recv")
MACHINES = [(name, nodes) for name, system in FITTED.items() for nodes in (1, 2, 4) if nodes == 1 or system.nic]


def on(system: str, nodes: int, **keys: Any) -> Prediction:
    """The prediction of a point on nodes of a system, with its own profile."""
    where = {"topology": {"system": system, "nodes": nodes}, "profile": FITTED[system].profile}
    return predict(Scenario.model_validate({**where, **keys}))


def operation(name: str, **keys: Any) -> dict[str, Any]:
    """An operation of a plan."""
    return {"name": name, **keys}


def facts(found: Prediction) -> tuple[Any, ...]:
    """What must be the same at both doors."""
    totals = found.totals
    return (
        found.time_ps, found.algorithm, found.protocol, totals.messages, totals.wire_bytes, totals.bytes_per_rank
    )  # fmt: skip


def check_alone_and_in_a_plan(system: str, nodes: int, collective: str, size: str) -> int:
    """Compare every algorithm and protocol; return how many there were."""
    compared = 0
    for algorithm in ("auto", *algorithm_names.names(collective)):
        for protocol in ("auto", "LL", "LL128", "Simple"):
            call = {"collective": collective, "algorithm": algorithm, "size": size}
            try:
                alone = on(system, nodes, protocol=protocol, **call)
            except RefusedError:
                continue
            plan = {"operations": [operation("call", **call)]}
            assert facts(on(system, nodes, protocol=protocol, workload=plan)) == facts(alone), (algorithm, protocol)
            compared += 1
    return compared


@pytest.mark.parametrize(
    ("system", "collective"),
    [
        *product(["hgx-h100", "mi300x", "l40s-pcie"], ["all_reduce", "all_gather"]),
        ("mi300x", "all_to_all"),  # a kernel of all pairs of GPUs takes long: of other machines in the test below
    ],
)
def test_a_call_takes_as_long_in_a_plan(system: str, collective: str) -> None:
    """To the picosecond, and with the same messages and bytes, on two nodes of machines that differ in kind."""
    assert check_alone_and_in_a_plan(system, 2, collective, "1 MiB") > 3


@pytest.mark.long
@pytest.mark.parametrize(("system", "nodes"), MACHINES)
@pytest.mark.parametrize("collective", CALLED)
def test_every_call_takes_as_long_in_a_plan(system: str, nodes: int, collective: str) -> None:
    """The same for every shipped system, 1, 2 and 4 nodes, every algorithm and protocol, small and large."""
    for size in ("4 KiB", "16 MiB"):
        check_alone_and_in_a_plan(system, nodes, collective, size)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls_tree"])
def test_what_goes_before_does_not_matter(algorithm: str) -> None:
    """A call after computation, and after another call that is over, takes as long as by itself."""
    call = {"collective": "all_reduce", "algorithm": algorithm, "size": "4 MiB"}
    other = {"collective": "all_to_all", "size": "64 KiB"}
    before = [operation("compute", time="3 us"), operation("first", **other, after=["compute"])]
    earlier = on("hgx-h100", 2, workload={"operations": before}).time_ps
    both = on("hgx-h100", 2, workload={"operations": [*before, operation("call", **call, after=["first"])]}).time_ps
    last = on("hgx-h100", 2, **call).time_ps
    assert earlier == 3_000_000 + on("hgx-h100", 2, **other).time_ps
    # a rank that is done with the first call begins the next, while others still are at it
    assert last < both <= earlier + last


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls_tree"])
def test_two_calls_share_links(algorithm: str) -> None:
    """Two large calls at once on the same links take nearly as long as one after the other; on machines of their own as
    long as one."""
    call = {"collective": "all_reduce", "algorithm": algorithm, "size": "64 MiB"}
    alone = on("hgx-h100", 2, **call).time_ps
    twice = [operation(name, **call, stream=name) for name in ("a", "b")]
    assert 1.5 * alone < on("hgx-h100", 2, workload={"operations": twice}).time_ps <= 2.02 * alone
    apart = [
        operation(name, **call, stream=name, ranks=list(range(16 * at, 16 * at + 16))) for at, name in enumerate("ab")
    ]
    assert on("hgx-h100", 4, workload={"operations": apart}).time_ps == alone


@pytest.mark.parametrize(
    ("system", "nodes", "collective", "algorithm"),
    [
        *[("hgx-h100", 1, "all_reduce", "nvls"), ("l40s-pcie", 1, "all_reduce", "auto")],
        *[("mi300x", nodes, "all_reduce", "ring") for nodes in (1, 2)],  # whose rings see links of their own
        ("gh200-4", 1, "all_to_all", "auto"),  # nothing waits for its transfers but the next over the same link
    ],
)
def test_a_link_is_as_busy_in_a_plan_of_two_calls(system: str, nodes: int, collective: str, algorithm: str) -> None:
    """Two calls one behind the other keep the busiest link busy for twice the time that one does."""
    call = {"collective": collective, "algorithm": algorithm, "size": "256 MiB"}
    steps = [operation("a", **call), operation("b", after=["a"], **call)]
    alone, twice = row(on(system, nodes, **call)), row(on(system, nodes, workload={"operations": steps}))
    assert twice.binding_link == alone.binding_link
    busy_ps = [(each.binding_busy or 0) * (each.time_ps or 0) for each in (alone, twice)]
    assert busy_ps[1] == pytest.approx(2 * busy_ps[0])


@pytest.mark.parametrize("profile", ["ideal", "one-port", "nccl-hopper"])
def test_a_row_has_the_name_that_was_asked_for(profile: str) -> None:
    """A ring of broadcast is NCCL's name for a chain; who asks for either finds it, alone and in a plan."""
    for name in ("ring", "chain") if profile != "nccl-hopper" else ("ring",):
        call = {"collective": "broadcast", "algorithm": name, "size": "64 KiB"}
        where = {"topology": {"system": "hgx-h100"}, "profile": profile}
        for keys in (call, {"workload": {"operations": [operation("call", **call)]}}):
            found = row(predict(Scenario.model_validate({**where, **keys})))
            assert (found.asked, found.algorithm) == (name, name)


@pytest.mark.parametrize("algorithm", ["auto", "nvls_tree"])
def test_calls_of_a_step_over_nodes_are_served_by_loops(algorithm: str) -> None:
    """NVLSTree repeats its schedule over a bucket: a step of calls in loops takes as long as with all transfers."""
    step = ddp(algorithm=algorithm, bucket_cap="64 MiB", layers=layers(2, "64 MiB"))
    found, whole = (on("hgx-h100", 2, workload=step, shortcuts=shortcuts) for shortcuts in ("on", "off"))
    assert (found.algorithm, found.totals.shortcut, whole.totals.shortcut) == ("nvls_tree", "compose", "none")
    assert facts(found) == facts(whole)


def test_a_file_that_changes_is_another_machine(tmp_path: Path) -> None:
    """A machine's file that is written anew under the same name answers as the system of which it is a copy now."""
    path = tmp_path / "machine.yaml"
    asked = {"collective": "all_reduce", "size": "64 MiB"}
    for system in ("hgx-h100", "dgx-a100", "hgx-h100"):
        path.write_text(shipped_systems()[system].read_text(encoding="utf-8"), encoding="utf-8")
        copy = predict(Scenario.model_validate({"topology": {"file": str(path), "nodes": 2}, **asked}))
        assert facts(copy) == facts(on(system, 2, **asked)), system


@pytest.mark.parametrize(("system", "gpu"), [("hgx-h100", "h100"), ("dgx1-v100", "v100"), ("mi300x", "mi300x")])
def test_a_model_computes_on_the_gpus_of_its_machine(system: str, gpu: str) -> None:
    """Unless another GPU is named; where the peak of a machine's GPUs is not known, one must be."""
    step = {"template": "ddp", "model": "gpt2"}
    assert on(system, 1, workload=step).time_ps == on(system, 1, workload={**step, "gpu": gpu}).time_ps
    with pytest.raises(ValueError, match="a model needs a GPU to compute on"):
        on("rtx-pro-6000", 1, workload=step)


@pytest.mark.parametrize(
    ("system", "nodes", "patterns"),
    [("dgx1-v100", 1, ("node0.gpu0->node0.gpu3", "node0.gpu3->*")), ("hgx-h100", 2, ("node0.gpu3->*", "*nic*->rail*"))],
)
def test_links_at_other_rates_have_the_ways_of_a_topology_built_with_them(
    system: str, nodes: int, patterns: tuple[str, ...]
) -> None:
    """What routes are made of is shared by topologies whose links are as wide in the same order. In a cube mesh some
    rates make other ways the widest, and others do not."""
    plain, turned = build(TopologySpec(system=system, nodes=nodes)), set()
    for links in ({pattern: {"bandwidth": rate}} for pattern in patterns for rate in ("90 GB/s", "30 GB/s", "24 GB/s")):
        where = {"topology": {"system": system, "nodes": nodes, "links": links}, "profile": FITTED[system].profile}
        scenario = Scenario.model_validate({**where, "collective": "all_gather", "size": "4 MiB"})
        own, shared = build(scenario.topology), rated_topology(scenario)
        assert shared.every_link == own.every_link
        ways, shared_ways, plain_ways = (
            [t.route(a, b) for a in t.ranks for b in t.ranks] for t in (own, shared, plain)
        )
        assert shared_ways == ways
        turned.add(ways != plain_ways)
        assert predict(scenario).time_ps == predict(scenario, own).time_ps
    assert turned == ({True, False} if system == "dgx1-v100" else {False})
