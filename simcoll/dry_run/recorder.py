"""Record what a rank does: computations and collectives, in order of launch, on streams, with what they wait for."""

from __future__ import annotations

import pickle
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from simcoll.dry_run import torch_private
from simcoll.dry_run.kernels import Kernel, kernels_of
from simcoll.dry_run.memory import Allocations
from simcoll.dry_run.torch_private import Done, FakeTensor, TorchDispatchMode

Tensor: TypeAlias = torch.Tensor
COMPUTE: Final = "compute"
NAMES: Final = {  # torch's operations, without what says where the data lie
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather", "_allgather_base": "all_gather",
    "allgather_into_tensor": "all_gather", "all_gather_into_tensor": "all_gather", "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter", "broadcast": "broadcast",
    "reduce": "reduce", "gather": "gather", "scatter": "scatter", "alltoall_base": "all_to_all",
    "alltoall": "all_to_all", "all_to_all_single": "all_to_all", "shard_dim_alltoall": "all_to_all", "send": "send",
    "recv": "recv", "recv_any_source": "recv", "isend": "send", "irecv": "recv", "barrier": "barrier",
    "monitored_barrier": "barrier",
}  # fmt: skip
MOST_REAL: Final = {"tensor": 2**26, "bytes": 2**32, "flop": 3e10}  # up to which the script computes for real
MOST_STUCK: Final = 4  # looks, half a second apart, at which all ranks wait
MOST_POLLS: Final = 60_000  # of a rank for a message: minutes
LARGEST_INTEGERS: Final = 2**24  # elements of tensors of integers that stay real when others are not


class TooLargeError(BaseException):
    """The script computes too much for this machine: run it again with tensors that have no memory."""


class GroupKind(NamedTuple):
    """Groups that do the same for different ranks: `name` is the dimension of a DeviceMesh, or empty; `ranks` are
    counted from the group's first."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A collective of a rank. `nbytes`: what the rank hands in, or gets where it hands in nothing. `size`: the bytes as
    nccl-tests counts them. `ranks`: of the group. `root`, `peer`: ranks of the job. `sizes_from_data`: whether ranks
    may give other sizes."""

    collective: str
    op: str | None
    dtype: str
    nbytes: int
    size: int
    count: int
    ranks: tuple[int, ...]
    root: int | None
    peer: int | None
    wait: bool
    place: str
    group: str
    dimension: str

    @property
    def kind(self) -> GroupKind:
        """The kind of the group."""
        return GroupKind(self.dimension, tuple(rank - self.ranks[0] for rank in self.ranks))

    def row(self, rank: int, order: int) -> dict[str, object]:
        """Return it as JSON has it."""
        row: dict[str, object] = {
            "rank": rank, "order": order, "collective": self.collective, "op": self.op, "dtype": self.dtype,
            "bytes": self.nbytes, "group_size": len(self.ranks), "ranks": [*self.ranks],
        }  # fmt: skip
        row |= {key: value for key, value in (("root", self.root), ("peer", self.peer)) if value is not None}
        return {**row, "async": not self.wait}


class Part(NamedTuple):
    """A part of what a rank does on a stream: a call, or kernels, by kind and shape, with how often each runs. `after`:
    the numbers of earlier parts for which it waits. `optimizer`: whether the optimizer does it."""

    stream: str
    after: tuple[int, ...]
    call: Call | None = None
    kernels: tuple[tuple[Kernel, int], ...] = ()
    optimizer: bool = False


