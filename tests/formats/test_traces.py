"""Traces and execution graphs of steps: what is imported replays as recorded, and what is exported is complete."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command import simcoll
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.config.input_files import ImportLog
from simcoll.formats.recordings import chakra
from simcoll.formats.recordings.events import Event, Group, Interval, What
from simcoll.formats.recordings.gpu_timeline import GpuWork, intervals
from simcoll.report.overlap import union

CALL = Event(Group("0", "", (0, 1)), 1, What("all_reduce", size=4096), "", True, 0)


@st.composite
def timelines(draw: st.DrawFn) -> tuple[list[GpuWork], list[tuple[int, int]], int]:
    """Work on three streams, one of them NCCL's, launched by the host before it begins; waits of the host; the end."""
    works = list[GpuWork]()
    for stream in ("compute", "stream 9", "nccl"):
        now = 0
        for _ in range(draw(st.integers(0, 8))):
            now += draw(st.sampled_from([0, 1, 900, 15_000, 80_000]))
            took = draw(st.integers(1, 90_000))
            launched = draw(st.none() | st.integers(0, now))
            kind = draw(st.sampled_from(["compute", "compute", "copy"])) if stream != "nccl" else "compute"
            works.append(GpuWork(stream, now, now + took, launched, kind, CALL if stream == "nccl" else None))
            now += took
    syncs = draw(st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 90_000)), max_size=3))
    end = max((work.end for work in works), default=0) + draw(st.sampled_from([0, 50_000]))
    return works, [(begin, begin + took) for begin, took in syncs], end


def replayed(steps: Sequence[Interval]) -> list[tuple[int, int]]:
    """When each interval begins and ends: as soon as its stream is free and what it waits for has ended."""
    free, spans = dict[str, int](), list[tuple[int, int]]()
    for number, one in enumerate(steps):
        assert all(before < number for before in one.after)
        begin = max([free.get(one.stream, 0), *(spans[before][1] for before in one.after)])
        spans.append((begin, begin + one.took))
        free[one.stream] = begin + one.took
    return spans


def length(spans: Sequence[tuple[int, int]]) -> int:
    """How long at least one of them lasts."""
    return sum(end - begin for begin, end in union(spans))


@settings(max_examples=300, deadline=None)
@given(timelines())
def test_a_replay_has_the_recorded_times(timeline: tuple[list[GpuWork], list[tuple[int, int]], int]) -> None:
    """Calls begin and end as recorded, and the step ends as recorded. Each stream computes as long as recorded in total
    and while calls run."""
    works, syncs, end = timeline
    if not works:
        return
    steps = intervals(works, [], syncs, end, 0)
    spans = replayed(steps)
    assert [span for one, span in zip(steps, spans, strict=True) if one.call] == [
        (work.begin, work.end) for work in sorted(works, key=lambda work: work.begin) if work.call
    ]
    assert max(at for _, at in spans) == end
    calls = [(work.begin, work.end) for work in works if work.call]
    for stream in ("compute", "stream 9"):
        before = [(w.begin, w.end) for w in works if w.stream == stream and w.kind == "compute"]
        after = [s for one, s in zip(steps, spans, strict=True) if one.stream == stream and one.kind == "compute"]
        assert length(before) == length(after)
        assert length([*before, *calls]) == length([*after, *calls])


# --- torch.profiler ---

DDP = """topology: {system: hgx-h100, nodes: 2}
dtype: bfloat16
workload: {template: ddp, algorithm: ring, bucket_cap: 8 MiB, optimizer: 1 ms,
  layers: [{parameters: 6 MiB, backward: 2 ms, forward: 1 ms, times: 4}]}
"""


def traces(folder: Path, scenario: str) -> tuple[Path, dict[str, Any]]:
    """Simulate a scenario; return the folder with a trace a rank, and its row."""
    folder.mkdir()
    (folder.parent / "made.yaml").write_text(scenario)
    done = simcoll("run", folder.parent / "made.yaml", "--json", "--trace", folder / "rank{rank}.json.gz")
    assert done.status == 0, done.err
    return folder, done.json["points"][0]


