"""How calls are launched: one process for several GPUs takes its time for each, a CUDA graph takes none of the host."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import simcoll
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_law import channel, point_of, under

from simcoll.formats.measured import parse_measured
from simcoll.prediction.predict import Prediction, predict
from simcoll.prediction.result_rows import read
from simcoll.scenario.launch import Launch, Process, processes
from simcoll.scenario.profile import load_profile, parse_profile
from simcoll.scenario.scenario_files import Point

HOST, MESSAGE, EAGER, GRAPHED = 4_000_000, 250_000, 5_000_000, 8_000_000  # ps
LAW = f"""
name: law
model: {{}}
launch: {EAGER} ps
kernels:
  LL: {{hop: 0.6 us, rate: 6 GB/s}}
  Simple: {{start: 1.8 us, hop: 3.4 us}}
  P2P: {{start: 8 us, hop: 1 us, rate: 6 GB/s}}
"""
KNOWN = f"host: {{launch: {HOST} ps, message: {MESSAGE} ps}}\ngraph: {{launch: {GRAPHED} ps}}\n"
PLAIN = f"name: plain\nlaunch: {EAGER} ps\n{KNOWN}"
HOPS = {"LL": 600_000, "LL128": 0, "Simple": 3_400_000, "P2P": 1_000_000}  # ps
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
SIZES = st.sampled_from((1 << 10, 1 << 16, 1 << 22, 1 << 26))
RANKS = st.integers(2, 8)
SMALL = (64, 256, 4096)  # bytes


def point(collective: str, size: int, ranks: int, *sets: str, nodes: int = 1) -> Point:
    """One point on A100 with NCCL's kernels, of these keys besides."""
    keys = {"topology": {"system": "dgx-a100", "nodes": nodes}, "collective": collective, "ranks": ranks,
            "algorithm": "auto", "size": f"{size} B"}  # fmt: skip
    return point_of(LAW + KNOWN, *sets, **keys)


def predicted(collective: str, size: int, ranks: int, *sets: str, law: str = LAW + KNOWN, nodes: int = 1) -> Prediction:
    """The same, predicted with a law."""
    with under(law):
        return predict(point(collective, size, ranks, *sets, nodes=nodes))


def gpus(number: int | str) -> str:
    """So many GPUs a process, as a user says it."""
    return f"launch.gpus_per_process={number}"


@settings(max_examples=40)
@given(st.sampled_from(COLLECTIVES), SIZES, RANKS)
def test_a_call_takes_as_long_as_the_slower_of_host_and_gpus(collective: str, size: int, ranks: int) -> None:
    """With one process for all GPUs a call takes what it takes else, or its launches and messages if that is more. Of a
    chain all hops but one are hidden by the calls before and after it."""
    alone = predicted(collective, size, ranks)
    called_ps = alone.time_ps - HOPS[channel(alone).call.kind] * (ranks - 2) * (collective == "broadcast")
    messages = {"all_to_all": 2 * ranks * (ranks - 1), "send_recv": 2 * ranks}.get(collective, 0)
    floor = ranks * HOST + messages * MESSAGE
    paced = predicted(collective, size, ranks, gpus("all"))
    assert paced.called_ps == pytest.approx(called_ps, abs=ranks)  # a hop is so many whole ps
    assert paced.time_ps == max(paced.called_ps, floor)
    assert (paced.host_ps, paced.waited_ps) == (floor, paced.time_ps - paced.called_ps)
    assert alone.waited_ps == alone.host_ps == 0


@settings(max_examples=40)
@given(st.sampled_from(COLLECTIVES), SIZES, RANKS)
def test_each_further_channel_costs_the_host(collective: str, size: int, ranks: int) -> None:
    """The host writes down what each further channel of a collective does, for each GPU; messages have their own cost,
    and a process for each GPU writes down its own."""
    law = f"{LAW}host: {{launch: {HOST} ps, channel: 100 ns}}\n"
    for of_process, number in ((ranks, "all"), (1, 1)):
        paced = predicted(collective, size, ranks, gpus(number), law=law)
        call = paced.planned[0].lowered.call  # type: ignore[attr-defined]  # a call of NCCL, which has one
        further = 0 if call.parts else call.channels - 1
        assert paced.host_ps == of_process * (HOST + further * 100_000)
        assert paced.time_ps == max(paced.called_ps, paced.host_ps)


