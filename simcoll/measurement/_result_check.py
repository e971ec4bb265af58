"""Check a real run: inputs that differ between ranks and places, and the exact result that they must give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.measurement._rank_messages import RankTask
from simcoll.schedule.collectives import BITWISE, expected, promised

_LARGEST: Final = {"bfloat16": 256, "float16": 2048, "int8": 127, "uint8": 255}  # whole numbers up to here are exact


def sample(task: RankTask, rank: int) -> NDArray[Any]:
    """Make a rank's buffer: values that differ from rank to rank and place to place.

    Every order of reducing them gives the same exact result in the task's type. bfloat16 comes as float32.
    """
    ranks, place = task.schedule.n, np.arange(task.elements, dtype=np.uint64)
    mixed = (place + np.uint64(7919 * rank + 1)) * np.uint64(0x9E3779B97F4A7C15)
    noise = ((mixed >> np.uint64(33)) ^ mixed) >> np.uint64(8)
    largest = _LARGEST.get(task.dtype, 1000 * ranks)
    if task.op == "product":  # few twos: every product is a small power of two
        values = 1 + (noise % np.uint64(2 * ranks) == 0)
    elif task.op in BITWISE:
        values = noise % np.uint64(128)
    else:
        values = noise % np.uint64(max(1, largest // ranks if task.op in ("sum", "avg") else largest) + 1)
    buffer: NDArray[Any] = values.astype("float32" if task.dtype == "bfloat16" else task.dtype)
    return buffer


def complaint(
    task: RankTask, rank: int, result: NDArray[Any], alive: Callable[[int], None] = lambda rank: None
) -> str | None:
    """Compare the promised slots of a rank with the contract; return a complaint, or None if they agree.

    This takes time with large buffers: `alive` is called for each rank whose buffer is computed.
    """

    def buffer_of(source: int) -> NDArray[Any]:
        alive(source)
        return sample(task, source)

    if not promised(task.schedule, rank):
        return None
    wanted = expected(task.schedule, rank, buffer_of, task.op, task.weights)
    if wanted.shape != result.shape:
        return f"the result has {len(result)} elements, the contract says {len(wanted)}"
    wrong = np.flatnonzero(~np.isclose(wanted, result, rtol=_tolerance(task, wanted), atol=0))
    if not len(wrong):
        return None
    at = int(wrong[0])
    return (
        f"{len(wrong)} of {len(wanted)} elements are wrong: element {at} is {result[at].item()}, "
        f"the contract says {wanted[at].item()}"
    )


def _tolerance(task: RankTask, wanted: NDArray[Any]) -> float:
    """Return the relative error allowed: zero except for avg, which libraries divide in different ways and orders."""
    if task.op != "avg" or wanted.dtype.kind != "f":
        return 0.0
    return max(4, task.schedule.n) * (2.0**-7 if task.dtype == "bfloat16" else float(np.finfo(task.dtype).eps))
