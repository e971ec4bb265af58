"""The answer of `simcoll synthesize`: a schedule that was made for a network, its bound, and what proves both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from simcoll.config.yaml_tree import Node
from simcoll.errors import InputError, Place
from simcoll.prediction import synthesized
from simcoll.prediction.predict import predict
from simcoll.prediction.predictions import Prediction
from simcoll.scenario.scenario import SYNTHESIZED, Scenario
from simcoll.scenario.scenario_files import points_of_call
from simcoll.schedule.proof import Proof, level_for, prove
from simcoll.schedule.schedule import Schedule
from simcoll.synthesis.synthesize import Plan, load_of, rate_of

DEFAULTS: Final = ("size=1 GiB", "profile=ideal")


@dataclass(frozen=True, eq=False)
class Synthesized:
    """A schedule of `plan`, cut into `pieces`, and its simulation at the scenario's size."""

    scenario: Scenario
    plan: Plan
    pieces: int
    schedule: Schedule
    prediction: Prediction

    @property
    def places(self) -> tuple[str, ...]:
        """The device of each rank."""
        return tuple(self.plan.graph.devices[: self.plan.graph.n])

    @cached_property
    def proof(self) -> Proof:
        """How the schedule's contract was proved. Raises ScheduleError if it is wrong."""
        level = level_for(self.schedule.n)
        prove(self.schedule, level)
        return level

    @cached_property
    def load_ok(self) -> bool:
        """Whether the links carry the schedule at the throughput that its plan promises, and not beyond the bound."""
        rate = rate_of(self.schedule, self.plan.topology, self.plan.graph.devices)
        return self.plan.rate <= rate <= self.plan.bound.rate

    @cached_property
    def least(self) -> tuple[int, bool]:
        """The least time that any schedule takes, in ps, and whether latency alone says so."""
        found, least_ps = self.prediction.lower_bound, self.plan.bound.time_ps(self.scenario.nbytes)
        latency = found.kind == "latency" and found.ps > least_ps
        return (found.ps if latency else least_ps), latency

    @property
    def busiest(self) -> list[tuple[str, int, float]]:
        """The links with the most chunks for their bandwidth: their names, chunks, and share of the busiest one's
        time."""
        topology = self.plan.topology
        load = load_of(self.schedule, topology, self.plan.graph.devices)
        took = load / topology.bandwidths.clip(1)
        order = (-took).argsort(kind="stable")
        return [(topology.link_names[i], int(load[i]), float(took[i] / took.max())) for i in order if load[i]]

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the command."""
        plan, bound, nbytes = self.plan, self.plan.bound, self.scenario.nbytes
        return {
            "collective": plan.collective,
            "topology": plan.topology.name,
            "ranks": self.schedule.n,
            "size_bytes": nbytes,
            "bound_GBps": bound.gbps,
            "bound_exact": str(bound.rate / 10**9) if bound.exact else None,
            "bound_kind": bound.kind,
            "witness": {"devices": list(bound.devices), "links": list(bound.links)},
            "schedule": {
                "trees": plan.trees,
                "height": plan.height,
                "chunks": self.pieces,
                "steps": self.schedule.n_steps,
                "GBps": float(plan.rate / 10**9),
                "loss": plan.loss,
            },
            "load_ok": self.load_ok,
            "proved": bool(self.proof),
            "time_us": self.prediction.time_ps / 1e6,
            "optimum_us": self.least[0] / 1e6,
            "profile": self.scenario.profile,
        }


def of_keys(collective: str, sets: Sequence[str], max_trees: int = 0, served: bool = True) -> Synthesized:
    """Return the schedule that ends first for the keys of a scenario `sets`, as assignments. Unless `served`, no switch
    adds. Raises InputError for wrong keys and several points, RefusedError if no schedule can be made."""
    start = Place("synthesize", 1, 1)
    given = [each for each in DEFAULTS if not any(str(own).startswith(each.partition("=")[0] + "=") for own in sets)]
    named = [f"collective={collective}", f"algorithm={SYNTHESIZED}", *given, *sets]
    points = points_of_call(Node({"name": Node("synthesize", start)}, start), named)
    if len(points) != 1:
        raise InputError(f"{len(points)} points are given, and one schedule is made at a time", "give one of each key")
    with points[0].placing():
        return of_scenario(points[0].scenario, max_trees, served)


def of_scenario(scenario: Scenario, max_trees: int = 0, served: bool = True) -> Synthesized:
    """Return the schedule that ends first at a scenario's size. Unless `served`, no switch adds."""
    found = [
        Synthesized(scenario, plan, pieces, schedule, predict(option))
        for plan, pieces, schedule, option in synthesized.options(scenario, None, max_trees, served)
    ]
    return min(found, key=lambda each: each.prediction.time_ps)