LATE = 700_000  # ps
BLOCKS = f"{LAW}host: {{block: {LATE} ps}}\n"


@settings(max_examples=40)
@given(st.sampled_from(COLLECTIVES), SIZES, RANKS)
def test_blocks_that_begin_later(collective: str, size: int, ranks: int) -> None:
    """Where a process drives several GPUs each further block begins later: calls in LL and LL128, and messages, take
    that much longer, others at most, and not at all where links stay busy until the last block has caught up. With a
    process for each GPU nothing changes."""
    alone = predicted(collective, size, ranks, gpus(1), law=BLOCKS)
    late = predicted(collective, size, ranks, gpus("all"), law=BLOCKS)
    call = late.planned[0].lowered.call  # type: ignore[attr-defined]  # a call of NCCL, which has one
    most = LATE * ((call.parts.blocks if call.parts else call.channels) - 1)
    longer = late.time_ps - alone.time_ps
    assert longer == most if call.kind in ("LL", "LL128", "P2P") else 0 <= longer <= most
    if collective != "broadcast":  # of which a process for each GPU makes one after the other as well
        assert predicted(collective, size, ranks, law=BLOCKS).time_ps == alone.time_ps


def test_late_blocks_catch_up() -> None:
    """The delay falls as calls grow, from that of all blocks to none."""
    law = BLOCKS.replace("P2P: {", "P2P: {first: 20 GB/s, ")
    sizes = [1 << power for power in range(21, 31)]
    longer = [
        predicted("all_gather", size, 8, gpus("all"), law=law).time_ps
        - predicted("all_gather", size, 8, law=law).time_ps
        for size in sizes
    ]
    assert longer[0] > 10 * LATE
    assert longer == sorted(longer, reverse=True)
    assert longer[-1] == 0


@settings(max_examples=30)
@given(st.sampled_from(COLLECTIVES), SIZES, RANKS, st.data())
def test_more_gpus_a_process_are_never_faster(collective: str, size: int, ranks: int, data: st.DataObject) -> None:
    """The host's time grows with the GPUs that a process drives; those of a node are all that there are."""
    more = data.draw(st.integers(1, ranks))
    fewer = data.draw(st.integers(1, more))
    few, many, every = (predicted(collective, size, ranks, gpus(n)).time_ps for n in (fewer, more, "all"))
    assert few <= many <= every
    assert every == predicted(collective, size, ranks, gpus(ranks)).time_ps


@settings(max_examples=30)
@given(st.sampled_from(COLLECTIVES), SIZES, RANKS)
def test_a_graph_is_not_paced_and_has_a_launch_of_its_own(collective: str, size: int, ranks: int) -> None:
    """In a CUDA graph a call takes the graph's launch in place of the other, whoever drives the GPUs."""
    alone, graph = predicted(collective, size, ranks), predicted(collective, size, ranks, "launch.graph=true")
    assert graph.time_ps == alone.time_ps + GRAPHED - EAGER
    assert predicted(collective, size, ranks, "launch.graph=true", gpus("all")).time_ps == graph.time_ps


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_a_launch_costs_counts_only_where_it_is_asked_for(collective: str) -> None:
    """A profile that knows other ways of launching predicts what one does that knows none, unless one is asked for."""
    knows, not_ = (predicted(collective, 1 << 16, 8, law=law) for law in (LAW + KNOWN, LAW))
    assert knows.time_ps == not_.time_ps
    assert knows.totals.makespan_ps == not_.totals.makespan_ps


@settings(max_examples=60)
@given(
    st.sampled_from(("all_reduce", "all_to_all", "gather")),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.data(),
)
def test_processes_share_the_launches_of_their_node(collective: str, nodes: list[int], data: st.DataObject) -> None:
    """Each process drives ranks of one node, as many as it may; of the most that one does, none does more."""
    where = [node for node, ranks in enumerate(nodes) for _ in range(ranks)]
    many = data.draw(st.integers(1, max(nodes)))
    found = processes(Launch(gpus_per_process=many), collective, where, 0)
    sizes = {min(many, ranks - at) for ranks in nodes for at in range(0, ranks, many)}
    assert {its.launches for its in found} == sizes
    posted = {"all_reduce": 0, "all_to_all": 2 * (len(where) - 1)}.get(collective)
    if posted is not None:
        assert found == {Process(size, size * posted) for size in sizes}
    assert processes(Launch(), collective, where) == processes(Launch(graph=True), collective, where) == frozenset()


