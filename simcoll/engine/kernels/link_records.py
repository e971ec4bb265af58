"""The columns that `link_kernel` works on, by name; see `records`."""

from __future__ import annotations

from simcoll.engine.kernels.records import Column, Costs, Net, Plan, Routes, Servers
from simcoll.named_tuple import NamedTuple


class Waiting(NamedTuple):
    """A heap of transfers by (time, index), four entries below each; `at` is where more is to be found about each."""

    times: Column
    items: Column
    at: Column


class Queues(NamedTuple):
    """The transfers that wait at server s, from `first[s]` up to `fill[s]`, links before receive sides. Three numbers
    of `entries` are for each, side by side, as each is put into another queue than the last: when its head and its tail
    come there; its number, times 2^32, and the place of the link on its way, among those of all ways."""

    entries: Column
    first: Column
    fill: Column


class LinkRun(NamedTuple):
    """All that `by_link` works on; `here` as for `replay`, `plan.kind` empty if there is one size, `marked` by place on
    all ways. `links` are −1 for each sender, then those that are waited at, each behind all from which heads come to
    it. Those that set out at sender or link p stand from `first[p]` to `first[p + 1]`: the transfer, its way, where the
    next of its channel stands or −1, and 0 for the first of a channel, −1 for others. `sides` are the receive sides."""

    plan: Plan
    costs: Costs
    routes: Routes
    lead: Column
    here: Column
    marked: Column
    net: Net
    first: Column
    items: Column
    ways: Column
    after: Column
    start: Column
    waiting: Waiting
    queues: Queues
    free: Servers
    links: Column
    sides: Column
