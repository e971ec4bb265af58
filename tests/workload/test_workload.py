"""Workloads: what their plans mean, against closed forms and against the collectives alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import program, star
from workloads import STAR, ddp, layers, points, predicted

from simcoll.config import yaml_tree
from simcoll.engine import event, fast
from simcoll.engine.joined_program import Operation, join
from simcoll.errors import InputError
from simcoll.prediction.sweep import run_point
from simcoll.report.overlap import overlaps
from simcoll.scenario import scenario_files
from simcoll.scenario.scenario import OF_ONE
from simcoll.topology.graph import Link
from simcoll.workload.models import load_model, models
from simcoll.workload.templates import buckets
from simcoll.workload.workload_keys import OperationSpec

NAMES = ("all_reduce/ring", "all_reduce/nvls", "all_to_all/direct", "broadcast/chain")
MS = 10**9
US_100TH = 10**4  # a hundredth of a microsecond


def step(workload: dict[str, Any], **more: Any) -> Any:
    """A workload simulated on four hosts around a switch."""
    return predicted({"topology": STAR, "workload": workload, **more})


def alone_ps(collective: str, size: int, algorithm: str = "ring", **more: Any) -> int:
    """How long one collective takes there by itself."""
    keys = {"topology": STAR, "collective": collective, "algorithm": algorithm, "size": f"{size} B", **more}
    return predicted(keys).time_ps


# --- several operations as one program ---


@pytest.mark.parametrize("sharing", ["fair", "fifo"])
@pytest.mark.parametrize("name", NAMES)
def test_one_operation_is_the_collective(name: str, sharing: str) -> None:
    """Joined with nothing else, a collective has the very same timeline."""
    topology = star(5, Link(50 * 10**9, latency_ps=500_000))
    played = program(name, topology, 16_000, sharing=sharing, chunk=1000, slots=2, channels=2, o_send=10**5, g=10**6)
    joined = join([Operation(np.arange(5), played)], 5, topology)
    for run in (event.run, lambda one: fast.run(one, compiled=False)):
        alone, found = run(played), run(joined)
        for column in ("start", "sent", "arrive", "end", "complete", "hop_begin", "hop_end"):
            assert getattr(found, column).tolist() == getattr(alone, column).tolist(), column
        assert found.makespan_ps == alone.makespan_ps


def test_what_operations_cannot_share() -> None:
    """Two ways of sharing links at once, and barriers over steps of several operations, are refused."""
    topology = star(3, Link(50 * 10**9, latency_ps=500_000))
    one, other, barred = (
        program("all_reduce/ring", topology, 1200, **how) for how in ({}, {"sharing": "fifo"}, {"barrier": True})
    )
    with pytest.raises(InputError, match="need the same `sharing`"):
        join([Operation(np.arange(3), one), Operation(np.arange(3), other)], 3, topology)
    with pytest.raises(InputError, match="leave out `barrier`"):
        join([Operation(np.arange(3), barred)], 3, topology)


# --- buckets ---


@given(st.lists(st.integers(1, 40), max_size=40), st.integers(1, 60), st.integers(1, 60))
def test_buckets_are_those_of_pytorch(nbytes: list[int], cap: int, first: int) -> None:
    """Any tensors are bucketed as PyTorch's own function does it."""
    torch = pytest.importorskip("torch")
    if nbytes:
        tensors = [torch.empty(size, dtype=torch.uint8) for size in nbytes]
        expected, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, [first, cap])
        assert buckets(nbytes, cap, first) == expected


def test_without_a_limit_each_gradient_goes_alone() -> None:
    """`bucket_cap: none` is an all-reduce for each tensor."""
    assert buckets([3, 1, 2], 0, 0) == [[0], [1], [2]]
    assert step(ddp(5, bucket_cap="none")).facts["buckets"] == 5


@pytest.mark.parametrize("name", models())
def test_the_parameters_of_a_model_add_up(name: str) -> None:
    """The tensors of each named model hold as many parameters as its source says."""
    model = load_model(name)
    assert sum(sum(row.tensors) for row in model.rows) == model.parameters
    assert sum(row.macs for row in model.rows) > 0
    assert model.source


# --- data parallel ---