def test_each_node_has_processes_of_its_own() -> None:
    """With 16 ranks on two nodes a process of each drives 8; every rank of an all-to-all has 15 others."""
    found = predicted("all_to_all", 1 << 10, 16, gpus("all"), nodes=2)
    assert found.host_ps == 8 * (HOST + 2 * 15 * MESSAGE)


@pytest.mark.parametrize(
    ("many", "root", "launches", "messages"), [(8, 0, 8, 14), (3, 0, 3, 9), (3, 7, 3, 3), (1, 5, 1, 7)]
)
def test_the_slowest_process_counts(many: int, root: int, launches: int, messages: int) -> None:
    """Of a gather to 8 ranks the root posts 7 messages and each other rank one; ranks 6 and 7 are left for the last of
    three processes."""
    found = predicted("gather", 1 << 10, 8, gpus(many), f"root={root}")
    assert found.host_ps == launches * HOST + messages * MESSAGE


UPLOAD = 1_700_000  # ps
UPLOADED = KNOWN.replace(f"launch: {GRAPHED} ps", f"launch: {GRAPHED} ps, upload: {UPLOAD} ps")


@settings(max_examples=40)
@given(st.sampled_from(COLLECTIVES), SIZES, RANKS, st.integers(1, 9), st.data())
def test_the_first_launch_of_a_graph_counts_for_all(
    collective: str, size: int, ranks: int, replays: int, data: st.DataObject
) -> None:
    """It brings each call to the GPUs of a process, one after the other; without replays that is nothing."""
    many = data.draw(st.integers(1, ranks))
    graph = ["launch.graph=true", gpus(many)]
    often, few = (
        predicted(collective, size, ranks, *graph, *more, law=LAW + UPLOADED)
        for more in ((), (f"launch.replays={replays}",))
    )
    assert few.time_ps - often.time_ps == round(UPLOAD * many / replays)
    assert often.time_ps == predicted(collective, size, ranks, *graph).time_ps


@pytest.mark.parametrize("engine", ["event", "fast"])
@pytest.mark.parametrize("way", [[], [gpus("all")], ["launch.graph=true"]])
def test_engines_agree(engine: str, way: list[str]) -> None:
    """To the picosecond, with kernels and without."""
    for law in (LAW + KNOWN, PLAIN):
        both = (predicted("all_gather", 1 << 12, 4, f"engine={one}", *way, law=law) for one in (engine, "auto"))
        assert len({found.time_ps for found in both}) == 1


def test_calls_in_buckets_are_launched_one_by_one() -> None:
    """As many times the host's time as there are calls."""
    how = ["measure.harness=library", "measure.buckets=4", "algorithm=ring"]
    one, four = (predicted("all_reduce", 1 << 12, 8, gpus("all"), *some, law=PLAIN) for some in ([how[2]], how))
    assert four.host_ps == 4 * one.host_ps
    assert four.time_ps == four.host_ps > four.called_ps


# --- what users see ---


@pytest.fixture
def law(tmp_path: Path) -> Path:
    """A profile that knows all ways."""
    path = tmp_path / "law.yaml"
    path.write_text(LAW + KNOWN)
    return path


def asked(law: Path, *sets: str) -> list[str]:
    """A small all-to-all of 8 A100."""
    return ["predict", "all_to_all", "--on", "dgx-a100", "--size", "8 KiB", "--set", f"profile={law}",
            *(word for text in sets for word in ("--set", text))]  # fmt: skip


def test_the_host_is_told_as_what_binds(law: Path) -> None:
    """A swept way is a column, and the host stands where the busiest link else does."""
    rows = json.loads(simcoll(*asked(law, "launch.gpus_per_process=[1, all]"), "--json").out)["points"]
    assert [row["launch.gpus_per_process"] for row in rows] == [1, "all"]
    assert rows[1]["binding_link"] == "host"
    assert rows[1]["binding_busy"] == 1
    assert rows[1]["time_us"] == 8 * (HOST + 14 * MESSAGE) / 1e6


