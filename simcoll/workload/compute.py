"""How long the parts of a training step compute on a GPU: measured tables of GEMMs and attention, scaled to GPUs that
have none, and the parameters of GPUs and frameworks (`gpus.yaml`, `frameworks.yaml`). All times are seconds."""

from __future__ import annotations

import bisect
import csv
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Model
from simcoll.errors import did_you_mean, wrong

M = TypeVar("M", bound=Model)
T = TypeVar("T")
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
Kernels = Literal["eager", "compiled", "fused"]
BASE: Final = "bf16"  # the type of compute that every GPU and every table has
SPREAD: Final = 0.0236  # standard deviation of the GEMM times of GPUs of one kind; fitted, as is all in gpus.yaml
BACKWARD: Final = 2.5  # attention's backward pass over its forward pass: five matrix products for two


class Gpu(Model):
    """A GPU: dense peaks in FLOP/s by type of compute, its memory in bytes, and what training jobs make of it."""

    text: str
    like: str | None = None
    table: str | None = None
    peak: dict[str, Positive] = Field({})
    hbm: Positive = 1.0
    memory: Positive = 1.0
    gemm: dict[str, Positive] = Field({})
    hbm_efficiency: Positive = 1.0
    interference: Positive = 1.0

    @property
    def source(self) -> str:
        """The name of the measured table behind its times."""
        return self.table or gpus()[self.like or ""].source


class Attention(Model):
    """A way to compute attention: by the measured table, or with a share of the peak by table's GPU."""

    text: str
    table: bool = False
    efficiency: dict[str, Positive] = Field({})
    score_bytes: float = 0.0


class Framework(Model):
    """A training framework: its kernels, their memory traffic, and what launching a layer's pass takes, in seconds."""

    text: str
    kernels: Kernels
    attention: str
    tensor_shown: Annotated[float, Field(ge=0, le=1)]
    tensor_beside: bool = True
    adds_apart: bool = False
    recompute_stops: bool = False
    logits: Positive = 10.0
    launch: dict[Kernels, Seconds]
    gap: Seconds = 0.0
    skew: Seconds = 0.0
    launch_late: Seconds = 0.0
    elementwise: dict[Kernels, Positive]
    holds: tuple[Positive, Positive] = (0.88, 1.18)


class _Gpus(Model):
    gpus: dict[str, Gpu]


class _Frameworks(Model):
    attention: dict[str, Attention]
    frameworks: dict[str, Framework]


@functools.cache
def gpus() -> dict[str, Gpu]:
    """Return the known GPUs by name. Keys that a GPU lacks come from the GPU that it is like."""
    given = _read(_Gpus, "gpus.yaml").gpus

    def whole(gpu: Gpu) -> Gpu:
        if gpu.like is None:
            return gpu
        own = {key: getattr(gpu, key) for key in gpu.model_fields_set}
        return whole(given[gpu.like]).model_copy(update={"table": None, **own})

    return {name: whole(gpu) for name, gpu in given.items()}


def frameworks() -> dict[str, Framework]:
    """Return the known frameworks by name."""
    return _known_frameworks().frameworks


def attentions() -> dict[str, Attention]:
    """Return the known ways to compute attention by name."""
    return _known_frameworks().attention


@functools.cache
def _known_frameworks() -> _Frameworks:
    return _read(_Frameworks, "frameworks.yaml")


def _read(model: type[M], name: str) -> M:
    return yaml_tree.validate(model, [yaml_tree.read(Path(__file__).parent / name)])[0]


@dataclass(frozen=True)
class Table:
    """Measured seconds on a grid of sizes. Between the sizes, the time per unit of work is interpolated, linearly in
    the logarithm of each size. Above the grid, the time per unit of work stays; below it, the time does."""

    axes: tuple[tuple[int, ...], ...]
    times: dict[tuple[int, ...], float]
    powers: tuple[int, ...]  # the work is the product of the sizes to these powers

    def seconds(self, *sizes: float) -> float:
        """Return the time at `sizes`, one for each axis."""
        near = [_between(axis, size) for axis, size in zip(self.axes, sizes, strict=True)]
        rate = 0.0
        for corner in itertools.product(*near):
            share = math.prod(weight for _, weight in corner)
            if share:
                grid = tuple(size for size, _ in corner)
                rate += share * self.times[grid] / self._work(grid)
        return rate * self._work([max(size, axis[0]) for axis, size in zip(self.axes, sizes, strict=True)])

    def _work(self, sizes: Sequence[float]) -> float:
        return math.prod(size**power for size, power in zip(sizes, self.powers, strict=True))