def test_one_bucket_does_not_overlap() -> None:
    """With one bucket a step takes what is computed and the one all-reduce."""
    found = step(ddp(8, bucket_cap="1 GiB", forward="3 ms", optimizer="2 ms"))
    expected = (3 + 8 + 2) * MS + alone_ps("all_reduce", 8 * 4 * 2**20)
    assert abs(found.time_ps - expected) <= US_100TH
    assert found.compute_ps == 13 * MS
    assert found.facts["buckets"] == 1


def test_on_links_that_take_no_time_a_step_is_computation() -> None:
    """Without latency and with more bandwidth than there is, a step takes what is computed."""
    quick = {**STAR, "link": {"bandwidth": "1000000 TB/s", "latency": "1 ps"}}
    found = step(ddp(8, bucket_cap="8 MiB"), topology=quick)
    assert found.time_ps - found.compute_ps <= US_100TH


@pytest.mark.parametrize("size", ["256 KiB", "4 MiB", "64 MiB"])
@pytest.mark.parametrize("sharing", ["fair", "fifo"])
def test_equal_buckets_are_a_recurrence(size: str, sharing: str) -> None:
    """Equal buckets behind equal layers: each goes when it is there and the one before is through."""
    more = {"layers": layers(6, size), "bucket_cap": size, "forward": "1 ms"}
    found = step(ddp(**more), model={"sharing": sharing})
    each = alone_ps("all_reduce", found.plan.works[-2].call.nbytes, model={"sharing": sharing})
    end = 0
    for layer in range(1, 7):
        end = max(end, (1 + layer) * MS) + each
    assert abs(found.time_ps - end) <= US_100TH
    assert found.facts["buckets"] == 6


def test_without_overlap_all_reduces_follow_the_backward_pass() -> None:
    """Each tensor by itself after the backward pass: the times add up."""
    found = step(ddp(6, bucket_cap="none", overlap=False, forward="1 ms"))
    assert abs(found.time_ps - 7 * MS - 6 * alone_ps("all_reduce", 4 * 2**20)) <= US_100TH


def test_a_launch_is_paid_by_every_call(tmp_path: Path) -> None:
    """What a profile says that a call costs comes before each all-reduce."""
    profile = tmp_path / "slow.yaml"
    profile.write_text("name: slow\nsource: test\nlaunch: 20 us\nmodel: {}\n")
    found = step(ddp(6, bucket_cap="none", overlap=False), profile=str(profile))
    without = step(ddp(6, bucket_cap="none", overlap=False))
    assert found.time_ps - without.time_ps == 6 * 20 * 10**6


# --- small programs, and plans of one's own ---


@pytest.mark.parametrize(
    ("template", "calls", "locals_"),
    [
        ("mean", ["all_reduce"], 2),
        ("softmax", ["all_reduce", "all_reduce"], 3),
        ("argmax", ["all_reduce", "all_gather"], 3),
        ("scatter", ["scatter"], 1),
        ("gather", ["gather"], 1),
        ("broadcast", ["broadcast"], 1),
    ],
)
def test_small_programs_add_up(template: str, calls: list[str], locals_: int) -> None:
    """A mean is a sum between local work, a softmax a maximum and a sum, an argmax a maximum and a gathering."""
    algorithm = {"scatter": "direct", "gather": "direct", "broadcast": "naive"}.get(template, "ring")
    found = step({"template": template, "size": "1 MiB", "local": "100 us", "algorithm": algorithm})
    assert found.compute_ps == locals_ * 10**8
    sizes = {"all_gather": 4 * 2**20}  # what every rank has found
    expected = locals_ * 10**8 + sum(alone_ps(call, sizes.get(call, 2**20), algorithm) for call in calls)
    assert abs(found.time_ps - expected) <= US_100TH


def test_two_streams_hide_half_of_the_latency() -> None:
    """Gradients that are all there at once and take nothing but latency are reduced one after the other on one stream,
    two by two on two, and all at once on as many as there are; on one bucket streams change nothing."""
    small = [{"parameters": "4 B", "backward": "0 us", "times": 6}]
    took = [step(ddp(layers=small, bucket_cap="none", streams=streams)).time_ps for streams in (1, 2, 3, 6)]
    once = alone_ps("all_reduce", 4)
    for took_ps, rounds in zip(took, (6, 3, 2, 1), strict=True):
        assert took_ps == pytest.approx(rounds * once, rel=0.01)
    whole = [step(ddp(bucket_cap="1 GiB", streams=streams)).time_ps for streams in (1, 2)]
    assert whole[0] == whole[1]


