"""The check of a real run: inputs that tell ranks and places apart, and the result they must give, exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.measurement.rank_tasks import RankTask
from simcoll.schedule.group_contracts import BITWISE, expected, promised

_LARGEST: Final = {"bfloat16": 256, "float16": 2048, "int8": 127, "uint8": 255}  # whole numbers up to here are exact


def sample(task: RankTask, rank: int) -> NDArray[Any]:
    """A rank's buffer: values that differ from rank to rank and place to place, such that every order of reducing gives
    the same exact result in the task's type. bfloat16 comes as float32."""
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
    found: NDArray[Any] = values.astype("float32" if task.dtype == "bfloat16" else task.dtype)
    return found


def complaint(
    task: RankTask, rank: int, found: NDArray[Any], alive: Callable[[int], None] = lambda rank: None
) -> str | None:
    """What is wrong with what a rank's promised slots hold in the end; None if they hold what the contract says.

    With large buffers this takes its time: `alive` is called for each rank whose buffer is looked at.
    """

    def buffer_of(one: int) -> NDArray[Any]:
        alive(one)
        return sample(task, one)

    if not promised(task.schedule, rank):
        return None
    wanted = expected(task.schedule, rank, buffer_of, task.op, task.weights)
    if wanted.shape != found.shape:
        return f"the result has {len(found)} elements, the contract says {len(wanted)}"
    wrong = np.flatnonzero(~np.isclose(wanted, found, rtol=_tolerance(task, wanted), atol=0))
    if not len(wrong):
        return None
    at = int(wrong[0])
    return (
        f"{len(wrong)} of {len(wanted)} elements are wrong: element {at} is {found[at].item()}, "
        f"the contract says {wanted[at].item()}"
    )


def _tolerance(task: RankTask, wanted: NDArray[Any]) -> float:
    """None but for avg: some divide by multiplying with a rounded inverse, and some do so before they add up."""
    if task.op != "avg" or wanted.dtype.kind != "f":
        return 0.0
    return max(4, task.schedule.n) * (2.0**-7 if task.dtype == "bfloat16" else float(np.finfo(task.dtype).eps))
