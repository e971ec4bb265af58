"""The columns that `link_kernel` works on, by name; see `records`."""

from __future__ import annotations

from typing import NamedTuple

from simcoll.engine.kernels.records import Column, Costs, Net, Plan, Servers

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
    its number, times 2^32, and the place of the stretch on its way, among those of all ways. `turns` from `first[s]` on
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


class Stretches(NamedTuple):
    """The ways of transfers in stretches: a link at which one may have to wait, and those that follow it. Way w takes
    those from `hop[w]` to `hop[w + 1]`. As each link follows one other, a stretch is known by its last one: `last` is
    twice its number, and one more where the way ends. The stretch that ends with link k takes
    `links[begin[k]:begin[k + 1]]`."""

    hop: Column
    last: Column
    begin: Column
    links: Column


class LinkRun(NamedTuple):
    """All that `by_link` works on; `here` as for `replay`, `plan.kind` empty if there is one size. `links` are −1 for
    each sender, then those that are waited at, each behind all from which heads come to it. Those that set out at
    sender or link p stand from `first[p]` to `first[p + 1]`: the transfer; the place of the next of its channel,
    counted from 1, or 0, and whether it is behind another, both empty if no channel has several. `sides` are the
    receive sides."""

    plan: Plan
    costs: Costs
    routes: Stretches
    lead: Column
    here: Column
    net: Net
    first: Column
    items: Column
    after: Column
    behind: Column
    setting_out: SettingOut
    waiting: Waiting
    queues: Queues
    queued: Queued
    free: Servers
    links: Column
    sides: Column
