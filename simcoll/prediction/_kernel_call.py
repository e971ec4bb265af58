"""Schedules as one kernel that a user wrote runs them: with NCCL's primitives, as MSCCL's executor does, or by reading
peers' memory; and as sends and receives run them, a launch for each step.

All ranks of the schedule are run, on the links of the topology. Costs are those that were fitted to NCCL's own kernels,
and to all-reduces that read peers' memory; no run of these compositions was measured, but for the latter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np

from simcoll.config.groups import grouped
from simcoll.engine.timing_model import PS_PER_S, Index, Params
from simcoll.nccl.between_nodes import FLUSHED, NO_TRANSPORT, Transport
from simcoll.nccl.call import NcclCall
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.kernel_costs import BlockCosts, Kernels, lines_ps, spread_ps
from simcoll.nccl.protocols import figures, slice_bytes
from simcoll.prediction._channel_wires import by_proxies, contention
from simcoll.prediction._plain_call import PlainCall
from simcoll.prediction._schedule_traffic import Traffic
from simcoll.prediction.placing import PLAIN
from simcoll.scenario.profile import CostSetting, ModelSpec, Profile, PullCosts
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.names import PROTOCOLS, Protocol
from simcoll.topology.graph import Topology

# Thread blocks of one kernel: microsoft/msccl gives a program channels × instances of them, and leaves SMs to others.
MOST_BLOCKS: Final = 64
# Bytes of one peer that are on their way at a time: 36 blocks of 512 threads, 16 B each (vLLM, csrc/custom_all_reduce).
IN_FLIGHT: Final = 36 * 512 * 16
# Times of a load between stages: sums become visible, the flag goes, it is read, the next stage's first load returns.
BETWEEN_STAGES: Final = 4
MOST_PIECES: Final = 64  # in which a connection's chunk is run, where it could be more
# Loads from all peers share links byte by byte, as so many pieces served in turn nearly do; small ones go whole.
PULLED_PIECES: Final = 16
LEAST_PIECE: Final = 16 << 10  # bytes
LINE: Final = 128  # bytes


@dataclass(frozen=True, eq=False)
class KernelCall(PlainCall, ABC):
    """A schedule that one kernel runs on all ranks at `places`: its `traffic` in chunks of at most `chunk_bytes`, with
    `between` B/s from GPU to GPU. `inner` are the kinds of links within nodes, `network_costs` what NICs cost where the
    profile does not say it."""

    executor: ClassVar[str] = "msccl"
    hops = frozenset(("o_send", "latency"))
    traffic: Traffic
    chunk_bytes: int
    between: int
    inner: frozenset[str]
    network_costs: Profile
    communicator: Communicator

    @property
    def protocol(self) -> str:
        """The protocol of all its connections."""
        return self.scenario.protocol

    def point(self, costs: CostSetting) -> Scenario:
        """The point that engines run."""
        params = vars(Params(**self.params(costs)))
        spec = ModelSpec.model_construct(**params, copies=self.scenario.copies)
        return self.scenario.model_copy(update={"model": spec, "executor": None, "protocol": "none", **PLAIN})

    def bandwidths(self, costs: CostSetting) -> Index:
        """Bandwidths of links to the call's data, int64 (links,), in B/s."""
        bandwidths: Index = np.rint(np.minimum(*self._reached(costs))).astype(np.int64)
        return bandwidths

    def paces(self, costs: CostSetting) -> dict[int, tuple[str, float]]:
        """Links on which proxies are slower than the link."""
        rates, most = self._reached(costs)
        return dict.fromkeys(np.flatnonzero(most < rates).tolist(), ("proxy", 1.0))

    def _reached(self, costs: CostSetting) -> tuple[Any, Any]:
        """B/s of links to the call's data, and those at which proxies serve them, (links,)."""
        shares = np.array([self._share(kind, costs) for kind in self._names])
        rates = self.rated.bandwidths * shares[self._numbers]
        if self.communicator.nodes > 1 and self._to_all:
            rates = np.where(self._of_nics, rates * self.transport(costs).crowded(self._contention), rates)
        most = self._proxied(costs) if self.communicator.nodes > 1 else 0.0
        return rates, np.where(by_proxies(self.rated, self.inner), most, np.inf) if most else np.inf

    @property
    def _to_all(self) -> bool:
        """Whether ranks send to all on other nodes, as in an all-to-all."""
        return self.traffic.peers >= len(self.places) - self.communicator.gpus

    @cached_property
    def _of_nics(self) -> Any:
        kinds = self.rated.kinds
        return np.array(["nic" in (kinds[u], kinds[v]) for u, v in self.rated.links])

    @cached_property
    def _contention(self) -> float:
        nodes = grouped(range(len(self.places)), lambda rank: self.rated.node_of(self.places[rank]))
        return contention(self.rated, self.places, list(nodes.values()))

    def _proxied(self, costs: CostSetting) -> float:
        """B/s at which a GPU's proxy serves the call's messages; 0: no limit."""
        return 0.0

    @abstractmethod
    def _share(self, kind: str, costs: CostSetting) -> float:
        """Share of rated links of a kind that its data have."""

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(self._kinds.tolist()))

    @cached_property
    def _numbers(self) -> Any:
        numbers = {kind: number for number, kind in enumerate(self._names)}
        return np.array([numbers[kind] for kind in self._kinds.tolist()], np.int64)

    def latencies(self, costs: CostSetting) -> Index:
        """The first link of a way has the latency of a hop, one between a NIC and the network half of what a hop takes
        longer there, one to the host's memory what a hop takes longer through it. Others have none."""
        hop, net, host = self._hops(costs)
        kinds, latencies = self.rated.kinds, list[int]()
        for u, v in self.rated.links:
            ends = {kinds[u], kinds[v]}
            latencies.append(net // 2 if ends >= {"nic", "switch"} else hop if kinds[u] == "gpu" else 0)
            if host and kinds[v] == "cpu":
                latencies[-1] += host
        return np.maximum(np.array(latencies, np.int64), 1)

    @abstractmethod
    def _hops(self, costs: CostSetting) -> tuple[int, int, int]:
        """Time of a hop, what it takes longer between nodes, and what through the host's memory, in ps."""

    def network(self, costs: CostSetting) -> Topology:
        """Links as the call has them."""
        return self.rated.with_rates(self.bandwidths(costs), self.latencies(costs))

    def transport(self, costs: CostSetting) -> Transport:
        """Costs of messages between nodes: the profile's, or else those of the system's NICs, under its `env`."""
        return self.scenario.env.transport(costs.transport or self.network_costs.transport or NO_TRANSPORT)

    def _efficiency(self, kind: str, costs: CostSetting) -> float:
        return costs.efficiency(kind, self.network_costs)


@dataclass(frozen=True, eq=False)
class PrimitivesCall(KernelCall):
    """A schedule run with NCCL's primitives, a thread block for each channel and peer.

    Channels are instances of the program, each with its share of every chunk: as many as let one peer's blocks fill a
    link, with at most MOST_BLOCKS blocks in all.
    """

    def _block(self, kernels: Kernels) -> BlockCosts:
        block: BlockCosts = getattr(kernels, self.protocol)
        return block

    @property
    def _wire(self) -> float:
        return figures().protocols[self._named].efficiency

    @property
    def _named(self) -> Protocol:
        return next(name for name in PROTOCOLS if name == self.protocol)

    def _rate(self, kernels: Kernels) -> int:
        """B/s of a block: in LL of polling lines, else of moving data as messages' blocks do; 0: no limit."""
        return kernels.LL.rate if self.protocol == "LL" else kernels.P2P.both

    def channels(self, costs: CostSetting) -> int:
        """Instances of the program, within NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS."""
        rate, comm = self._rate(costs.kernels or Kernels()), self.communicator
        filling = -(-self.between // rate) if rate else 1
        if comm.nodes > 1:  # proxies serve a message of each block: none has less than its threads move at once
            line = figures().protocols[self._named]
            filling = min(filling, max(1, -(-self.chunk_bytes // (line.threads * line.moved_a_thread))))
        free = max(1, min(filling, MOST_BLOCKS // max(1, self.traffic.peers)))
        return max(comm.min_channels or 1, min(free, comm.max_channels or free))

    def params(self, costs: CostSetting) -> dict[str, Any]:
        """Parameters of the engines. A rank serves all peers at once; a connection's data pass its blocks in pieces."""
        kernels, channels = costs.kernels or Kernels(), self.channels(costs)
        chunk = channels * slice_bytes("all_reduce", "ring", self._named, self.communicator.buffer_bytes)
        chunk = max(chunk, -(-self.chunk_bytes // MOST_PIECES))
        slice_ps = self._block(kernels).slice if self.protocol == "Simple" else 0
        cap = self._connection(kernels, channels, min(self.chunk_bytes, chunk))
        return {"sharing": "fifo", "channels": 0, "chunk": chunk, "o_send": slice_ps, "channel_bandwidth": cap}

    def _connection(self, kernels: Kernels, channels: int, nbytes: int) -> int:
        """B/s of all blocks of a connection for a message of `nbytes`; 0: no limit."""
        if self.protocol != "LL" or not nbytes:
            return channels * self._rate(kernels)
        each = -(-nbytes // channels)
        took = lines_ps(kernels.LL, figures().protocols["LL"].threads, each)
        return channels * each * PS_PER_S // took if took else 0

    def _share(self, kind: str, costs: CostSetting) -> float:
        reach = self._block(costs.kernels or Kernels()).reach if kind in self.inner else 1.0
        return self._efficiency(kind, costs) * reach * self._wire

    def _hops(self, costs: CostSetting) -> tuple[int, int, int]:
        block = self._block(costs.kernels or Kernels())
        return block.hop, block.net + self.transport(costs).hop_ps(self._on_wire(costs)), block.host

    def _message(self, costs: CostSetting) -> int:
        """Bytes that all blocks of a connection send at a time."""
        return int(min(self.params(costs)["chunk"], self.chunk_bytes))

    def _on_wire(self, costs: CostSetting) -> int:
        """Bytes of a message of one block, flags counted."""
        return round(self._message(costs) / self.channels(costs) / self._wire)

    def _proxied(self, costs: CostSetting) -> float:
        transport, sent = self.transport(costs), self._on_wire(costs)
        moved = transport.staged_ps(sent, in_host=self.protocol == "LL")
        read_back = self.protocol == "Simple" and self.communicator.capability < FLUSHED
        moved += transport.seen_in_ps(sent, read_back=read_back)
        # who has a neighbour before and one behind, of which another node has one, sends or receives there
        both = 1 if self.traffic.peers <= 2 and self.communicator.gpus > 1 else 2
        took = self.channels(costs) * (both * transport.proxy + moved)
        if self._to_all:  # each peer is taken up once
            took += transport.taken_up_ps(sent) * self._message(costs) // max(1, self.chunk_bytes)
        return self._message(costs) * PS_PER_S / took if took else 0.0

    def launch_ps(self, costs: CostSetting) -> int:
        """Time of the call beside its transfers, in ps: launch, start of the protocol, spread of blocks."""
        return sum(self.lead(costs).values())

    def lead(self, costs: CostSetting) -> dict[str, int]:
        """The same by cause."""
        kernels = costs.kernels or Kernels()
        blocks = self.channels(costs) * max(1, self.traffic.peers)
        launch = super().launch_ps(costs) + kernels.grid - kernels.grid // blocks
        spread = 0
        if self.protocol == "Simple":
            moved = self.traffic.sent * self.chunk_bytes / blocks
            bandwidth = round(self.between * self._share(next(iter(self.inner), ""), costs) / blocks)
            spread = spread_ps(kernels.spread, blocks, moved, bandwidth)
        return {"launch": launch, "start": self._block(kernels).start, "spread": spread}

    def cheaper(self, costs: CostSetting) -> Iterator[tuple[str, CostSetting]]:
        """Launches and hops that cost less."""
        kernels = costs.kernels or Kernels()
        yield "launches take no time", costs.launched_free
        block = self._block(kernels)
        transport = self.transport(costs)
        halved = block.model_copy(update={"hop": block.hop // 2, "net": block.net // 2})
        sooner = transport.model_copy(update={"latency": transport.latency // 2})
        quicker = kernels.model_copy(update={self.protocol: halved})
        yield f"hops of {self.protocol} take half the time", replace(costs, kernels=quicker, transport=sooner)


@dataclass(frozen=True, eq=False)
class PullCall(KernelCall):
    """A schedule whose receivers load from their peers' memory, stage by stage, with barriers of flags around each.

    Loads that are reduced go to all peers at once. Copies go to one peer after the other, so a stage lasts at least a
    load for each peer. A peer's data that are on their way at a time limit its bandwidth.
    """

    def _pull(self, costs: CostSetting) -> PullCosts:
        return costs.pull or PullCosts()

    def params(self, costs: CostSetting) -> dict[str, Any]:
        """Parameters of the engines. A rank loads from all peers at once."""
        load = self._pull(costs).load
        cap = IN_FLIGHT * PS_PER_S // load if load else 0
        chunk = max(LEAST_PIECE, -(-self.chunk_bytes // PULLED_PIECES // LINE) * LINE)
        return {"sharing": "fifo", "channels": 0, "chunk": chunk, "channel_bandwidth": cap}

    def _share(self, kind: str, costs: CostSetting) -> float:
        return self._pull(costs).reach

    def _hops(self, costs: CostSetting) -> tuple[int, int, int]:
        return 0, 0, 0

    def launch_ps(self, costs: CostSetting) -> int:
        """Time of the call beside its transfers, in ps: launch, flags, loads that wait for each other."""
        return sum(self.lead(costs).values())

    def lead(self, costs: CostSetting) -> dict[str, int]:
        """The same by cause."""
        pull = self._pull(costs)
        flags = round(pull.flag * math.log2(len(self.places)))
        stages = sum(each.times for each in self.traffic.rounds)
        waits = BETWEEN_STAGES * max(0, stages - 1) * pull.load
        for each in self.traffic.rounds:
            moving = each.chunks * self.chunk_bytes * PS_PER_S / (self.between * self._share("", costs))
            waits += each.times * each.copied * max(0, pull.load - round(moving))
        return {"launch": pull.launch, "flags": flags, "loads": waits}

    def cheaper(self, costs: CostSetting) -> Iterator[tuple[str, CostSetting]]:
        """Launches and loads that cost less."""
        pull = self._pull(costs)
        yield "launches take no time", replace(costs, pull=pull.model_copy(update={"launch": 0}))
        yield "loads take half the time", replace(costs, pull=pull.model_copy(update={"load": pull.load // 2}))


@dataclass(frozen=True, eq=False)
class MultimemCall(PullCall):
    """An all-reduce whose switch adds what ranks load, and sends to all what they store: multimem of NVLink SHARP.

    Each rank does so with its share: its sum comes down and goes up again, beside the data of all. Links have the share
    that NCCL's NVLS reaches; loads of a rank's buffer are on their way to all ranks at a time. The switch knows buffers
    of its own only, so data are copied there and back.
    """

    def params(self, costs: CostSetting) -> dict[str, Any]:
        """Parameters of the engines."""
        params = super().params(costs)
        return params | {"channel_bandwidth": params["channel_bandwidth"] * len(self.places)}

    def _share(self, kind: str, costs: CostSetting) -> float:
        ranks = len(self.places)
        return (costs.kernels or Kernels()).NVLS.reach * ranks / (ranks + 1)

    def lead(self, costs: CostSetting) -> dict[str, int]:
        """Time beside transfers by cause, in ps."""
        copied = 0
        for link in self.rated.route(self.places[0], self.places[0]):  # the memory's, if the topology has it
            copied += int(self.rated.latencies[link])
            copied += self.scenario.nbytes * PS_PER_S // int(self.rated.bandwidths[link])
        return {**super().lead(costs), "copies": 2 * copied}


@dataclass(frozen=True, eq=False)
class MessagesCall(KernelCall):
    """A schedule whose steps are each a launch of grouped sends and receives, as NCCL's point-to-point messages go.

    `steps` are the calls that each step of the traffic makes, and how often.
    """

    executor: ClassVar[str] = "p2p"
    steps: tuple[tuple[int, NcclCall], ...]

    @property
    def protocol(self) -> str:
        """Protocols that NCCL takes for its messages."""
        return ", ".join(dict.fromkeys(step.protocol for _, step in self.steps)) or "none"

    def params(self, costs: CostSetting) -> dict[str, Any]:
        """Parameters of the engines. A rank serves all peers at once."""
        kernels = costs.kernels or Kernels()
        rates = [step.params(kernels)["channel_bandwidth"] for _, step in self.steps]
        return {"sharing": "fifo", "channels": 0, "channel_bandwidth": min(filter(None, rates), default=0)}

    def _share(self, kind: str, costs: CostSetting) -> float:
        return self._efficiency(kind, costs) * ((costs.kernels or Kernels()).P2P.reach if kind in self.inner else 1.0)

    def _proxied(self, costs: CostSetting) -> float:
        took = max((step.proxy_ps(self.transport(costs)) for _, step in self.steps), default=0.0)
        return PS_PER_S / took if took else 0.0

    def _hops(self, costs: CostSetting) -> tuple[int, int, int]:
        kernels = costs.kernels or Kernels()
        return 0, kernels.Simple.net + self.transport(costs).hop_ps(0), kernels.P2P.host

    def launch_ps(self, costs: CostSetting) -> int:
        """Time of all steps beside their transfers, in ps."""
        kernels, launch = costs.kernels or Kernels(), super().launch_ps(costs)
        return sum(times * step.launch_ps(kernels, launch, self.between) for times, step in self.steps)

    def lead(self, costs: CostSetting) -> dict[str, int]:
        """The same by cause."""
        kernels, launch = costs.kernels or Kernels(), super().launch_ps(costs)
        launches = sum(times * (launch + step.wide_ps(kernels)) for times, step in self.steps)
        return {"launch": launches, "start": self.launch_ps(costs) - launches}

    def host_ps(self, costs: CostSetting) -> int:
        """Time of the host, which launches each step, in ps."""
        return super().host_ps(costs) * max(1, sum(times for times, _ in self.steps))

    def cheaper(self, costs: CostSetting) -> Iterator[tuple[str, CostSetting]]:
        """Launches that cost less."""
        yield "launches take no time", costs.launched_free