def imported(files: Sequence[Path], plan: Path, *more: str) -> dict[str, Any]:
    """Import files and run the plan; return its row."""
    done = simcoll("import", *files, "-o", plan, "--assume", "hgx-h100", *more)
    assert done.status == 0, done.err
    done = simcoll("run", plan, "--json")
    assert done.status == 0, done.err
    row: dict[str, Any] = done.json["points"][0]
    return row


@pytest.mark.parametrize("given_ranks", [16, 1])
def test_a_trace_comes_back(tmp_path: Path, given_ranks: int) -> None:
    """A step that was simulated, written as traces and imported, takes equally long, with equal exposed communication;
    so does it if calls are simulated again, on the machine of the trace, or on another of its links."""
    folder, made = traces(tmp_path / "traces", DDP)
    files = [folder / f"rank{rank}.json.gz" for rank in range(given_ranks)]
    plan = tmp_path / "plan.yaml"
    row = imported(files, plan)
    assert row["time_us"] == pytest.approx(made["time_us"], abs=0.1)
    assert row["exposed_us"] + row["waiting_us"] == pytest.approx(made["exposed_us"], abs=0.1)  # launches are waiting
    assert simcoll("explain", plan).status == 0
    again = simcoll("run", plan, "--json", "--set", "workload.measured_on=null").json["points"][0]
    assert again["time_us"] == pytest.approx(made["time_us"], rel=0.02)
    links = ["--set", "topology.nic_bandwidth=1 GB/s", "--set", "workload.algorithm=ring"]
    slower = [
        simcoll("run", file, "--json", *links).json["points"][0]["time_us"] for file in (plan, tmp_path / "made.yaml")
    ]
    assert slower[0] == pytest.approx(slower[1], rel=0.02)
    assert slower[0] > 1.05 * made["time_us"]


def test_a_trace_of_a_larger_job(tmp_path: Path) -> None:
    """A job of twice as many ranks, and one with larger buckets, take as long as if simulated so from the start."""
    folder, _ = traces(tmp_path / "traces", DDP.replace("algorithm: ring, ", ""))
    for asked, keys in (
        ("ranks=32", ["topology.nodes=4"]),
        ("bucket_cap=24 MiB", ["workload.bucket_cap=24 MiB", "workload.first_bucket=same"]),
    ):
        row = imported([folder / "rank0.json.gz"], tmp_path / "plan.yaml", "--set", asked)
        changed = [word for key in keys for word in ("--set", key)]
        made = simcoll("run", tmp_path / "made.yaml", "--json", *changed).json["points"][0]
        assert (row["ranks"], row["algorithm"]) == (made["ranks"], made["algorithm"])
        assert row["time_us"] == pytest.approx(made["time_us"], rel=0.002)


def kineto(**more: Any) -> dict[str, Any]:
    """A trace of two steps with one kernel each and, with `more`, further arguments of a call of NCCL."""
    events: list[dict[str, Any]] = []
    for step in range(2):
        at = 1000 * step
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 1000, "tid": 1},
            {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": at + 10, "dur": 5, "tid": 1,
             "args": {"correlation": 2 * step}},
            {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": at + 20, "dur": 5, "tid": 1,
             "args": {"correlation": 2 * step + 1}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": at + 20.5, "dur": 200, "tid": 7,
             "args": {"stream": 7, "correlation": 2 * step}},
            {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
             "ts": at + 221, "dur": 300, "tid": 9, "args": {"stream": 9, "correlation": 2 * step + 1, **more}},
        ]  # fmt: skip
    return {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 4}}


