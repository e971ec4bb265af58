"""The contract of each collective, apart from any algorithm: who holds what before, who must hold what after.

A *value* is named by the rank whose data it is and the block of that rank's buffer. `before` says which value each
slot of each rank holds; `after` which value each slot must hold, from how many ranks reduced together.

Sizes are counted as nccl-tests counts them: `size` is the largest buffer a rank holds, so for all_gather,
reduce_scatter, gather and scatter it is ranks × the per-rank part, for all_to_all the whole send buffer of a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.config.arrays import Numbers
from simcoll.config.lru import LruCache
from simcoll.errors import did_you_mean
from simcoll.schedule.ir import split

NOTHING: Final = -1  # before: the slot is undefined; after: nothing is promised
ALL: Final = -2  # after: the reduction over all ranks


Held = Callable[[Numbers, Numbers, int, int, int], tuple[ArrayLike, ArrayLike]]
"""From ranks, slots, n, n_chunks and root to the rank whose value each holds (NOTHING, ALL), and that value's block."""


@dataclass(frozen=True)
class Collective:
    """A contract.

    `before` and `after` say of each rank and slot (arrays that broadcast) what it holds; see `table`. `blocks(n)` is
    the smallest number of chunks that the contract can be said in; a schedule uses a multiple of it. `busbw(n)` is
    nccl-tests' factor from algbw to busbw. `turns` says what leaves the contract as it is: `ranks`: any renaming of
    ranks and any of chunks; `blocks`: one of ranks that renames their blocks alike; empty: nothing need.
    """

    name: str
    summary: str
    before: Held
    after: Held
    blocks: Callable[[int], int]
    busbw: Callable[[int], Fraction]
    rooted: bool = False
    reduces: bool = False
    at_least_once: bool = False  # a contribution may count several times (barrier)
    turns: Literal["ranks", "blocks", ""] = ""

    def table(self, held: Held, n: int, n_chunks: int, root: int = 0, slots: Numbers | None = None) -> Numbers:
        """The contract `held` (`before` or `after`) of every rank and of some slots (default: all).

        int64 (n, slots, 2): the rank whose value a slot holds (or NOTHING, ALL), and the block of that value.
        """
        chosen = np.arange(n_chunks) if slots is None else slots
        values = np.empty((n, len(chosen), 2), np.int64)
        values[..., 0], values[..., 1] = held(np.arange(n)[:, None], chosen[None, :], n, n_chunks, root)
        return values

    def sizes(
        self, nbytes: int, n: int, n_chunks: int, root: int = 0, itemsize: int = 1, weights: object = None
    ) -> NDArray[np.int64]:
        """Bytes of each slot of each rank before the first step, (n, n_chunks); 0 where nothing is held.

        `weights` are per block (gather_v, scatter_v, …), or for all_to_all a row per sending rank.
        Raises ValueError when they do not fit.
        """
        nothing, block = _STARTS.get((self.before, n, n_chunks, root), lambda: self._start(n, n_chunks, root))
        cuts = cut(nbytes, n, n_chunks, itemsize, weights, self.blocks(n))
        if len(cuts) == 1 and (cuts == cuts[0, 0]).all():
            return np.where(nothing, 0, cuts[0, 0])
        of_block = cuts[0][block] if len(cuts) == 1 else np.take_along_axis(cuts, block, axis=1)
        return np.where(nothing, 0, of_block)

    def _start(self, n: int, n_chunks: int, root: int) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
        """Whether each slot of each rank holds nothing before the first step, and the block in it, (n, n_chunks)."""
        held = self.table(self.before, n, n_chunks, root)
        return held[..., 0] == NOTHING, held[..., 1].astype(np.int32)


_STARTS: Final[LruCache[tuple[NDArray[np.bool_], NDArray[np.int32]]]] = LruCache(1 << 20, lambda start: start[1].size)