@settings(max_examples=20)
@given(
    collective=st.sampled_from(("broadcast", "reduce")), size=SIZES, ranks=st.integers(3, 8), calls=st.integers(2, 40)
)
def test_what_fills_a_chain_counts_once_for_all_calls_of_a_loop(
    collective: str, size: int, ranks: int, calls: int
) -> None:
    """Law: one call takes its own time, and the further ranks a hop and a whole chunk each; of a loop every call takes
    its share of these."""
    of = [f"{each}" for each in (1, calls)]
    simple = [gpus(1), "algorithm=ring", "protocol=Simple", "launch.calls="]
    one, many = (predicted(collective, size, ranks, *simple[:-1], simple[-1] + each) for each in of)
    call = channel(one).call
    chunk = min(call.chunk, call.share)
    bandwidth = channel(one)._slowest
    fill = (ranks - 2) * (HOPS["Simple"] + chunk * 10**12 / bandwidth)
    coarse = (ranks - 1) * (call.share // 1024 + 64) * 10**12 / bandwidth  # a call is run in so many pieces at most
    assert one.called_ps - many.called_ps == pytest.approx(fill * (1 - 1 / calls), rel=0.01, abs=coarse)


def test_a_loop_of_calls_changes_only_chains() -> None:
    """In rings that go round every rank waits for all others in every call."""
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        loops = [predicted(collective, 1 << 20, 8, gpus(1), *more).time_ps for more in ((), ("launch.calls=1",))]
        assert loops[0] == loops[1]


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["launch.calls=5"], "the host launches one by one in a loop; add `gpus_per_process`, or leave `calls` out"),
        (["launch.gpus_per_process=0"], "0 is no number of GPUs a process; write 1, 2, …, or `all`"),
        (["launch.gpus_per_process=true"], "True is no number of GPUs a process; write"),
        (["launch.gpus_per_process=every"], "'every' is no number of GPUs a process; write"),
        (["launch.graph=7"], "launch.graph"),
        (["launch=graph"], "launch"),
        (["launch.replays=2"], "`replays` counts launches of a CUDA graph; add `graph: true`, or leave out `replays`"),
        (["profile=nccl", "launch.gpus_per_process=2"], "profile 'nccl' has no cost of a launch of the"),
        (["profile=nccl", "launch.graph=true"], "profile 'nccl' has no cost of a launch in"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_clear_error(law: Path, sets: list[str], says: str) -> None:
    """Where, what, and what instead; exit status 2."""
    got = simcoll(*asked(law, *sets))
    assert got.status == 2
    assert says in got.err
    assert "Traceback" not in got.err
    assert len(got.err.splitlines()) == 1


def test_more_gpus_than_a_node_has_ranks_are_refused(law: Path) -> None:
    """As a point of a sweep of ranks, not as an error of the file."""
    rows = json.loads(simcoll(*asked(law, "ranks=[2, 8]", gpus(4)), "--json").out)["points"]
    assert [row["status"] == "ok" for row in rows] == [False, True]
    assert rows[0]["status"].startswith("refused: ")
    assert "4 GPUs a process are more than the ranks of a node, 2; write `all`" in rows[0]["status"]


@pytest.mark.parametrize(("way", "said"), [
    ([], {}), ([gpus(4)], {"launch.gpus_per_process": "4"}), ([gpus("all")], {"launch.gpus_per_process": "8"}),
    (["launch.graph=true"], {"launch.graph": "true", "launch.replays": "1000"}),
    (["launch.graph=true", "launch.replays=3"], {"launch.graph": "true", "launch.replays": "3"}),
])  # fmt: skip
def test_results_tell_it_and_so_does_what_is_exported(
    law: Path, tmp_path: Path, way: list[str], said: dict[str, str]
) -> None:
    """A column where a scenario says something of it, swept or not; as nccl-tests would print it, and read again."""
    sets = [f"profile={law}", "topology={system: dgx-a100}", "algorithm=auto", "size=1 MiB", "plots=[]", *way]
    words = [word for text in sets for word in ("--set", text)]
    done = simcoll("run", "quickstart", *words, "-o", tmp_path / "out")
    assert done.status == 0, done.err
    told = read(tmp_path / "out" / "results.csv")[0]
    assert {f"{key}={value}".lower() for key, value in told.items() if key.startswith("launch.")} == set(way)
    rows = parse_measured(simcoll("export", tmp_path / "out" / "results.csv", "--to", "nccl-tests").out, "x")
    assert rows
    calls = {} if "launch.graph" in said else {"launch.calls": "1000"}  # so many that the loop's end does not count
    said = {"launch.gpus_per_process": "1", **calls, **said}
    assert all({c: text for c, text in row.others.items() if c.startswith("launch.")} == said for row in rows)


def test_calls_of_a_workload_may_be_in_a_graph(tmp_path: Path, law: Path) -> None:
    """Each call of a step takes the graph's launch; a softmax has two, one after the other."""
    path = tmp_path / "step.yaml"
    path.write_text(f"topology: {{system: dgx-a100}}\nprofile: {law}\nplots: []\n"
                    "workload: {template: softmax, size: 1 MiB, local: 100 us, algorithm: auto}\n")  # fmt: skip
    done = (simcoll("run", path, *sets, "--json", "-o", tmp_path) for sets in ([], ["--set", "launch.graph=true"]))
    eager, graph = (round(one.json["points"][0]["time_us"] * 10**6) for one in done)
    assert graph - eager == 2 * (GRAPHED - EAGER)


# --- tables ---


def table(
    truth: str, ways: list[str], column: str = "", noise: float = 0.02, said: str = "true", sizes: Iterable[int] = SMALL
) -> str:
    """A measured table as a law makes it; `said` stands in a column that tells how calls were launched."""
    rng, lines = np.random.default_rng(7), [f"system,library,collective,ranks,nodes,dtype,size_bytes,time_us{column}"]
    for collective in ("all_reduce", "all_to_all", "send_recv"):
        for ranks in (2, 8):
            for size in sizes:
                took = predicted(collective, size, ranks, *ways, law=truth).time_ps / 1e6 * rng.normal(1, noise)
                more = f",{said}" if column else ""
                lines.append(f"x,nccl,{collective},{ranks},1,float32,{size},{took:.4f}{more}")
    return "\n".join(lines) + "\n"


def calibrated(tmp_path: Path, text: str, *options: str, status: int = 0) -> tuple[dict[str, Any], str]:
    """What a profile that knows no other way of launching learns of a table."""
    (tmp_path / "plain.yaml").write_text(LAW)
    (tmp_path / "table.csv").write_text(text)
    out = tmp_path / "learnt.yaml"
    base = [
        "calibrate",
        str(tmp_path / "table.csv"),
        "--topology",
        "dgx-a100",
        "--set",
        f"profile={tmp_path}/plain.yaml",
    ]
    got = simcoll(*base, *options, "-o", str(out), "--json")
    assert got.status == status, got.err
    return (json.loads(got.out), out.read_text()) if not status else ({}, got.err)


def test_what_the_host_takes_is_found_again(tmp_path: Path) -> None:
    """From a table of one process with 2 % noise; all else of the profile stays, and where it is from is told."""
    text = table(LAW + KNOWN, [gpus("all")])
    found, written = calibrated(tmp_path, text, "--set", gpus("all"))
    values = {p["name"]: p["value"] for p in found["parameters"]}
    assert values["host.launch"] == pytest.approx(HOST / 1e6, rel=0.05)
    assert values["host.message"] == pytest.approx(MESSAGE / 1e6, rel=0.1)
    learnt, before = parse_profile(written, "learnt.yaml"), parse_profile(LAW, "plain.yaml")
    host = learnt.host
    assert host is not None
    assert host.calibration is not None
    assert host.calibration.files[0].file == "table.csv"
    assert host.calibration.where == (gpus("all"),)
    assert (learnt.launch, learnt.links, learnt.kernels, learnt.calibration) == (
        before.launch, before.links, before.kernels, before.calibration
    )  # fmt: skip


@pytest.mark.thorough
def test_what_a_graph_takes_is_found_again(tmp_path: Path) -> None:
    """A column of the table says so, or the user; both ways can be learnt one after the other, and a fit of all else
    keeps them."""
    text = table(LAW + KNOWN, ["launch.graph=true"], ",launch.graph")
    found, written = calibrated(tmp_path, text, "--set", "launch.graph=true")
    assert found["parameters"][0]["name"] == "graph.launch"
    assert found["parameters"][0]["value"] == pytest.approx(GRAPHED / 1e6, rel=0.05)
    once = ["launch.graph=true", "launch.replays=1", gpus("all")]
    sets = [word for way in (f"profile={tmp_path}/learnt.yaml", *once) for word in ("--set", way)]
    text = table(LAW + UPLOADED, once, sizes=(64, 4096))
    found, written = calibrated(tmp_path, text, *sets, "--free", "graph.upload")
    assert found["parameters"][0]["value"] == pytest.approx(UPLOAD / 1e6, rel=0.05)
    graph = parse_profile(written, "learnt.yaml").graph
    alone = table(LAW + KNOWN, [], sizes=(64, 4096))
    again, written = calibrated(tmp_path, alone, "--set", f"profile={tmp_path}/learnt.yaml",
                                "--free", "launch,LL.hop")  # fmt: skip
    assert {p["name"] for p in again["parameters"]} == {"launch", "LL.hop"}
    assert parse_profile(written, "learnt.yaml").graph == graph


@pytest.mark.thorough
def test_what_a_first_launch_takes_is_no_part_of_the_launch(tmp_path: Path) -> None:
    """Processes of 2 and of 8 GPUs tell both apart. One of 8 alone does not: that is refused where the profile does not
    know the upload, and the launch is fitted where it does."""
    once = ["launch.graph=true", "launch.replays=1", gpus("all")]
    sets = [word for way in once for word in ("--set", way)]
    text = table(LAW + UPLOADED, once, sizes=(64, 4096))
    found, _ = calibrated(tmp_path, text, *sets)
    values = {p["name"]: p["value"] for p in found["parameters"]}
    assert values == pytest.approx({"graph.launch": GRAPHED / 1e6, "graph.upload": UPLOAD / 1e6}, rel=0.1)
    _, err = calibrated(tmp_path, text, *sets, "--where", "ranks=8", status=2)
    assert (
        "graph.launch: 'law' has no cost graph.upload, so the fit would count that cost as a part of graph.launch"
        in err
    )
    (tmp_path / "knows.yaml").write_text(LAW + UPLOADED.replace(f"launch: {GRAPHED}", "launch: 1000000"))
    profile = ("--set", f"profile={tmp_path}/knows.yaml")
    found, _ = calibrated(tmp_path, text, *sets, "--where", "ranks=8", *profile)
    assert [p["name"] for p in found["parameters"]] == ["graph.launch"]
    assert found["parameters"][0]["value"] == pytest.approx(GRAPHED / 1e6, rel=0.1)


@pytest.mark.thorough
def test_what_a_table_says_of_launches_is_fitted_with_all_else(tmp_path: Path) -> None:
    """Rows that say that one process launched them tell of the host, besides what rows tell anyway, and of what the
    host hides they tell nothing; what does not say it knows no host."""
    text = table(LAW + KNOWN, [gpus("all")], ",launch.gpus_per_process", said="all", sizes=(64, 1 << 21, 1 << 26))
    found, written = calibrated(tmp_path, text, "--free", "host.launch,host.message,P2P.start")
    values = {p["name"]: p["value"] for p in found["parameters"]}
    assert values["host.launch"] == pytest.approx(HOST / 1e6, rel=0.05)
    assert values["P2P.start"] == pytest.approx(8, rel=0.2)
    learnt = parse_profile(written, "learnt.yaml")
    assert {"host.launch", "host.message", "P2P.start"} == set(learnt.fitted)
    assert learnt.host is not None
    assert learnt.host.calibration is None  # that of the profile is its own
    assert learnt.judged_by(learnt.host).calibration == learnt.calibration is not None
    silent = table(LAW + KNOWN, [gpus("all")], sizes=(64,))
    _, err = calibrated(tmp_path, silent, "--free", "host.launch", status=2)
    assert "host.launch: changes none of these rows" in err


def test_what_rows_do_not_tell_of_launches(tmp_path: Path) -> None:
    """One collective on so many ranks does not tell a launch from its messages: both are named, and no option that was
    not given."""
    text = table(LAW + KNOWN, [gpus("all")], sizes=(64, 128, 256, 512, 1024, 4096), noise=0)
    alone = ["--where", "collective=all_to_all", "--where", "ranks=8"]
    _, err = calibrated(tmp_path, text, "--set", gpus("all"), *alone, status=2)
    assert "host.message: these rows cannot distinguish it from host.launch; fit fewer, or add rows" in err
    assert "--free" not in err


def test_a_table_is_predicted_as_it_was_launched(tmp_path: Path, law: Path) -> None:
    """A column tells, where the profile knows what that costs; else rows are predicted as they were before."""
    path = tmp_path / "table.csv"
    path.write_text(table(LAW + KNOWN, ["launch.graph=true"], ",launch.graph", noise=0))
    for name, right in ((law, True), ("nccl", False)):
        got = simcoll("compare", "system=dgx-a100", str(path), "--set", f"profile={name}", "--json").out
        errors = [abs(p["error"]) for p in json.loads(got)["points"]]
        assert (max(errors) < 1e-4) is right


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("way", "family"),
    [pytest.param([gpus("all")], "one process", marks=pytest.mark.long), (["launch.graph=true"], "graph")],
)
def test_diagnose_knows_ways_of_launching(tmp_path: Path, way: list[str], family: str) -> None:
    """A table that was launched otherwise than it says is told so."""
    slow = (LAW + KNOWN).replace(str(GRAPHED), "19000000")
    path, profile = tmp_path / "table.csv", tmp_path / "slow.yaml"
    path.write_text(table(slow, way, sizes=(64, 4096)))
    profile.write_text(slow)
    got = simcoll("diagnose", str(path), "--topology", "dgx-a100", "--set", f"profile={profile}", "--json")
    assert got.status == 1
    assert json.loads(got.out)["cause"] == family


