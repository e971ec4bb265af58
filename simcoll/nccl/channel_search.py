"""One round of NCCL's graph search: depth-first search for channels of a given speed over paths of given types.

A channel reserves its speed on every link of its paths, until no link has room for another channel. The search tries
orders of GPUs in a fixed sequence, keeps the best result, and stops after a number of steps. The sequence and the
number decide the result, so both are NCCL's. The recursion uses generators, which yield the deeper levels, because
channels of a rack would exceed Python's stack.

Source: NVIDIA/nccl, release 2.30, src/graph/search.cc: the rules, in our own words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.nccl.node_paths import C2C, LOC, NVL, PIX, PXN, NodePaths
from simcoll.topology.nccl_graphs import GraphPattern

_FIRST_TRY: Final = 1 << 10  # steps spent on a first try with the GPUs in order of number
_IN_ORDER, _AS_LAST = 1, 2  # how the next GPU is chosen: by number, or as in the previous channel

UNIT: Final = 1000  # capacities are counted in thousandths of GB/s, as NCCL rounds them
_TREES: Final = ("balanced_tree", "tree")

Steps = Iterator["Steps"]


@dataclass
class Draft:
    """A set of channels: the channels that a round of the search found, or the requirements for channels still to be
    found. `intra` and `inter` are a channel's speeds within a node and between nodes, in GB/s."""

    pattern: GraphPattern
    least: int
    most: int
    intra: float = 0.0
    inter: float = 0.0
    type_intra: int = LOC
    type_inter: int = PIX
    cross_nic: int = 0
    same: bool = True
    hops: int = 0
    orders: list[list[int]] = field(default_factory=list)
    nets: list[tuple[int, int]] = field(default_factory=list)

    @property
    def channels(self) -> int:
        """Number of channels found."""
        return len(self.orders)

    def copy(self) -> Draft:
        """Return a copy that can be changed."""
        return dataclasses.replace(self, orders=list(self.orders), nets=list(self.nets))


class Demand(NamedTuple):
    """What one channel needs of a path: the number of its links (`hops`), and (link, thousandths of GB/s) of each."""

    hops: int
    taken: tuple[tuple[int, int], ...]


