"""Algorithms for tori and meshes: the groups are the dimensions of a grid, and every rank uses all its links at once.

The buffer is cut into two parts a dimension. Each part begins with another dimension and direction, so that no two
parts share a link of a torus with equal sides. On a mesh, a ring closes over the links of its own line, in the opposite
direction. Every link then carries two messages at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from simcoll.schedule import building_blocks
from simcoll.schedule.building_blocks import Ranks
from simcoll.schedule.registry import Request, register
from simcoll.schedule.steps import Rotation, StepPattern, send, together


def _grid(request: Request) -> Ranks:
    """Return the ranks as an array with one axis for each dimension, without dimensions of one rank."""
    grid = request.equal_groups()
    return grid.reshape([side for side in grid.shape if side > 1] or [1])


def _ports(request: Request) -> int:
    """Return the number of links a rank can use at once; the buffer is cut into as many parts."""
    return 1 if request.options.get("ports") == "one" else 2 * _grid(request).ndim


def _chunks(request: Request) -> int:
    return request.n * _ports(request)


def _parts(request: Request, mirrored: Callable[[Ranks], Ranks] = np.flip) -> list[tuple[Ranks, Ranks]]:
    """Return for every part of the buffer a view of the grid, and the chunk of each rank in the part, in the view's
    order.

    Each axis comes last in two views. One of the two is `mirrored`: its rings run in the opposite direction.
    """
    grid, ports = _grid(request), _ports(request)
    turned = [grid.transpose(np.roll(np.arange(grid.ndim), shift)) for shift in range(grid.ndim)]
    views = [view for forth in turned for view in (forth, mirrored(forth))]
    return [(view, view * ports + part) for part, view in enumerate(views[:ports])]


def _turned(request: Request) -> Rotation:
    """Return the schedule's symmetry: a shift of all ranks by one along the first axis, and of the chunks along with
    them."""
    grid = _grid(request)
    return Rotation(grid.size // len(grid), _chunks(request) // len(grid), _chunks(request))


@register("all_reduce", "ring_by_dimension", chunks=_chunks, uses_groups=True, rotation=_turned)
def all_reduce_by_dimension(request: Request) -> Iterator[StepPattern]:
    """Ring reduce-scatters along each dimension in turn, then ring all-gathers back; equal groups are the dimensions.

    D sides of k take 2D(k−1) steps. Each of 2D parts begins with another dimension and direction; `hierarchical` is
    the same with all data in one part. (Barnett, Littlefield, Payne, van de Geijn, "Global combine on mesh
    architectures with wormhole routing", 1993; Sack, Gropp, "Collective algorithms for multiported torus networks",
    2015.)
    """
    yield from reduce_scatter_by_dimension(request)
    yield from all_gather_by_dimension(request)


@register("reduce_scatter", "ring_by_dimension", chunks=_chunks, uses_groups=True, rotation=_turned)
def reduce_scatter_by_dimension(request: Request) -> Iterator[StepPattern]:
    """Rings along each dimension in turn; 2D parts begin with different dimensions: D(k−1) steps for k ranks a side."""
    yield from together(*(building_blocks.grid_reduce_scatter(*part) for part in _parts(request)))


@register("all_gather", "ring_by_dimension", chunks=_chunks, uses_groups=True, rotation=_turned)
def all_gather_by_dimension(request: Request) -> Iterator[StepPattern]:
    """Rings along each dimension in turn; 2D parts end with different dimensions: D(k−1) steps for k ranks a side."""
    yield from together(*(building_blocks.grid_all_gather(*part) for part in _parts(request)))


@register(
    "all_reduce",
    "swing",
    chunks=_chunks,
    uses_groups=True,
    options={"ports": ("all", "one")},
)
def swing(request: Request) -> Iterator[StepPattern]:
    """Halves go to ranks 1, −1, 3, −5, … away, in each dimension in turn: 2 log2 n steps; equal groups are dimensions.

    De Sensi, Bonato, Saam, Hoefler, "Swing: short-cutting rings for higher bandwidth allreduce", NSDI 2024, its
    bandwidth-optimal form: in step s rank r of a ring swaps with r ± ρ(s), ρ(s) = Σ (−2)^i for i ≤ s, + for even and −
    for odd r; then all-gather back. Sides that are even but no power of two take ⌈log2⌉ steps; the last of them leave
    out blocks that a rank already has. The last rank of an odd side swaps blocks with each other rank of its line
    directly. `ports=one` keeps all data in one part, for ranks with one link.
    """
    moves = [list(_gathering(grid, chunks)) for grid, chunks in _parts(request, _one_on)]
    yield from together(*([send(dst, src, slot, reduce=True) for src, dst, slot in reversed(part)] for part in moves))
    yield from together(*([send(src, dst, slot) for src, dst, slot in part] for part in moves))


def _one_on(grid: Ranks) -> Ranks:
    """Return the grid shifted by one along each axis, so that even and odd ranks swap their directions."""
    axes = range(grid.ndim)
    return np.roll(grid, [1 for _ in axes], list(axes))


def _gathering(grid: Ranks, chunks: Ranks) -> Iterator[tuple[Ranks, Ranks, Ranks]]:
    """Yield senders, receivers and slots of each step of swing's all-gather. Every rank gets each other rank's chunk
    once."""
    slot = np.empty(grid.size, np.int64)
    slot[grid] = chunks
    has = np.eye(grid.size, dtype=np.bool_)  # [rank, owner of a block]
    for src, dst in reversed(list(_swings(grid))):
        message, block = np.nonzero(has[src] & ~has[dst])
        has[dst[message], block] = True
        yield src[message], dst[message], slot[block]


def _swings(grid: Ranks) -> Iterator[tuple[Ranks, Ranks]]:
    """Return senders and receivers of each step of a reduce-scatter. Steps alternate between dimensions."""
    lines = [np.moveaxis(grid, axis, 0).reshape(grid.shape[axis], -1) for axis in reversed(range(grid.ndim))]
    yield from _in_turn([list(_swings_of(line)) for line in lines])


def _in_turn(steps: Sequence[Sequence[tuple[Ranks, Ranks]]]) -> Iterator[tuple[Ranks, Ranks]]:
    """Return the first steps of all dimensions, then the second steps, and so on; a dimension may have fewer steps."""
    for number in range(max(map(len, steps))):
        yield from (each[number] for each in steps if number < len(each))


def _swings_of(line: Ranks) -> Iterable[tuple[Ranks, Ranks]]:
    """Return the steps along one dimension. `line` is (m, parallel lines). If m is odd, rank m−1 takes part in the last
    step only."""
    core, odd = np.split(line, [len(line) - len(line) % 2])
    place, steps = np.arange(len(core)), (len(core) - 1).bit_length() if len(core) else 0
    for step in range(steps):
        distance = (1 - (-2) ** (step + 1)) // 3
        peer = core[(place + np.where(place % 2, -distance, distance)) % len(core)]
        pairs = [(core, peer)]
        if len(odd) and step == steps - 1:
            other = np.broadcast_to(odd, core.shape)
            pairs += [(core, other), (other, core)]
        src, dst = (np.concatenate([column.ravel() for column in columns]) for columns in zip(*pairs, strict=True))
        yield src, dst