def _between(axis: Sequence[int], size: float) -> list[tuple[int, float]]:
    """Return the sizes of the grid around `size`, and their weights."""
    above = bisect.bisect_left(axis, size)
    if above in (0, len(axis)):
        return [(axis[min(above, len(axis) - 1)], 1.0)]
    low, high = axis[above - 1], axis[above]
    weight = math.log(size / low) / math.log(high / low)
    return [(low, 1 - weight), (high, weight)]


@functools.cache
def tables(gpu: str) -> dict[str, Table]:
    """Return the measured tables of a GPU: of GEMMs by type of compute, and `attention`, by name."""
    found: dict[str, dict[tuple[int, ...], float]] = {}
    folder = Path(__file__).parent / "compute_tables"
    for kind, rows in (("gemm", 3), ("attention", 2)):
        lines = (folder / f"{kind}_{gpu}.csv").read_text().splitlines()
        head, *body = csv.reader(line for line in lines if not line.startswith("#"))
        columns = [int(size) for size in head[rows:]]
        for cells in body:
            name, sizes = (cells[0], cells[1:rows]) if kind == "gemm" else (kind, cells[:rows])
            into, rate = found.setdefault(name, {}), 0.0
            for column, cell in zip(columns, cells[rows:], strict=True):
                work = column ** (1 if kind == "gemm" else 2)
                rate = float(cell) / work if cell else rate  # not measured: as long for its work as the size before
                into[(*map(int, sizes), column)] = rate * work * 1e-6
    return {
        name: Table(_axes(times), times, (1, 1, 2) if name == "attention" else (1, 1, 1))
        for name, times in found.items()
    }


def _axes(times: dict[tuple[int, ...], float]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(sorted(set(sizes))) for sizes in zip(*times, strict=True))


def slowest(gpus: int) -> float:
    """Return the expected time of GEMMs on the slowest of some GPUs over their mean time (Blom's approximation). At
    their power limit GPUs of one kind differ, and each step waits for the slowest.

    >>> [round(slowest(gpus), 3) for gpus in (1, 8, 1024)]
    [1.0, 1.034, 1.076]
    """
    return 1 + SPREAD * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


