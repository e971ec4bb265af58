"""Long schedules as streams: the same transfers, proofs and times as the same schedules held in memory."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from extras import batches
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import ENTRIES, GB_PER_S, RANKS_ONLY, full_mesh, star, two_level

import simcoll
from simcoll.config.numba_loader import have_numba
from simcoll.engine import event, fast, streamed
from simcoll.engine.binding import bind
from simcoll.engine.streamed import RoutedParts
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError, RefusedError, ScheduleError
from simcoll.schedule.algorithms import build, stream
from simcoll.schedule.collectives import COLLECTIVES, collective
from simcoll.schedule.proof import prove
from simcoll.schedule.schedule import Schedule, StreamedSchedule
from simcoll.schedule.steps import Repeat, Rotation, Step, singles
from simcoll.topology.graph import Link, Topology

RINGS = [
    ("all_reduce", "ring"),
    ("all_gather", "ring"),
    ("reduce_scatter", "ring"),
    ("all_reduce", "bidirectional_ring"),
]
TURNING = [
    *RINGS[:3],
    ("all_reduce", "hierarchical"),
    ("all_gather", "hierarchical"),
    ("reduce_scatter", "hierarchical"),
]
PROVED_BY_TURNS = [
    *TURNING,
    ("all_reduce", "ring_by_dimension"),
    ("all_gather", "ring_by_dimension"),
    ("reduce_scatter", "ring_by_dimension"),
]
BATCHES = batches(1, 3)
COMPILED = (False, True) if have_numba() else (False,)


def _link(rng: random.Random) -> Link:
    bandwidth = rng.choice([50, 50, 50, 40, rng.randint(1, 100)]) * GB_PER_S
    return Link(bandwidth, latency_ps=rng.choice([500_000, 1, rng.randint(1, 10**6)]))


def _network(rng: random.Random, n: int) -> Topology:
    """A star, a tree or a mesh of `n` hosts: all links alike, some not, or none."""
    link, unequal, memory = _link(rng), rng.choice([0, 0.5, 1]), rng.choice([None, _link(rng)])
    make = rng.choice([
        lambda n, link, own=None: star(n, link, own, memory),
        lambda n, link, own=None: two_level(n, link, 2, own),
        full_mesh,
    ])  # fmt: skip
    own = {ends: _link(rng) for ends in make(n, link).links if rng.random() < unequal}
    return make(n, link, own)


def _params(rng: random.Random) -> dict[str, Any]:
    return {
        "sharing": rng.choice(["fair", "fifo"]),
        "o_send": rng.choice([0, 0, 10**5]),
        "o_recv": rng.choice([0, 0, 10**5]),
        "g": rng.choice([0, 0, 3 * 10**6]),
        "gamma": rng.choice([0, 0, 10**11]),
        "channels": rng.choice([1, 1, 1, 2]),
        "slots": rng.choice([0, 0, 1, 2]),
        "channel_bandwidth": rng.choice([0, 0, 2 * 10**10]),
        "barrier": rng.random() < 0.1,
        "chunk": rng.choice([0, 0, 700]),
    }


def _case(rng: random.Random) -> tuple[StreamedSchedule, Topology, Params, int, dict[int, int]] | None:
    n = rng.randint(2, 12)
    entry = (
        rng.choice([*TURNING, ("all_reduce", "bidirectional_ring")]) if rng.random() < 0.5 else rng.choice(RANKS_ONLY)
    )
    try:
        source = stream(*entry, n)
    except RefusedError:
        return None
    nbytes = source.n_chunks * rng.choice([1000, 20_000]) + (rng.randint(0, n) if rng.random() < 0.2 else 0)
    late = {rng.randrange(n): 10**6} if rng.random() < 0.3 else {}
    return source, _network(rng, n), Params(**_params(rng)), nbytes, late


def _random_parts(rng: random.Random, n: int, chunks: int) -> list[Step | Repeat]:
    """Steps and repeats that no algorithm would make; many repeats are rings in which all is passed on."""
    parts: list[Step | Repeat] = []
    for _ in range(rng.randint(1, 3)):
        src = np.asarray(rng.sample(range(n), rng.randint(2, n)))
        dst, way = np.roll(src, -1), rng.random()
        if way < 0.2:
            src, dst = (np.asarray([rng.randrange(n) for _ in src]) for _ in range(2))
        span = rng.choice([len(src), len(src), chunks])
        base = np.full(len(src), rng.randint(0, chunks - span), np.int32)
        slots = [base + np.asarray([rng.randrange(span) for _ in src]) for _ in range(2)]
        shift = rng.choice([-1, 1, rng.randrange(span)])
        if way > 0.3:
            slots = [base + (rng.randrange(span) - np.arange(len(src)) * shift) % span] * 2
        step = simcoll.send(src, dst, *slots)._replace(reduce=np.asarray([rng.random() < 0.5 for _ in src]))
        times = rng.choice([span, span, rng.randint(1, 2 * span)])
        parts.append(step if rng.random() < 0.2 else Repeat(step, times, base, span, shift))
    return parts


@given(st.data())
def test_loops_cut_each_slot_into_pieces(data: st.DataObject) -> None:
    """Law: loop k moves of each slot what lies from the k-th piece on, at most a piece; loops of whole pieces are one
    column, so that a million of them take no memory."""
    n, itemsize = data.draw(st.integers(2, 6)), data.draw(st.sampled_from([1, 2, 4]))
    source = stream("all_reduce", "ring", n)
    nbytes, chunk = data.draw(st.integers(0, 400)) * itemsize, data.draw(st.integers(1, 40))
    (held,) = streamed.loop_sizes(source, nbytes, itemsize, 0)
    loops, piece = streamed.loop_sizes(source, nbytes, itemsize, chunk), max(itemsize, chunk // itemsize * itemsize)
    assert np.array_equal(sum(loops), held)
    assert all(np.array_equal(loop, np.clip(held - k * piece, 0, piece)) for k, loop in enumerate(loops))
    assert len(loops) == max(1, -(-held.max() // piece))
    assert len({id(loop) for loop in loops if loop.min() == piece}) <= 1


@pytest.mark.thorough
@pytest.mark.usefixtures("from_the_start")
@BATCHES
def test_any_stream_takes_as_long_as_its_schedule(batch: int) -> None:
    """The same for 100 streams of random steps and repeats: versions that are read late, slots that come round again,
    links that rows share, copies."""
    rng, affine = random.Random(1000 + batch), 0
    for _ in range(100):
        n = rng.randint(4, 10)
        chunks = n * rng.randint(1, 2)
        parts = _random_parts(rng, n, chunks)
        source = StreamedSchedule("all_reduce", "random", n, chunks, lambda parts=parts: parts)  # type: ignore[misc]
        topology, late = _network(rng, n), {rng.randrange(n): 10**6} if rng.random() < 0.3 else {}
        params, nbytes = Params(**{**_params(rng), "chunk": 0}), chunks * rng.choice([100, 20_000])
        program = bind(source.schedule(), topology, topology.ranks, params, nbytes, arrivals=late)
        done = fast.run(program, compiled=False)
        assert done is not None
        sizes = streamed.loop_sizes(source, nbytes, 1, 0)
        for compiled in COMPILED:
            found = streamed.run(RoutedParts(source, topology, topology.ranks, params), sizes, late, compiled=compiled)
            if found:
                assert found.makespan_ps == done.makespan_ps
                affine += found.shortcut == "affine"
    assert affine >= 5 * len(COMPILED)


@pytest.mark.thorough
@pytest.mark.usefixtures("from_the_start")
@BATCHES
def test_a_stream_takes_as_long_as_the_schedule(batch: int) -> None:
    """Makespan, bytes of every link and rank, and messages of 100 random runs equal the fast engine's, whether steps
    that repeat are run as columns or not; many can be run so."""
    rng = random.Random(batch)
    ways = Counter[str]()
    for _ in range(100):
        case = _case(rng)
        if case is None:
            continue
        source, topology, params, nbytes, late = case
        program = bind(source.schedule(), topology, topology.ranks, params, nbytes, arrivals=late)
        done = fast.run(program, compiled=False)
        assert done is not None
        sizes = streamed.loop_sizes(source, nbytes, 1, params.chunk)
        carried = np.zeros(len(topology.links), np.int64)
        for i in range(len(program)):
            np.add.at(carried, program.route(i), program.nbytes[i])
        for whole, compiled in product((True, False), COMPILED):
            found = streamed.run(
                RoutedParts(source, topology, topology.ranks, params), sizes, late, compiled=compiled, whole=whole
            )
            ways[found.shortcut if found else "none"] += 1
            if found:
                assert found.makespan_ps == done.makespan_ps, (source.name, source.n, params)
                assert found.messages == program.messages
                assert (found.wire_bytes, found.bytes_per_rank) == (program.wire_bytes, program.bytes_per_rank)
                assert found.carried.tolist() == carried.tolist()
    assert ways["affine"] >= 5 * len(COMPILED)
    assert ways["replay"] >= 20 * len(COMPILED)


def test_what_is_remembered_has_room_for_any_schedule() -> None:
    """Where a rank has to remember more versions than the small table holds, a table of all slots takes over."""
    source = stream("all_reduce", "all_pairs", 20)
    topology = full_mesh(20, Link(50 * GB_PER_S, latency_ps=500_000))
    params = Params(sharing="fifo", o_send=1000)
    sizes = streamed.loop_sizes(source, 20_000, 1, 0)
    found = streamed.run(RoutedParts(source, topology, topology.ranks, params), sizes)
    whole = event.run(bind(source.schedule(), topology, topology.ranks, params, 20_000))
    assert found is not None
    assert found.makespan_ps == whole.makespan_ps


@pytest.mark.parametrize(
    ("fabric", "links", "n"), [("single-switch", 2, 1024), ("single-switch", 2, 4096), ("ring", 1, 1024)]
)
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_a_large_ring_has_its_closed_form(fabric: str, links: int, n: int, sharing: str) -> None:
    """2(n − 1) steps of the latencies of a route and a chunk's bytes over the bandwidth, to the picosecond."""
    link = {"bandwidth": "50 GB/s", "latency": "0.5 us"}
    points = simcoll.load({
        "topology": {"fabric": fabric, "hosts": n, "link": link},
        "collective": "all_reduce", "algorithm": "ring", "size": "64 MiB", "model": {"sharing": sharing},
    })  # fmt: skip
    (row,) = simcoll.run(points)
    assert row["time_ps"] == 2 * (n - 1) * (links * 500_000 + (64 << 20) // n * 20)
    assert (row["engine"], row["shortcut"]) == ("fast", "affine")
    assert row["messages"] == 2 * n * (n - 1)
    assert row["bytes_per_rank"] == 2 * (n - 1) * (64 << 20) // n


def test_shortcuts_can_be_switched_off() -> None:
    """A long ring event by event takes what it takes as a stream; each row says how it was run."""
    scenario = {
        "topology": {"fabric": "single-switch", "hosts": 320,
                     "link": {"bandwidth": {"value": "50 GB/s", "spread": "20 %"}, "latency": "0.5 us"}},
        "collective": "all_reduce", "algorithm": "ring", "size": "10 MiB", "shortcuts": ["on", "off"],
    }  # fmt: skip
    on, off = simcoll.run(simcoll.load(scenario))
    assert (on["shortcut"], off["shortcut"]) == ("affine", "none")
    told = ("time_ps", "messages", "wire_bytes", "bytes_per_rank", "binding_link", "binding_busy", "steps")
    assert [on[column] for column in told] == [off[column] for column in told]


def test_a_long_prediction_still_has_its_timeline() -> None:
    """Who asks for it gets the program and when everything happened."""
    scenario = {
        "topology": {"fabric": "single-switch", "hosts": 320, "link": {"bandwidth": "50 GB/s", "latency": "0.5 us"}},
        "collective": "all_reduce", "algorithm": "ring", "size": "10 MiB",
    }  # fmt: skip
    found = simcoll.predict(simcoll.load(scenario)[0])
    assert found.totals.shortcut == "affine"
    assert len(found.program) == found.totals.messages
    assert found.timeline.makespan_ps == found.time_ps


def test_the_clock_of_a_stream_has_an_end() -> None:
    """A ring that takes longer than the clock runs is wrong input, as columns or not."""
    source = stream("all_reduce", "ring", 64)
    topology = star(64, Link(1, latency_ps=10**6))
    for whole in (True, False):
        for compiled in (False, True) if have_numba() else (False,):
            with pytest.raises(InputError, match="53 days"):
                sizes = [np.full(64, 10**6)]
                streamed.run(
                    RoutedParts(source, topology, topology.ranks, Params()), sizes, compiled=compiled, whole=whole
                )


# --- steps that are given once ---


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_repeat_is_its_steps(data: st.DataObject) -> None:
    """All rows at once, and those that carry some slots, are the rows of the steps one by one."""
    rows, span = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 12))
    shift, times = data.draw(st.integers(-span, span)), data.draw(st.integers(1, 20))
    base = np.asarray(data.draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows)), np.int32)
    offsets = st.lists(st.integers(0, span - 1), min_size=rows, max_size=rows)
    src_slot, dst_slot = (base + np.asarray(data.draw(offsets), np.int32) for _ in range(2))
    src = np.arange(rows, dtype=np.int32)
    step = simcoll.send(src, src + 1, src_slot, dst_slot)._replace(reduce=src % 2 == 0)
    part = Repeat(step, times, base, span, shift)
    steps = list(part)
    assert len(steps) == part.steps
    for column, parts in zip(part.whole(), zip(*steps, strict=True), strict=True):
        assert column.tolist() == np.concatenate(parts).tolist()
    wanted = np.asarray(data.draw(st.lists(st.booleans(), min_size=span + 6, max_size=span + 6)))
    when, some = part.carrying(wanted)
    expected = [
        (k, *(column[i].item() for column in step))
        for k, step in enumerate(steps)
        for i in range(rows)
        if wanted[step.src_slot[i]]
    ]
    assert list(zip(when.tolist(), *(column.tolist() for column in some), strict=True)) == expected


