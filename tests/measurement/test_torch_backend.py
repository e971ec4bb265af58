"""Schedules executed by send and receive: the same results as the definition, whatever the network does meanwhile.

Most of this runs in threads over a network of the tests' own, which is slow on purpose and copies in any order: who
overwrites what is still being sent, or reads what has not yet come, is found out. What runs over gloo is in
test_measure.py.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import networks
import numpy as np
import numpy_run
import pytest
import workloads
from command import PATIENCE_S, ROOT
from extras import Late, needs
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.engine import event
from simcoll.engine.binding import bind
from simcoll.engine.program import Program
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError, RefusedError, StuckError
from simcoll.measurement.program_of_rank import part_of
from simcoll.measurement.rank_process import complaint, sample
from simcoll.measurement.rank_tasks import RankTask
from simcoll.measurement.torch_backend.support import refusal
from simcoll.schedule.collectives import COLLECTIVES, OPERATORS
from simcoll.schedule.schedule import Schedule
from simcoll.topology.graph import Link

if TYPE_CHECKING:
    from simcoll.measurement.torch_backend.send_recv import Exchange

pytestmark = needs("torch")
torch, dist = Late("torch"), Late("torch.distributed")
library_calls = Late("simcoll.measurement.torch_backend.library_calls")
send_recv = Late("simcoll.measurement.torch_backend.send_recv")

SOME = [("all_reduce", "ring"), ("all_reduce", "recursive_doubling"), ("all_reduce", "naive"), ("broadcast", "chain"),
        ("all_to_all", "direct"), ("barrier", "dissemination")]  # fmt: skip
LINK = Link(bandwidth=10**9, latency_ps=10**6)
PAGE = (ROOT / "docs/measure.md").read_text(encoding="utf-8")


class Wire:
    """A network between threads. A message is copied some time after both ends have posted it, in any order.

    By tag, as gloo does, or in the order of posting (`grouped`), as NCCL does: then a rank's batch begins when the one
    before it is over.
    """

    def __init__(self, grouped: bool, seed: int = 0):
        self.grouped, self.patience_s = grouped, PATIENCE_S
        self._change = threading.Condition()
        self._posted: dict[Any, list[list[Work]]] = defaultdict(lambda: [[], []])
        self._rank, self._random, self._last = threading.local(), random.Random(seed), dict[int, list[Work]]()
        self.batches: dict[int, list[list[tuple[str, int, int]]]] = defaultdict(list)

    def enter(self, rank: int) -> None:
        """This thread is a rank."""
        self._rank.number = rank

    def post(self, kind: Any, tensor: Any, peer: int, tag: int) -> Work:
        """One end of a message."""
        rank, sends = self._rank.number, kind is dist.isend
        key = (rank, peer) if sends else (peer, rank)
        work = Work(self, tensor)
        with self._change:
            self._posted[key if self.grouped else (*key, tag)][not sends].append(work)
            self._change.notify_all()
        return work

    def batch(self, ops: Sequence[Any]) -> list[Any]:
        """In place of torch's batch_isend_irecv."""
        rank = self._rank.number
        if self.grouped:
            for work in self._last.get(rank, ()):
                work.wait()
        self.batches[rank].append([("send" if op.op is dist.isend else "recv", op.peer, op.tag) for op in ops])
        works = [self.post(op.op, op.tensor, op.peer, op.tag) for op in ops]
        self._last[rank] = works
        return [Group(works)] if self.grouped else works

    def await_(self, done: Callable[[], bool]) -> None:
        """Wait until something is so; fail as gloo does if it takes too long."""
        with self._change:
            if not self._change.wait_for(done, self.patience_s):
                raise RuntimeError("Timed out")

    def deliver(self, over: threading.Event) -> None:
        """Copy what both ends have posted, one message at a time, until all is over."""
        while not over.is_set():
            with self._change:
                ready = [pair for pair in self._posted.values() if pair[0] and pair[1]]
                if not ready:
                    self._change.wait(0.001)
                    continue
                sends, receives = self._random.choice(ready)
            time.sleep(self._random.choice((0, 0, 0.0002)))
            with self._change:
                send, receive = sends.pop(0), receives.pop(0)
                assert send.tensor.numel() == receive.tensor.numel()
                receive.tensor.copy_(send.tensor)
                send.done = receive.done = True
                self._change.notify_all()