@pytest.mark.parametrize("name", ["nccl-ampere", "nccl-hopper"])
def test_shipped_profiles_know_ways_and_where_that_is_from(name: str) -> None:
    """As the README says; each with its rows and errors, none of them by hand."""
    profile = load_profile(name)
    assert profile.knows(Launch(gpus_per_process="all"))
    assert profile.knows(Launch(graph=True))
    for way in ("host", "graph"):
        known = getattr(profile, way).calibration
        assert known is not None
        assert any(text.startswith("launch.") for text in known.where)
        assert all(source.rows for source in known.files)
        assert set(known.errors) == {"fitted", "held_out"}


@pytest.mark.parametrize(
    ("name", "system", "off"), [("h100", "hgx-h100", 1.2), ("b200", "hgx-b200", 5.1)], ids=["h100", "b200"]
)
def test_large_calls_in_graphs_are_as_others_measured(name: str, system: str, off: float) -> None:
    """NCCL's calls in graphs of vLLM and SGLang, none of which was fitted: the mean error in percent is what the
    file of the profile says, and nobody is told that it was fitted to them."""
    table = f"{name}_sxm_nccl-in-graphs.csv"
    errors: list[float] = []
    for framework in ("vllm 0.24.0", "sglang 0.5.14"):
        found = simcoll("compare", table, "--on", system, "--where", f"framework={framework}", "--json").json
        assert {point["confidence"] for point in found["points"]} == {"extrapolated"}
        errors += [abs(point["error"]) for point in found["points"]]
    assert len(errors) > 30
    assert 100 * np.mean(errors) < off


@pytest.mark.parametrize("system", ["hgx-b200", "l40s-pcie"])
def test_small_calls_in_graphs_are_extrapolated_where_none_was_fitted(system: str) -> None:
    """They are no longer calibrated, as the same call outside of a graph is, and have an interval."""
    rows = {}
    for graph in ("false", "true"):
        sets = ["--set", "dtype=float16", "--set", f"launch.graph={graph}"]
        asked = ["--on", system, "--ranks", "2", "--size", "8 KiB", *sets, "--json"]
        (rows[graph],) = simcoll("predict", "all_reduce", *asked).json["points"]
    assert (rows["false"]["confidence"], rows["true"]["confidence"]) == ("calibrated", "extrapolated")
    graphed = rows["true"]
    assert graphed["low_us"] < graphed["time_us"] < graphed["high_us"]
    assert rows["true"]["time_us"] < rows["false"]["time_us"]