def test_groups_that_share_no_link_do_not_disturb_each_other() -> None:
    """Two pairs around a switch take what one takes; two operations over one pair of links take twice as long."""
    own = {
        "name": "pairs",
        "collective": "all_reduce",
        "size": "8 MiB",
        "algorithm": "ring",
        "groups": [[0, 1], [2, 3]],
    }
    pair = alone_ps("all_reduce", 8 * 2**20, ranks=2)
    assert step({"operations": [own]}).time_ps == pair
    assert step({"operations": [{**own, "groups": {"size": 2}}]}).time_ps == pair
    both = [{**own, "groups": [[0, 1]], "name": name, "stream": name} for name in ("data", "tensor")]
    assert step({"operations": both}).time_ps == pytest.approx(2 * pair, rel=0.01)


def test_a_call_of_one_rank_takes_no_time() -> None:
    """Who has nobody to send to is done at once, whatever else there is."""
    call = {"collective": "all_reduce", "size": "4 MiB", "algorithm": "ring"}
    alone = [{"name": "a", "time": "1 ms"}, {"name": "b", **call, "groups": [[0], [1]], "after": ["a"]}]
    assert step({"operations": alone}).time_ps == MS
    more = [*alone, {"name": "c", **call, "after": ["b"]}]
    assert step({"operations": more}).time_ps == MS + alone_ps("all_reduce", 4 * 2**20)
    assert step({"operations": more}, engine="event").time_ps == MS + alone_ps("all_reduce", 4 * 2**20)


def test_layers_without_parameters_have_no_gradient() -> None:
    """They compute, but no bucket waits for them; without overlap buckets wait for the whole backward pass."""
    bare = {"parameters": "0 B", "backward": "3 ms"}
    given = {"template": "ddp", "algorithm": "ring", "layers": [bare, *layers(1, forward="0 ms"), bare]}
    one = alone_ps("all_reduce", 4 * 2**20)
    assert step(given).time_ps == 7 * MS  # sent while the last 3 ms are computed
    assert step(given | {"overlap": False}).time_ps == 7 * MS + one
    assert step(given | {"bucket_cap": "none", "first_bucket": "none"}).facts["buckets"] == 1
    assert step(given | {"layers": [bare]}).facts["buckets"] == 0


def test_streams_order_and_names_wait() -> None:
    """Operations of one stream follow each other; those of two go side by side unless one names the other."""
    computing = [{"name": name, "time": "2 ms", "stream": name} for name in ("a", "b")]
    assert step({"operations": computing}).time_ps == 2 * MS
    computing[1]["after"] = ["a"]
    assert step({"operations": computing}).time_ps == 4 * MS
    assert step({"operations": [{"name": "a", "time": "2 ms"}, {"name": "b", "time": "2 ms"}]}).time_ps == 4 * MS
    apart = [{"name": "a", "time": "2 ms", "ranks": [0]}, {"name": "b", "time": "3 ms", "ranks": [1], "after": ["a"]}]
    assert step({"operations": apart}).time_ps == 3 * MS  # a rank waits for its own part only


def test_operations_have_protocols_of_their_own() -> None:
    """Calls one after the other take what each takes by itself with its protocol."""
    common = {"topology": {"system": "hgx-h100"}, "profile": "nccl-hopper"}
    call = {"collective": "all_reduce", "size": "1 MiB", "algorithm": "ring"}
    own = [{"name": name, **call, "protocol": name} for name in ("LL", "Simple")]
    trees = [{**common, **call, "protocol": name} for name in ("LL", "Simple")]
    alone = [predicted(tree).time_ps for tree in trees]
    assert abs(step({"operations": own}, **common).time_ps - sum(alone)) <= 2 * US_100TH
    assert abs(alone[0] - alone[1]) > US_100TH


@pytest.mark.parametrize("sharing", ["fair", "fifo"])
def test_both_engines_time_a_step_alike(sharing: str) -> None:
    """A step is as long in the event engine as in the fast one, compiled or not, to the picosecond."""
    keys = ddp(4, layers=layers(4, "1 MiB", "100 us", "50 us"))
    fast_one = step(keys, model={"sharing": sharing})
    slow_one = step(keys, model={"sharing": sharing}, engine="event")
    assert (fast_one.engine, slow_one.engine) == ("fast", "event")
    assert fast_one.time_ps == slow_one.time_ps
    assert fast.run(fast_one.program, compiled=False) == event.run(fast_one.program)


# --- computation, waiting and communication ---