class Work:
    """What is waited for; once only where gloo would wait for ever the second time."""

    def __init__(self, wire: Wire, tensor: Any):
        self.wire, self.tensor, self.done, self.waited = wire, tensor, False, False

    def wait(self) -> None:
        """Until it is copied."""
        assert self.wire.grouped or not self.waited, "a work of gloo must be waited for once"
        self.waited = True
        self.wire.await_(lambda: self.done)


class Group:
    """All of a batch."""

    def __init__(self, works: list[Work]):
        self.works = works

    def wait(self) -> None:
        """Until all are copied."""
        for work in self.works:
            work.wait()

    def is_completed(self) -> bool:
        """Whether they are."""
        return all(work.done for work in self.works)


@pytest.fixture(scope="module")
def fake() -> Iterator[None]:
    """torch's `fake` process group: torch.distributed checks that there is one."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=16)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def over_wire(wire: Wire, exchanges: Sequence[Exchange], runs: int = 1) -> list[BaseException]:
    """Run every rank in a thread of its own over a wire; what they raised."""
    raised: list[BaseException] = []

    def one(rank: int) -> None:
        wire.enter(rank)
        try:
            for _ in range(runs):
                exchanges[rank].run()
        except BaseException as error:
            raised.append(error)

    def now(kind: Any) -> Callable[..., None]:
        return lambda tensor, peer, tag: wire.post(kind, tensor, peer, tag).wait()

    over = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.distributed.batch_isend_irecv", wire.batch)
        patch.setattr("torch.distributed.send", now(dist.isend))
        patch.setattr("torch.distributed.recv", now(dist.irecv))
        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(exchanges))]
        network = threading.Thread(target=wire.deliver, args=(over,))
        for thread in (network, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        network.join()
    return raised


def bound(schedule: Schedule, elements: int, chunk: int = 0, **how: Any) -> Program:
    """A schedule of int64 on a star of hosts; `chunk` in elements."""
    params = Params(chunk=8 * chunk, **how)
    topology = networks.star(schedule.n, LINK)
    return bind(schedule, topology, networks.devices(topology, schedule), params, 8 * elements, itemsize=8)


def exchanges_of(program: Program, elements: int, post: Any, op: str = "sum") -> list[Exchange]:
    """Every rank's part, filled with the sample."""
    schedule, found = program.schedule, []
    for rank in range(schedule.n):
        task = replace(task_of(schedule, elements, op), program=program)
        exchange = send_recv.Exchange(task, rank, torch.device("cpu"), post)
        exchange.fill(sample(task, rank))
        found.append(exchange)
    return found


