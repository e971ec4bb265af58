"""Let a script that asks for GPUs run on the CPU: devices are mapped, and streams are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from simcoll.dry_run.recorder import RECORDER, Event, Stream


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """While it is active, a device `cuda` is the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with other devices."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        if name == "chunk" and _many(args, kwargs):
            return _chunks(func, *args, **kwargs)
        if name == "pin_memory":
            return args[0]
        if name in ("to", "type") or "device" in kwargs:
            args = tuple(map(_on_cpu, args))
            kwargs = {key: _on_cpu(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    """Return a device, or its name, on the CPU."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


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


def install(local_rank: int, local_world: int) -> None:
    """Give torch.cuda what scripts ask of it; and record the streams of torch.cpu, which FSDP2 uses."""

    for module in (torch.cpu, torch.cuda):
        own: Any = module
        own.Stream, own.Event, own.stream = Stream, Event, _stream()
        own.current_stream, own.default_stream = _constant(lambda: RECORDER.stream), _constant(lambda: RECORDER.default)
        own.current_device, own.device_count = _constant(lambda: local_rank), _constant(lambda: local_world)
        own.synchronize, own.set_device = _constant(), _constant()
    cuda: Any = torch.cuda
    cuda.set_stream, cuda.empty_cache, cuda.reset_peak_memory_stats, cuda.init = (_constant() for _ in range(4))
    cuda.get_device_name = _constant(lambda: "dry run")
    cuda.get_device_capability, cuda.mem_get_info = _constant(lambda: (9, 0)), _constant(lambda: (2**36, 2**36))
    torch.Tensor.record_stream = _constant()


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