CALLS = [{"collective": "all_reduce", "algorithm": "ring"}, *({"collective": each, "algorithm": how, "root": 1}
         for each, how in (("scatter", "direct"), ("gather", "direct"), ("send_recv", "direct")))]  # fmt: skip
MEMBERS = st.lists(st.integers(0, 3), min_size=2, max_size=4, unique=True)
DONE = st.one_of(
    st.builds(lambda ms, ranks: {"time": f"{ms} ms", "ranks": ranks}, st.integers(0, 9), MEMBERS),
    st.builds(lambda call, ranks: {**call, "size": "1 MiB", "ranks": ranks}, st.sampled_from(CALLS), MEMBERS),
)


@pytest.mark.thorough
@given(st.lists(st.tuples(DONE, st.sampled_from("ab"), st.integers(0, 5)), min_size=1, max_size=6))
def test_a_step_is_computation_waiting_and_communication(asked: list[tuple[dict[str, Any], str, int]]) -> None:
    """The parts of a step add up, at any rate of links. Over infinitely fast links no communication is exposed, neither
    of the step nor of a rank: what remains is waiting for computations, which links do not change."""
    operations = [
        {"name": str(i), **keys, "after": [str(before)] if before < i else [],
         **({"stream": stream} if "collective" in keys else {})}
        for i, (keys, stream, before) in enumerate(asked)
    ]  # fmt: skip
    links = [{**STAR, "link": {"bandwidth": rate, "latency": 0}} for rate in ("1 GB/s", "1000000 GB/s")]
    slow, fast_one = (step({"operations": operations}, topology=link) for link in links)
    for found in (slow, fast_one):
        assert found.time_ps == found.compute_ps + found.waiting_ps + found.exposed_ps
    assert slow.waiting_ps == fast_one.waiting_ps >= 0
    assert slow.exposed_ps >= fast_one.exposed_ps >= 0
    assert fast_one.exposed_ps <= 10**6  # 1 us for all calls
    assert all(rank.exposed_ps <= 10**6 for rank in overlaps(fast_one))


# --- the row, and what is refused ---


def test_the_row_of_a_step() -> None:
    """A step is what is computed and what is exposed; `auto` tells what it took."""
    row = run_point(*points({"topology": STAR, "workload": ddp(6, algorithm="auto")}))
    assert row["status"] == "ok"
    assert row["step_us"] == pytest.approx(row["compute_us"] + row["exposed_us"])
    assert row.time_ps == round(row["step_us"] * 1e6)
    assert row["algorithm"] not in (None, "", "auto")
    assert row["buckets"] == 1


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"operations": [{"name": "a", "time": "1 ms", "ranks": [7]}]}, "there is no rank 7"),
        ({"template": "mean", "size": "3 B"}, "3 B is no whole number of float32 elements; write a multiple of 4 B"),
        ({"template": "scatter", "size": "4 MiB", "root": 9}, "test:1:1: workload: there is no rank 9"),
        ({"operations": [{"name": "a", "time": "1 ms", "ranks": [1, 1]}]}, "a rank is in several groups"),
        ({"operations": [{"name": "a", "time": "1 ms", "groups": {"size": 3}}]}, "do not fill groups of 3 ranks"),
        (
            {"template": "ddp", "model": "llama3-8b", "gpu": "l40s"},
            "parameters and gradients alone need 64 GB of a GPU's",
        ),
    ],
)
def test_what_does_not_fit_the_ranks_is_told(workload: dict[str, Any], said: str) -> None:
    """A plan that its ranks cannot follow fails its row, which says why."""
    (point,) = points({"topology": STAR, "workload": workload})
    row = run_point(point)
    assert row["status"].startswith("failed: ")
    assert said in row["status"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"workload": {"template": "dpp"}}, "'dpp' is no template"),
        ({"workload": ddp(), "size": "4 MiB"}, "'size' does not go with a workload"),
        ({"workload": ddp(model="gpt2")}, "either 'layers' or a 'model'"),
        ({"workload": {"template": "ddp", "model": "gpt2"}}, "add e.g. gpu: h100"),
        ({"workload": {"template": "ddp", "model": "gpt3", "gpu": "h100"}}, "'gpt3' is no model"),
        ({"workload": ddp(bucket_cap=25)}, "25 has no unit"),
        ({"workload": ddp(bucket_capp="25 MiB")}, "unknown key 'bucket_capp'"),
        ({"workload": {"template": "ddp", "layers": []}}, "no layer; write at least one"),
        ({"workload": {"template": "fsdp", "layers": []}}, "write template: training, with parallel: {sharding: fsdp}"),
        ({"workload": {"operations": [{"name": "a", "time": "1 ms", "ranks": []}]}}, "the list has no rank"),
        ({"workload": {"operations": [{"name": "a", "time": "1 ms", "groups": [[0], []]}]}}, "the list has no rank"),
        ({"workload": {"operations": [{"name": "a", "time": "1 ms", "size": "4 MiB"}]}}, "computation has no 'size'"),
        ({"workload": {"operations": [{"name": "a"}]}}, "either a 'time' or a 'collective'"),
        ({"workload": {"operations": [{"name": "a", "time": "1 ms", "after": ["b"]}]}}, "which names no operation"),
        (
            {"workload": {"operations": [{"name": n, "time": "1 ms", "after": [m]} for n, m in ("ab", "ba")]}},
            "comes after 'b', which is listed later",
        ),
        ({"collective": "workload", "size": "4 MiB"}, "'workload' is no collective"),
        ({"workload": ddp(algorithm="rring")}, "'rring' is no algorithm"),
    ],
)
def test_a_wrong_workload_is_one_clear_mistake(keys: dict[str, Any], said: str) -> None:
    """What is wrong with a workload is told by name, once."""
    with pytest.raises(InputError, match=said) as error:
        points({"topology": STAR, **keys})
    assert len(error.value.diagnostics) == 1, error.value


