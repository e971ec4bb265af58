"""Let a script that asks for GPUs run on the CPU: devices are mapped, and streams are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from simcoll.dry_run import torch_private
from simcoll.dry_run.recorder import RECORDER, Event, Stream
from simcoll.dry_run.torch_private import FakeTensor

DROPOUT_AT: Final = {  # attention -> place of its dropout, with which the CPU has no kernel for the whole of it
    "scaled_dot_product_attention": 4, "multi_head_attention_forward": 10,
}  # fmt: skip


class Told(NamedTuple):
    """What a script is told of a GPU: its name, its memory in bytes, its compute capability."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int = 132
    warp_size: int = 32


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """While it is active, a device `cuda` is the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with other devices."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("cuda", "pin_memory"):
            return args[0]
        if name == "__format__" and RECORDER.fake and not args[0].dim():
            return format(args[0].item(), args[1])
        if name == "data_ptr" and isinstance(args[0], FakeTensor):  # 0 for all; accelerate tells parameters apart by it
            return id(args[0].untyped_storage())
        if name == "chunk" and _many(args, kwargs):
            return _chunks(func, *args, **kwargs)
        if func is torch.device:
            first = next(iter((*args, *kwargs.values())))
            return func(*args, **kwargs) if _on_cpu(first) == first else func("cpu")
        if name in DROPOUT_AT:
            at = DROPOUT_AT[name]
            args = (*args[:at], *(0.0 for _ in args[at : at + 1]), *args[at + 1 :])
            kwargs = {key: 0.0 if key == "dropout_p" else value for key, value in kwargs.items()}
        if name in ("to", "_parse_to"):
            args = tuple(map(_on_cpu, args))
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _on_cpu(kwargs["device"])}
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    """Return the CPU for a GPU: a device, its name, or its number."""
    if isinstance(value, torch.device | str):
        return "cpu" if str(value).split(":")[0] == "cuda" else value
    return "cpu" if isinstance(value, int) and not isinstance(value, bool) else value


def _many(args: Any, kwargs: Any) -> bool:
    return len(args) > 1 and isinstance(args[1], int) and args[1] >= 16 and RECORDER.fake


def _chunks(func: Any, tensor: torch.Tensor, n: int, dim: int = 0) -> Any:
    """Return the parts of a tensor without memory. Equal ones are one: making a thousand takes long."""
    length = tensor.shape[dim]
    size = -(-length // n) if length else 0
    if not size:
        return func(tensor, n, dim)
    whole, left = divmod(length, size)
    last = [tensor.narrow(dim, whole * size, left)] if left else []
    return (*[tensor.narrow(dim, 0, size)] * whole, *last)


def install(local_rank: int, local_world: int, gpu: Told) -> None:
    """Give torch.cuda what scripts ask of it; and record the streams of torch.cpu, which FSDP2 uses."""

    for module in (torch.cpu, torch.cuda):
        own: Any = module
        own.Stream, own.Event, own.stream = Stream, Event, _stream()
        own.current_stream, own.default_stream = _constant(lambda: RECORDER.stream), _constant(lambda: RECORDER.default)
        own.current_device, own.device_count = _constant(lambda: local_rank), _constant(lambda: local_world)
        own.synchronize, own.set_device = _constant(), _constant()
    cuda: Any = torch.cuda
    cuda.set_stream, cuda.empty_cache, cuda.reset_peak_memory_stats, cuda.init = (_constant() for _ in range(4))
    cuda.get_device_name, cuda.get_device_properties = _constant(lambda: gpu.name), _constant(lambda: gpu)
    cuda.get_device_capability = _constant(lambda: (gpu.major, gpu.minor))
    cuda.mem_get_info = _constant(lambda: (gpu.total_memory, gpu.total_memory))
    cuda.is_available, cuda.is_bf16_supported = _constant(lambda: True), _constant(lambda: True)
    cuda.get_rng_state, cuda.set_rng_state = _constant(torch.get_rng_state), _constant()
    cuda.device = _constant(contextlib.nullcontext)
    cuda.nvtx.range_push, cuda.nvtx.range_pop, cuda.nvtx.mark = _constant(), _constant(), _constant()
    cuda.nccl.version, torch.version.cuda = _constant(lambda: (2, 27, 7)), "12.8"
    torch.Tensor.record_stream = _constant()
    torch.multiprocessing.spawn = _spawn
    torch_private.compute_on_cpu()


def _spawn(*args: object, **kwargs: object) -> None:
    raise RuntimeError("torch.multiprocessing.spawn would start ranks of its own")


def _constant(value: Callable[[], Any] = lambda: None) -> Callable[..., Any]:
    """Return a new function that ignores its arguments: torch's compiler knows functions by identity."""
    return lambda *args, **kwargs: value()


def _stream() -> Callable[[Stream | None], Any]:
    @contextlib.contextmanager
    def stream(chosen: Stream | None) -> Iterator[None]:
        before = RECORDER.stream
        before.closed()
        RECORDER.stream = chosen or before
        try:
            yield
        finally:
            RECORDER.stream.closed()
            RECORDER.stream = before

    return stream
