"""The columns that `link_kernel` works on, by name; see `records`."""

from __future__ import annotations

from simcoll.engine.kernels.records import Column, Costs, Net, Plan, Servers
from simcoll.named_tuple import NamedTuple

BLOCK = 64  # transfers


class Waiting(NamedTuple):
    """A heap of transfers by (time, index), four entries below each; `at` is where more is to be found about each."""

    times: Column
    items: Column
    at: Column


class Queues(NamedTuple):
    """The transfers that wait at server s, `many[s]` of them, links before receive sides, in the order in which they
    came. They are in blocks, which servers take from those that are `spare` and give back, since a transfer waits at
    one of them at a time: `last[s]` is the one that is filled, `behind` leads from each to the next, and from the last
    to the first. Three numbers of `entries` are for each transfer, side by side: when its head and its tail come there;
    its number, times 2^32, and the place of the link on its way, among those of all ways. `turns` from `first[s]` on
    say when each was served in the last run."""

    entries: Column
    behind: Column
    spare: Column
    last: Column
    many: Column
    first: Column
    turns: Column


class Queued(NamedTuple):
    """The transfers that wait at the server that is served, in the order of the last run: their entries, and the
    number of each in the order in which they came."""

    entries: Column
    number: Column


class SettingOut(NamedTuple):
    """The transfers that set out at one sender or link: when each is ready, who stands behind it; the last by link."""

    times: Column
    behind: Column
    ends: Column


class MarkedRoutes(NamedTuple):
    """Way w takes `links[hop[w]:hop[w + 1]]`, with `marks` of each."""

    hop: Column
    links: Column
    marks: Column


class LinkRun(NamedTuple):
    """All that `by_link` works on; `here` as for `replay`, `plan.kind` empty if there is one size. `links` are −1 for
    each sender, then those that are waited at, each behind all from which heads come to it. Those that set out at
    sender or link p stand from `first[p]` to `first[p + 1]`: the transfer, its way, where the next of its channel
    stands or −1, and whether it is the first of a channel. `sides` are the receive sides."""

    plan: Plan
    costs: Costs
    routes: MarkedRoutes
    lead: Column
    here: Column
    net: Net
    first: Column
    items: Column
    ways: Column
    after: Column
    opens: Column
    setting_out: SettingOut
    waiting: Waiting
    queues: Queues
    queued: Queued
    free: Servers
    links: Column
    sides: Column