def task_of(schedule: Schedule, elements: int, op: str = "sum", dtype: str = "int64", itemsize: int = 8) -> RankTask:
    """What a check has to know."""
    size: dict[str, Any] = {"nbytes": itemsize * elements, "dtype": dtype, "itemsize": itemsize}
    runs: dict[str, Any] = {"warmup": 0, "repeats": 1, "verify": True, "buckets": 1, "async_op": False}
    how: dict[str, Any] = {"program": None, "op": op, "weights": None, "in_place": False}
    return RankTask(title="it", schedule=schedule, **size, **runs, **how)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any all_reduce that need not be one: swaps, duplicates, local copies, several writes to a slot in one step, and
    messages of several slots."""
    n, chunks, steps = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    rank, slot = st.integers(0, n - 1), st.integers(0, chunks - 1)
    row = st.tuples(st.integers(0, steps - 1), rank, slot, rank, slot, st.booleans())
    rows = sorted(draw(st.lists(row, max_size=14)), key=lambda row: row[0])
    apart = Schedule.from_rows(rows, collective="all_reduce", algorithm="any", n=n, n_chunks=chunks)
    if draw(st.booleans()):
        return apart
    messages = [part.as_messages() for part in apart.parts()]
    return Schedule.from_steps(messages, collective="all_reduce", algorithm="any", n=n, n_chunks=chunks)


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("post", ["overlapped", "grouped"])
@given(schedule=schedules(), chunk=st.sampled_from([0, 2]), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_any_schedule_gives_what_the_definition_gives(post: str, schedule: Schedule, chunk: int, seed: int):
    """Over a network that takes its time and its own order, with tags or without, whole or in loops: each rank ends
    with what numpy_run.run computes, bit by bit, and again when run once more on the result."""
    elements = 3 * schedule.n_chunks
    exchanges = exchanges_of(bound(schedule, elements, chunk), elements, post)
    inputs = [sample(task_of(schedule, elements), rank) for rank in range(schedule.n)]
    assert not over_wire(Wire(post == "grouped", seed), exchanges, runs=2)
    once = numpy_run.run(schedule, inputs)
    twice = numpy_run.run(schedule, [array for array in once if array is not None])
    for exchange, wanted in zip(exchanges, twice, strict=True):
        np.testing.assert_array_equal(exchange.result(), wanted)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("op", sorted(set(OPERATORS) - {"avg"}))
def test_every_operator(op: str):
    """A tree and the order of its reductions, with every operator: what the contract says."""
    schedule = networks.schedule("all_reduce", "recursive_doubling", 5)
    exchanges = exchanges_of(bound(schedule, 11), 11, "overlapped", op)
    assert not over_wire(Wire(grouped=False), exchanges)
    for rank, exchange in enumerate(exchanges):
        assert complaint(task_of(schedule, 11, op), rank, exchange.result()) is None


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("pair", SOME)
@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("blocking", ["sends-first", "even-odd"])
def test_blocking_means_what_the_model_says(pair: tuple[str, str], n: int, blocking: Any):
    """One thing at a time, the send waiting for the receiver: what the model says hangs does hang, and the transfer
    that it hangs at is named; what the model says ends does end, with the right result."""
    schedule = networks.schedule(*pair, n)
    elements = 0 if pair[0] == "barrier" else 4 * n
    program = bound(schedule, elements, blocking=blocking)
    exchanges, wire = exchanges_of(program, elements, blocking), Wire(grouped=False)
    try:
        event.run(program)
    except StuckError:
        wire.patience_s = 0.3
        raised = over_wire(wire, exchanges)
        assert raised
        assert all(isinstance(error, send_recv.TransferError) and 0 <= error.index < len(program) for error in raised)
        return
    assert not over_wire(wire, exchanges)
    for rank, exchange in enumerate(exchanges):
        assert complaint(task_of(schedule, elements), rank, exchange.result()) is None


@pytest.mark.usefixtures("fake")
def test_both_ends_of_a_group_agree():
    """The way to NCCL: what a step sends and receives is one group a rank, and for any two ranks the sends of the one
    are in the order of the receives of the other, so that messages find each other without tags."""
    for pair in networks.RANKS_ONLY:
        schedule = networks.schedule(*pair, 4)
        program = bound(schedule, 0 if pair[0] == "barrier" else 16)
        wire = Wire(grouped=True)
        assert not over_wire(wire, exchanges_of(program, 0 if pair[0] == "barrier" else 16, "grouped"))
        order: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for rank, batches in wire.batches.items():
            assert len(batches) == len({program.step[i] for i in _own(program, rank)})
            for kind, peer, tag in (op for batch in batches for op in batch):
                order[(kind, rank, peer) if kind == "send" else (kind, peer, rank)].append(tag)
        for (kind, src, dst), tags in order.items():
            assert kind == "recv" or tags == order["recv", src, dst]


@pytest.mark.usefixtures("fake")
def test_what_a_dry_run_tells_is_what_is_posted():
    """Step by step, every send and receive with peer and tag: what `--dry-run` prints and what would go to NCCL."""
    for pair in networks.RANKS_ONLY:
        program, elements = bound(networks.schedule(*pair, 4), 16 * (pair[0] != "barrier")), 16 * (pair[0] != "barrier")
        wire = Wire(grouped=True)
        assert not over_wire(wire, exchanges_of(program, elements, "grouped"))
        for rank in range(4):
            lines = list(part_of(program, rank, 8 * elements, 8).lines(8))
            told = [
                re.findall(r"(send|receive|reduce) chunks? [^;]*? (?:to|from) (\d+), tag (\d+)", line) for line in lines
            ]
            posted = [{("send" if kind == "send" else "recv", str(peer), str(tag)) for kind, peer, tag in batch}
                      for batch in wire.batches[rank]]  # fmt: skip
            kinds = {"send": "send", "receive": "recv", "reduce": "recv"}
            assert [{(kinds[kind], peer, tag) for kind, peer, tag in line} for line in told if line] == posted


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("gone", range(4))
def test_a_group_that_never_ends_is_named(gone: int):
    """As on a GPU, where nobody waits for the single transfer: the first group that is not over is that of a transfer
    with a rank that is not there, or that waits for one of these."""
    program = bound(networks.schedule("all_reduce", "ring", 4), 16)
    wire = Wire(grouped=True)
    wire.patience_s = 0.2
    exchanges = exchanges_of(program, 16, "grouped")
    exchanges[gone].run = lambda: None  # type: ignore[method-assign]
    assert len(over_wire(wire, exchanges)) == 3
    for rank in {0, 1, 2, 3} - {gone}:
        index = exchanges[rank].undone()
        assert rank in (program.src[index], program.dst[index])
        assert program.step[index] <= 2
    beside = exchanges[(gone + 1) % 4].undone()
    assert gone in (program.src[beside], program.dst[beside])


def _own(program: Program, rank: int) -> list[int]:
    away = program.src != program.dst
    return np.flatnonzero(((program.src == rank) | (program.dst == rank)) & away).tolist()


@pytest.mark.thorough
def test_over_the_fake_group():
    """Every rank of every algorithm posts what it would to NCCL, over torch's `fake` group of its size, and ends."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    for n in (2, 3):
        for rank in range(n):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=n)
            for pair in networks.RANKS_ONLY:
                elements = 0 if pair[0] == "barrier" else 4 * n
                program = bound(networks.schedule(*pair, n), elements)
                exchanges_of(program, elements, "grouped")[rank].run()
            dist.destroy_process_group()


