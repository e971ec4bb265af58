"""The plan of a training step: the operations of one rank of each stage of the pipeline, on streams.

All ranks of a stage do the same at the same time, so one of them stands for all. A stage computes on one stream; its
gradients and parameters move on a second one, results for other stages on further ones. Exchanges within a pass that
nothing hides (tensor, context, expert parallelism) are part of the pass. The plan gives the time of the step and, for
each stage, where its time goes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.units import PS_PER_S
from simcoll.workload import pipeline_orders
from simcoll.workload.compute import Compute
from simcoll.workload.pipeline_orders import BACKWARD, FORWARD, WEIGHTS, Turn
from simcoll.workload.rank_layout import Call, Layout
from simcoll.workload.training_keys import BYTES, TrainingStep
from simcoll.workload.transformer import (
    Attention,
    Block,
    Elementwise,
    Exchange,
    Gemm,
    Operation,
    Ring,
    Types,
    block,
    embedding,
    head,
)

COMPUTE: Final = "compute"  # streams
SHARDS: Final = "dp"
BUCKET: Final = 40_000_000  # parameters from which a bucket of gradients is sent: Megatron's default
OPTIMIZER_BYTES: Final = (
    28  # per parameter: read it, its gradient and two moments; write it and the moments, in float32
)

# kinds of time of an operation
PARTS: Final = ("gemm", "attention", "elementwise", "launch", "interference", "optimizer", "tp", "cp", "ep", "pp", "dp")
COMPUTING: Final = PARTS[:4]
EXCHANGES: Final = ("tp", "pp", "dp", "ep", "cp")
Costs = tuple[int, ...]  # ps by kind, in the order of PARTS
NOTHING: Final[Costs] = (0,) * len(PARTS)


CallTime = Callable[[Call], int]  # ps


def cost(**parts: int) -> Costs:
    """Return costs of some kinds.

    >>> cost(gemm=2, pp=1)
    (2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0)
    """
    return tuple(parts.get(name, 0) for name in PARTS)


def added(*costs: Costs) -> Costs:
    """Return the sum of costs by kind."""
    return tuple(map(sum, zip(NOTHING, *costs, strict=True)))


class StepOperation(NamedTuple):
    """An operation of a stage: what it is (`forward`, `backward`, `weights`, `optimizer`, `gather`, …), its stream,
    its costs and time in ps, and the operations that end before it begins. `calls` or `parts` say what it is made of:
    a call, or units of the model that a pass goes over."""

    kind: str
    name: str
    stage: int
    stream: str
    costs: Costs
    took: int
    before: tuple[int, ...]
    call: Call | None = None
    parts: tuple[tuple[Unit, str], ...] = ()


@dataclass(frozen=True, eq=False)
class Unit:
    """A block, the embedding or the head on one rank: its operations by phase, and their costs."""

    name: str
    block: Block
    phases: dict[str, tuple[Operation, ...]]
    cost_of: Callable[[str], Costs]

    @functools.cached_property
    def costs(self) -> dict[str, Costs]:
        """Return the costs by phase."""
        return {phase: self.cost_of(phase) for phase in self.phases}

    @property
    def parameters(self) -> int:
        """Return the parameters of one rank, without experts."""
        return self.block.parameters


@dataclass(eq=False)
class StepPlan:
    """Operations of `stages` stages in the order of their launch; operations of a stream run in this order."""

    stages: int
    operations: list[StepOperation] = field(default_factory=list)
    _last: dict[tuple[int, str], int] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        name: str,
        stage: int,
        stream: str,
        costs: Costs,
        after: Iterable[int] = (),
        call: Call | None = None,
        parts: tuple[tuple[Unit, str], ...] = (),
    ) -> int:
        """Add an operation and return its number."""
        number, before = len(self.operations), [*after]
        if (stage, stream) in self._last:
            before.append(self._last[stage, stream])
        self._last[stage, stream] = number
        made = StepOperation(kind, name, stage, stream, costs, sum(costs), tuple(before), call, parts)
        self.operations.append(made)
        return number

    def last(self, stage: int) -> list[int]:
        """Return the last operation of each stream of a stage."""
        return [number for (of, _), number in self._last.items() if of == stage]

    def timed(self) -> TimedStep:
        """Return when each operation runs."""
        starts: list[int] = []
        ends: list[int] = []
        for each in self.operations:
            start = max([ends[number] for number in each.before], default=0)
            starts.append(start)
            ends.append(start + each.took)
        return TimedStep(self, starts, ends)


class Gap(NamedTuple):
    """A time in which a stage does not compute, in ps, and its cause: `bubble`, `wait`, or a dimension."""

    start: int
    end: int
    cause: str


@dataclass(frozen=True, eq=False)
class TimedStep:
    """A plan with the start and end of each operation, in ps."""

    plan: StepPlan
    starts: list[int]
    ends: list[int]

    @functools.cached_property
    def time_ps(self) -> int:
        """Return the time of the step."""
        return max(self.ends)

    @functools.cached_property
    def last_stage(self) -> int:
        """Return the stage that ends last."""
        number = max(range(len(self.ends)), key=self.ends.__getitem__)
        return self.plan.operations[number].stage

    @functools.cached_property
    def _work(self) -> dict[tuple[int, str], int]:
        """Time that each stage spends on each kind of pass, in ps."""
        totals: dict[tuple[int, str], int] = {}
        for each in self.plan.operations:
            if each.stream == COMPUTE:
                totals[each.stage, each.kind] = totals.get((each.stage, each.kind), 0) + each.took
        return totals

    def gaps(self, stage: int) -> list[Gap]:
        """Return the times in which a stage does not compute, with their causes. A stage that waits for another stage's
        pass is in the bubble for as long as its own such pass takes; the rest is waiting for a slower stage."""
        found: list[Gap] = []
        free = 0
        for number, each in enumerate(self.plan.operations):
            if each.stage != stage or each.stream != COMPUTE:
                continue
            if self.starts[number] > free:
                found += self._causes(number, free, stage)
            free = self.ends[number]
        if free < self.time_ps:  # another stage ends later
            found.append(Gap(free, self.time_ps, "wait"))
        return found

    def _causes(self, number: int, free: int, stage: int) -> list[Gap]:
        """Follow what an operation waited for, back to the time `free`."""
        found: list[Gap] = []
        until = self.starts[number]
        while until > free:
            number = max(self.plan.operations[number].before, key=self.ends.__getitem__)
            each, start = self.plan.operations[number], max(free, self.starts[number])
            if each.stream != COMPUTE or each.call is not None:
                found.append(Gap(start, until, each.call.dimension if each.call else each.kind))
            else:
                other, own = self._work[each.stage, each.kind], self._work.get((stage, each.kind), 0)
                slower = min(until - start, each.took * max(0, other - own) // max(1, other))
                found += [Gap(until - slower, until, "wait"), Gap(start, until - slower, "bubble")]
            until = start
        return [gap for gap in reversed(found) if gap.end > gap.start]

    def breakdown(self, stage: int) -> dict[str, int]:
        """Return where the time of a stage goes, in ps: by kind of work (PARTS), `bubble` and `wait`. The sum is the
        time of the step; a dimension's time is what its exchanges add to the step."""
        parts = {**dict.fromkeys(PARTS, 0), "bubble": 0, "wait": 0}
        for each in self.plan.operations:
            if each.stage == stage and each.stream == COMPUTE:
                for name, took in zip(PARTS, each.costs, strict=True):
                    parts[name] += took
        for gap in self.gaps(stage):
            parts[_NAMED.get(gap.cause, gap.cause)] += gap.end - gap.start
        return parts


