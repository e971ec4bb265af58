"""Bounds of what a round of the graph search can find, by the links of GPUs and the ports of NICs alone."""

from __future__ import annotations

from collections.abc import Iterator

from simcoll.nccl._channel_demands import Demands, Draft
from simcoll.nccl._node_paths import C2C, NVL, PIX


class ChannelLimits:
    """The bounds of a round that is to find a draft; `across`: channels go on to other nodes."""

    def __init__(self, demands: Demands, across: bool):
        self.node, self.draft, self._demand, self.across = demands.node, demands.draft, demands.of, across
        self.count = len(self.node.gpus)
        # pairs of GPUs that a channel can go from and to
        self._steps = [
            pair
            for pair, (kind, bandwidth) in self.node.widest.items()
            if kind <= self.draft.type_intra and bandwidth >= self.draft.intra - 1e-3
        ]
        self._round = self.draft.pattern == "ring" and not across
        self.most = self._most()

    def settled(self, best: Draft) -> bool:
        """Whether links and ports are too few for anything better than the best. NCCL searches on; as nothing more is
        found then, the result is the same."""
        draft, most = self.draft, self.most
        if draft.pattern == "nvls":
            more = most > best.channels or most * draft.inter > best.channels * best.inter
            return most < draft.least or not more
        ours, theirs = most * draft.intra, best.channels * best.intra
        if most < draft.least or ours < theirs:
            return True
        alike = draft.pattern == best.pattern and draft.cross_nic == best.cross_nic
        return ours == theirs and not (alike and most * self._fewest_hops() < best.hops)

    def _most(self) -> int:
        """No more channels than these can be, by what leaves and enters GPUs, and by ports of NICs."""
        node, draft, count = self.node, self.draft, self.count
        limit = draft.most
        if draft.pattern == "nvls":  # every channel loads each GPU once, and its head once more
            return min(limit, *(self._fits(draft.intra, node.out_of(gpu), NVL) - 1 for gpu in node.gpus))
        if self.across:
            whole = int(draft.inter)
            near = [net for net in node.nets if self._usable(net)]
            ports = int(node.net_GBps // whole) if whole else limit
            limit = min(limit, len(near) * ports)
            entries = [self._fits(draft.inter, (node.back(out) for out in node.out_of(gpu)), C2C) for gpu in node.gpus]
            limit = min(limit, sum(entries))
        if count > 1 and limit:
            limit = min(limit, self._across_cuts()) if self._connected() else 0
            # each GPU hands on to the next, but for the last of a tree, and of a ring that goes on to a NIC
            steps = count if self._round else count - 1
            for way in (node.out_of, lambda gpu: (node.back(out) for out in node.out_of(gpu))):
                fits = [self._fits(draft.intra, way(gpu), NVL) for gpu in node.gpus]
                while sum(min(each, limit) for each in fits) < steps * limit:
                    limit -= 1
        return limit

    def _connected(self) -> bool:
        """Whether a channel can reach all GPUs."""
        far: dict[int, list[int]] = {}
        for a, b in self._steps:
            far.setdefault(a, []).append(b)
            far.setdefault(b, []).append(a)
        found = dict.fromkeys(self.node.gpus[:1])
        queue = list(found)
        for gpu in queue:
            new = [other for other in far.get(gpu, ()) if other not in found]
            found.update(dict.fromkeys(new))
            queue += new
        return len(found) == self.count

    def _across_cuts(self) -> int:
        """A ring that ends where it began crosses each cut to and fro, other channels at least once."""
        limit = self.draft.most
        back_again = self.draft.pattern == "ring" and (not self.across or not self.draft.cross_nic)
        for ways in self.node.cuts:
            there, back = (int(bandwidth / self.draft.intra + 1e-9) for bandwidth in ways)
            limit = min(limit, min(there, back) if back_again else there + back)
        return limit

    def _usable(self, net: int) -> bool:
        """Whether a channel can come in by a port of a NIC, and go out again."""
        gpus, pattern, count = self.node.gpus, self.draft.pattern, self.count
        into = [gpu for gpu in gpus if self._demand(net, gpu, 1)]
        out = [gpu for gpu in gpus if self._demand(gpu, net, 0.5 if pattern == "balanced_tree" else 1)]
        if pattern == "tree" or count == 1:
            return bool(set(into) & set(out))
        if self.draft.cross_nic:
            return bool(into and (out or self.draft.cross_nic == 1))
        first = set(into) & set(out) if pattern == "balanced_tree" else into
        return any(a != b for a in first for b in out)

    def _fits(self, speed: float, links: Iterator[int], least: int) -> int:
        """The number of channels that links of that type or a farther one carry, of those that paths may take."""
        node, draft = self.node, self.draft
        farthest = draft.type_intra if least == NVL else draft.type_inter
        kinds = range(least, max(farthest, PIX if least == C2C else NVL) + 1)
        return sum(int(node.bandwidth[link] / speed + 1e-9) for link in links if node.types[link] in kinds)

    def _fewest_hops(self) -> int:
        """Links of a channel, at least."""
        node = self.node
        near = min((len(node.paths[pair].links) for pair in self._steps), default=0)
        hops = near * (self.count if self._round else self.count - 1)
        if self.across:
            ends = [(net, gpu) for net in node.nets for gpu in node.gpus]
            came = min((need[0] for net, gpu in ends if (need := self._demand(net, gpu, 1))), default=0)
            out = min((need[0] for net, gpu in ends if (need := self._demand(gpu, net, 1))), default=0)
            hops += came + out * (2 if self.draft.pattern == "balanced_tree" else 1)
        return hops
