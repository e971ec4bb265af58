"""Routes on a torus in closed form: the same as the search finds, for many pairs at once.

A shortest route goes along each axis by the shorter way round, by either where both are as long. The routes from one
place to another are the orders in which these steps can be taken; they are numbered by their links, lowest first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from simcoll.config.arrays import Array, Numbers, distinct
from simcoll.topology.routing import ENDPOINTS, Router

MOST_ROUTES: Final = 1 << 40  # more are not told apart: routes are numbered by 32 bits


class TorusRoutes:
    """Routes between the devices of a torus, whose numbers are their places, the last of `dims` varying fastest."""

    def __init__(self, dims: Sequence[int], links: Array):
        """`links` (axes, 2, devices) are those to the next and to the one before along each axis."""
        self.dims, self.links = np.array(dims), links
        self.pace = np.append(np.cumprod(self.dims[:0:-1])[::-1], 1)  # from a place to the next along an axis
        orders = [self._orders(steps) for steps in itertools.product(*(range(size // 2 + 1) for size in dims))]
        self._count = np.array(orders, np.int64).reshape([size // 2 + 1 for size in dims])

    @staticmethod
    def _orders(steps: Sequence[int]) -> int:
        """The orders in which so many steps along each axis can be taken."""
        totals = list(itertools.accumulate(steps))
        return min(MOST_ROUTES, math.prod(math.comb(a, b) for a, b in zip(totals, steps, strict=True)))

    @classmethod
    def of(cls, router: Router, dims: Sequence[int]) -> TorusRoutes | None:
        """None where the links are not those of a torus of machines of one device each."""
        count, (tail, head) = len(router.kinds), np.array(router.links, np.int64).reshape(-1, 2).T
        machines = {*router.nodes} - {None}
        if math.prod(dims) != count or len(machines) < count or {*router.kinds} not in [{kind} for kind in ENDPOINTS]:
            return None
        at = np.arange(count).reshape(dims)
        near = np.array([[np.roll(at, sign, axis).ravel() for sign in (-1, 1)] for axis in range(len(dims))])
        to, far = near + np.arange(count) * count, np.flatnonzero(tail != head)
        order = far[np.argsort(tail[far] * count + head[far])]
        keys = tail[order] * count + head[order]
        if not np.array_equal(keys, distinct(to[near != np.arange(count)])):
            return None
        return cls(dims, np.append(order, 0)[np.searchsorted(keys, to)])

    def find(self, first: Numbers, last: Numbers, number: Numbers) -> tuple[Numbers, Numbers]:
        """The number of links of the route of each pair, and these laid end to end; of several routes it is `number`
        modulo how many there are."""
        sizes, away = (
            self.dims[:, None],
            (last // self.pace[:, None] - first // self.pace[:, None]) % self.dims[:, None],
        )
        left = np.minimum(away, sizes - away)
        ways = np.stack([2 * away <= sizes, (2 * away >= sizes) & (sizes > 2)], axis=1) & (away > 0)[:, None]
        number, at, length = number % self._routes(left, ways.all(axis=1)), first.copy(), left.sum(axis=0)
        begin = np.cumsum(length) - length
        links, rows = np.empty(length.sum(), np.int32), np.flatnonzero(length)
        while len(rows):
            axis, sign, number[rows] = self._step(at[rows], left[:, rows], ways[:, :, rows], number[rows])
            links[begin[rows]] = self.links[axis, sign, at[rows]]
            pace, size, place = self.pace[axis], self.dims[axis], at[rows]
            here = place // pace % size
            at[rows] = place + ((here + 1 - 2 * sign) % size - here) * pace
            left[axis, rows] -= 1
            ways[axis, :, rows] = np.stack([sign == 0, sign == 1], axis=1) & (left[axis, rows] > 0)[:, None]
            begin[rows] += 1
            rows = rows[left[:, rows].any(axis=0)]
        return length, links

    def _routes(self, left: Array, either: Array) -> Numbers:
        """The routes with so many steps `left` along each axis, (axes, pairs), the first of which may go by `either`
        way."""
        found: Numbers = np.minimum(self._count[tuple(left)] << either.sum(axis=0), MOST_ROUTES)
        return found

    def _step(self, at: Numbers, left: Array, ways: Array, number: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The axis and the sign, 0 or 1, of the step that route `number` takes, and its number among those that do."""
        axes, pairs = left.shape
        either, after = np.logical_and.reduce(ways, axis=1), np.zeros((2 * axes, pairs), np.int64)
        for axis in range(axes):
            less, own = left.copy(), either.copy()
            less[axis] = np.maximum(less[axis] - 1, 0)
            own[axis] = False
            after[2 * axis : 2 * axis + 2] = self._routes(less, own)
        allowed = ways.reshape(2 * axes, pairs)
        link = np.where(allowed, self.links[:, :, at].reshape(2 * axes, pairs), np.iinfo(np.int64).max)
        order = np.argsort(link, axis=0)
        after = np.take_along_axis(np.where(allowed, after, 0), order, axis=0)
        ends = np.cumsum(after, axis=0)
        rank = (ends <= number).sum(axis=0)
        taken = order[rank, np.arange(pairs)]
        return taken // 2, taken % 2, number - (ends - after)[rank, np.arange(pairs)]