@pytest.mark.parametrize("entry", ENTRIES, ids="/".join)
def test_a_stream_is_its_schedule(entry: tuple[str, str]) -> None:
    """Steps, transfers and slots are counted without making the schedule, and its parts are the schedule's."""
    for n in (1, 2, 3, 5, 8):
        try:
            source = stream(*entry, n, agents=1)
        except RefusedError:
            continue
        schedule = source.schedule()
        assert schedule == build(*entry, n, agents=1)
        assert (source.transfers, source.n_slots) == (schedule.transfers, schedule.n_slots)
        rows = [column for part in singles(source.parts()) for column in part.src.tolist()]
        assert rows == schedule.src.tolist()


def test_a_stream_names_who_is_there() -> None:
    """Steps with participants or slots that do not exist are refused when they are pulled."""
    for step in (simcoll.send(0, 5, 0), simcoll.send(0, 1, -1)):
        with pytest.raises(ScheduleError, match="unknown"):
            list(StreamedSchedule("broadcast", "own", 3, 1, lambda step=step: [step]).parts())  # type: ignore[misc]


# --- the proof ---


def _spoilt(source: StreamedSchedule, rng: random.Random) -> StreamedSchedule:
    """With one row of one part sent to another rank, or from another slot."""
    parts = list(source.parts())
    which = rng.randrange(len(parts))
    part = parts[which].by_slot()
    step = part.first if isinstance(part, Repeat) else part
    row = rng.randrange(part.rows)
    columns = {name: column.copy() for name, column in step._asdict().items()}
    columns["joins"][:] = False
    name = rng.choice(["dst", "src_slot", "reduce"])
    if name == "reduce":
        columns[name][row] = not columns[name][row]
    else:
        columns[name][row] = (columns[name][row] + 1) % (source.n if name == "dst" else source.n_chunks)
    new = Step(**columns)
    parts[which] = new if part is step else Repeat(new, part.times, part.base, part.span, part.shift)
    return StreamedSchedule(
        source.collective, "spoilt", source.n, source.n_chunks, lambda: parts, rotation=source.rotation
    )


