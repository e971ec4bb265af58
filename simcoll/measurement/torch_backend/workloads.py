"""Run workloads with torch.distributed: a training step of DistributedDataParallel (forward, backward, gradients in
buckets, optimizer), and small programs (mean, softmax, argmax, and scatter, gather and broadcast of data).

A layer computes in one of two ways: `real` is a matrix product on the CPU, `sleep` waits for a given time. A sleeping
layer stands for a layer on a GPU, for which the CPU only waits. So ranks do not slow each other down, even if there are
more ranks than cores. Gradients, buckets and all messages are real.

A small program alternates local work with one or two of the library's collectives, and has the same result as one
process. Its data are a matrix; each rank holds some columns (mean, softmax, argmax) or rows (gather, scatter).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from simcoll.measurement.rank_tasks import WorkTask
from simcoll.measurement.torch_backend.library_calls import ALL_GATHER, REDUCE_SCATTER, TYPES, Runner
from simcoll.measurement.torch_backend.support import widths
from simcoll.workload.plan import CollectiveCall
from simcoll.workload.workload_keys import Composition, Ddp

Tensor: TypeAlias = torch.Tensor
MIB: Final = 2**20
RATE: Final = 2.0**-10  # learning rate of the optimizer; a power of two is exact in every dtype
SETTLED: Final = 2  # steps until buckets are final, as torch forms them anew after the first step
NEAR: Final = 64  # allowed error of a result in rounding errors, as the library chooses the order of additions
COLUMNS: Final = 4  # a rank's number of columns: small, so that messages and not local work determine the time


class Worker(Runner):
    """A workload, ready to run on one rank."""

    def alone(self) -> list[int]:
        """Run once without communication; return the duration of each computation, in ns."""
        raise NotImplementedError

    def complaint(self) -> str | None:
        """Run on all ranks and check the result; return a description of the mistake, or None."""
        raise NotImplementedError

    def buckets(self) -> int | None:
        """Return the number of gradient buckets; None for a workload without gradients."""
        return None


class DdpStep(Worker):
    """A DistributedDataParallel training step on one rank of a group."""

    def __init__(self, task: WorkTask, rank: int):
        spec, sleeps = task.spec, task.compute == "sleep"
        assert isinstance(spec, Ddp)
        self._pause_ps = spec.optimizer if sleeps else 0  # the optimizer sleeps before it updates
        self._computing = contextlib.nullcontext if sleeps else beneath_the_network
        torch.manual_seed(0)  # all replicas begin with the same parameters
        build = _sleeping if sleeps else _dense
        model, self._input = build(spec, task, rank)
        self._plain = deepcopy(model)
        self._marks: list[int] = []
        for parameter in self._plain.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self._marks.append(time.monotonic_ns()))
        first = spec.bucket_cap if spec.first_bucket is None else spec.first_bucket
        self._replica = DistributedDataParallel(model, **_caps(first, spec.bucket_cap))
        self._optimizers = {each: torch.optim.SGD(each.parameters(), lr=RATE) for each in (self._replica, self._plain)}
        for _ in range(SETTLED):
            self.run()

    def run(self) -> None:
        """Run one step."""
        self._step(self._replica, lambda: None)

    def alone(self) -> list[int]:
        """Run one step without communication; return ns: forward pass, backward pass of each layer in forward order,
        optimizer.
        """
        began = time.monotonic_ns()
        self._marks.clear()
        self._step(self._plain, lambda: self._marks.append(time.monotonic_ns()))
        forward, *backward, optimizer = (b - a for a, b in pairwise([began, *self._marks, time.monotonic_ns()]))
        return [forward, *reversed(backward), optimizer]

    def _step(self, model: torch.nn.Module, passed: Callable[[], None]) -> None:
        optimizer = self._optimizers[model]
        with self._computing():
            optimizer.zero_grad()
            loss = model(self._input).square().mean() if self._input.dim() else model(self._input)
            passed()
            loss.backward()
            _pause(self._pause_ps)
            optimizer.step()

    def buckets(self) -> int:
        """Return the number of buckets in which torch sends the gradients."""
        return len(str(self._replica._get_ddp_logging_data()["rebuilt_bucket_sizes"]).split(","))

    def complaint(self) -> str | None:
        """Run a step on all ranks and check it; return a description of the mistake, or None.

        Gradients must be the mean of the ranks' gradients, and all ranks must end with bitwise equal parameters.
        """
        self._plain.load_state_dict(self._replica.module.state_dict())
        self.alone()
        own = [parameter.grad.clone() for parameter in self._plain.parameters()]
        self.run()
        for number, (mine, got) in enumerate(zip(own, self._replica.parameters(), strict=True)):
            every = self._everyone(mine)
            mean = torch.stack([each.double() for each in every]).mean(0)
            worst = float((got.grad.double() - mean).abs().max())
            if worst > NEAR * torch.finfo(mine.dtype).eps * float(torch.stack(every).abs().max()):
                return f"the gradient of layer {number} is not the mean of the ranks': it is off by {worst:g}"
            if any((each != got.detach()).any() for each in self._everyone(got.detach())):
                return f"after the step the ranks hold different parameters of layer {number}"
        return None

    def _everyone(self, mine: Tensor) -> list[Tensor]:
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine.contiguous())
        return every


def _caps(first: int, others: int) -> dict[str, Any]:
    """Return bucket limits (bytes) as arguments of DistributedDataParallel; RuntimeError if this torch lacks them."""
    if first == others:
        return {"bucket_cap_mb": max(1, others) / MIB}
    if (first, others) == (dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * MIB):
        return {"bucket_cap_mb": None}
    if "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters:
        raise RuntimeError("this torch cannot give the first bucket another size; write `first_bucket: same`")
    return {"bucket_cap_mb_list": [max(1, first) / MIB, max(1, others) / MIB]}


# --- layers that sleep ---


class _Sleep(torch.autograd.Function):  # type: ignore[misc]  # torch is skipped: see pyproject.toml
    """A torch function whose passes sleep. The gradient of the weight is `data`, which differs between ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, data: Tensor, forward_ps: int, backward_ps: int) -> Tensor:
        ctx.data, ctx.backward_ps = data, backward_ps
        _pause(forward_ps)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        _pause(ctx.backward_ps)
        return grad, ctx.data * grad, None, None, None


