"""The plan of a training step on all its ranks, with every exchange as a call, to simulate them jointly."""

from __future__ import annotations

from collections.abc import Iterable

from simcoll.errors import wrong
from simcoll.workload.plan import WorkloadPlan
from simcoll.workload.rank_layout import Call
from simcoll.workload.training_plan import COMPUTE, Planner, StepOperation, StepPlan
from simcoll.workload.transformer import Beside, Exchange, Operation


def on_all_ranks(planner: Planner, steps: StepPlan) -> WorkloadPlan:
    """Return the plan on all ranks. Raises InputError if exchanges are partly hidden behind matrix products: only the
    plan on one rank of each stage has them."""
    if planner.tensor_overlap and planner.spec.parallel.tp > 1:
        problem = "the joint simulation of all ranks cannot hide tensor-parallel exchanges in part"
        raise wrong("workload.overlap", problem, "write overlap: {tensor: false}, or leave out `shortcuts: off`")
    made = _AllRanks(planner)
    for number, operation in enumerate(steps.operations):
        made.last[number] = made.placed(operation)
    return made.plan


class _AllRanks:
    def __init__(self, planner: Planner):
        self.planner, self.layout = planner, planner.layout
        self.plan = WorkloadPlan(self.layout.dense.size)
        self.stages = [tuple(self.layout.stage(stage)) for stage in range(planner.stages)]
        self.last: dict[int, list[int]] = {}  # operations of the plan by number -> operations on all ranks that end it

    def placed(self, operation: StepOperation) -> list[int]:
        """Add an operation on all ranks of its stage; return what ends it."""
        after = [number for before in operation.before for number in self.last[before]]
        name, ranks = operation.name, self.stages[operation.stage]
        if operation.call:
            stream = operation.stream if operation.stream != COMPUTE else "pp"
            return self.called(name, operation.call, f"{stream} {operation.call.dimension} {operation.stage}", after)
        left = operation.took
        for unit, phase in operation.parts:
            for each in unit.phases[phase]:
                took = sum(self.planner.cost_of(each, operation.stage))
                after = self.inside(name, each, operation.stage, took, after)
                left -= took
        if left or not operation.parts:
            after = [self.plan.compute(name, left, ranks=ranks, after=after)]
        return after

    def inside(self, name: str, each: Operation, stage: int, took: int, after: list[int]) -> list[int]:
        """Add one operation of a pass."""
        ranks = self.stages[stage]
        if isinstance(each, Exchange):
            call = self.planner.call_of(each, stage)
            for _ in range(each.times):
                after = self.called(name, call, f"{each.dimension} {stage}", after)
            return after
        if isinstance(each, Beside):
            call = self.planner.call_of(each.exchange, stage)
            for number, core in enumerate(each.passes):
                took = sum(self.planner.cost_of(core, stage))
                there = self.plan.compute(name, took, ranks=ranks, after=after)
                stream = f"{each.exchange.dimension} {stage}"
                sent = self.called(name, call, stream, after) if number < each.sends else []
                after = [there, *sent]
            return after
        return [self.plan.compute(name, took, ranks=ranks, after=after)]

    def called(self, name: str, call: Call, stream: str, after: Iterable[int]) -> list[int]:
        """Add a call in every group of its dimension."""
        after = [*after]
        made = call.made(self.planner.spec.algorithm)
        groups = self.layout.groups_of(call)
        return [self.plan.call(name, made, stream=stream, ranks=group, after=after) for group in groups]