@dataclass(frozen=True, eq=False)  # hashed by identity, as caches are
class Compute:
    """The times of the parts of a step on a GPU with a framework."""

    gpu: str
    of: Gpu
    framework: Framework
    kernels: Kernels
    kernel: Attention
    cuda_graphs: bool

    @property
    def lent(self) -> bool:
        """Whether the GPU has no measured table, and takes another's, scaled by peak and bandwidth."""
        return self.of.table is None

    @property
    def alike(self) -> bool:
        """Whether the GPU of the measured table computes at the same rates, so that at most their memories differ."""
        return self.of.peak == gpus()[self.of.source].peak

    @property
    def label(self) -> str:
        """Where the times come from, in words."""
        return f"scaled from {self.of.source}" if self.lent else f"measured on {self.of.source}"

    @property
    def memory_bytes(self) -> float:
        """Size of the GPU's memory."""
        return self.of.memory

    @property
    def launch_s(self) -> float:
        """Return the launch floor of a rank by itself."""
        return self.floor_s()

    @property
    def gap_s(self) -> float:
        """Seconds in which the GPU idles in a pass over a layer, between kernels; a backward pass is two passes."""
        return 0.0 if self.cuda_graphs else self.framework.gap

    def floor_s(self, tp: int = 1, late_hosts: bool = False) -> float:
        """Return the least seconds of a pass over a layer, as the CPU launches its kernels; a backward pass is two
        passes. If hosts are late, it grows with the `tp` ranks of a tensor-parallel group, which await each other."""
        if self.cuda_graphs:
            return 0.0
        way = self.framework
        return way.launch.get(self.kernels, 0.0) + (way.launch_late * tp if tp > 1 and late_hosts else 0.0)

    def peak(self, dtype: str = BASE) -> float:
        """Return the dense peak in FLOP/s. Raises InputError for a type that the GPU does not compute in."""
        if dtype not in self.of.peak:
            have = ", ".join(self.of.peak)
            raise wrong("workload.dtypes.compute", f"{self.gpu} does not compute in {dtype}", f"write one of {have}")
        return self.of.peak[dtype]

    @functools.lru_cache(maxsize=100_000)  # noqa: B019  # a process has few of these objects
    def gemm_s(self, m: int, n: int, k: int, dtype: str = BASE) -> float:
        """Return the seconds of a product of an m x k with a k x n matrix. Forward: m tokens, n outputs, k inputs."""
        peak, measured = self.peak(dtype), tables(self.of.source)
        base = dtype if dtype in measured else BASE
        table, nbytes = gpus()[self.of.source], 2 * (m * k + k * n + m * n)
        roof = max(2 * m * n * k / peak, nbytes / self.of.hbm)
        roof_of_table = max(2 * m * n * k / table.peak[base], nbytes / table.hbm)
        slower = self.of.gemm.get(dtype, self.of.gemm[BASE])
        return slower * measured[base].seconds(m, n, k) * roof / roof_of_table

    def attention_s(
        self,
        batch: int,
        heads: int,
        kv_heads: int,
        queries: int,
        keys: int,
        head_dim: int,
        causal: bool = True,
        backward: bool = False,
    ) -> float:
        """Return the seconds of a pass of attention's core with `heads` on this GPU, in each of `batch` sequences of
        `queries` and `keys` tokens."""
        flop = 4 * batch * heads * queries * keys * head_dim
        if self.kernel.table:
            took = tables(self.of.source)["attention"].seconds(head_dim, batch * heads, math.sqrt(queries * keys))
            took *= gpus()[self.of.source].peak[BASE] / self.of.peak[BASE] * (1 if causal else 2)
            return took * (BACKWARD if backward else 1)
        reached = self.of.peak[BASE] * self.kernel.efficiency[self.of.source]
        if self.kernel.score_bytes:  # all scores are computed and go through memory
            return (2 if backward else 1) * (
                flop / reached + self.kernel.score_bytes * batch * heads * queries * keys / self.of.hbm
            )
        return flop / (2 if causal else 1) / reached * (BACKWARD if backward else 1)

    def elementwise_s(self, nbytes: float) -> float:
        """Return the seconds of elementwise operations that read and write at least `nbytes`."""
        return nbytes * self.framework.elementwise[self.kernels] / (self.of.hbm * self.of.hbm_efficiency)

    def optimizer_s(self, nbytes: float) -> float:
        """Return the seconds of an optimizer that reads and writes `nbytes`."""
        return nbytes / (self.of.hbm * self.of.hbm_efficiency)

    def interference_s(self, nbytes: float) -> float:
        """Return the seconds of computing that hidden communication of `nbytes` costs."""
        return nbytes / self.of.interference


@functools.cache
def compute_of(
    gpu: str,
    framework: str | None = None,
    kernels: Kernels | None = None,
    attention: str | None = None,
    cuda_graphs: bool = False,
) -> Compute:
    """Return the times on a GPU with a framework, by default Megatron. `kernels` and `attention` are by default the
    framework's own. Raises InputError for an unknown name."""
    way = _named("framework.name", framework or "megatron", frameworks())
    kind = kernels or way.kernels
    kernel = _named("framework.attention", attention or way.attention, attentions())
    return Compute(gpu, _named("gpu", gpu, gpus()), way, kind, kernel, cuda_graphs)


def _named(key: str, name: str, known: dict[str, T]) -> T:
    if name not in known:
        raise wrong(f"workload.{key}", f"{name!r} is unknown", did_you_mean(name, known))
    return known[name]
