"""Run schedules as one user-written kernel (`msccl`), or as sends and receives with one launch per step (`p2p`).

The kernel either uses NCCL's primitives, as MSCCL's executor does, or reads the memory of peers. All ranks are
simulated, on the links of the topology. Costs were fitted to NCCL's own kernels, and to all-reduces that read peers'
memory. Other schedules are predicted by combining these costs, and were not measured.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, cast, get_args

import numpy as np
from numpy.typing import NDArray

from simcoll.config.numpy_helpers import distinct
from simcoll.engine.binding import written_out
from simcoll.engine.timing_model import PS_PER_S, Index, Params
from simcoll.errors import RefusedError
from simcoll.formats.schedules import schedule_json
from simcoll.nccl import call_choice, tuner
from simcoll.nccl.call import NcclCall
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.kernel_costs import BlockCosts, lines_ps, spread_ps
from simcoll.nccl.protocols import figures, slice_bytes
from simcoll.nccl.transports_between_nodes import FLUSHED
from simcoll.nccl.transports_within_node import HOST
from simcoll.prediction.lowered_call import PlainExecutor
from simcoll.prediction.nccl_calls import GpuCall, communicator_of, gpus_of, least_between, wires_of
from simcoll.prediction.placed_topology import PLAIN, network_of, placed, rated_topology
from simcoll.prediction.schedules import StepTraffic, Traffic, copy_orders, source_of
from simcoll.scenario.profile import CostSetting, ModelSpec, PullCosts
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.schedule.names import PROTOCOLS, Protocol
from simcoll.topology.graph import Topology
from simcoll.topology.topology_builder import described

# Thread blocks of one kernel: microsoft/msccl gives a program channels × instances of them, and leaves SMs to others.
MOST_BLOCKS: Final = 64
# Bytes in flight from one peer: 36 blocks of 512 threads, 16 B each (vLLM, csrc/custom_all_reduce).
IN_FLIGHT: Final = 36 * 512 * 16
# Load times between two stages: sums become visible, the flag is sent, it is read, the next stage's first load returns.
BETWEEN_STAGES: Final = 4
MOST_PIECES: Final = 64  # most pieces into which a connection's chunk is cut
# Loads from all peers share links byte by byte; serving this many pieces in turn is close to that. Small loads stay
# whole.
PULLED_PIECES: Final = 16
LEAST_PIECE: Final = 16 << 10  # bytes
LINE: Final = 128  # bytes


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelCall(GpuCall, ABC):
    """A schedule that one kernel runs on all ranks, which are on the devices `places`. `traffic` counts the schedule's
    chunks, each of at most `chunk_bytes` bytes. `between` is the bandwidth between two GPUs, in B/s."""

    executor: ClassVar[str] = "msccl"
    hops = frozenset(("o_send", "latency"))
    traffic: Traffic
    chunk_bytes: int
    between: int
    communicator: Communicator

    @property
    def point(self) -> Scenario:
        """Return the scenario that engines run for this call."""
        params = vars(Params(**self.params))
        spec = ModelSpec.model_construct(**params, copies=self.scenario.copies)
        return self.scenario.model_copy(update={"model": spec, "executor": None, "protocol": "none", **PLAIN})

    @property
    def bandwidths(self) -> Index:
        """Return the bandwidth that the call's data get on each link, int64 (links,), in B/s."""
        rates, most = self._reached
        bandwidths: Index = np.rint(np.minimum(rates, most)).astype(np.int64)[self.wires.sorts[1]]
        return bandwidths

    @property
    def paces(self) -> dict[int, tuple[str, float]]:
        """Return, by link number, ("proxy", 1.0) where a proxy (CPU thread that sends) is slower than the link."""
        rates, most = self._reached
        return dict.fromkeys(np.flatnonzero((most < rates)[self.wires.sorts[1]]).tolist(), ("proxy", 1.0))

    @property
    def _reached(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return two rates in B/s for each class of similar links (`wires.sorts`): the bandwidth that the data get, and
        the rate of a proxy (CPU thread that sends data), infinite where no proxy limits."""
        sorts, proxied = self.wires.sorts[0], self._proxied
        rates = np.array([sort.bandwidth * self._share(sort.kind) for sort in sorts], np.float64)
        if self.communicator.nodes > 1 and self._to_all:
            peers = len(self.places) - self.communicator.gpus
            rates[[sort.of_nic for sort in sorts]] *= self.transport.crowded(self.wires.contention, peers)
        return rates, np.array([proxied if proxied and sort.proxied else math.inf for sort in sorts])

    @property
    def _to_all(self) -> bool:
        """Whether each rank sends to all ranks on other nodes, as in an all-to-all."""
        return self.traffic.peers >= len(self.places) - self.communicator.gpus

    @property
    def _proxied(self) -> float:
        """Return the rate at which a GPU's proxy (CPU thread) sends the call's messages, in B/s; 0 means no limit."""
        return 0.0

    @abstractmethod
    def _share(self, kind: str) -> float:
        """Return the share (0 … 1) of a link's rated bandwidth that the call's data get, for links of this kind."""

    @property
    def latencies(self) -> Index:
        """Return the latency of each link, int64 (links,), in ps, at least 1. The first link of a route has a hop's
        latency. A link between a NIC and a switch has half of the extra time of a hop between nodes. A link to the
        host's memory has the extra time of a hop through this memory. Other links have none."""
        hop, net, host = self._hops
        into_host = self.rated.between_kinds(HOST)[:, 1]
        latencies = np.where(self.wires.to_network, net // 2, self.wires.leaving("gpu") * hop) + into_host * host
        found: Index = np.maximum(latencies.astype(np.int64), 1) + self.wires.excess
        return found

    @property
    @abstractmethod
    def _hops(self) -> tuple[int, int, int]:
        """Return times in ps: of a hop, and what a hop between nodes and a hop through host memory take in addition."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PrimitivesCall(KernelCall):
    """A schedule run with NCCL's primitives: one thread block for each channel and peer.

    Each channel is an instance of the program, and moves its share of every chunk. There are enough channels that the
    blocks for one peer fill a link, but at most MOST_BLOCKS blocks for all peers together.
    """

    @property
    def _named(self) -> Protocol:
        return cast(Protocol, self.protocol)

    @property
    def _block(self) -> BlockCosts:
        block: BlockCosts = getattr(self.kernels, self.protocol)
        return block

    @property
    def _wire(self) -> float:
        return figures().protocols[self._named].efficiency

    @property
    def _rate(self) -> int:
        """Return a thread block's rate in B/s (0: no limit): in LL that of reading flags, else that of moving data."""
        return self.kernels.LL.rate if self.protocol == "LL" else self.kernels.P2P.both

    @property
    def channels(self) -> int:
        """Return the number of channels, within NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS if these are set."""
        rate, comm = self._rate, self.communicator
        filling = -(-self.between // rate) if rate else 1
        if comm.nodes > 1:  # a proxy sends one message per block: at least the bytes that its threads move at once
            line = figures().protocols[self._named]
            filling = min(filling, max(1, -(-self.chunk_bytes // (line.threads * line.moved_a_thread))))
        free = max(1, min(filling, MOST_BLOCKS // max(1, self.traffic.peers)))
        return max(comm.min_channels or 1, min(free, comm.max_channels or free))

    @property
    def params(self) -> dict[str, Any]:
        """Return engine parameters. A rank serves all peers at once, and data for a peer pass in pieces."""
        channels = self.channels
        chunk = channels * slice_bytes("all_reduce", "ring", self._named, self.communicator.buffer_bytes)
        chunk = max(chunk, -(-self.chunk_bytes // MOST_PIECES))
        slice_ps = self._block.slice if self.protocol == "Simple" else 0
        cap = self._connection(channels, min(self.chunk_bytes, chunk))
        return {"sharing": "fifo", "channels": 0, "chunk": chunk, "o_send": slice_ps, "channel_bandwidth": cap}

    def _connection(self, channels: int, nbytes: int) -> int:
        """Return the rate in B/s of all thread blocks for one peer, for a message of `nbytes`; 0 means no limit."""
        if self.protocol != "LL" or not nbytes:
            return channels * self._rate
        each = -(-nbytes // channels)
        took = lines_ps(self.kernels.LL, figures().protocols["LL"].threads, each)
        return channels * each * PS_PER_S // took if took else 0

    def _share(self, kind: str) -> float:
        reach = self._block.reach if kind in self.wires.inner else 1.0
        return self.efficiency(kind) * reach * self._wire

    @property
    def _hops(self) -> tuple[int, int, int]:
        block = self._block
        return block.hop, block.net + self.transport.hop_ps(self._on_wire), block.host

    @property
    def _message(self) -> int:
        """Return the number of bytes that all thread blocks for one peer send at a time."""
        return int(min(self.params["chunk"], self.chunk_bytes))

    @property
    def _on_wire(self) -> int:
        """Return the bytes of one thread block's message on the wire, with the flags of the protocol."""
        return round(self._message / self.channels / self._wire)

    @property
    def _proxied(self) -> float:
        transport, sent = self.transport, self._on_wire
        moved = transport.staged_ps(sent, in_host=self.protocol == "LL")
        read_back = self.protocol == "Simple" and self.communicator.capability < FLUSHED
        moved += transport.seen_in_ps(sent, read_back=read_back)
        # with at most two peers, one of them on another node, a proxy only sends or only receives
        both = 1 if self.traffic.peers <= 2 and self.communicator.gpus > 1 else 2
        took = self.channels * (both * transport.proxy + moved)
        if self._to_all:  # a proxy takes up each peer once
            took += transport.taken_up_ps(sent) * self._message // max(1, self.chunk_bytes)
        return self._message * PS_PER_S / took if took else 0.0

    @property
    def lead(self) -> dict[str, int]:
        """Return `launch_ps` by cause, in ps: launch, start of the protocol, delay of the last thread block."""
        kernels = self.kernels
        blocks = self.channels * max(1, self.traffic.peers)
        launch = self._one_launch + kernels.grid - kernels.grid // blocks
        spread = 0
        if self.protocol == "Simple":
            moved = self.traffic.sent * self.chunk_bytes / blocks
            bandwidth = round(self.between * self._share(next(iter(self.wires.inner), "")) / blocks)
            spread = spread_ps(kernels.spread, blocks, moved, bandwidth)
        return {"launch": launch, "start": self._block.start, "spread": spread}


@dataclass(frozen=True, eq=False, kw_only=True)
class PullCall(KernelCall):
    """A schedule whose receivers load data from their peers' memory, stage by stage, with barriers of flags around each
    stage. Loads that are reduced go to all peers at once. Loads that only copy go to one peer after the other, so a
    stage lasts at least one load per peer. The bytes in flight from one peer limit the bandwidth from this peer."""

    @property
    def _pull(self) -> PullCosts:
        return self.costs.pull or PullCosts()

    @property
    def params(self) -> dict[str, Any]:
        """Return the engine parameters. A rank loads from all peers at once."""
        load = self._pull.load
        cap = IN_FLIGHT * PS_PER_S // load if load else 0
        chunk = max(LEAST_PIECE, -(-self.chunk_bytes // PULLED_PIECES // LINE) * LINE)
        return {"sharing": "fifo", "channels": 0, "chunk": chunk, "channel_bandwidth": cap}

    def _share(self, kind: str) -> float:
        return self._pull.reach

    @property
    def _hops(self) -> tuple[int, int, int]:
        return 0, 0, 0

    @property
    def lead(self) -> dict[str, int]:
        """Return `launch_ps` by cause, in ps: launch, flags of barriers, loads that wait for earlier loads."""
        pull = self._pull
        flags = round(pull.flag * math.log2(len(self.places)))
        stages = sum(each.times for each in self.traffic.rounds)
        waits = BETWEEN_STAGES * max(0, stages - 1) * pull.load
        for each in self.traffic.rounds:
            moving = each.chunks * self.chunk_bytes * PS_PER_S / (self.between * self._share(""))
            waits += each.times * each.copied * max(0, pull.load - round(moving))
        return {"launch": pull.launch, "flags": flags, "loads": waits}

    def cheaper(self) -> Iterator[tuple[str, CostSetting]]:
        """Yield a description and costs, twice: launches take no time, and loads take half the time."""
        pull = self._pull
        yield "launches take no time", replace(self.costs, pull=pull.model_copy(update={"launch": 0}))
        yield "loads take half the time", replace(self.costs, pull=pull.model_copy(update={"load": pull.load // 2}))


@dataclass(frozen=True, eq=False, kw_only=True)
class MultimemCall(PullCall):
    """An all-reduce in which the switch adds what ranks load and multicasts what they store: multimem of NVLink SHARP.

    Each rank handles its share of the buffer: the sum of this share crosses the rank's link down and up, beside all
    other data. Links carry data as fast as in NCCL's NVLS. A rank's loads are in flight to all ranks at once. The
    switch can only use buffers registered with it, so data are copied there and back.
    """

    @property
    def params(self) -> dict[str, Any]:
        """Return the engine parameters."""
        params = super().params
        return params | {"channel_bandwidth": params["channel_bandwidth"] * len(self.places)}

    def _share(self, kind: str) -> float:
        ranks = len(self.places)
        return self.kernels.NVLS.reach * ranks / (ranks + 1)

    @property
    def lead(self) -> dict[str, int]:
        """Return the time in ps added to transfers, by cause; `copies` are to the switch's buffers and back."""
        copied = 0
        for link in self.rated.route(self.places[0], self.places[0]):  # the link of the memory, if the topology has one
            copied += int(self.rated.latencies[link])
            copied += self.scenario.nbytes * PS_PER_S // int(self.rated.bandwidths[link])
        return {**super().lead, "copies": 2 * copied}


@dataclass(frozen=True, eq=False, kw_only=True)
class MessagesCall(KernelCall):
    """A schedule with one launch per step, of grouped sends and receives, as NCCL runs point-to-point messages.

    `steps` holds, for each distinct step, how often the step is repeated, and NCCL's call for it.
    """

    executor: ClassVar[str] = "p2p"
    steps: tuple[tuple[int, NcclCall], ...]

    @property
    def params(self) -> dict[str, Any]:
        """Return the engine parameters. A rank serves all peers at once."""
        kernels = self.kernels
        rates = [step.params(kernels)["channel_bandwidth"] for _, step in self.steps]
        return {"sharing": "fifo", "channels": 0, "channel_bandwidth": min(filter(None, rates), default=0)}

    def _share(self, kind: str) -> float:
        reach = self.kernels.P2P.reach if kind in self.wires.inner else 1.0
        return self.efficiency(kind) * reach

    @property
    def _proxied(self) -> float:
        took = max((step.proxy_ps(self.transport) for _, step in self.steps), default=0.0)
        return PS_PER_S / took if took else 0.0

    @property
    def _hops(self) -> tuple[int, int, int]:
        kernels = self.kernels
        return 0, kernels.Simple.net + self.transport.hop_ps(0), kernels.P2P.host

    @property
    def lead(self) -> dict[str, int]:
        """Return the parts of `launch_ps` by cause, in ps: launches, and starts of the protocol."""
        kernels, one = self.kernels, self._one_launch
        launches = sum(times * (one + step.wide_ps(kernels)) for times, step in self.steps)
        whole = sum(times * step.launch_ps(kernels, one, self.between) for times, step in self.steps)
        return {"launch": launches, "start": whole - launches}


MOST_RUN: Final = 100_000  # most transfers of all copies together: they take some tenths of a second


def _rail_copies(scenario: Scenario, rated: Topology) -> tuple[int, ...]:
    """Return the numbers of copies to try: 1, and enough for all rails (NICs of a node). Empty if already one copy lets
    each rank send to other nodes, for a schedule from a file, or if the scenario sets the number."""
    places = placed(scenario, rated)
    node = [rated.node_of(place) for place in places]
    if scenario.model.copies or len(set(node)) < 2 or schedule_json.is_file(scenario.algorithm):
        return ()
    try:
        source = source_of(scenario, rated, places).source
    except RefusedError:  # the run itself reports it
        return ()
    orders = copy_orders(scenario, rated, places)
    if len(orders) < 2 or source.transfers * len(orders) > MOST_RUN:
        return ()
    schedule = written_out(source)
    known = np.array([-1 if each is None else each for each in node])
    between = (schedule.src < source.n) & (schedule.dst < source.n)  # agents serve the ranks of their node
    src, dst = schedule.src[between], schedule.dst[between]
    return () if len(distinct(src[known[src] != known[dst]])) == len(places) else (1, len(orders))


SMALL: Final = 64  # most ranks for which `auto` tries every schedule
PULL: Final = "pull"


class KernelExecutor(PlainExecutor):
    """The executor that runs a schedule as one user-written kernel."""

    tunable = False
    protocols = (*get_args(Protocol), PULL)

    def lower(
        self, scenario: Scenario, topology: Topology | None = None, costs: CostSetting | None = None
    ) -> KernelCall:
        """Return the scenario's call; raises RefusedError if no user-written kernel can run it."""
        rated, places, comm = gpus_of(scenario, topology)
        between = least_between(rated, places)
        wires = wires_of(rated, places, comm, messages=True)
        rated = wires.rated
        proved = source_of(scenario, rated, places)
        source = proved.source
        if source.agents and scenario.protocol == PULL and not _added(scenario):
            what = f"{scenario.collective} of {scenario.dtype} by {scenario.op}"
            raise RefusedError(f"NVSwitches reduce only some dtypes of an all_reduce, not {what}")
        grain = source.n_chunks * scenario.itemsize
        return self._made(
            scenario=scenario,
            rated=rated,
            places=places,
            costs=costs or CostSetting.of(self.profile),
            algorithm=scenario.algorithm,
            protocol=scenario.protocol,
            wires=wires,
            network_costs=network_of(described(scenario.topology)),
            traffic=proved.traffic,
            chunk_bytes=-(-scenario.nbytes // grain) * scenario.itemsize,
            between=between or self._slowest(rated, places),
            communicator=comm,
        )

    def _made(self, **fields: Any) -> KernelCall:
        comm: Communicator = fields["communicator"]
        if fields["scenario"].protocol != PULL:
            if fields["traffic"].agents:
                raise RefusedError("NVSwitches reduce loads, not messages; write `protocol: pull`")
            return PrimitivesCall(**fields, kind=fields["protocol"])
        if comm.nodes > 1 or comm.graphs["ring"].type_intra not in ("NVL", "NVB"):
            raise RefusedError("`protocol: pull` needs NVLink within one node; take another protocol")
        return MultimemCall(**fields) if fields["traffic"].agents else PullCall(**fields)

    @staticmethod
    def _slowest(rated: Topology, places: tuple[str, ...]) -> int:
        """Return the bandwidth from the first GPU to the second, in B/s; the GPUs are on different nodes."""
        return min(int(rated.bandwidths[link]) for link in rated.route(places[0], places[1]))

    def alternatives(self, scenario: Scenario, topology: Topology | None = None) -> list[Scenario]:
        """Return a scenario for each choice left open: schedule, protocol, copies (1, or enough for all NICs)."""
        if scenario.algorithm in ("auto", "best"):
            named = [scenario.model_copy(update={"algorithm": name}) for name in self._schedules(scenario, topology)]
        else:
            named = super().alternatives(scenario, topology)
        rated, options = topology or rated_topology(scenario), list[Scenario]()
        protocols = self.protocols_for(scenario, topology)
        for each in named:
            copies = _rail_copies(each, rated)
            models = [each.model.model_copy(update={"copies": count}) for count in copies]
            for protocol in protocols:
                one = each if protocol == each.protocol else each.model_copy(update={"protocol": protocol})
                options += [one.model_copy(update={"model": model}) for model in models] or [one]
        return options

    def protocols_for(self, scenario: Scenario, topology: Topology | None = None) -> list[str]:
        """Return the protocol that the scenario names, else those that NCCL uses on the machine; only `pull` for a
        schedule file in which switches reduce."""
        if scenario.protocol not in ("none", "auto"):
            return [scenario.protocol]
        if schedule_json.is_file(scenario.algorithm) and schedule_json.read(scenario.algorithm).agents:
            return [PULL]  # switches can only add what is loaded
        comm = gpus_of(scenario, topology)[2]
        entries = tuner.table(comm, self.release(scenario), scenario.env.selection).entries
        used = {protocol for _, _, protocol in entries}
        if not used:
            raise RefusedError(f"{scenario.env} excludes all protocols of NCCL; leave out NCCL_PROTO")
        return [protocol for protocol in PROTOCOLS if protocol in used]

    def choices(self, scenario: Scenario, topology: Topology | None = None) -> list[tuple[str, str]]:
        """Return all pairs of a schedule and a protocol that can run the scenario's collective."""
        protocols = self.protocols_for(scenario, topology)
        return [(name, protocol) for name in self._schedules(scenario, topology) for protocol in protocols]

    def _schedules(self, scenario: Scenario, topology: Topology | None) -> list[str]:
        """Return the schedules to try for the collective. Above SMALL ranks only algorithms of libraries, and those
        with groups, are tried. `nvls`, in which a switch reduces, is tried only with `protocol: pull`."""
        rated = topology or rated_topology(scenario)
        places = placed(scenario, rated)
        entries = [registry.find(scenario.collective, name)[0] for name in registry.comparable(scenario.collective)]
        sent = [entry for entry in entries if not entry.needs_agent]
        served = [entry.name for entry in sent if len(places) <= SMALL or entry.library or entry.uses_groups]
        if scenario.protocol == PULL and _added(scenario):
            served += ["nvls"] * bool(communicator_of(scenario, rated, places).graph("nvls"))
        return served

    def algorithms(self, collectives: Collection[str]) -> list[str]:
        """Return the algorithms that have a schedule for each of the collectives."""
        served = [set(registry.names(collective)) for collective in collectives]
        return sorted(set.intersection(*served)) if served else []


def _added(scenario: Scenario) -> bool:
    """Whether NVSwitches can reduce a call's data: an all-reduce of a dtype and operator that they support."""
    return scenario.collective == "all_reduce" and tuner.switch_reduces(scenario.dtype, scenario.op)


class MessagesExecutor(KernelExecutor):
    """The executor that runs a schedule as sends and receives, with one launch per step."""

    protocols = ()

    def _made(self, **fields: Any) -> KernelCall:
        scenario, rounds = fields["scenario"], fields["traffic"].rounds
        if scenario.protocol not in ("none", "auto"):
            raise RefusedError(f"sends and receives take no protocol; leave out `protocol: {scenario.protocol}`")
        comm, chunk, between = fields["communicator"], fields["chunk_bytes"], fields["between"]
        steps = tuple((each.times, self._step(scenario, comm, each, chunk, between)) for each in rounds)
        fields["protocol"] = ", ".join(dict.fromkeys(step.protocol for _, step in steps)) or "none"
        return MessagesCall(**fields, steps=steps, launches=max(1, sum(times for times, _ in steps)))

    def _step(self, scenario: Scenario, comm: Communicator, each: StepTraffic, chunk: int, between: int) -> NcclCall:
        """Return NCCL's call for one step's messages: `send_recv` if ranks have one peer, else `all_to_all`."""
        message = max(scenario.itemsize, each.chunks * chunk)
        collective, ranks = ("send_recv", 1) if each.peers == 1 else ("all_to_all", comm.ranks)
        release = self.release(scenario)
        return call_choice.choose(comm, collective, message * ranks, scenario.itemsize, release, between=between)

    def alternatives(self, scenario: Scenario, topology: Topology | None = None) -> list[Scenario]:
        """Return scenarios of which the fastest is the answer: one for each schedule if the algorithm is `auto`."""
        if scenario.algorithm in ("auto", "best"):
            return [scenario.model_copy(update={"algorithm": name}) for name, _ in self.choices(scenario, topology)]
        return PlainExecutor.alternatives(self, scenario, topology)

    def protocols_for(self, scenario: Scenario, topology: Topology | None = None) -> list[str]:
        """Return only the scenario's own value of `protocol`: NCCL chooses the protocol of messages."""
        return [scenario.protocol]