@pytest.mark.parametrize("in_place", [False, True])
def test_calls_over_the_fake_group(in_place: bool):
    """The library's collectives as they would be called on NCCL, over torch's `fake` group: every rank and shape."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    for rank in range(3):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=3)
        for collective in library_calls.SHAPES:
            elements = 0 if collective == "barrier" else 12
            blocks = COLLECTIVES[collective].blocks(3)
            made = Schedule.from_rows([], collective=collective, algorithm="any", n=3, n_chunks=blocks, root=1)
            for buckets, async_op in ((1, False), (3, True)):
                task = task_of(made, elements, dtype="float32", itemsize=4)
                task = replace(task, buckets=buckets, async_op=async_op, in_place=in_place)
                call = library_calls.LibraryCall(task, rank, (0, 1, 2), None, torch.device("cpu"))
                call.fill(np.ones(elements, np.float32))
                call.run()
                assert call.result().dtype == np.float32
                call.fill(np.ones(elements, np.float32))
                if collective in ("all_gather", "reduce_scatter"):  # not run again: what is there is what came in
                    assert bool(call.result().all()) == in_place
        dist.destroy_process_group()


@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_parts_make_the_whole(n: int):
    """All sends of all parts are the program's messages, with its bytes, and each is received at the other end."""
    for pair in networks.RANKS_ONLY:
        elements = 0 if pair[0] == "barrier" else 4 * n + 1
        try:
            program = bound(networks.schedule(*pair, n), elements, chunk=2)
        except RefusedError:
            continue
        parts = [part_of(program, rank, 8 * elements, 8) for rank in range(n)]
        moves = {kind: {(move.index, part.rank, move.peer, 8 * move.count)
                        for part in parts for stage in part.stages for move in getattr(stage, kind)}
                 for kind in ("sends", "receives")}  # fmt: skip
        rows = zip(program.src.tolist(), program.dst.tolist(), program.nbytes.tolist(), strict=True)
        away = {(i, src, dst, nbytes) for i, (src, dst, nbytes) in enumerate(rows) if src != dst}
        assert moves["sends"] == away
        assert {(i, dst, src, nbytes) for i, src, dst, nbytes in moves["receives"]} == {
            (i, src, dst, nbytes) for i, src, dst, nbytes in away
        }


@pytest.mark.parametrize("op", sorted(OPERATORS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "uint8", "int64"])
def test_samples_are_exact_in_any_order(op: str, dtype: str):
    """Reduced from either end, in the type itself, the samples give the same; and one rank's going missing shows."""
    if op in ("band", "bor", "bxor") and "float" in dtype:
        return
    for ranks in (2, 7, 64):
        check_samples(op, dtype, ranks)


