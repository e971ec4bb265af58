"""Executors that run a schedule as one kernel, or as sends and receives: they make the call of a scenario."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, get_args

from simcoll.errors import RefusedError
from simcoll.formats.schedules import schedule_json
from simcoll.nccl import call_choice, tuner
from simcoll.nccl.call import NcclCall
from simcoll.nccl.communicator import Communicator
from simcoll.nccl.kernel_costs import Kernels
from simcoll.nccl.within_node import by_host, staged
from simcoll.prediction._kernel_call import KernelCall, MessagesCall, MultimemCall, PrimitivesCall, PullCall
from simcoll.prediction._nccl_channel import communicator_of, least_between, system_of
from simcoll.prediction._plain_call import PlainExecutor
from simcoll.prediction._rail_copies import in_rail_copies
from simcoll.prediction._schedule_source import source_of
from simcoll.prediction._schedule_traffic import StepTraffic, traffic
from simcoll.prediction.placing import network_of, placed, rated_topology
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry
from simcoll.schedule.names import PROTOCOLS, Protocol
from simcoll.topology.graph import Topology

SMALL: Final = 64  # ranks up to which every schedule is a choice
TOO_FEW: Final = "kernels are modelled for two ranks or more; take another profile"
PULL: Final = "pull"


class KernelExecutor(PlainExecutor):
    """Runs schedules as one kernel does."""

    tunable = False
    protocols = (*get_args(Protocol), PULL)

    def lower(self, scenario: Scenario, topology: Topology | None = None) -> KernelCall:
        """The call of a scenario; raises RefusedError for what such kernels do not do."""
        rated = topology or rated_topology(scenario)
        places = placed(scenario, rated)
        if len(places) < 2:
            raise RefusedError(TOO_FEW)
        comm = communicator_of(scenario, rated, places)
        between = least_between(rated, places)
        if staged(comm):
            rated = by_host(rated, comm)
        source, _ = source_of(scenario, rated, places)
        if source.agents and scenario.protocol == PULL and not _added(scenario):
            what = f"{scenario.collective} of {scenario.dtype} by {scenario.op}"
            raise RefusedError(f"switches add loads in an all_reduce, of types that they add, not {what}")
        grain = source.n_chunks * scenario.itemsize
        near = [place for place in places if rated.node_of(place) == rated.node_of(places[0])]
        inner = frozenset(rated.link_kinds[link] for place in near[1:] for link in rated.route(places[0], place))
        return self._made(
            scenario=scenario,
            rated=rated,
            places=places,
            traffic=traffic(source),
            chunk_bytes=-(-scenario.nbytes // grain) * scenario.itemsize,
            between=between or self._slowest(rated, places),
            inner=inner,
            network_costs=network_of(system_of(scenario)),
            communicator=comm,
        )

    def _made(self, **fields: Any) -> KernelCall:
        comm: Communicator = fields["communicator"]
        if fields["scenario"].protocol != PULL:
            if fields["traffic"].agents:
                raise RefusedError("switches add what is loaded from them, and get no messages; take protocol: pull")
            return PrimitivesCall(**fields)
        if comm.nodes > 1 or comm.graphs["ring"].type_intra not in ("NVL", "NVB"):
            raise RefusedError("peers' memory is read over NVLink, within a node; take another protocol")
        return MultimemCall(**fields) if fields["traffic"].agents else PullCall(**fields)

    @staticmethod
    def _slowest(rated: Topology, places: tuple[str, ...]) -> int:
        """B/s from the first GPU to the second, of another node."""
        return min(int(rated.bandwidths[link]) for link in rated.route(places[0], places[1]))

    def alternatives(self, scenario: Scenario, topology: Topology | None = None) -> list[Scenario]:
        """Each choice for `auto`; each protocol of the machine unless one is named; copies on all rails or not."""
        if scenario.algorithm in ("auto", "best"):
            pairs = self.choices(scenario, topology)
            named = [scenario.model_copy(update={"algorithm": name, "protocol": protocol}) for name, protocol in pairs]
        else:
            named = super().alternatives(scenario, topology)
            if scenario.protocol in ("none", "auto"):
                protocols = self.protocols_for(scenario, topology)
                named = [each.model_copy(update={"protocol": protocol}) for each in named for protocol in protocols]
        return [copied for each in named for copied in in_rail_copies(each, topology)]

    def protocols_for(self, scenario: Scenario, topology: Topology | None = None) -> list[str]:
        """The protocol that a scenario names, or else those that NCCL uses on the machine; loads for a file in which
        switches add."""
        if scenario.protocol not in ("none", "auto"):
            return [scenario.protocol]
        if schedule_json.is_file(scenario.algorithm) and schedule_json.read(scenario.algorithm).agents:
            return [PULL]  # the only way to have switches add
        rated = topology or rated_topology(scenario)
        if len(places := placed(scenario, rated)) < 2:
            raise RefusedError(TOO_FEW)
        comm = communicator_of(scenario, rated, places)
        entries = tuner.table(comm, self.release(scenario), scenario.env.selection).entries
        used = {protocol for _, _, protocol in entries}
        if not used:
            raise RefusedError(f"no protocol of NCCL is left under {scenario.env}; leave out NCCL_PROTO")
        return [protocol for protocol in PROTOCOLS if protocol in used]

    def choices(self, scenario: Scenario, topology: Topology | None = None) -> list[tuple[str, str]]:
        """Schedules of the collective, of many ranks only those that libraries have or that use groups, each with the
        protocols that it may have; one that needs a switch to reduce, which no send reaches, only for loads."""
        rated = topology or rated_topology(scenario)
        places = placed(scenario, rated)
        entries = registry.ALGORITHMS.get(scenario.collective, {}).values()
        sent = [entry for entry in entries if not entry.needs_agent]
        served = [entry.name for entry in sent if len(places) <= SMALL or entry.library or entry.uses_groups]
        if scenario.protocol == PULL and _added(scenario):
            served += ["nvls"] * bool(communicator_of(scenario, rated, places).graph("nvls"))
        return [(name, protocol) for name in served for protocol in self.protocols_for(scenario, topology)]

    def algorithms(self, collectives: Collection[str]) -> list[str]:
        """Algorithms that have a schedule for all of these collectives."""
        served = [set(registry.names(collective)) for collective in collectives]
        return sorted(set.intersection(*served)) if served else []

    def release(self, scenario: Scenario) -> str | None:
        """NCCL's release: the scenario's, or else the profile's."""
        return scenario.library_version or (self.profile.kernels or Kernels()).version


