"""Tables of links and routes for the fast engine: service times, latencies, and links that need no event."""

from __future__ import annotations

from typing import Final

import numpy as np

from simcoll.config.numpy_helpers import Array, distinct, pieces
from simcoll.engine.link_changes import LinkChanges
from simcoll.engine.program import Program
from simcoll.engine.timing_model import NEVER, NONE, service_ps

SENDER: Final = -2  # stands for the link before the first link of a route


class LinkTables:
    """Columns computed from a program's routes and sizes, by route, by link or by size.

    `rates` are the distinct bandwidths in B/s, `rate_of` the index of each link's rate. `later` are the indices of the
    rates that links have after each change. `service[size * len(rates) + rate]` is the service time in ps of a size at
    a rate, an exact integer; NEVER for pairs that do not occur.
    """

    def __init__(self, program: Program):
        self.routes, self.latencies, self.links = program.routes, program.latencies, len(program.bandwidths)
        self.servers, self.taken = program.servers, program.taken
        self.sizes = program.sizes.tolist()
        counted = program.once("kinds", (program.kind,), lambda: np.bincount(program.kind, minlength=len(self.sizes)))
        self.used = counted > 0
        more = program.changes.bandwidth if program.changes else program.bandwidths[:0]
        self.rates, rate_of = np.unique(np.append(program.bandwidths, more), return_inverse=True)
        self.rate_of, self.later = np.split(rate_of.astype(np.int32), [self.links])
        service = np.full((len(self.sizes), len(self.rates)), NEVER)
        for rate in distinct(np.append(self.rate_of[self.taken], self.later)).tolist():
            service[:, rate] = self.at_rate(int(self.rates[rate]))
        self.service = service.ravel()

    def at_rate(self, rate: int) -> Array:
        """Return the service time in ps of each size at one rate (B/s); NEVER for sizes that are not sent."""
        times = [service_ps(size, rate) if used else NEVER for size, used in zip(self.sizes, self.used, strict=True)]
        return np.asarray(times, np.int64)

    def at_rates(self, rates: Array) -> Array:
        """Return the service time in ps of each size at its own rate (B/s); 0 if the rate is 0 or nothing is sent."""
        each = zip(self.sizes, rates.tolist(), self.used.tolist(), strict=True)
        return np.asarray([service_ps(size, rate) if used and rate else 0 for size, rate, used in each], np.int64)

    def away(self) -> Array:
        """Return the sum of the latencies of each route, in ps."""
        _, _, hop, links = self.routes
        found, some = np.zeros(len(hop) - 1, np.int64), np.flatnonzero(np.diff(hop))
        if len(some):
            found[some] = np.add.reduceat(self.latencies[links], hop[some])
        return found

    def follows(self) -> Array:
        """Return for each link whether all routes that use it come directly from one other link. False for a link with
        several views (see `Program`), as transfers reach it through each view."""
        _, _, hop, links = self.routes
        before, several = np.full(self.links, NONE, np.int32), np.zeros(self.links, np.bool_)
        for ways in pieces(len(hop) - 1):
            begins = hop[ways.start : ways.stop + 1]
            here = links[begins[0] : begins[-1]]
            behind = np.append(np.int32(NONE), here)[: len(here)]
            behind[begins[:-1][np.diff(begins) > 0] - begins[0]] = SENDER
            new = before[here] == NONE
            before[here[new]] = behind[new]
            several[here[before[here] != behind]] = True
        views = np.bincount(self.taken % self.servers, minlength=self.servers)
        follows: Array = (before >= 0) & ~several & (np.resize(views, self.links) == 1)
        return follows

    def rows_of(self, changes: LinkChanges) -> tuple[Array, ...]:
        """Return the changes sorted by link, each beginning with a row at time 0: where the rows of each link begin;
        then time (ps), index of the rate, and turn of each row."""
        changing = distinct(changes.link)
        link = np.append(changing, changes.link)
        at = np.append(np.zeros(len(changing), np.int64), changes.at)
        order = np.argsort(link, kind="stable")
        first = np.searchsorted(link[order], np.arange(self.links + 1)).astype(np.int32)
        rate = np.append(self.rate_of[changing], self.later)
        turn = np.append(np.full(len(changing), NONE), changes.turn)
        return first, at[order], rate[order].astype(np.int32), turn[order].astype(np.int32)
