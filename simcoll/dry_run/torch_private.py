"""All that the dry run takes of torch beyond its public interface, each with the reason why."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.device_mesh
import torch.distributed.fsdp
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor  # tensors with a shape and no memory: torch has no
from torch._subclasses.fake_tensor import FakeTensorMode  # public name for them
from torch.distributed._functional_collectives import AsyncCollectiveTensor as AsyncCollectiveTensor  # waits when used
from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the only group that needs no other rank
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # the only way to see every operation

OPS: Final = (  # of torch.distributed.ReduceOp, by the number under which an operation names them
    *("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"),
)


def fake_mode() -> FakeTensorMode:
    """Return a mode in which tensors have no memory. Real ones may be mixed in: integers keep their values."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def patched() -> list[tuple[Any, dict[str, Any]]]:
    """Return the parts of torch that a dry run changes, with what they have before."""
    owners: list[Any] = [dist, dist.distributed_c10d, dist.device_mesh, dist.fsdp, torch.cpu, torch.cuda, torch.version]
    owners += [torch.cuda.nvtx, torch.cuda.nccl, torch.multiprocessing, torch.autocast, torch.Tensor, torch.nn.Module]
    owners += [torch.nn.parallel.DistributedDataParallel, dist.DeviceMesh, torch.UntypedStorage]
    return [(owner, dict(vars(owner))) for owner in owners]


def restore(before: list[tuple[Any, dict[str, Any]]]) -> None:
    """Give torch back what it had."""
    for owner, names in before:
        for name, value in dict(vars(owner)).items():
            if name not in names:
                delattr(owner, name)
            elif names[name] is not value:
                setattr(owner, name, names[name])


def change(**keys: Any) -> None:
    """Give DDP another `bucket_cap_mb`, and `fully_shard` another `reshard_after_forward`, than a script does."""
    whole, shard = torch.nn.parallel.DistributedDataParallel.__init__, torch.distributed.fsdp.fully_shard
    ddp, fsdp = ({key: keys[key] for key in keys if key == own} for own in ("bucket_cap_mb", "reshard_after_forward"))
    if ddp:
        torch.nn.parallel.DistributedDataParallel.__init__ = lambda self, *args, **given: whole(
            self, *args, **{**given, **ddp}
        )
    if fsdp:
        torch.distributed.fsdp.fully_shard = lambda module, **given: shard(module, **{**given, **fsdp})


def convert_without_memory() -> None:
    """Let `Module.to` and the like convert tensors without memory: torch's own way wants to swap them, and refuses."""

    def apply(self: Any, convert: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        for child in self.children() if recurse else ():
            child._apply(convert)
        for key, tensor in [*self._parameters.items(), *self._buffers.items()]:
            with torch.no_grad():
                made = tensor if tensor is None else convert(tensor)
            if made is tensor or tensor is None or made is None:
                continue
            if key in self._buffers:
                self._buffers[key] = made
            elif made.device == tensor.device:
                tensor.data = made
            else:
                self._parameters[key] = torch.nn.Parameter(made, tensor.requires_grad)
        return self

    torch.nn.Module._apply = apply


def watch_sizes(resized: Callable[[torch.UntypedStorage], None]) -> None:
    """Call `resized` after a storage got another size, which is no operation of torch."""
    resize = torch.UntypedStorage.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        found = resize(self, size)
        resized(self)
        return found

    torch.UntypedStorage.resize_ = resize_


def only_asks() -> bool:
    """Whether torch tries an operation without memory to learn the shape of its result, as DTensor does."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def compute_on_cpu() -> None:
    """Let what names a GPU by its type or number, and not by a device, compute on the CPU: DDP, autocast and meshes."""
    ddp, autocast, mesh = torch.nn.parallel.DistributedDataParallel, torch.autocast, dist.DeviceMesh
    make, begin, lay_out = ddp.__init__, autocast.__init__, mesh.__init__

    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any) -> None:
        make(self, module, None, None, *args, **kw)

    def cast(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        gpu = device_type == "cuda"
        begin(self, "cpu" if gpu else device_type, torch.float16 if gpu and dtype is None else dtype, *args, **kwargs)

    def of_devices(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        lay_out(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    ddp.__init__, autocast.__init__, mesh.__init__ = init, cast, of_devices


def is_wrapper(kind: type) -> bool:
    """Whether tensors of this class consist of others (DTensor), whose operations will be seen themselves."""
    return hasattr(kind, "__tensor_flatten__")


def local(value: Any) -> Any:
    """Return this rank's part of a distributed tensor; other values as they are. `to_local` takes a hundred times as
    long."""
    return getattr(value, "_local_tensor", value)


def group_of(named: Any) -> Any:
    """Return the process group that an operation names: by a script object, or by its name."""
    if isinstance(named, str):
        return dist.distributed_c10d._resolve_process_group(named)
    return named if isinstance(named, dist.ProcessGroup) else dist.ProcessGroup.unbox(named)


def reduction(named: Any) -> str:
    """Return the name of an operation's reduction."""
    return named if isinstance(named, str) else OPS[int(named.op())]


class Done(dist.Work):  # type: ignore[misc]
    """The handle of a call, which has its result at once. torch's own handle of the fake group has no future."""

    alive: Final[list[Any]] = []  # torch holds only the half of them that is in C++

    def __init__(self, result: list[torch.Tensor], waited: Callable[[], None]):
        super().__init__()
        self.results, self.waited = [*map(weakref.ref, result)], waited  # memory is freed as on a cluster
        self.alive.append(self)

    def wait(self, timeout: object = None) -> bool:
        """Say that the current stream waits for the call."""
        self.waited()
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def result(self) -> list[torch.Tensor]:
        """Return the tensors, as far as the script holds them."""
        return [tensor for each in self.results if (tensor := each()) is not None]

    def get_future(self) -> Any:
        """Return a future that has the tensors. DDP asks for it, and waits at the end of the backward pass. Nobody can
        see that wait; the engine of autograd alone tells when the pass ends."""
        future: Any = torch.futures.Future()
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self.waited)
        except RuntimeError:  # no backward pass runs
            self.waited()
        future.set_result(self.result())
        return future


def pretend(rank: int, world: int, started: Callable[[], None]) -> None:
    """Let every process group be one that needs no other rank, whatever backend is asked for;
    `started` is called when a script begins. torch offers no way to
    replace the backends nccl and gloo."""
    init, new = dist.init_process_group, dist.distributed_c10d.new_group
    asked = ["nccl"]

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        kept = {name: kwargs[name] for name in ("timeout", "group_name", "pg_options") if name in kwargs}
        kept.pop("pg_options", None)
        started()
        asked.append(str(backend or kwargs.get("backend") or "nccl").split(":")[-1])
        init("fake", rank=rank, world_size=world, store=FakeStore(), **kept)

    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        return new(ranks, timeout, None, None, *args, **kwargs)

    def get_backend(group: Any = None) -> Any:  # gradients of collectives are others on gloo than on NCCL
        return dist.Backend(asked[-1])

    dist.get_backend = get_backend
    own = {"init_process_group": init_process_group, "new_group": new_group, "is_nccl_available": lambda: True}
    for module in (dist, dist.distributed_c10d, sys.modules["torch.distributed.device_mesh"]):
        for name, function in own.items():
            if hasattr(module, name):
                setattr(module, name, function)