def cut(nbytes: int, n: int, n_chunks: int, itemsize: int, weights: object, blocks: int) -> NDArray[np.int64]:
    """Sizes of the chunks of a buffer: one row for all ranks, or one a rank when weights differ by rank.

    A buffer is first cut into the contract's blocks (one a rank, for most), and each block into equal chunks.
    """
    each = n_chunks // blocks
    if weights is None and blocks == 1:
        return split(nbytes, each, itemsize)[None, :]
    if weights is None:
        outer = split(nbytes, blocks, itemsize)[None, :]
    else:
        table = np.asarray(weights)
        rows = table if table.ndim == 2 else table[None, :]
        if table.ndim == 2 and len(rows) != n:
            raise ValueError(f"weights must have {n} rows, one a rank, not {len(rows)}")
        outer = np.stack([split(nbytes, blocks, itemsize, row) for row in rows])
    if each == 1:
        return outer
    return np.stack([np.concatenate([split(int(b), each, itemsize) for b in row]) for row in outer])


def _own(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    """Every rank holds its own buffer."""
    return rank, slot


def _own_block(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    """Every rank holds its own block."""
    return np.where(slot // max(1, k // n) == rank, rank, NOTHING), slot


def _at_root(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    """The root holds its buffer, the others nothing."""
    return np.where(rank == root, root, NOTHING), slot


def _all_blocks(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    """Every rank holds block r of rank r, for all r."""
    return slot // max(1, k // n), slot


def _all_blocks_at_root(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    return np.where(rank == root, slot // max(1, k // n), NOTHING), slot


def _reduced(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    return ALL, slot


def _reduced_at_root(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    return np.where(rank == root, ALL, NOTHING), slot


def _reduced_block(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    return np.where(slot // max(1, k // n) == rank, ALL, NOTHING), slot


def _from_root(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    return root, slot


def _block_from_root(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    return np.where(slot // max(1, k // n) == rank, root, NOTHING), slot


def _transposed(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    """Block s of rank r is block r of rank s."""
    each = max(1, k // n)
    return slot // each, rank * each + slot % each


def _at_next(rank: Numbers, slot: Numbers, n: int, k: int, root: int) -> tuple[ArrayLike, ArrayLike]:
    return np.where(rank == (root + 1) % n, root, NOTHING), slot


def _one(n: int) -> int:
    return 1


def _per_rank(n: int) -> int:
    return n


def _plain(n: int) -> Fraction:
    return Fraction(1)


def _but_one(n: int) -> Fraction:
    return Fraction(n - 1, n)


_CONTRACTS: Final = (
    Collective("all_reduce", "everyone gets the reduction of all buffers", _own, _reduced, _one,
               lambda n: Fraction(2 * (n - 1), n), reduces=True, turns="ranks"),
    Collective("reduce", "the root gets the reduction of all buffers", _own, _reduced_at_root, _one, _plain,
               rooted=True, reduces=True),
    Collective("broadcast", "everyone gets the root's buffer", _at_root, _from_root, _one, _plain, rooted=True),
    Collective("all_gather", "everyone gets the block of every rank", _own_block, _all_blocks, _per_rank, _but_one,
               turns="blocks"),
    Collective("reduce_scatter", "rank r gets block r of the reduction", _own, _reduced_block, _per_rank, _but_one,
               reduces=True, turns="blocks"),
    Collective("gather", "the root gets the block of every rank", _own_block, _all_blocks_at_root, _per_rank, _but_one,
               rooted=True),
    Collective("scatter", "rank r gets block r of the root's buffer", _at_root, _block_from_root, _per_rank, _but_one,
               rooted=True),
    Collective("all_to_all", "rank r's block s goes to rank s, as its block r", _own, _transposed, _per_rank, _but_one,
               turns="blocks"),
    Collective("barrier", "nobody leaves before everyone has come", _own, _reduced, _one, lambda n: Fraction(0),
               reduces=True, at_least_once=True),
    Collective("send_recv", "the next rank gets the root's buffer", _own, _at_next, _one, _plain, rooted=True),
)  # fmt: skip

COLLECTIVES: Final[dict[str, Collective]] = {c.name: c for c in _CONTRACTS}


def collective(name: str) -> Collective:
    """The contract called `name`; raises ValueError with the nearest name."""
    if name not in COLLECTIVES:
        raise ValueError(f"{name!r} is no collective; {did_you_mean(name, COLLECTIVES)}")
    return COLLECTIVES[name]
