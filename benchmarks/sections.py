"""The tables: what each is made of, and what is asked of some of their rows."""

from __future__ import annotations

import functools
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from benchmarks import cases, peers
from benchmarks.cases import Form, Keys
from benchmarks.fresh import Found, command, measure, middle, rounds

PAIRS: Final = 10_000  # whose routes are found
TIMES: Final = ("s", "cpu s", "M/s", "MB")
ASKED: Final = ("asked", "met")
PEERS: Final = {"event": "event x", "naive": "naive x", "SimGrid": "SimGrid x"}
COMPARED: Final = ("all_reduce", "all_gather", "all_to_all")
CLOSE: Final = 1e-9  # a peer that reckons in floats may differ by as much


class Table(NamedTuple):
    """A title, and rows with these columns; columns that no row has are left out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Found]


class Ring(NamedTuple):
    """A ring all-reduce over a star."""

    sharing: str
    links: str
    ranks: int
    how: str


def asked(row: Found, **limits: float) -> Found:
    """The row with what is asked of it, and whether it is met: at most so many `s` or `MB`, a `rate` of so many M/s, to
    be so many `times` as quick as the event engine."""
    told, missed = [], []
    for name, limit in limits.items():
        column = {"rate": "M/s", "times": "event x"}.get(name, name)
        least = name in ("rate", "times")
        told.append(f"{column} {'>=' if least else '<='} {limit:g}")
        if row[column] < limit if least else row[column] > limit:
            missed.append(column)
    return {**row, "asked": ", ".join(told), "met": f"no: {', '.join(missed)}" if missed else "yes"}


def rated(row: Found) -> Found:
    """The row with its messages in a second, and what each took."""
    each = {"ns/message": 1e9 * row["cpu s"] / row["messages"]}
    if "start MB" in row:
        each["B/message"] = (row["MB"] - row["start MB"]) * 2**20 / row["messages"]
    return {**row, "M/s": row["messages"] / row["s"] / 1e6, **each}


def point(keys: Keys, **more: Any) -> Callable[[], Found]:
    """The run of one point."""
    return functools.partial(measure, "point", keys=keys, **more)


# --- rings ---

GOALS: Final = {
    Ring("fifo", "equal", 1024, "heap"): {"rate": 2.0, "s": 1.1, "MB": 400, "times": 50},
    Ring("fair", "equal", 1024, "heap"): {"rate": 1.0},
    Ring("fifo", "different", 1024, "auto"): {"s": 0.1},
    Ring("fifo", "different", 16384, "auto"): {"s": 2.0, "MB": 1500},
}


def rings(form: Form) -> Iterator[Table]:
    """The same ring by all engines and peers, and how that grows."""
    with peers.simgrid() as program:
        found = rounds(_rings(form, program), form.runs)
    _agree(found)
    rows = {ring: {**ring._asdict(), **rated(row)} for ring, row in sorted(found.items(), key=_order)}
    for ring, row in rows.items():
        row |= _compared(ring, rows)
    if form.held:
        rows |= {ring: asked(rows[ring], **limits) for ring, limits in GOALS.items()}
    columns = (
        "sharing",
        "links",
        "ranks",
        "messages",
        "how",
        *TIMES,
        "start MB",
        *PEERS.values(),
        "proof s",
        "proof MB",
        *ASKED,
    )
    title = "ring all-reduce of 64 MiB over a star of 50 GB/s, 0.5 us a link, two links a route"
    yield Table(title if program else f"{title}\n# {peers.INSTALL}", columns, list(rows.values()))
    grown = [
        row for ring, row in rows.items() if ring.links == "different" and "start MB" in row and ring.how != "event"
    ]
    growth = ("sharing", "how", "ranks", "messages", "s", "MB", "ns/message", "B/message")
    yield Table("how that grows with ranks, all links different", growth, sorted(grown, key=_grown))


def _rings(form: Form, program: Path | None) -> dict[Ring, Callable[[], Found]]:
    """What to run."""
    found: dict[Ring, Callable[[], Found]] = {}
    for links in cases.LINKS:
        for n in form.naive:
            found[Ring("fifo", links, n, "naive")] = functools.partial(measure, "naive", links=links, ranks=n)
        for sharing in ("fifo", "fair"):
            keys = {
                n: cases.point(cases.star(n, links), sharing)
                for n in {*form.event, *form.heap, *form.auto, *form.heap_once}
            }
            heaps = form.heap + (form.heap_once if links == "equal" else ())
            found |= {Ring(sharing, links, n, "event"): point({**keys[n], "engine": "event"}) for n in form.event}
            found |= {Ring(sharing, links, n, "heap"): point({**keys[n], "shortcuts": "off"}) for n in heaps}
            proved = (sharing, links) == ("fifo", "equal")  # the proof is the same for all
            found |= {Ring(sharing, links, n, "auto"): point(keys[n], proved=proved) for n in form.auto}
    if program:
        found |= {Ring("fair", "equal", n, "SimGrid"): functools.partial(peers.ring, program, n) for n in form.simgrid}
    return found


def _agree(found: Mapping[Ring, Found]) -> None:
    """All say the same makespan, or what they took means nothing."""
    for ring, row in found.items():
        first = next(other for which, other in found.items() if which[:3] == ring[:3])
        if abs(row["time_ps"] - first["time_ps"]) > CLOSE * first["time_ps"] * (ring.how == "SimGrid"):
            raise SystemExit(f"benchmarks: {ring} ends at {row['time_ps']} ps, another at {first['time_ps']} ps")


def _order(item: tuple[Ring, Found]) -> tuple[object, ...]:
    ring = item[0]
    return ring.sharing == "fair", ring.links != "equal", ring.ranks


def _grown(row: Found) -> tuple[object, ...]:
    return row["sharing"] == "fair", row["how"] != "heap", row["ranks"]


def _compared(ring: Ring, rows: Mapping[Ring, Found]) -> Found:
    """How many times the CPU seconds of each peer; where it was not run at that size, its time a message at its largest
    is taken to stay."""
    ratios = {}
    for peer, column in PEERS.items():
        runs = [row for which, row in rows.items() if which[:2] == ring[:2] and which.how == peer]
        if runs and ring.how not in PEERS:
            like = next((row for row in runs if row["ranks"] == ring.ranks), runs[-1])
            ratios[column] = like["ns/message"] / rows[ring]["ns/message"]
    return ratios


# --- the others ---


def phases(form: Form) -> Iterator[Table]:
    """Where the time goes."""
    for way, ranks, links in (
        ("heap", form.phases, "equal"),
        ("stream", form.phases, "different"),
        ("stream", form.unequal, "different"),
    ):
        runs = [measure("phases", ranks=ranks, links=links, way=way) for _ in range(form.runs)]
        rows = [middle(list(same)) for same in zip(*runs, strict=True)]
        sums = {key: sum(row[key] for row in rows) for key in ("s", "cpu s")}
        rows.append({"what": "together", **sums, "MB": rows[-1]["MB"]})
        rows = [{**row, "share": f"{row['cpu s'] / sums['cpu s']:.0%}"} for row in rows]
        title = f"where the time goes: ring of {ranks} ranks by {way}, fifo, links {links}"
        yield Table(title, ("what", "s", "cpu s", "share", "MB"), rows)


def growth(form: Form) -> Iterator[Table]:
    """With messages, and with links a route."""
    columns = ("messages", *TIMES, "ns/message", "B/message")
    ranks, star = form.naive[-1], cases.star(form.naive[-1])
    chunks = {k: f"{cases.SIZE // ranks // k} B" for k in form.loops}
    found = rounds({k: point(cases.point(star, chunk=chunks[k], shortcuts="off")) for k in form.loops}, form.runs)
    rows = [{"loops": k, **rated(row)} for k, row in found.items()]
    yield Table(f"growth with messages: ring of {ranks} ranks by heap, fifo, in loops", ("loops", *columns), rows)
    routed = {
        (sharing, k): point(keys)
        for sharing in ("fifo", "fair")
        for k, keys in cases.routed(form.routed, sharing).items()
    }
    lines = {key: rated(row) for key, row in rounds(routed, form.runs).items()}
    if form.held:
        lines["fifo", 6] = asked(lines["fifo", 6], rate=0.7)
    rows = [{"sharing": sharing, "links a route": k, **row} for (sharing, k), row in lines.items()]
    title = f"growth with links a route: ring of {form.routed} ranks by heap"
    yield Table(title, ("sharing", "links a route", *columns, *ASKED), rows)


def contention(form: Form) -> Iterator[Table]:
    """Links that many share."""
    todo = {
        ("all_to_all, 4:1 tree", sharing, n): point(
            cases.point(cases.oversubscribed(n), sharing, "direct", collective="all_to_all")
        )
        for n in form.contended
        for sharing in ("fifo", "fair")
    }
    crowd = (f"{form.flows} flows a component", "fair", 2 * form.flows)
    found = {key: rated(row) for key, row in rounds({**todo, crowd: point(cases.crowd(form.flows))}, form.runs).items()}
    if form.held:
        found = {key: asked(row, s=60, MB=1000) if key[2] == 1024 else row for key, row in found.items()}
        found[crowd] = asked(found[crowd], rate=0.2)
    rows = [{**row, "what": what, "sharing": sharing, "ranks": n} for (what, sharing, n), row in found.items()]
    yield Table("contention", ("what", "sharing", "ranks", "messages", "how", *TIMES, *ASKED), rows)


def scale(form: Form) -> Iterator[Table]:
    """Large topologies and runs, sweeps, and how soon a small run is done."""
    with TemporaryDirectory() as cache:
        start = _quickstart(cache)
        first = {"simcoll run quickstart, first start": start}
        runs = {what: run for what, (run, _) in _large(form).items()}
        found = rounds(runs, form.runs) | rounds(first, 1)
        found |= rounds({"simcoll run quickstart, second start": start}, 3)
    limits = {what: limits for what, (_, limits) in _large(form).items()} | {
        "simcoll run quickstart, second start": {"s": 2}
    }
    rows = [
        {"what": what, **(asked(row, **limits[what]) if form.held and what in limits else row)}
        for what, row in found.items()
    ]
    columns = ("what", "ranks", "messages", "points", "how", *TIMES, "built s", "proof s", "proof MB", *ASKED)
    yield Table("scale", columns, rows)


def _large(form: Form) -> dict[str, tuple[Callable[[], Found], dict[str, float]]]:
    """What to run, and what is asked of it."""
    nodes = {"system": "hgx-h100", "nodes": form.nodes, "fabric": "fat-tree", "levels": 3}
    deep = cases.point(cases.star(form.grouped), algorithm="hierarchical(across=recursive_doubling)")
    jobs = {n: functools.partial(measure, "sweep", keys=cases.sweep(form.sizes), jobs=n) for n in (1, 2)}
    return {
        f"{form.nodes} nodes in three levels, {PAIRS} routes": (
            functools.partial(measure, "routes", keys=nodes, pairs=PAIRS),
            {"s": 2.5, "MB": 400},
        ),
        "ring, links different": (
            point(cases.point(cases.star(form.unequal, "different"))),
            {"s": 2, "MB": 1500},
        ),
        "hierarchical(across=recursive_doubling)": (
            point({**deep, "groups": form.grouped // 8}, proved=True),
            {"s": 10},
        ),
        "sweep of sizes and algorithms, 1 job": (jobs[1], {"s": 5}),
        "sweep of sizes and algorithms, 2 jobs": (jobs[2], {"s": 5}),
    }


def _quickstart(cache: str) -> Callable[[], Found]:
    """The command, start-up and all, that keeps compiled code in the folder `cache`."""
    words = [sys.executable, "-m", "simcoll", "run", "quickstart"]
    return functools.partial(command, words, SIMCOLL_CACHE_DIR=cache)


# --- many small questions ---


def points(form: Form) -> Iterator[Table]:
    """The same ring by the event engine, a small run from the shell, and what a point more costs in a sweep or a
    replication, beside lean SimPy."""
    one = [sys.executable, "-m", "simcoll", "run", "quickstart", "--set", "size=1 MiB", "--set", "algorithm=ring"]
    star, h100 = cases.star(8), {"system": "hgx-h100"}
    sweeps = {
        "sizes of a ring of 8": cases.sizes_of(star, form.points, algorithm="ring"),
        "sizes of NCCL auto on 2 x 8": cases.sizes_of({**h100, "nodes": 2}, form.points),
        "sizes of NCCL auto on 8 x 8": cases.sizes_of({**h100, "nodes": 8}, form.points),
        "replications of 32 ranks": cases.replicated(form.points),
    }
    steps = functools.partial(cases.replicated_step, form.step, form.ddp[0], form.steps)
    replicated = {
        f"steps of {8 * form.ddp[0]} GPUs, launch skew": steps(launch_skew=cases.SKEW),
        f"steps of {8 * form.ddp[0]} GPUs, compute jitter": steps(compute_jitter={"sigma": 0.05}),
    }
    peer = f"lean SimPy, ring of {form.lean}"
    todo: dict[str, Callable[[], Found]] = {peer: functools.partial(measure, "lean", ranks=form.lean)}
    for sharing, links in product(("fifo", "fair"), cases.LINKS):
        keys = {**cases.point(cases.star(form.lean, links), sharing), "engine": "event"}
        todo[f"engine event, {sharing}, links {links}"] = point(keys)
    todo |= {"8 ranks from the shell, plain": functools.partial(command, [*one, "--set", "profile=one-port"])}
    todo |= {"8 ranks from the shell, NCCL's kernels": functools.partial(command, one)}
    for asked_for, count in ((sweeps, form.points), (replicated, form.steps)):
        todo |= {what: functools.partial(measure, "points", keys=keys, count=count) for what, keys in asked_for.items()}
    found = rounds(todo, form.runs)
    rows = [{"what": what, **row, "of lean": row["cpu s"] / found[peer]["cpu s"]} for what, row in found.items()]
    yield Table("many small questions", ("what", "points", "cpu s", "ms/point", "MB", "of lean"), rows)


# --- an operator's question ---


def verdicts(form: Form) -> Iterator[Table]:
    """From a log to its verdict: a sound machine, one fault, and times that depart in both directions."""
    sound, slow = (measure("times", keys=cases.measured(form.log, slow)) for slow in (False, True))
    odd = [(size, us * (0.55 if size <= 128 << 10 else 1.9)) for size, us in sound]
    logs = {"healthy": sound, "one fault": slow, "in two directions": odd}
    with TemporaryDirectory() as folder:
        todo = {what: _diagnosis(Path(folder) / f"{what}.csv", log) for what, log in logs.items()}
        found = rounds(todo, form.runs)
    rows = [{"what": what, "points": len(logs[what]), **row} for what, row in found.items()]
    if form.held:
        rows = [asked(row, **{"cpu s": 3.0}) for row in rows]
    yield Table("from a log of 2 x 8 GPUs to its verdict", ("what", "points", "s", "cpu s", "MB", *ASKED), rows)


def _diagnosis(path: Path, log: Sequence[tuple[int, float]]) -> Callable[[], Found]:
    """The command, start-up and all, on a log with 3 % of noise."""
    noise = random.Random(0)
    lines = [f"all_reduce,16,2,float32,{size},{us * math.exp(noise.gauss(0, 0.03)):.3f},nccl-tests" for size, us in log]
    path.write_text("\n".join(["collective,ranks,nodes,dtype,size_bytes,time_us,timing", *lines, ""]), encoding="utf-8")
    words = [sys.executable, "-m", "simcoll", "diagnose", str(path), "--on", "hgx-h100"]
    return functools.partial(command, words, statuses=(0, 1))


# --- a table of a large machine ---


def tables(form: Form) -> Iterator[Table]:
    """A table of 20 sizes beside NCCL's kernels on so many GPUs, by the command; one of few GPUs first, so that loops
    are compiled."""
    points = [(what, *machine) for machine in form.tables for what in COMPARED]
    with TemporaryDirectory() as name:
        folder = Path(name)
        for what in COMPARED:
            _comparison(folder, what, *form.small_table)()
        found = rounds({point: _comparison(folder, *point) for point in points}, form.runs)
    rows = [
        {"what": what, "system": system, "nodes": nodes, "ranks": nodes * gpus, **found[what, system, nodes, gpus]}
        for what, system, nodes, gpus in points
    ]
    if form.held:
        rows = [asked(row, **{"cpu s": 30, "MB": 1000}) for row in rows]
    yield Table("compare of 20 sizes to 16 GiB", ("what", "system", "nodes", "ranks", "s", "cpu s", "MB", *ASKED), rows)


def _comparison(folder: Path, what: str, system: str, nodes: int, gpus: int) -> Callable[[], Found]:
    """The command, start-up and all, on a table of some law."""
    ranks = nodes * gpus
    whole = 4 if what == "all_reduce" else 4 * ranks
    sizes = [size // whole * whole for size in (32768 << k for k in range(20)) if size >= whole]
    lines = [f"{what},{ranks},{nodes},float32,{size},{200 + size / 4e4:.2f},nccl-tests" for size in sizes]
    path = folder / f"{what}-{system}-{nodes}.csv"
    path.write_text("\n".join(["collective,ranks,nodes,dtype,size_bytes,time_us,timing", *lines, ""]), encoding="utf-8")
    return functools.partial(command, [sys.executable, "-m", "simcoll", "compare", str(path), "--on", system])


# --- workloads ---


def workloads(form: Form) -> Iterator[Table]:
    """A training step on trunks that are too narrow, and points run many times, by the command on two processes."""
    sets = [f"workload.model={form.step}", f"topology.nodes={form.step_nodes}"]
    skew = "launch_skew: {distribution: lognormal, median: 3 us, sigma: 0.8}"
    often = [f"replications={form.replications}"]
    jitter = [*sets, *often, f"variability={{{skew}, compute_jitter: {{sigma: 0.05}}}}"]
    one = [*often, "size=64 MiB", "algorithm=ring"]
    found = rounds(
        {
            f"step of {form.step}": functools.partial(measure, "step", name="llama3-step", sets=sets),
            f"{form.replications} such steps": functools.partial(command, _run("llama3-step", jitter)),
            f"{form.replications} all-reduces of 64 MiB": functools.partial(command, _run("stragglers", one)),
        },
        form.runs,
    )
    rows = [{"what": what, **(rated(row) if "messages" in row else row)} for what, row in found.items()]
    if form.held:
        rows = [asked(row, s=limit) for row, limit in zip(rows, (1, 120, 20), strict=True)]
    columns = ("what", "ranks", "buckets", "messages", "step_us", "exposed_us", *TIMES, *ASKED)
    yield Table("workloads", columns, rows)


def large(form: Form) -> Iterator[Table]:
    """Training steps of NCCL's calls, all_to_all and rings on many ranks, each kind a table as soon as it is done: how
    they grow, and what they are to lean SimPy. What takes longer than the form's limit is stopped."""
    columns = ("what", "ranks", "messages", "how", "s", "cpu s", "MB", "of lean", "exponent")
    lean = measure("lean", ranks=form.lean)
    yield Table(f"lean SimPy, ring of {form.lean}", columns, [{"what": "lean SimPy", "ranks": form.lean, **lean}])
    for what, points in _many_ranks(form).items():
        runs = {n: functools.partial(measure, "point", keys=keys, limit=form.limit) for n, keys in points.items()}
        rows: list[Found] = []
        for ranks, row in rounds(runs, form.runs).items():
            grown = {}
            if rows and "cpu s" in rows[-1] and "cpu s" in row:
                grown["exponent"] = math.log(row["cpu s"] / rows[-1]["cpu s"]) / math.log(ranks / rows[-1]["ranks"])
            of_lean = {"of lean": row["cpu s"] / lean["cpu s"]} if "cpu s" in row else {}
            rows.append({"what": what, **row, "ranks": ranks, **of_lean, **grown})
        yield Table(f"{what}; the exponent of ranks by which cpu s grow", columns, rows)


def _many_ranks(form: Form) -> dict[str, dict[int, Keys]]:
    """The points of each kind, by ranks."""
    found = {f"ddp step of {form.step}": {8 * nodes: cases.ddp(form.step, nodes) for nodes in form.ddp}}
    for sharing, counts in (("fifo", form.exchanged), ("fair", form.exchanged_fairly)):
        found[f"all_to_all, 2:1 tree, {sharing}"] = {
            n: cases.point(cases.oversubscribed(n, 2), sharing, "direct", collective="all_to_all") for n in counts
        }
    found["ring, links different"] = {form.unequal: cases.point(cases.star(form.unequal, "different"))}
    found["ring"] = {form.grouped: cases.point(cases.star(form.grouped))}
    return found


def _run(name: str, sets: Sequence[str]) -> list[str]:
    options = [word for text in sets for word in ("--set", text)]
    return [sys.executable, "-m", "simcoll", "run", name, "--quiet", "--jobs", "2", *options]


EVERY: Final = (rings, phases, growth, contention, scale, points, verdicts, tables, workloads, large)
SECTIONS: Final = {section.__name__: section for section in EVERY}