class _Sleeping(torch.nn.Module):  # type: ignore[misc]  # likewise
    def __init__(self, elements: int, dtype: torch.dtype, rank: int, *times_ps: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(elements, dtype=dtype))
        place = torch.arange(elements)
        self._data, self._times = ((place * 31 + 17 * rank) % 61).to(dtype), times_ps  # differ from rank to rank

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x, self.weight, self._data, *self._times)


def _pause(ps: int) -> None:
    if ps:
        time.sleep(ps / 1e12)


def _sleeping(spec: Ddp, task: WorkTask, rank: int) -> tuple[torch.nn.Module, Tensor]:
    dtype, layers = TYPES[task.dtype], spec.timed(task.itemsize)
    forward = sum(layer.forward for layer in layers) if spec.forward is None else spec.forward
    model = torch.nn.Sequential(
        *(  # the whole forward pass is in the first layer
            _Sleeping(layer.nbytes // task.itemsize, dtype, rank, 0 if number else forward, layer.backward)
            for number, layer in enumerate(layers)
        )
    )
    return model, torch.ones((), dtype=dtype, requires_grad=True)


# --- layers that compute ---


@contextlib.contextmanager
def beneath_the_network() -> Iterator[None]:
    """Compute in this thread at the lowest real-time priority, so that the library's threads can send.

    Under a real-time policy (`network_lab.PRIORITY`) a computing thread would hold its core for a tenth of a second
    before another thread of its rank runs. The lowest priority still precedes all other work on the machine.
    """
    policy, before = os.sched_getscheduler(0), os.sched_getparam(0)
    if before.sched_priority <= 1:
        yield
        return
    os.sched_setscheduler(0, policy, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, before)


def _dense(spec: Ddp, task: WorkTask, rank: int) -> tuple[torch.nn.Module, Tensor]:
    dtype = TYPES[task.dtype]
    sizes = widths([layer.nbytes // task.itemsize for layer in spec.timed(task.itemsize)])
    assert sizes, "refused before"
    steps: list[torch.nn.Module] = []
    for a, b in pairwise(sizes):
        steps += [torch.nn.Linear(a, b, bias=False, dtype=dtype), torch.nn.Tanh()]
    own = torch.Generator().manual_seed(rank)
    return torch.nn.Sequential(*steps), torch.randn(spec.batch, sizes[0], generator=own).to(dtype)


# --- plans ---


class PlanStep(Worker):
    """A plan on one rank, such as a training step: computations sleep, calls are the library's in their groups
    (`groups`, by ranks). An operation begins when those that it waits for have ended on this rank."""

    def __init__(self, task: WorkTask, rank: int, groups: dict[tuple[int, ...], Any]):
        assert task.plan
        self.works = [(number, work) for number, work in enumerate(task.plan.works) if rank in work.ranks]
        self._calls: dict[object, _Call] = {}
        for _, work in self.works:
            if work.call and len(work.ranks) > 1:
                key = work.call, work.ranks, work.stream
                self._calls[key] = self._calls.get(key) or _called(work.call, groups[work.ranks], task.dtype)

    def run(self) -> None:
        """Run once."""
        self._step(self._calls)

    def alone(self) -> list[int]:
        """Run once without communication; return how long all computations took, in ns."""
        began = time.monotonic_ns()
        self._step({})
        return [time.monotonic_ns() - began]

    def _step(self, calls: dict[object, _Call]) -> None:
        going: dict[int, Any] = {}
        streams = {number: work.stream for number, work in self.works}
        for number, work in self.works:
            for before in work.before:
                if before in going and streams[before] != work.stream:  # the library runs a group's calls in order
                    going.pop(before).wait()
            if work.call is None:
                _pause(work.time_ps if isinstance(work.time_ps, int) else work.time_ps[0])
            elif call := calls.get((work.call, work.ranks, work.stream)):
                going[number] = call.start()
        for each in going.values():
            each.wait()

    def complaint(self) -> str | None:
        """Run each call once on buffers of ones; return which one has a wrong result, or None."""
        for key, call in self._calls.items():
            call.start().wait()
            if bool((call.result != call.value).any()):
                return f"the result of {key} is wrong"
        return None


class _Call(NamedTuple):
    """A function that starts a call on ones, the tensor with its result, and what all its elements are."""

    start: Callable[[], Any]
    result: Tensor
    value: int


def _called(call: CollectiveCall, group: Any, dtype: str) -> _Call:
    kind, n = TYPES[call.dtype or dtype], dist.get_world_size(group)
    whole = torch.ones(call.nbytes // kind.itemsize, dtype=kind)
    part = torch.ones(len(whole) // n, dtype=kind)
    made: dict[str, tuple[Callable[..., Any], Tensor, int]] = {
        "all_reduce": (lambda **how: dist.all_reduce(whole, **how), whole, n),
        "all_gather": (lambda **how: ALL_GATHER(whole, part, **how), whole, 1),
        "reduce_scatter": (lambda **how: REDUCE_SCATTER(part, whole, **how), part, n),
        "all_to_all": (lambda **how: dist.all_to_all_single(torch.empty_like(whole), whole, **how), whole, 1),
    }
    start, out, value = made[call.collective]
    return _Call(lambda: start(group=group, async_op=True), out, value)


# --- small programs ---


class SmallProgram(Worker):
    """A small program on one rank of the default group, ready to run any number of times."""

    def __init__(self, task: WorkTask, rank: int):
        spec = task.spec
        assert isinstance(spec, Composition)
        self.rank, self.world, self.root = rank, task.ranks, spec.root
        self.elements, self.dtype = spec.size // task.itemsize, TYPES[task.dtype]
        self._pause_ps, self._locals, self.answer = spec.local, list[Callable[[], object]](), torch.empty(0)
        self._parts, self.expected = PROGRAMS[spec.template](self)

    def local(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return local work as a part of the program; before the work it sleeps as long as the workload says."""

        def part() -> None:
            _pause(self._pause_ps)
            work()

        self._locals.append(part)
        return part

    def run(self) -> None:
        """Run once."""
        for part in self._parts:
            part()

    def alone(self) -> list[int]:
        """Do the local work without communication; return the duration of each local part in ns, in order."""
        marks = [time.monotonic_ns()]
        for part in self._locals:
            part()
            marks.append(time.monotonic_ns())
        return [b - a for a, b in pairwise(marks)]

    def complaint(self) -> str | None:
        """Run on all ranks and compare with one process's result; return a description of the difference, or None."""
        self.run()
        if self.answer.shape != self.expected.shape:
            return f"the result has shape {tuple(self.answer.shape)}, one process has {tuple(self.expected.shape)}"
        if not self.expected.numel():
            return None
        worst = float((self.answer.double() - self.expected.double()).abs().max())
        least = NEAR * torch.finfo(self.dtype).eps * float(self.expected.abs().max())
        return f"the result is off by {worst:g} from that of one process" if worst > least else None


Made = tuple[list[Callable[[], object]], Tensor]  # the parts, and the result of one process


def _whole(p: SmallProgram, rows: int, columns: int) -> Tensor:
    """Return the data of all ranks; each rank computes the same data from a fixed seed."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(p.dtype)


def _mine(p: SmallProgram, whole: Tensor) -> Tensor:
    return whole[:, p.rank * COLUMNS : (p.rank + 1) * COLUMNS]


def _mean(p: SmallProgram) -> Made:
    whole, total = _whole(p, p.elements, COLUMNS * p.world), torch.empty(p.elements, dtype=p.dtype)
    mine = _mine(p, whole).contiguous()

    def divide() -> None:
        p.answer = total / whole.shape[1]

    pieces = [p.local(lambda: torch.sum(mine, 1, out=total)), lambda: dist.all_reduce(total), p.local(divide)]
    return pieces, whole.mean(1)


def _softmax(p: SmallProgram) -> Made:
    whole = _whole(p, p.elements, COLUMNS * p.world)
    mine = _mine(p, whole).contiguous()
    most, total = torch.empty(2, p.elements, dtype=p.dtype)
    raised = torch.empty_like(mine)

    def raise_() -> None:
        torch.exp(mine - most[:, None], out=raised)
        torch.sum(raised, 1, out=total)

    def divide() -> None:
        p.answer = raised / total[:, None]

    pieces = [
        p.local(lambda: torch.amax(mine, 1, out=most)),
        lambda: dist.all_reduce(most, op=dist.ReduceOp.MAX),
        p.local(raise_),
        lambda: dist.all_reduce(total),
        p.local(divide),
    ]
    return pieces, _mine(p, torch.softmax(whole, 1))


def _argmax(p: SmallProgram) -> Made:
    whole = _whole(p, p.elements, COLUMNS * p.world).mul(4).round()  # rounded, so that several are the largest
    mine = _mine(p, whole).contiguous()
    most, own = torch.empty(2, p.elements, dtype=p.dtype)
    every, nowhere = torch.empty(p.world * p.elements, dtype=own.dtype), float(whole.shape[1])

    def find() -> None:
        there = mine == most[:, None]
        own.copy_(torch.where(there.any(1), there.to(torch.int8).argmax(1) + p.rank * COLUMNS, nowhere))

    def choose() -> None:
        p.answer = every.view(p.world, -1).amin(0)

    pieces = [
        p.local(lambda: torch.amax(mine, 1, out=most)),
        lambda: dist.all_reduce(most, op=dist.ReduceOp.MAX),
        p.local(find),
        lambda: ALL_GATHER(every, own),
        p.local(choose),
    ]
    return pieces, (whole == whole.amax(1, keepdim=True)).to(torch.int8).argmax(1).to(own.dtype)


def _scatter(p: SmallProgram) -> Made:
    dataset = _whole(p, p.world, p.elements // p.world)
    got, blocks = torch.empty_like(dataset[0]), list(dataset) if p.rank == p.root else None

    def work() -> None:
        p.answer = got.square()

    return [lambda: dist.scatter(got, blocks, src=p.root), p.local(work)], dataset[p.rank].square()


def _gather(p: SmallProgram) -> Made:
    samples = _whole(p, p.world, p.elements // p.world)
    own, every = torch.empty_like(samples[0]), torch.empty_like(samples)
    blocks = list(every) if p.rank == p.root else None

    def collect() -> None:
        dist.gather(own, blocks, dst=p.root)
        p.answer = every if p.rank == p.root else own

    def predicted() -> None:
        torch.tanh(samples[p.rank], out=own)

    expected = torch.tanh(samples)
    return [p.local(predicted), collect], expected if p.rank == p.root else expected[p.rank]


def _broadcast(p: SmallProgram) -> Made:
    parameters = _whole(p, 1, p.elements)[0]
    held = parameters.clone() if p.rank == p.root else torch.zeros_like(parameters)

    def work() -> None:
        p.answer = held.square()

    return [lambda: dist.broadcast(held, src=p.root), p.local(work)], parameters.square()


PROGRAMS: Final[dict[str, Callable[[SmallProgram], Made]]] = {
    "mean": _mean,
    "softmax": _softmax,
    "argmax": _argmax,
    "scatter": _scatter,
    "gather": _gather,
    "broadcast": _broadcast,
}