def _added(scenario: Scenario) -> bool:
    """Whether switches can do the sums of a call whose ranks load."""
    return scenario.collective == "all_reduce" and tuner.switch_reduces(scenario.dtype, scenario.op)


class MessagesExecutor(KernelExecutor):
    """Runs schedules by sends and receives, a launch for each step."""

    protocols = ()

    def _made(self, **fields: Any) -> KernelCall:
        scenario, rounds = fields["scenario"], fields["traffic"].rounds
        if scenario.protocol not in ("none", "auto"):
            raise RefusedError(f"sends and receives choose their protocol; leave out protocol: {scenario.protocol}")
        comm, chunk, between = fields["communicator"], fields["chunk_bytes"], fields["between"]
        steps = tuple((each.times, self._step(scenario, comm, each, chunk, between)) for each in rounds)
        return MessagesCall(**fields, steps=steps)

    def _step(self, scenario: Scenario, comm: Communicator, each: StepTraffic, chunk: int, between: int) -> NcclCall:
        """The call of NCCL that sends as many messages as large: to one peer, or to several."""
        message = max(scenario.itemsize, each.chunks * chunk)
        collective, ranks = ("send_recv", 1) if each.peers == 1 else ("all_to_all", comm.ranks)
        release = self.release(scenario)
        return call_choice.choose(comm, collective, message * ranks, scenario.itemsize, release, between=between)

    def alternatives(self, scenario: Scenario, topology: Topology | None = None) -> list[Scenario]:
        """Each choice for `auto`; protocols are NCCL's choice."""
        if scenario.algorithm in ("auto", "best"):
            return [scenario.model_copy(update={"algorithm": name}) for name, _ in self.choices(scenario, topology)]
        return PlainExecutor.alternatives(self, scenario, topology)

    def protocols_for(self, scenario: Scenario, topology: Topology | None = None) -> list[str]:
        """The protocol of the scenario: messages choose by themselves."""
        return [scenario.protocol]