AMONG = "topology: hgx-h100\nworkload: {operations: [\n  {name: a, time: 1 ms},\n  {name: b, time: 1 ms},\n    "
GATHERED = "topology: hgx-h100\nworkload:\n  operations:\n  - name: a\n    collective: all_to_all\n    size: 1 MiB\n"
RING = "algorithm: 'ring' is no algorithm for all_to_all; choose from: "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            AMONG + "{name: c, time: 1 ms, after: [a, d]}]}",
            "5:38: workload.operations.2.after.1: 'c' comes after 'd'",
        ),
        (AMONG + "{name: c, time: 1 ms, after: [c]}]}", "5:35: workload.operations.2.after.0: 'c' comes after 'c', "),
        (AMONG + "{name: a, time: 1 ms}]}", "5:12: workload.operations.2.name: two operations are called 'a'; "),
        (GATHERED + "    algorithm: ring\n", f"7:16: workload.operations.0.{RING}"),
        (GATHERED + "  algorithm: ring\n", f"7:14: workload.{RING}"),
        (
            GATHERED + "launch: {gpus_per_process: 8}\n",
            "7:10: launch.gpus_per_process: a workload's calls are not ",
        ),
    ],
)
def test_mistakes_stand_where_they_are_written(text: str, said: str) -> None:
    """A name that is wrong, an algorithm that its operation's collective has not, and a key beside the workload that
    its calls cannot have, are reported at their own line, with what could be written."""
    with pytest.raises(InputError) as error:
        scenario_files.points(yaml_tree.parse(text, "f"))
    assert str(error.value).startswith(f"f:{said}")
    assert RING not in said or {"auto,", "best,"} <= {*str(error.value).split()}


@pytest.mark.parametrize("beside", ["algorithm: [auto, ring]", "size: 4 MiB", "root: 1"])
def test_a_key_that_does_not_go_with_a_workload_is_named_where_it_stands(beside: str) -> None:
    """What the workload has itself is written there, and is swept there."""
    key = beside.partition(":")[0]
    call = "{name: a, collective: all_reduce, size: 1 MiB}"
    machine, work = "topology: {system: hgx-h100}", f"workload:\n  operations: [{call}]"
    with pytest.raises(
        InputError, match=rf"^f:2:1: {key}: '{key}' does not go with a workload; .*(workload|operations)"
    ):
        scenario_files.points(yaml_tree.parse("\n".join([machine, beside, work]), "f"))
    assert (
        len(scenario_files.points(yaml_tree.parse("\n".join([machine, work, "  algorithm: [auto, ring]"]), "f"))) == 2
    )


@pytest.mark.parametrize("key", OF_ONE)
def test_a_cure_of_a_key_beside_a_workload_works(key: str) -> None:
    """The key of operations that a refusal names is one; where it names none there is none."""
    fields = OperationSpec.model_fields
    assert OF_ONE[key] in fields if OF_ONE[key] else key not in fields