class Round:
    """A depth-first search for channels that meet the requirements `wanted`. Each better result is copied into
    `best`."""

    def __init__(self, node: NodePaths, wanted: Draft, best: Draft, across: bool, steps: int):
        self.node, self.best, self.across, self.left = node, best, across, steps
        self.draft = dataclasses.replace(wanted, hops=0, orders=[], nets=[])
        self._demands: dict[tuple[int, int, float], Demand | None] = {}
        self.count = len(node.gpus)
        self.free = [round(bandwidth * UNIT) for bandwidth in node.bandwidth]
        self.net_free = dict.fromkeys(node.nets, node.net_GBps)
        self.order: list[int] = []
        self.net_in = self.net_out = -1
        self._sorted: dict[tuple[int, int], list[tuple[int, tuple[int, int]]]] = {}
        self._ports: dict[int | None, list[int]] = {}
        self._nearest: dict[int, list[int]] = {}
        self._turned: dict[int, list[int]] = {}
        self._settled = False
        ring = wanted.pattern == "ring"
        self.to_net = (self.count - 1 if ring else 0) if across else -1
        self.to_first = self.count - 1 if ring and not across else -1
        # pairs of GPUs that may follow each other in a channel
        self._pairs = [
            pair
            for pair, (kind, bandwidth) in node.widest.items()
            if kind <= wanted.type_intra and bandwidth >= wanted.intra - 1e-3
        ]
        self.most = self._most()

    def run(self) -> int:
        """Search; return the number of unused steps, or -1 if the result cannot be improved."""
        stack: list[Steps] = [self._channel()] if not self._is_final() else []
        while stack and not self._settled:
            below = next(stack[-1], None)
            if below is None:
                stack.pop()
            else:
                stack.append(below)
        return self.left

    # --- bandwidth ---

    def _demand(self, src: int, dst: int, times: float = 1) -> Demand | None:
        """Return what a channel needs of the path at `times` its speed; None if the path's type is not allowed."""
        key = src, dst, times
        if key not in self._demands:
            self._demands[key] = self._worked_out(src, dst, times)
        return self._demands[key]

    def _worked_out(self, src: int, dst: int, times: float) -> Demand | None:
        node, draft = self.node, self.draft
        intra = {node.kinds[src], node.kinds[dst]} <= {"gpu", "nvs"}
        speed = (draft.intra if intra else draft.inter) * times
        farthest = draft.type_intra if intra else draft.type_inter
        path = node.paths[src, dst]
        if path.type > farthest:
            return None
        if draft.pattern in _TREES and node.paths[dst, src].type > farthest and path.type != PXN:
            return None  # trees send both ways; with another GPU's NIC (PXN) the way back does not count
        return Demand(len(path.links), tuple((link, round(speed * part * UNIT)) for link, part in node.parts(src, dst)))

    def _take(self, need: Demand | None) -> bool:
        if need is None:
            return False
        hops, taken = need
        free = self.free
        for link, amount in taken:
            if free[link] < amount:
                return False
        for link, amount in taken:
            free[link] -= amount
        self.draft.hops += hops
        return True

    def _give(self, need: Demand | None) -> None:
        assert need is not None
        for link, amount in need[1]:
            self.free[link] += amount
        self.draft.hops -= need[0]

    # --- channels ---

    def _channel(self) -> Steps:
        """Look for one more channel."""
        return self._from_nets() if self.across else self._within()

    def _within(self) -> Steps:
        draft, gpus = self.draft, self.node.gpus
        if draft.pattern == "nvls":
            yield self._step(gpus[draft.channels], 0, 0, -1, -1, 0)
            return
        if not draft.orders:
            yield self._step(gpus[0], 0, 0, self.to_net, self.to_first, _IN_ORDER)
        else:
            yield self._step(draft.orders[-1][0], 0, 0, self.to_net, self.to_first, _AS_LAST)
        if not draft.same or not draft.orders:
            for gpu in gpus:
                yield self._step(gpu, 0, 0, self.to_net, self.to_first, 0)

    def _from_nets(self) -> Steps:
        draft, free, node = self.draft, self.net_free, self.node
        whole, found = int(draft.inter), False  # NCCL rounds down the speed that it reserves on a NIC's port
        only = draft.nets[-1][1] if self._paired() else None
        for net in self._entrances():
            if free[net] < whole or (draft.pattern == "nvls" and found) or only not in (None, net):
                continue
            free[net] -= whole
            came = self.net_in
            self.net_in = net
            if draft.pattern == "nvls":
                gpu = node.local_gpu[net]
                heads = [order[0] for order in draft.orders]
                if draft.channels < len(self._nets(None)) and gpu is not None and gpu not in heads:
                    yield from self._enter(net, gpu, 0)
                    found = True
            else:
                yield from self._starts(net)
            self.net_in = came
            free[net] += whole

    def _entrances(self) -> list[int]:
        """Return the NIC ports at which the next channel may enter the node, in order; each channel begins with another
        port."""
        nets = self._nets(None)
        first = self.draft.channels % max(1, len(nets))
        if first not in self._turned:
            self._turned[first] = [net for net in nets[first:] + nets[:first] if self._entries(net)]
        return self._turned[first]

    def _entries(self, net: int) -> list[int]:
        """Return the GPUs nearest to a NIC's port."""
        if net not in self._nearest:
            self._nearest[net] = self.node.near(net, self.node.gpus)
        return self._nearest[net]

    def _nets(self, gpu: int | None) -> list[int]:
        """Return the NIC ports to try for a channel's exit from `gpu`, or for its entry (None)."""
        if gpu not in self._ports:
            gpus = self.node.gpus if gpu is None else [gpu]
            self._ports[gpu] = self.node.nets_for(gpus, self.draft.type_inter)
        return self._ports[gpu]

    def _paired(self) -> bool:
        """Return whether this channel must use the previous channel's ports in reverse: enter where it left."""
        draft = self.draft
        return draft.pattern == "ring" and draft.cross_nic == 2 and draft.channels % 2 == 1

    def _starts(self, net: int) -> Steps:
        draft, node = self.draft, self.node
        if draft.orders and draft.same:
            yield from self._enter(net, draft.orders[-1][0], _AS_LAST)
        if draft.orders and draft.same:
            return
        if not draft.orders and not node.switches:
            first = min(reversed(node.gpus), key=lambda gpu: len(node.paths[net, gpu].links))
            left, self.left = self.left, _FIRST_TRY
            yield from self._enter(net, first, _IN_ORDER)
            self.left = -1 if self.left == -1 else left
        for gpu in self._entries(net):
            yield from self._enter(net, gpu, 0)

    def _enter(self, net: int, gpu: int, given: int) -> Steps:
        need = self._demand(net, gpu, 1)
        if self._take(need):
            yield self._step(gpu, 0, 0, self.to_net, self.to_first, given)
            self._give(need)

    # --- a channel's path through the GPUs ---

    def _step(self, gpu: int, step: int, used: int, to_net: int, to_first: int, given: int) -> Steps:
        """Add a GPU at position `step` of the channel. `used`: the channel's GPUs as bits. `to_net`, `to_first`: the
        positions from which the channel goes to a NIC, or back to its first GPU (-1: never). `given`: see `_next`."""
        if self.left <= 0:
            return
        self.left -= 1
        if step == self.count:
            yield from self._whole()
            return
        order = self.order
        del order[step:]
        order.append(gpu)
        used |= 1 << gpu
        if step == to_net:
            yield from self._out(gpu, step, used, to_first, given)
        elif self.draft.pattern == "nvls":
            yield from self._head(gpu)
        elif step < self.count - 1:
            for near in self._next(gpu, step, used, to_net, given):
                need = self._demand(gpu, near, 1)
                if self._take(need):
                    yield self._step(near, step + 1, used, to_net, to_first, given)
                    self._give(need)
        elif step == to_first:
            need = self._demand(gpu, order[0], 1)
            if self._take(need):
                yield self._step(order[0], step + 1, used, to_net, -1, given)
                self._give(need)
        else:
            yield self._step(gpu, self.count, used, -1, -1, given)

    def _whole(self) -> Steps:
        """Add the complete channel. Store all channels in `best` if they are better; then search for more."""
        draft = self.draft
        order, net_in, net_out = self.order, self.net_in, self.net_out
        draft.orders.append(order[:])
        draft.nets.append((net_in, net_out))
        if self._better():
            vars(self.best).update(vars(draft.copy()))
            if draft.channels == draft.most:
                self.left = -1
            self._settled = self.left != -1 and self._is_final()
        if draft.channels < draft.most and self.left > 0:
            self.order = []
            yield self._channel()
            self.order = order
        self.net_in, self.net_out = net_in, net_out
        draft.orders.pop()
        draft.nets.pop()

    def _better(self) -> bool:
        draft, best = self.draft, self.best
        if draft.channels < draft.least:
            return False
        if draft.pattern == "nvls":
            more = best.channels < draft.channels <= self.count
            return more or draft.channels * draft.inter > best.channels * best.inter
        ours, theirs = draft.channels * draft.intra, best.channels * best.intra
        alike = draft.pattern == best.pattern and draft.cross_nic == best.cross_nic
        return ours > theirs or (ours == theirs and alike and draft.hops < best.hops)

    def _out(self, gpu: int, step: int, used: int, to_first: int, given: int) -> Steps:
        """Extend the channel to a NIC's port. Balanced trees reach it from their first two GPUs, each at half speed."""
        draft, came = self.draft, self.net_in
        halved = draft.pattern == "balanced_tree"
        for net in self._nets(gpu):
            if draft.pattern in ("tree", "nvls") and net != came:
                continue
            if draft.pattern == "ring" and draft.cross_nic == 2:
                if self._paired() and net != draft.nets[-1][0]:
                    continue
            elif draft.cross_nic == 0 and net != came:
                continue
            if halved and step == 1 and net != self.net_out:
                continue
            need = self._demand(gpu, net, 0.5 if halved else 1)
            if self._take(need):
                out, self.net_out = self.net_out, net
                yield self._step(gpu, step, used, 1 if halved and step == 0 else -1, to_first, given)
                self.net_out = out
                self._give(need)

    def _head(self, head: int) -> Steps:
        """Add an NVLS channel with GPU `head`: all GPUs send to the switch and receive, the head twice as much."""
        switch, gpus = self.node.switches[0], self.node.gpus
        needs = [self._demand(switch, gpu, 2 if gpu == head else 1) for gpu in gpus]
        needs += [self._demand(gpu, switch, 2 if gpu == head else 1) for gpu in gpus]
        taken = []
        for need in needs:
            if not self._take(need):
                break
            taken.append(need)
        if len(taken) == len(needs):
            yield self._step(head, self.count, 0, -1, -1, 0)
        for need in reversed(taken):
            self._give(need)

    def _next(self, gpu: int, step: int, used: int, to_net: int, given: int) -> Sequence[int]:
        """Return the GPUs to try next, in order. `given`: _IN_ORDER means the next GPU by number, _AS_LAST the GPU at
        this position in the last channel, 0 all GPUs that are free."""
        if given == _IN_ORDER:
            return [self._after(gpu)]
        if given == _AS_LAST:
            return self.draft.orders[-1][step + 1 : step + 2]
        if self.node.switches:  # with NVSwitches NCCL tries neighbours only
            return [near for near in self._neighbours(gpu) if not used >> near & 1]
        net = self.net_in if to_net != -1 else -1
        scored = [pair for pair in self._scored(gpu, net) if not used >> pair[0] & 1]
        near = [gpu for gpu, _ in scored]
        if to_net not in (-1, step + 1) and len({score for _, score in scored}) == 1:
            near.reverse()  # GPUs next to the NIC last
        return near

    def _after(self, gpu: int) -> int:
        gpus = self.node.gpus
        return gpus[(gpus.index(gpu) + 1) % len(gpus)]

    def _neighbours(self, gpu: int) -> list[int]:
        gpus = self.node.gpus
        after, before = self._after(gpu), gpus[gpus.index(gpu) - 1]
        pattern = self.draft.pattern
        order = [before, after] if pattern == "ring" else [after, before] if pattern == "balanced_tree" else [after]
        return list(dict.fromkeys(order))

    def _scored(self, gpu: int, net: int) -> list[tuple[int, tuple[int, int]]]:
        """Return the other GPUs with their scores, best first: by the path to a NIC, then by the path from `gpu`."""
        key = gpu, net
        if key not in self._sorted:
            node, gpus = self.node, self.node.gpus
            scores = []
            for i in range(1, len(gpus)):
                other = gpus[(gpus.index(gpu) + i) % len(gpus)]
                path = node.paths[gpu, other]
                within = -int(path.bandwidth), len(path.links)
                between = (0, 0, 0)
                if net != -1:
                    way = node.paths[net, other]
                    between = -int(way.bandwidth), -self._pcie(other), len(way.links)
                scores.append((between, within, i, other))
            self._sorted[key] = [(other, within) for _, within, _, other in sorted(scores)]
        return self._sorted[key]

    def _pcie(self, gpu: int) -> int:
        node = self.node
        links = [link for link in node.out_of(gpu) if node.types[link] == PIX]
        return int(min(node.bandwidth[links[0]], node.bandwidth[node.back(links[0])])) if links else -1

    # --- upper bounds, which end hopeless searches early ---

    def _is_final(self) -> bool:
        """Return whether links and ports allow no better result than `best`. NCCL would search on without success, so
        an early end does not change the result."""
        draft, best, most = self.draft, self.best, self.most
        if draft.pattern == "nvls":
            more = most > best.channels or most * draft.inter > best.channels * best.inter
            return most < draft.least or not more
        ours, theirs = most * draft.intra, best.channels * best.intra
        if most < draft.least or ours < theirs:
            return True
        alike = draft.pattern == best.pattern and draft.cross_nic == best.cross_nic
        return ours == theirs and not (alike and most * self._fewest_hops() < best.hops)

    def _most(self) -> int:
        """Return an upper bound on the number of channels, from the links of GPUs and the ports of NICs."""
        node, draft, count = self.node, self.draft, self.count
        limit = draft.most
        if draft.pattern == "nvls":  # every channel loads each GPU once, and its head once more
            return min(limit, *(self._fits(draft.intra, node.out_of(gpu), NVL) - 1 for gpu in node.gpus))
        if self.across:
            whole = int(draft.inter)
            ports = int(node.net_GBps // whole) if whole else limit
            limit = min(limit, len(node.nets) * ports)
            entries = [self._fits(draft.inter, (node.back(out) for out in node.out_of(gpu)), C2C) for gpu in node.gpus]
            limit = min(limit, sum(entries))
        if count > 1 and limit:
            # each GPU has a next GPU, except for the last one of a tree, or of a ring that leads to a NIC
            steps = count if self.to_first != -1 else count - 1
            for way in (node.out_of, lambda gpu: (node.back(out) for out in node.out_of(gpu))):
                fits = [self._fits(draft.intra, way(gpu), NVL) for gpu in node.gpus]
                while sum(min(each, limit) for each in fits) < steps * limit:
                    limit -= 1
        return limit

    def _fits(self, speed: float, links: Iterator[int], least: int) -> int:
        """Return how many channels of `speed` GB/s the `links` can carry. Only links of an allowed type, from `least`
        on, count."""
        node, draft = self.node, self.draft
        farthest = draft.type_intra if least == NVL else draft.type_inter
        kinds = range(least, max(farthest, PIX if least == C2C else NVL) + 1)
        return sum(int(node.bandwidth[link] / speed + 1e-9) for link in links if node.types[link] in kinds)

    def _fewest_hops(self) -> int:
        """Return a lower bound on the number of links of a channel."""
        node = self.node
        near = min((len(node.paths[pair].links) for pair in self._pairs), default=0)
        hops = near * (self.count if self.to_first != -1 else self.count - 1)
        if self.across:
            ends = [(net, gpu) for net in node.nets for gpu in node.gpus]
            came = min((need[0] for net, gpu in ends if (need := self._demand(net, gpu, 1))), default=0)
            out = min((need[0] for net, gpu in ends if (need := self._demand(gpu, net, 1))), default=0)
            hops += came + out * (2 if self.draft.pattern == "balanced_tree" else 1)
        return hops