class Mailbox:
    """Small messages of integers between ranks that are recorded at the same time, as files: pickled objects, shapes
    and votes, by which scripts decide."""

    def __init__(self, folder: Path, rank: int):
        self.folder, self.rank, self.counts = folder, rank, Counter[str]()

    def post(self, to: str, data: Sequence[Tensor]) -> None:
        """Send data to a rank, or to all of a group."""
        self.counts[f"{self.rank}-{to}"] += 1
        path = self.folder / f"{self.rank}-{to} {self.counts[f'{self.rank}-{to}']}"
        path.with_suffix(".part").write_bytes(pickle.dumps([each.tolist() for each in data]))
        path.with_suffix(".part").rename(path)

    def take(self, sender: int, to: str) -> list[Any] | None:
        """Return the data that a rank sends; None if it does not run, or ends without sending. Raises RuntimeError if
        all ranks that run wait for each other, or nothing comes for minutes."""
        self.counts[f"{sender}-{to}"] += 1
        path, ended = self.folder / f"{sender}-{to} {self.counts[f'{sender}-{to}']}", self.folder / f"rank {sender}"
        waits, polls, stuck = self.folder / f"waits {self.rank}", 0, 0
        waits.write_text(path.name)
        while (self.folder / f"runs {sender}").exists():
            over = ended.exists()
            if path.exists():
                waits.unlink()
                found: list[Any] = pickle.loads(path.read_bytes())
                return found
            if over:
                break
            time.sleep(0.005)
            polls += 1
            stuck = stuck + 1 if polls % 100 == 0 and self._all_wait() else 0 if polls % 100 == 0 else stuck
            if stuck > MOST_STUCK or polls > MOST_POLLS:
                raise RuntimeError(
                    f"rank {self.rank} waits for integers from rank {sender}, and the ranks wait in a circle"
                )
        waits.unlink()
        return None

    def _all_wait(self) -> bool:
        """Whether each rank that runs waits for a message that is not there."""
        running = [each.name.partition(" ")[2] for each in self.folder.glob("runs *")]
        running = [rank for rank in running if not (self.folder / f"rank {rank}").exists()]
        files = [self.folder / f"waits {rank}" for rank in running]
        return all(each.exists() and not (self.folder / each.read_text()).exists() for each in files)


class Stream:
    """A stream, with what torch's streams offer: an order of kernels, and waiting for other streams."""

    def __init__(self, *_: object, name: str = "", **__: object):
        self.name = name or f"stream {len(RECORDER.streams)}"
        self.kernels: Counter[Kernel] = Counter()
        self.waits: dict[str, int] = {}  # stream -> the last of its parts for which this stream waits
        RECORDER.streams.append(self)

    def wait_stream(self, other: Stream) -> None:
        """Let what comes on this stream wait for what the other has."""
        self._wait(other.reached())

    def wait_event(self, event: Event) -> None:
        """Let what comes on this stream wait for an event."""
        self._wait(event.at)

    def _wait(self, others: Mapping[str, int]) -> None:
        later = {stream: part for stream, part in others.items() if part > self.waits.get(stream, -1)}
        if later:
            self.closed()
            self.waits |= later

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that ends with all that this stream has."""
        event = event or Event()
        event.at = self.reached()
        return event

    def synchronize(self) -> None:
        """Do nothing: the host is never behind."""

    def query(self) -> bool:
        """Return True."""
        return True

    def reached(self) -> dict[str, int]:
        """Return the parts after which all that this stream has is done, by their streams."""
        self.closed()
        last = RECORDER.last.get(self.name)
        return self.waits if last is None else {**self.waits, self.name: last}

    def closed(self) -> None:
        """End the part that runs."""
        if self.kernels:
            RECORDER.add(
                Part(
                    self.name,
                    tuple(sorted(self.waits.values())),
                    None,
                    tuple(self.kernels.items()),
                    RECORDER.in_optimizer,
                )
            )
            self.kernels, self.waits = Counter(), {}


class Event:
    """An event of a stream."""

    def __init__(self, *_: object, **__: object):
        self.at: dict[str, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        """Note what a stream has."""
        (stream or RECORDER.stream).record_event(self)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for the event."""
        (stream or RECORDER.stream).wait_event(self)

    def synchronize(self) -> None:
        """Do nothing: the host is never behind."""

    def query(self) -> bool:
        """Return True."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Return a time in ms: a dry run has no clock."""
        return 1.0


@dataclass
class RankRecord:
    """What one rank did. `marks`: how many parts there were after each step, `begin`: before the first forward pass.
    `memory`: bytes by kind at their peak. `compiled`: whether the script calls `torch.compile`. `failed`: place,
    problem and cure of a script that ended in an error, and `ended`: when."""

    rank: int
    parts: list[Part] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    begin: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    fake: bool = False
    compiled: bool = False
    too_large: bool = False
    failed: tuple[str, str, str] | None = None
    ended: float = field(default_factory=time.monotonic)