@pytest.mark.parametrize(("recorded", "root"), [("3", "root: 3"), ("0", ""), (None, "")])
def test_roots_are_recorded_or_assumed(tmp_path: Path, recorded: str | None, root: str) -> None:
    """A call has the root that the host handed in; of one that the trace does not name, an assumption is said once."""
    trace = kineto(**{"Collective name": "broadcast", "In msg nelems": 4096, "dtype": "Float"})
    host = {"ph": "X", "cat": "cpu_op", "name": "c10d::broadcast_", "dur": 20, "tid": 1}
    asked = {} if recorded is None else {"Concrete Inputs": ["", "", recorded, "0", "False", "-1"]}
    trace["traceEvents"] += [{**host, "ts": 1000 * step + 15, "args": asked} for step in range(2)]
    (tmp_path / "t.json").write_text(json.dumps(trace))
    done = simcoll("import", tmp_path / "t.json", "-o", tmp_path / "p.yaml", "--assume", "hgx-h100")
    assert done.status == 0, done.err
    said, plan = done.out + done.err, (tmp_path / "p.yaml").read_text()
    assert said.count("whose root") == (recorded is None)
    assert ("root:" in plan) == bool(root)
    assert root in plan
    (tmp_path / "t.json").write_text(json.dumps(trace).replace('"3"', '"4"'))
    done = simcoll("import", tmp_path / "t.json", "-o", tmp_path / "q.yaml", "--assume", "hgx-h100")
    assert (done.status, "names root 4, but its group has 4 ranks" in done.err) == ((2, True) if root else (0, False))


def test_old_traces_have_no_sizes(tmp_path: Path) -> None:
    """Calls without arguments keep their measured times on every machine, and the import says so; with arguments they
    have groups and sizes."""
    path, plan = tmp_path / "t.json", tmp_path / "plan.yaml"
    path.write_text(json.dumps(kineto()))
    done = simcoll("import", path, "-o", plan)
    assert done.status == 0 and "2 calls have no size" in done.out and "size:" not in plan.read_text()
    for more in ([], ["--set", "topology.system=dgx-a100"]):
        assert simcoll("run", plan, "--json", *more).json["points"][0]["time_us"] == 1000
    about = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "dtype": "BFloat16"}
    about |= {"Group size": 2, "Process Group Name": "5", "Process Group Ranks": "[0, 2]"}
    path.write_text(json.dumps(kineto(**about)))
    assert imported([path], plan, "--set", "step=all")["time_us"] == 2000
    text = " ".join(plan.read_text().split())
    assert text.count("groups: {size: 2, apart: 2}") == 2 and text.count(f"size: {2 << 20} B") == 2


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: gzip.compress(data)[:200], "gzip"),
        (lambda data: data[:-40], "not JSON"),
        (lambda data: data.replace(b'"dur": 300', b'"dur": 1e400'), "damaged trace"),
        (lambda data: data.replace(b'"dur": 300', b'"dur": "long"'), "damaged trace"),
        (lambda data: data.replace(b'"args": {', b'"args": 3, "x": {'), "damaged trace"),
        (lambda data: b'{"traceEvents": ' + 100_000 * b"[", "nested too deeply"),
        (lambda data: b'{"traceEvents": []}', "without work of a GPU"),
    ],
)
def test_damaged_traces(tmp_path: Path, damage: Any, said: str) -> None:
    """A damaged trace is one error that names the file."""
    path = tmp_path / "trace_0.json"
    path.write_bytes(damage(json.dumps(kineto()).encode()))
    done = simcoll("import", path)
    assert (done.status, done.out) == (2, "")
    assert said in done.err and "trace_0.json" in done.err and len(done.err.splitlines()) < 4


# --- Chakra ---