@pytest.mark.parametrize("how", ["full", "fingerprint"])
@pytest.mark.parametrize("entry", PROVED_BY_TURNS, ids="/".join)
def test_a_rotation_proves_what_the_whole_proof_proves(entry: tuple[str, str], how: Any) -> None:
    """Declared rotations hold; what is proved for one chunk of each orbit is so for all, and a stream with one row
    changed is refused exactly when the same schedule is, which knows no rotation."""
    rng = random.Random(f"{entry} {how}")
    for n in (4, 6, 12):
        source = stream(*entry, n)
        assert source.rotation is not None
        assert source.rotation.holds(source.parts(), collective(source.collective).turns, n, source.n_chunks)
        assert len(source.rotation.representatives(source.n_chunks)) < source.n_chunks
        prove(source, how)
        for _ in range(5):
            spoilt = _spoilt(source, rng)
            refusals = []
            for what in (spoilt, spoilt.schedule()):
                try:
                    prove(what, how)
                    refusals.append("")
                except ScheduleError as error:
                    refusals.append(str(error))
            assert refusals[0] == refusals[1]


def test_a_rotation_that_does_not_hold_is_no_proof() -> None:
    """Wrong rotations of right schedules are refused, and the schedules proved all the same."""
    for rotation in (Rotation(2, 1, 8), Rotation(1, 1, 4), Rotation(1, 2, 8), Rotation(1, 3, 8), Rotation(1, 1, 3)):
        ring = stream("all_reduce", "ring", 8)
        assert not rotation.holds(ring.parts(), "ranks", 8, 8), rotation
    doubling = stream("all_reduce", "recursive_doubling", 8)
    assert not Rotation(1, 0, 1).holds(doubling.parts(), "ranks", 8, 1)
    tree = stream("broadcast", "binomial", 8)
    assert not Rotation(1, 0, 1).holds(tree.parts(), "", 8, 1)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_contracts_stay_themselves_under_the_renamings_they_name(name: str) -> None:
    """`turns: ranks`: any renaming of ranks and of chunks; `blocks`: one of ranks that renames their blocks alike."""
    contract = COLLECTIVES[name]
    if not contract.turns:
        return
    rng = np.random.default_rng(5)
    for n, each in [(2, 1), (3, 1), (5, 2), (8, 3)]:
        chunks = n * each
        rank = rng.permutation(n)
        chunk = rng.permutation(chunks)
        if contract.turns == "blocks":
            chunk = (rank[:, None] * each + np.arange(each)).ravel()
        for held in (contract.before, contract.after):
            table = contract.table(held, n, chunks)
            owner, block = table[..., 0], table[..., 1]
            renamed = np.empty_like(table)
            renamed[np.ix_(rank, chunk)] = np.stack([np.where(owner >= 0, rank[owner], owner), chunk[block]], axis=-1)
            assert np.array_equal(renamed[table[..., 0] >= -2], table[table[..., 0] >= -2])


@pytest.mark.parametrize("n", [300, 1024])
def test_long_schedules_are_proved_in_full(n: int) -> None:
    """Up to 1,024 ranks in full, beyond by fingerprints; the row says which."""
    link = {"bandwidth": "50 GB/s", "latency": "0.5 us"}
    scenario = {"topology": {"fabric": "single-switch", "hosts": n, "link": link}, "collective": "all_reduce",
                "algorithm": ["ring", "recursive_doubling", "tree"], "size": "1 MiB"}  # fmt: skip
    assert {row["proved"] for row in simcoll.run(simcoll.load(scenario))} == {"full"}


def test_a_schedule_pulled_as_steps_is_itself() -> None:
    """`parts` of a schedule give back its rows."""
    schedule = build("all_reduce", "tree", 9)
    again = Schedule.from_steps(
        schedule.parts(), n_chunks=1, collective="all_reduce", algorithm="tree", n=9, pipelined=True
    )
    assert again == schedule