@dataclass
class Recorder(RankRecord):
    """Records what this process does as one rank."""

    last: dict[str, int] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    group_streams: dict[str, str] = field(default_factory=dict)
    allocations: Allocations = field(default_factory=Allocations)
    mail: Mailbox | None = None
    initialized: bool = False
    in_optimizer: bool = False
    flop: float = 0.0
    nbytes: float = 0.0

    def start(self) -> None:
        """Begin with one stream, on which all kernels run that ask for no other."""
        self.stream = self.default = Stream(name=COMPUTE)

    def starts(self) -> None:
        """Note that the script makes its process group."""
        self.initialized = True

    def compiles(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        """Return `torch.compile` that notes its use. While operations are recorded, it compiles nothing."""

        def noted(*args: Any, fullgraph: bool = False, **kwargs: Any) -> Any:
            self.compiled = True
            warnings.filterwarnings("ignore", "Using `torch.compile")  # of the hook that sees which models are called
            return compile_(*args, **kwargs)

        return noted

    def stream_of(self, group: str, label: str) -> str:
        """Return the stream of a group's calls. Its name is alike on all ranks, unlike torch's name of the group."""
        if group not in self.group_streams:
            number = sum(each.rpartition(" ")[0] == label for each in self.group_streams.values())
            self.group_streams[group] = f"{label} {number}"
        return self.group_streams[group]

    def add(self, part: Part) -> int:
        """Add a part; return its number."""
        self.parts.append(part)
        self.last[part.stream] = len(self.parts) - 1
        return len(self.parts) - 1

    def mark(self) -> None:
        """Note that a step ended."""
        for stream in self.streams:
            stream.closed()
        self.marks.append(len(self.parts))

    def note(self, text: str) -> None:
        """Remember a remark about the script, with the first place that gives rise to it."""
        self.notes.setdefault(text, self.place())

    def place(self) -> str:
        """Return the line of the user's code that runs."""
        frame: Any = sys._getframe(1)
        while frame and ("torch" in frame.f_code.co_filename or frame.f_code.co_filename.startswith((_HOME, "<"))):
            frame = frame.f_back
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""

    def called(self, call: Call, stream: str) -> int:
        """Record a call: it waits for what the current stream has, and the stream for it unless it is asynchronous."""
        number = self.add(Part(stream, tuple(sorted(self.stream.reached().values())), call))
        if call.wait:
            self.wait(number)
        return number

    def call_of(self, number: int) -> Call:
        """Return a call that was recorded."""
        call = self.parts[number].call
        assert call
        return call

    def wait(self, number: int) -> None:
        """Let the current stream wait for a call."""
        self.stream._wait({self.parts[number].stream: number})


RECORDER = Recorder(rank=0)
_HOME: Final = __file__.rpartition("/")[0]


class Recording(TorchDispatchMode):  # type: ignore[misc]
    """While it is active, operations of torch are recorded; collectives are answered without other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = torch_private.fake_mode() if RECORDER.fake else None
        self.functional: dict[int, int] = {}  # storages of functional collectives' results -> the call

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run or answer an operation."""
        if any(torch_private.is_wrapper(kind) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        if torch_private.only_asks():
            return func(*args, **kwargs)
        if func.namespace in ("c10d", "_c10d_functional", "_dtensor"):
            return self.collective(func, args, kwargs)
        return self.computed(func, types, args, kwargs)

    def computed(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, and record its kernel."""
        name = func.overloadpacket.__name__
        among_fakes = any(issubclass(kind, FakeTensor) for kind in types)
        if name == "_local_scalar_dense":
            return self.scalar(func, args[0])
        makes = not among_fakes and all(each.device.type == "meta" for each in flat(args))
        makes = makes and torch.device(kwargs.get("device") or "cpu").type != "meta"
        out = self.made(func, args, kwargs) if makes and self.fake else func(*args, **kwargs)
        for kernel in kernels_of(func, name, args, kwargs, out):
            RECORDER.stream.kernels[kernel] += 1
            RECORDER.flop += kernel.flop
            RECORDER.nbytes += kernel.nbytes
        if not func.is_view:
            RECORDER.allocations.add(flat(out))
        if self.fake is None:
            made = bytes_of(out) if makes and isinstance(out, torch.Tensor) and out.device.type != "meta" else 0
            RECORDER.nbytes += made
            if made > MOST_REAL["tensor"] or RECORDER.nbytes > MOST_REAL["bytes"] or RECORDER.flop > MOST_REAL["flop"]:
                raise TooLargeError
        return out

    def made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a tensor: single numbers (a GradScaler skips steps by one) and few integers with values, others without
        memory."""
        assert self.fake is not None
        with self.fake:
            out = func(*args, **kwargs)
        kept = (
            not isinstance(out, torch.Tensor)
            or (out.dtype.is_floating_point and out.numel() > 1)
            or out.numel() > LARGEST_INTEGERS
        )
        return out if kept or flat(args) else func(*args, **kwargs)

    def scalar(self, func: Any, tensor: Tensor) -> Any:
        """Return the value of a tensor: 1 if the tensor has no memory."""
        if not isinstance(tensor, FakeTensor):
            return func(tensor)
        RECORDER.note("a value of a tensor is asked for and not known: taken as 1 (`if` and `.item()` see that)")
        return False if tensor.dtype == torch.bool else 1.0 if tensor.dtype.is_floating_point else 1

    def collective(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a collective, and answer as if all ranks had this rank's data."""
        name = func.overloadpacket.__name__
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        if name == "wait_tensor":
            number = self.functional.pop(RECORDER.allocations.number(args[0].untyped_storage()), None)
            if number is not None:
                RECORDER.wait(number)
            return args[0]
        if name == "_wrap_tensor_autograd":
            return torch_private.AsyncCollectiveTensor(args[0])
        if name == "batch_p2p_ops":
            group = given["group_name"]
            for kind, peer, tensor in zip(given["op_list"], given["peer_list"], given["tensors"], strict=True):
                self.record(kind, {"tensor": tensor, "dst" if "send" in kind else "src": peer, "group_name": group})
            return given["tensors"]
        kind = NAMES.get(name.removesuffix("_out").rstrip("_").removesuffix("_coalesced"))
        if kind is None:
            return func(*args, **kwargs)
        inputs, outputs = tensors_of(kind, given)
        functional = func.namespace != "c10d"
        if functional and not outputs:
            outputs = self.results(name, inputs, given)
        RECORDER.allocations.add(outputs, received=True)
        wait = not functional and (kind in ("send", "recv") or not given.get("async_op", True))
        wait = wait and kind not in ("send", "recv")
        number = self.record(kind, given, inputs, outputs, wait)
        answer(kind, inputs, outputs, RECORDER.call_of(number), given.get("input_split_sizes"))
        if functional:
            for out in outputs:
                self.functional[RECORDER.allocations.number(out.untyped_storage())] = number
            single = not str(func._schema.returns[0].type).startswith("List")
            return outputs[0] if single else outputs
        work = Done(outputs, lambda: RECORDER.wait(number)).boxed()
        first = args[0]
        return () if not func._schema.returns else (first, work) if len(func._schema.returns) == 2 else work

    def results(self, name: str, inputs: Sequence[Tensor], given: dict[str, Any]) -> list[Tensor]:
        """Return the tensors of a functional collective's results."""
        if name in ("isend", "irecv") or name.endswith("_"):
            return [*inputs]
        made = []
        for each in inputs:
            rows = [*each.shape] or [1]
            if name.startswith("all_gather"):
                rows[0] *= given["group_size"]
            elif name.startswith("reduce_scatter"):
                rows[0] //= given["group_size"]
            elif name == "all_to_all_single":
                rows[0] = sum(given["output_split_sizes"])
            elif name == "shard_dim_alltoall":
                n = torch_private.group_of(given["group_name"]).size()
                rows[given["gather_dim"]] *= n
                rows[given["shard_dim"]] //= n
            made.append(each.new_empty(rows if each.dim() or rows != [1] else []))
        return made

    def record(
        self,
        kind: str,
        given: dict[str, Any],
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
        wait: bool = False,
    ) -> int:
        """Record a call; return its number."""
        kind = NAMES.get(kind, kind)
        if "tensor" in given and not inputs and kind != "barrier":
            inputs = outputs = [given["tensor"]]
        group = torch_private.group_of(given.get("process_group", given.get("group_name")))
        ranks = tuple(torch.distributed.get_process_group_ranks(group))
        if len(set(given.get("input_split_sizes") or [0])) > 1:
            RECORDER.note("the parts of an all_to_all follow from data: taken from this rank's, routing is random")
        root = given.get("root_rank", given.get("src") if kind == "broadcast" else None)
        peer = given.get("dst", given.get("src")) if kind in ("send", "recv") else None
        here = ranks.index(RECORDER.rank)
        handed = inputs if kind != "recv" and not (kind in ("broadcast", "scatter") and root != here) else outputs
        handed = [] if kind == "barrier" else handed
        nbytes, count = sum(map(bytes_of, handed)), sum(each.numel() for each in handed)
        whole = {"all_gather": nbytes * len(ranks), "gather": nbytes * len(ranks)}.get(kind, nbytes)
        if kind == "scatter" and root != here:
            whole = nbytes * len(ranks)
        op = torch_private.reduction(given["reduce_op"]) if "reduce_op" in given else None
        dtype = str((handed or [torch.empty(0, dtype=torch.uint8)])[0].dtype).removeprefix("torch.")
        named = group.group_name
        far = None if peer is None else ranks[peer]
        dimension = group.group_desc.partition("mesh_")[2]
        stream = RECORDER.stream_of(named, dimension or f"{len(ranks)} ranks")
        if far is not None:
            ends = f"{RECORDER.rank}->{far}" if kind == "send" else f"{far}->{RECORDER.rank}"
            stream = f"group {named} {ends}"
        call = Call(kind, op, dtype, nbytes, whole, count, ranks, None if root is None else ranks[root], far, wait,
                    RECORDER.place(), named, dimension)  # fmt: skip
        return RECORDER.called(call, stream)


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def flat(value: Any) -> list[Tensor]:
    """Return all tensors of nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for part in value for each in flat(part)] if isinstance(value, list | tuple) else []


def tensors_of(kind: str, given: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that a rank hands in, and those in which it gets the result."""
    inputs, outputs = (
        [each for name, value in given.items() if name.startswith(which) for each in flat(value)]
        for which in (("input", "tensor"), ("out",))
    )
    outputs = outputs if "output_split_sizes" not in given or "output" in given else []
    return inputs, outputs or (inputs if "tensors" in given or "tensor" in given else [])


def answer(kind: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], call: Call, splits: Any = None) -> None:
    """Fill the results as if all ranks had handed in the data of this rank. Integers are those of the ranks that are
    recorded, too. `splits`: rows that this rank sends to each other, of an all_to_all with unequal ones."""
    if kind == "barrier" and RECORDER.mail:  # files that one rank writes are there for the others
        RECORDER.mail.post(f"barrier {call.group}", ())
        for rank in call.ranks:
            if rank != RECORDER.rank:
                RECORDER.mail.take(rank, f"barrier {call.group}")
    if kind == "barrier" or (not outputs and kind != "send") or any(isinstance(each, FakeTensor) for each in outputs):
        return
    mail, me, own = RECORDER.mail, RECORDER.rank, [*inputs]
    whole = not any(each.dtype.is_floating_point or isinstance(each, FakeTensor) for each in (*inputs, *outputs))
    if kind in ("send", "recv", "broadcast", "scatter") and whole and mail:
        sender = call.peer if kind == "recv" else me if kind == "send" else call.root
        to = f"{call.peer if kind == 'send' else me}" if kind in ("send", "recv") else f"{kind} {call.group}"
        if sender == me:
            mail.post(to, inputs)
        data = own if sender == me else None if sender is None else mail.take(sender, to)
        if data is None and kind == "recv":
            outputs[0].fill_(1)
        elif data is not None and kind != "send":
            part = data[call.ranks.index(me) :] if kind == "scatter" else data
            for out, values in zip(outputs, part, strict=False):
                out.copy_(torch.as_tensor(values, dtype=out.dtype).view(out.shape))
        return
    if not inputs or not outputs:
        return
    with torch.no_grad():
        if kind == "all_to_all" and len(own) == 1:
            own = [*own[0].split(splits or max(1, len(own[0]) // len(call.ranks)))]
        parts = [own[i] if kind == "all_to_all" and i < len(own) else own[0] for i in range(len(call.ranks))]
        if kind in ("all_gather", "all_to_all", "all_reduce") and whole and mail and len(inputs) in (1, len(parts)):
            mail.post(f"{kind} {call.group}", own)
            mine = call.ranks.index(me) if kind == "all_to_all" else 0
            for i, rank in enumerate(call.ranks):
                data = own if rank == me else mail.take(rank, f"{kind} {call.group}")
                parts[i] = parts[i] if data is None else torch.as_tensor(data[mine], dtype=own[0].dtype)
        if kind == "all_reduce" and whole and call.op in ("max", "min", "sum"):
            of_all = torch.stack([each.reshape(own[0].shape) for each in parts])
            outputs[0].copy_({"max": of_all.amax, "min": of_all.amin, "sum": of_all.sum}[call.op](0))
            return
        if outputs[0] is not inputs[0]:
            data_ = torch.cat([each.reshape(-1) for each in parts])
            wanted = sum(each.numel() for each in outputs)
            data_ = data_.repeat(-(-wanted // max(1, data_.numel())))[:wanted]
            if len(data_) == wanted:
                for out, part_ in zip(outputs, data_.split([each.numel() for each in outputs]), strict=True):
                    out.copy_(part_.view(out.shape))
        if call.op == "sum":
            for out in outputs:
                out.mul_(len(call.ranks))