WORKLOADS = {
    "ddp": DDP.replace("nodes: 2", "nodes: 1").replace("algorithm: ring, ", ""),
    "training": "topology: {system: hgx-h100}\nworkload: {template: training, parallel: {tp: 2, pp: 2},\n"
    "  model: {layers: 4, hidden: 1024, ffn: 4096, heads: 8, vocab: 1024},\n"
    "  batch: {global: 4, micro: 1, sequence: 512}, overlap: {tensor: false}}\n",
    "waits": "topology: {system: hgx-h100}\nworkload: {operations: [{name: a, time: 5 us, kind: host, stream: host},\n"
    "  {name: b, time: 7.5 us, after: [a], ranks: [0, 1]}, {name: c, collective: all_gather, size: 8 KiB,\n"
    "  groups: [[0, 1], [2, 3]], after: [b]}, {name: d, collective: send_recv, size: 4 KiB, ranks: [3, 1]},\n"
    "  {name: e, time: 1 us, after: [c, d]}, {name: f, collective: broadcast, size: 8 B, ranks: [1, 3, 5], root: 2},\n"
    "  {name: g, collective: reduce, size: 4 KiB}]}\n",
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_graph_comes_back(tmp_path: Path, name: str) -> None:
    """A workload that was written as Chakra's graphs and imported has all nodes and dependencies, and takes equally
    long."""
    (tmp_path / "made.yaml").write_text(WORKLOADS[name])
    row = simcoll("run", tmp_path / "made.yaml", "--json", "--set", "shortcuts=off").json["points"][0]
    graphs = []
    for source in ("made", "again"):
        done = simcoll("export", tmp_path / f"{source}.yaml", "--to", "chakra", "-o", tmp_path / source / "step")
        assert done.status == 0, done.err
        files = sorted((tmp_path / source).glob("step.*.et"))
        graphs.append([shape(path) for path in files])
        took = imported(files, tmp_path / "again.yaml")["time_us"]
        assert took == pytest.approx(row["time_us"], rel=1e-4)
    assert graphs[0] == graphs[1]
    assert ("root: 2" in (tmp_path / "again.yaml").read_text()) == ("root: 2" in WORKLOADS[name])


def shape(path: Path) -> list[tuple[int, list[int], int, object]]:
    """The nodes of a graph: kind, places of the nodes before, time in ns, bytes, root."""
    steps = chakra.read(path.read_bytes(), str(path), 8, ImportLog()).intervals
    calls = [one.call and (one.call.what.nbytes(1), one.call.what.root) for one in steps]
    return [(bool(one.call), sorted(one.after), one.took, call) for one, call in zip(steps, calls, strict=True)]


def test_graphs_in_json(tmp_path: Path) -> None:
    """Both JSON variants give the plan of the protobuf file."""
    nodes = [chakra.Node(3, "a", chakra.COMP, (), 5000), chakra.Node(7, "r", chakra.COLL, (3,), None, {})]
    nodes[1].attributes = {"comm_type": 0, "comm_size": 4096, "is_cpu_op": False}
    (tmp_path / "g.0.et").write_bytes(chakra.dump(nodes))
    rows = [
        {"Id": n.number, "Name": n.name, "NodeType": n.kind, "ctrlDeps": [], "data_deps": list(n.before),
         "runtime": 5 if n.took else None, **n.attributes} for n in nodes
    ]  # fmt: skip
    (tmp_path / "w.0.json").write_text(json.dumps({"workload_graph": rows}))
    lines = ['{"version": "0.0.4"}', '{"id": "3", "name": "a", "type": "COMP_NODE", "durationMicros": "5"}']
    sizes = '[{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "4096"}]'
    lines.append(f'{{"id": "7", "name": "r", "type": "COMM_COLL_NODE", "dataDeps": ["3"], "attr": {sizes}}}')
    (tmp_path / "j.0.json").write_text("\n".join(lines))
    plans = []
    for file in ("g.0.et", "w.0.json", "j.0.json"):
        assert simcoll("import", tmp_path / file, "-o", tmp_path / "p.yaml").status == 0
        plans.append((tmp_path / "p.yaml").read_text())
    assert plans[0] == plans[1] == plans[2]
    assert "after: [a 0]" in plans[0]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([chakra.Node(1, "a", 4, (2,), 1), chakra.Node(2, "b", 4, (1,), 1)], "in a circle, among them 1"),
        ([chakra.Node(1, "a", 4, (), 1), chakra.Node(1, "b", 4, (), 1)], "two nodes have the number 1"),
        ([chakra.Node(1, "a", 4, (), 1 << 63)], "damaged execution trace"),
    ],
)
def test_graphs_that_are_none(tmp_path: Path, nodes: list[chakra.Node], said: str) -> None:
    """A graph with a circle, with a number twice, or of centuries is one error; so is one that is cut off."""
    data = chakra.dump(nodes)
    for name, text, expected in (("g.0.et", data, said), ("cut.0.et", data[:-1], "ends too early")):
        (tmp_path / name).write_bytes(text)
        done = simcoll("import", tmp_path / name)
        assert done.status == 2 and expected in done.err and name in done.err