_NAMED: Final = {"edp": "dp", "shard": "dp", "replica": "dp", "etp": "tp", "tied": "pp"}


class Planner:
    """Makes the plan of a step. `call_time` returns the time of a call whose group has the links to itself."""

    def __init__(self, spec: TrainingStep, layout: Layout, compute: Compute, call_time: CallTime):
        self.spec, self.layout, self.compute, self.call_time = spec, layout, compute, call_time
        self.dp = spec.check(layout.dense.size)
        self.passes = spec.passes(self.dp)
        self.stages, self.chunks = spec.parallel.pp, spec.schedule.stages_per_rank
        self.plan = StepPlan(self.stages)
        compute_type = spec.dtypes.compute
        self.types = Types(compute_type, 4 if compute_type == "fp32" else 2)
        self.activations = "float32" if compute_type == "fp32" else "bfloat16"
        self.ordered_by = spec.schedule.kind, self.stages, self.passes, self.chunks
        self.splits = spec.schedule.kind == "zero-bubble"
        overlap = spec.overlap.tensor
        self.tensor_overlap = compute.tensor_shown < 1 and spec.split.sequence_parallel if overlap is None else overlap
        self._units: dict[tuple[str, int], Unit] = {}

    # --- the model's parts ---

    @functools.cached_property
    def layers(self) -> list[int]:
        """Return the first block of each part of the pipeline, and the number of blocks. Where the parts do not divide
        the blocks, the last part has fewer, then the first, then the others from the end."""
        parts = self.stages * self.chunks
        if self.spec.schedule.balance == "compute":
            return self._balanced(parts)
        counts = [-(-self.spec.model.layers // parts)] * parts
        order = [parts - 1, *range(parts - 1)] if parts > 1 else [0]
        for number in range(sum(counts) - self.spec.model.layers):
            counts[order[number % parts]] -= 1
        return [sum(counts[:part]) for part in range(parts + 1)]

    def _balanced(self, parts: int) -> list[int]:
        """Return the same for parts of about equal computation, the head included. A part takes
        blocks as long as all blocks so far have no more than its share of all multiply-adds, as in nanotron."""
        model = self.spec.model
        costs = [model.macs(layer) for layer in range(model.layers)]
        whole = sum(costs) + model.vocab * model.hidden
        firsts, done = [0], 0
        for layer, macs in enumerate(costs):
            done += macs
            if done * parts > whole * len(firsts):
                firsts.append(layer)
        return [*firsts[:parts], *[model.layers] * (parts + 1 - len(firsts[:parts]))]

    def units(self, stage: int, chunk: int) -> list[Unit]:
        """Return the parts of the model in a chunk of a stage, in forward order."""
        part, parts = chunk * self.stages + stage, self.stages * self.chunks
        model = self.spec.model
        kinds = ["embedding"] if part == 0 else []
        kinds += ["mixture" if model.has_experts(layer) else "dense"
                  for layer in range(self.layers[part], self.layers[part + 1])]  # fmt: skip
        kinds += ["head"] if part == parts - 1 else []
        return [self.unit(kind, stage) for kind in kinds]

    def unit(self, kind: str, stage: int) -> Unit:
        """Return a part of the model on a stage."""
        if (kind, stage) not in self._units:
            self._units[kind, stage] = self._made(kind, stage)
        return self._units[kind, stage]

    def _made(self, kind: str, stage: int) -> Unit:
        spec = self.spec
        given = spec.model, spec.split, spec.batch.micro, spec.batch.sequence
        if kind in ("embedding", "head"):
            made = (embedding if kind == "embedding" else head)(*given, types=self.types)
            if kind == "head" and spec.model.tied and self.stages == 1:
                made = made._replace(parameters=spec.model.norm_parameters)
        else:
            made = block(*given, experts=kind == "mixture", recompute=spec.recompute, types=self.types)
        back: tuple[Operation, ...] = (*made.recomputed, *made.backward)
        later = tuple(each for each in back if isinstance(each, Gemm) and each.of_weights) if self.splits else ()
        first = tuple(each for each in back if each not in later) if later else back
        phases = {FORWARD: made.forward, BACKWARD: first, WEIGHTS: later}
        floors = {FORWARD: 1, BACKWARD: 2 + (spec.recompute == "full"), WEIGHTS: 0}
        layer = kind in ("dense", "mixture")
        return Unit(kind, made, phases, lambda phase: self.costs(phases[phase], stage, floors[phase] if layer else 0))

    # --- costs ---

    def costs(self, operations: Sequence[Operation], stage: int, floor: int) -> Costs:
        """Return the costs of operations that run one after the other, with `floor` launches of a layer's pass."""
        costs = added(*(self.cost_of(each, stage) for each in operations)) if operations else NOTHING
        least, gap = (round(floor * seconds * PS_PER_S) for seconds in (self.launch_s, self.compute.gap_s))
        return added(costs, cost(launch=max(gap, least - sum(costs))))

    @functools.cached_property
    def launch_s(self) -> float:
        """The least seconds of a pass over a layer, as the CPU launches its kernels."""
        group = self.layout.groups("tp", 0)[0]
        ends = self.layout.pairs(0, self.stages - 1)[0]
        return self.compute.floor_s(len(group), self.layout.across(group), self.layout.across(ends))

    def cost_of(self, operation: Operation, stage: int) -> Costs:
        """Return the costs of one operation."""
        if isinstance(operation, Gemm):
            each = self.compute.gemm_s(operation.m, operation.n, operation.k, operation.dtype)
            return cost(gemm=_ps(each) * operation.times)
        if isinstance(operation, Elementwise):
            return cost(elementwise=_ps(self.compute.elementwise_s(operation.nbytes)))
        if isinstance(operation, Attention):
            return cost(attention=self.attention_ps(operation))
        if isinstance(operation, Ring):
            passes = list(map(self.attention_ps, operation.passes))
            moves = self.exchanged(operation.exchange, stage)
            shown = sum(max(0, moves - took) for took in passes[: operation.sends])
            return cost(attention=sum(passes), cp=shown)
        took = self.exchanged(operation, stage)
        if operation.dimension == "tp" and self.tensor_overlap and operation.collective != "all_reduce":
            took = round(took * self.compute.tensor_shown)
        return cost(**{operation.dimension: took})

    def attention_ps(self, core: Attention) -> int:
        """Return the time of attention's core."""
        shape = core.batch, core.heads, core.kv_heads, core.queries, core.keys, core.width
        return _ps(self.compute.attention_s(*shape, causal=core.causal, backward=core.backward))

    def exchanged(self, exchange: Exchange, stage: int) -> int:
        """Return the time of an exchange within a pass."""
        return exchange.times * self.called(self.call_of(exchange, stage))

    def call_of(self, exchange: Exchange, stage: int) -> Call:
        """Return the call of an exchange."""
        dtype = "float32" if exchange.times > 1 else self.activations
        return Call(exchange.dimension, exchange.collective, exchange.nbytes, dtype, stage)

    def called(self, call: Call) -> int:
        """Return the time of a call."""
        return self.call_time(call)

    # --- the plan ---

    def planned(self) -> StepPlan:
        """Return the plan of the whole step."""
        came: dict[tuple[str, int, int], list[int]] = {}  # phase, part, micro batch -> what its pass waits for
        self.gathered = [self._gathered_ahead(stage) for stage in range(self.stages)]
        self.scattered: list[list[int]] = [[] for _ in range(self.stages)]
        parts = self.stages * self.chunks
        orders = pipeline_orders.orders(*self.ordered_by)
        todo = [list(reversed(order)) for order in orders]
        left = [_last_turns(order) for order in orders]
        going = True
        while going:
            going = False
            for stage, turns in enumerate(todo):
                while turns:
                    turn = turns[-1]
                    part = turn.chunk * self.stages + stage
                    ahead = {FORWARD: 1, BACKWARD: -1, WEIGHTS: 0}[turn.phase]
                    first = turn.phase == WEIGHTS or part == (0 if turn.phase == FORWARD else parts - 1)
                    if not first and (turn.phase, part, turn.k) not in came:
                        break
                    turns.pop()
                    going = True
                    done = self._passed(stage, turn, came.pop((turn.phase, part, turn.k), []), turn in left[stage])
                    if ahead and 0 <= part + ahead < parts:
                        sent = self._sent(stage, (part + ahead) % self.stages, turn, done)
                        came[turn.phase, part + ahead, turn.k] = [sent]
        self._finished()
        return self.plan

    def _passed(self, stage: int, turn: Turn, after: list[int], last: bool) -> int:
        """Add a pass over a chunk; `last` tells whether it is the chunk's last one of its phase."""
        units = self.units(stage, turn.chunk)
        ordered = units if turn.phase == FORWARD else units[::-1]
        name = f"{turn.phase} {turn.k}" + (f" of part {turn.chunk}" if self.chunks > 1 else "")
        if not ordered:  # of stages of equal computation, some may hold nothing
            return self._computed(stage, turn.phase, name, ordered, after)
        sharding = self.spec.parallel.sharding
        ready = BACKWARD if not self.splits else WEIGHTS
        shards = self.layout.degree("dp") > 1 or self.layout.degree("edp") > 1
        if sharding in ("fsdp", "hsdp") and shards:
            return self._sharded(stage, turn, name, ordered, after)
        reduces = shards and turn.phase == ready and (last or sharding == "zero2")
        waits = turn.phase == FORWARD and turn.k == 0 and self.gathered[stage]
        if not (waits or (reduces and self.spec.overlap.gradients)):
            done = self._computed(stage, turn.phase, name, ordered, after)
            if reduces:
                self._reduced(stage, ordered, [done])
            return done
        held: list[Unit] = []
        for number, unit in enumerate(ordered):
            before = after if number == 0 else ()
            if waits:
                before = [*before, *self.gathered[stage].get((turn.chunk, number), ())]
            held.append(unit)
            full = reduces and (sum(each.parameters for each in held) >= BUCKET or number == len(ordered) - 1)
            moved = self.gradient_calls(stage, held) if full else []
            hidden = self.interference(moved) if moved else 0
            done = self._computed(stage, turn.phase, name, [unit], before, hidden)
            if full:
                self._reduced(stage, held, [done])
                held = []
        return done

    def _computed(
        self, stage: int, phase: str, name: str, units: Sequence[Unit], after: Iterable[int], interference: int = 0
    ) -> int:
        costs = [unit.costs[phase] for unit in units]
        whole = added(*costs, cost(interference=interference))
        made = tuple((unit, phase) for unit in units)
        return self.plan.add(phase, name, stage, COMPUTE, whole, after, parts=made)

    def interference(self, calls: Iterable[Call]) -> int:
        """Return the computing time that hidden calls cost: bytes over a rate. An all-reduce moves them twice."""
        nbytes = sum(call.nbytes * (2 if call.collective == "all_reduce" else 1) for call in calls)
        return _ps(self.compute.interference_s(nbytes))

    def message(self, stage: int, target: int) -> Call:
        """Return the call that takes a pass's result to another stage."""
        spec = self.spec
        tokens = spec.batch.micro * spec.batch.sequence // spec.parallel.cp
        ways = spec.split.tp if spec.split.sequence_parallel else 1
        nbytes = tokens * spec.model.hidden * self.types.itemsize // ways
        return Call("pp", "send_recv", nbytes, self.activations, stage, target)

    @property
    def sends_beside(self) -> bool:
        """Whether a stage goes on while it sends."""
        overlap = self.spec.overlap.pipeline
        return self.spec.schedule.kind in ("interleaved", "zero-bubble") if overlap is None else overlap

    def sent_ps(self) -> int:
        """Return, for the closed form, how long messages to other stages hold up a step."""
        if self.stages == 1:
            return 0
        took = self.called(self.message(0, 1))
        return 2 * took * (self.stages - 1 + (0 if self.sends_beside else self.passes * self.chunks))

    def _sent(self, stage: int, target: int, turn: Turn, done: int) -> int:
        """Add the message with a pass's result to the next stage."""
        if target == stage:
            return done
        call = self.message(stage, target)
        stream, name = f"pp {turn.phase}" if self.sends_beside else COMPUTE, f"send {turn.phase} {turn.k}"
        return self.plan.add("send", name, stage, stream, cost(pp=self.called(call)), [done], call)

    # --- data parallelism ---

    def _call(self, stage: int, dimension: str, collective: str, parameters: int, dtype: str) -> list[Call]:
        """Return the call that moves some parameters or their gradients, or nothing if the group is one rank."""
        group = self.layout.degree(dimension)
        if not parameters or group == 1:
            return []
        unit = BYTES[dtype] * group
        nbytes = -(-parameters * BYTES[dtype] // unit) * unit
        kind = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "int8", "nvfp4": "int8"}[dtype]
        return [Call(dimension, collective, nbytes, kind, stage)]

    def _parameters(self, units: Iterable[Unit]) -> tuple[int, int]:
        found = [(each.block.parameters, each.block.expert_parameters) for each in units]
        return sum(dense for dense, _ in found), sum(experts for _, experts in found)

    def gradient_calls(self, stage: int, units: Sequence[Unit]) -> list[Call]:
        """Return the calls that reduce the gradients of some units."""
        dense, experts = self._parameters(units)
        sharding, dtype = self.spec.parallel.sharding, self.spec.dtypes.gradients
        if sharding == "hsdp":
            shared = self._call(stage, "shard", "reduce_scatter", dense, dtype)
            shared += self._call(stage, "replica", "all_reduce", dense // self.layout.shards, dtype)
            return shared + self._call(stage, "edp", "all_reduce", experts, dtype)
        collective = "all_reduce" if sharding == "none" else "reduce_scatter"
        calls = self._call(stage, "dp", collective, dense, dtype)
        return calls + self._call(stage, "edp", collective, experts, dtype)

    def parameter_calls(self, stage: int, units: Sequence[Unit]) -> list[Call]:
        """Return the calls that gather the parameters of some units."""
        dense, experts = self._parameters(units)
        dtype = self.spec.parameter_type
        group = "shard" if self.spec.parallel.sharding == "hsdp" else "dp"
        calls = self._call(stage, group, "all_gather", dense, dtype)
        return calls + ([] if group == "shard" else self._call(stage, "edp", "all_gather", experts, dtype))

    def _moved(self, stage: int, kind: str, calls: Sequence[Call], after: Iterable[int]) -> list[int]:
        """Add calls on the stream of parameters and gradients, one after the other."""
        after = [*after]
        return [self.plan.add(kind, kind, stage, SHARDS, cost(dp=self.called(call)), after, call) for call in calls]

    def _reduced(self, stage: int, units: Sequence[Unit], after: Iterable[int]) -> None:
        """Add the reduction of the gradients of units of one pass, in buckets of at least BUCKET parameters."""
        held: list[Unit] = []
        for number, unit in enumerate(units):
            held.append(unit)
            if sum(each.parameters for each in held) >= BUCKET or number == len(units) - 1:
                self.scattered[stage] += self._moved(stage, "reduce", self.gradient_calls(stage, held), after)
                held = []

    def _gathered_ahead(self, stage: int) -> dict[tuple[int, int], list[int]]:
        """Add the gathering of parameters that the optimizer of the step before has shared (zero1, zero2). Return what
        the first forward pass over a unit (chunk, number) waits for."""
        sharding = self.spec.parallel.sharding
        if sharding not in ("zero1", "zero2") or not self.spec.overlap.parameters:
            return {}
        waits: dict[tuple[int, int], list[int]] = {}
        for chunk in range(self.chunks):
            first, held = 0, list[Unit]()
            units = self.units(stage, chunk)
            for number, unit in enumerate(units):
                held.append(unit)
                if sum(each.parameters for each in held) >= BUCKET or number == len(units) - 1:
                    moved = self._moved(stage, "gather", self.parameter_calls(stage, held), ())
                    if moved:
                        waits[chunk, first] = moved
                    first, held = number + 1, []
        return waits

    def _sharded(self, stage: int, turn: Turn, name: str, units: Sequence[Unit], after: list[int]) -> int:
        """Add a pass over units whose parameters are gathered before, and whose gradients are scattered after it. The
        parameters of the next unit are gathered while a unit computes."""
        overlap, passed = self.spec.overlap, list[int]()
        gathers: dict[int, list[int]] = {}
        moves = [self.parameter_calls(stage, [unit]) for unit in units]

        def gather(number: int) -> None:
            if number < len(units) and number not in gathers:
                ahead = 2 if overlap.parameters else 1
                freed = passed[number - ahead : number - ahead + 1] if number >= ahead else after
                gathers[number] = self._moved(stage, "gather", moves[number], freed)

        scatters: list[int] = []
        gather(0)
        for number, unit in enumerate(units):
            if overlap.parameters:
                gather(number + 1)
            reduces = self.gradient_calls(stage, [unit]) if turn.phase == BACKWARD else []
            hidden = [*(moves[number] if overlap.parameters else ()), *(reduces if overlap.gradients else ())]
            before = [*(after if number == 0 else ()), *gathers[number], *([] if overlap.gradients else scatters)]
            costs = self.interference(hidden)
            passed.append(self._computed(stage, turn.phase, name, [unit], before, costs))
            if reduces:
                scatters = self._moved(stage, "reduce", reduces, passed[-1:])
                self.scattered[stage] += scatters
            if not overlap.parameters:
                gather(number + 1)
        return passed[-1]

    def _finished(self) -> None:
        """Add the end of the step: gradients of a tied embedding, the optimizer, which waits for all stages (for the
        norm of all gradients), and the gathering of parameters that no forward pass hides."""
        spec, plan = self.spec, self.plan
        tied = []
        if spec.model.tied and self.stages > 1:
            parameters = self.unit("embedding", 0).parameters
            unit = BYTES[spec.dtypes.gradients] * 2
            call = Call("tied", "all_reduce", -(-parameters * BYTES[spec.dtypes.gradients] // unit) * unit,
                        "float32" if spec.dtypes.gradients == "fp32" else "bfloat16", 0, self.stages - 1)  # fmt: skip
            tied = [plan.add("tied", "tied", 0, SHARDS, cost(pp=self.called(call)),
                             [*plan.last(0), *plan.last(self.stages - 1)], call)]  # fmt: skip
        over = [*tied, *(number for stage in range(self.stages) for number in plan.last(stage))]
        for stage in range(self.stages):
            costs = cost(optimizer=self.optimizer_ps(stage))
            done = plan.add("optimizer", "optimizer", stage, COMPUTE, costs, over)
            if spec.parallel.sharding in ("zero1", "zero2") and not spec.overlap.parameters:
                units = [unit for chunk in range(self.chunks) for unit in self.units(stage, chunk)]
                gathered = self._moved(stage, "gather", self.parameter_calls(stage, units), [done])
                plan.add("end", "end", stage, COMPUTE, NOTHING, gathered)

    def parameters(self, stage: int) -> tuple[int, int]:
        """Return the parameters of a rank of a stage, without and of experts, before data-parallel sharing."""
        return self._parameters(unit for chunk in range(self.chunks) for unit in self.units(stage, chunk))

    def optimizer_ps(self, stage: int) -> int:
        """Return the time of the optimizer."""
        return _ps(self.compute.optimizer_s(OPTIMIZER_BYTES * self.optimized(stage)))

    def optimized(self, stage: int) -> int:
        """Return the parameters that a rank's optimizer updates."""
        dense, experts = self.parameters(stage)
        sharding = self.spec.parallel.sharding
        if sharding == "none":
            return dense + experts
        ways = self.layout.shards if sharding == "hsdp" else self.layout.degree("dp")
        return math.ceil(dense / ways) + math.ceil(experts / self.layout.degree("edp"))


def _last_turns(order: Sequence[Turn]) -> set[Turn]:
    """Return the last turn of each phase and chunk of a stage."""
    return set({(turn.phase, turn.chunk): turn for turn in order}.values())


def _ps(seconds: float) -> int:
    return round(seconds * PS_PER_S)