def check_samples(op: str, dtype: str, ranks: int) -> None:
    """Fold the samples of all ranks from either end."""
    schedule = networks.schedule("all_reduce", "naive", ranks)
    task = task_of(schedule, 4096, op, dtype, 2)
    like = getattr(torch, dtype)
    inputs = [torch.from_numpy(sample(task, rank)).to(like) for rank in range(ranks)]
    assert all((one.float().numpy() == sample(task, rank)).all() for rank, one in enumerate(inputs) if "float" in dtype)

    def folded(arrays: list[Any]) -> Any:
        from simcoll.measurement.torch_backend.send_recv import REDUCE

        total = arrays[0].clone()
        for array in arrays[1:]:
            REDUCE[op](total, array, out=total)
        return total

    assert torch.equal(folded(inputs), folded(inputs[::-1]))
    if op in ("sum", "avg", "bxor", "product") or ranks == 2:
        assert all(not torch.equal(folded(inputs), folded(inputs[:r] + inputs[r + 1 :])) for r in range(ranks))


def test_a_wrong_result_is_told():
    """The complaint says how many elements are wrong, which is the first, and what it should be."""
    task = task_of(networks.schedule("all_reduce", "ring", 3), 10)
    right = sum(sample(task, rank) for rank in range(3))
    looked: list[int] = []
    assert complaint(task, 1, right, looked.append) is None
    assert {0, 1, 2} <= set(looked)
    wrong = right.copy()
    wrong[[4, 7]] += 1
    said = f"2 of 10 elements are wrong: element 4 is {right[4] + 1}, the contract says {right[4]}"
    assert complaint(task, 1, wrong) == said
    assert complaint(task, 1, right[:9]) == "the result has 9 elements, the contract says 10"


def refused(backend: Any, harness: str, collective: str = "all_reduce", **keys: Any) -> str:
    """Why a call of three ranks cannot be measured; empty if it can."""
    asked = {"topology": {"system": "loopback"}, "ranks": 3, "size": "1248 B", "algorithm": "auto", **keys}
    measure = {"harness": harness, **keys.get("measure", {})}
    try:
        (point,) = workloads.points({**asked, "collective": collective, "measure": measure})
    except InputError as error:
        return str(error)
    return refusal(point.scenario, backend, point.scenario.subgroups or ((0, 1, 2),)) or ""


def _held_by_the_readme(backend: Any, types: list[str]) -> None:
    """The table on the page says for every operator and type what is served."""
    cells = re.findall(r"^\| ([a-z, ]+) \| (all|floats|integers) \| (\w+) \| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE)
    told = {
        (op, dtype): (p2p, gloo if backend == "gloo" else nccl)
        for ops, kinds, p2p, gloo, nccl in cells
        for op in ops.split(", ")
        for dtype in types
        if kinds == "all" or (kinds == "floats") == ("float" in dtype)
    }
    assert set(told) == {(op, dtype) for op in OPERATORS for dtype in types}
    for (op, dtype), serves in told.items():
        served = [not refused(backend, harness, op=op, dtype=dtype) for harness in ("p2p", "library")]
        assert served == [word == "yes" for word in serves]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_what_is_served(backend: Any):
    """Send and receive serve every operator and type that has a meaning; the libraries lack some, and the words say
    what serves instead."""
    types = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]
    for op in OPERATORS:
        for dtype in types:
            bits_of_floats = op in ("band", "bor", "bxor") and "float" in dtype
            assert bool(refused(backend, "p2p", op=op, dtype=dtype)) == bits_of_floats
            lacks = (
                bits_of_floats
                or (backend == "nccl" and op in ("band", "bor", "bxor"))
                or (backend == "gloo" and op == "avg" and "float" not in dtype)
            )
            assert bool(refused(backend, "library", op=op, dtype=dtype)) == lacks
    _held_by_the_readme(backend, types)
    library, weights = partial(refused, backend, "library"), [2, 1, 1]
    assert "needs equal blocks" in library("all_gather", size="1252 B")
    assert "unequal blocks" in library("gather", weights=weights)
    assert not library("all_to_all", weights=weights, size="1252 B")
    assert "in order" in library("gather", subgroups=[[1, 0, 2]])
    assert "in place" in library("gather", in_place=True)
    assert not library("all_gather", in_place=True)
    assert "model.barrier" in refused(backend, "p2p", model={"barrier": True})
    assert "model.chunk" in refused(backend, "p2p", measure={"buckets": 2})
