"""The plan of a training step: the operations of one rank of each stage of the pipeline, on streams.

All ranks of a stage do the same at the same time, so one of them stands for all. A stage computes on one stream; its
gradients and parameters move on a second one, results for other stages on further ones. Exchanges within a pass that
nothing hides (tensor, context, expert parallelism) are part of the pass. The plan gives the time of the step and, for
each stage, where its time goes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simcoll.units import PS_PER_S
from simcoll.workload import pipeline_orders
from simcoll.workload.compute import Compute, slowest
from simcoll.workload.expert_routing import ExpertKernel, ExpertTokens
from simcoll.workload.pipeline_orders import BACKWARD, FORWARD, WEIGHTS, Turn
from simcoll.workload.rank_layout import Call, Layout
from simcoll.workload.training_keys import BYTES, TrainingStep
from simcoll.workload.transformer import (
    Attention,
    Beside,
    Block,
    Elementwise,
    Exchange,
    Gemm,
    Operation,
    Types,
    block,
    embedding,
    head,
)

COMPUTE: Final = "compute"  # streams
SHARDS: Final = "dp"
BUCKET: Final = 40_000_000  # parameters from which a bucket of gradients is sent: Megatron's default
WIRE: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "int8", "nvfp4": "int8"}
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
    """A block, the embedding or the head on one rank: what its backward pass computes again, its operations by phase,
    and their costs."""

    name: str
    recompute: str
    block: Block
    phases: dict[str, tuple[Operation, ...]]
    cost_of: Callable[[str], Costs]

    @functools.cached_property
    def costs(self) -> dict[str, Costs]:
        """Return the costs by phase."""
        return {phase: self.cost_of(phase) for phase in self.phases}


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
    """A time in which a stage does not compute, in ps, its cause (`bubble`, `wait`, or a dimension: its own exchange,
    or one that it waits for), and the stage that it waits for."""

    start: int
    end: int
    cause: str
    stage: int


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
    def busiest(self) -> int:
        """Return the stage whose passes take longest, with the exchanges in them: it sets the pace of the others."""
        totals = dict.fromkeys(range(self.plan.stages), 0)
        for (stage, _), took in self._work.items():
            totals[stage] += took
        return max(totals, key=totals.__getitem__)

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
            last = max(range(len(self.ends)), key=self.ends.__getitem__)
            found.append(Gap(free, self.time_ps, "wait", self.plan.operations[last].stage))
        return found

    def _causes(self, number: int, free: int, stage: int) -> list[Gap]:
        """Follow what an operation waited for, back to the time `free`."""
        found: list[Gap] = []
        until = self.starts[number]
        while until > free:
            number = max(self.plan.operations[number].before, key=self.ends.__getitem__)
            each, start = self.plan.operations[number], max(free, self.starts[number])
            if each.stream != COMPUTE or each.call is not None:
                found.append(Gap(start, until, each.call.dimension if each.call else each.kind, each.stage))
            else:
                other, own = self._work[each.stage, each.kind], self._work.get((stage, each.kind), 0)
                slower = min(until - start, each.took * max(0, other - own) // max(1, other))
                found.append(Gap(until - slower, until, "wait", each.stage))
                found.append(Gap(start, until - slower, "bubble", each.stage))
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
        self.slowest = slowest(layout.dense.size)
        compute_type = spec.dtypes.compute
        self.types = Types(compute_type, 4 if compute_type == "fp32" else 2)
        self.activations = "float32" if compute_type == "fp32" else "bfloat16"
        self.ordered_by = spec.schedule.kind, self.stages, self.passes, self.chunks
        self.splits = spec.schedule.kind == "zero-bubble"
        self.shares = layout.degree("dp") > 1 or layout.degree("edp") > 1
        self.sharded = self.shares and spec.parallel.sharding in ("fsdp", "hsdp")
        overlap = spec.overlap.tensor
        way = compute.framework
        usual = way.tensor_shown < 1 and way.tensor_beside and spec.split.sequence_parallel
        self.tensor_overlap = usual if overlap is None else overlap
        self.made: dict[tuple[str, int, str], Unit] = {}

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
        found = [self.unit("embedding", stage, self.spec.recompute)] if part == 0 else []
        for layer in range(self.layers[part], self.layers[part + 1]):
            again = "none" if layer % self.spec.recompute_every else self.spec.recompute
            found.append(self.unit("mixture" if model.has_experts(layer) else "dense", stage, again))
        return [*found, *([self.unit("head", stage)] if part == parts - 1 else [])]

    def unit(self, kind: str, stage: int, recompute: str = "none") -> Unit:
        """Return a part of the model on a stage."""
        key = kind, stage, recompute
        if key not in self.made:
            self.made[key] = self._made(*key)
        return self.made[key]

    def _made(self, kind: str, stage: int, recompute: str) -> Unit:
        spec = self.spec
        given = spec.model, spec.split, spec.batch.micro, spec.batch.sequence
        if kind in ("embedding", "head"):
            made = (embedding if kind == "embedding" else head)(*given, types=self.types)
            if kind == "head" and spec.model.tied and self.stages == 1:
                made = made._replace(parameters=spec.model.norm_parameters)
        else:
            made = block(*given, experts=kind == "mixture", recompute=recompute, types=self.types,
                         stops=self.compute.framework.recompute_stops)  # fmt: skip
        back: tuple[Operation, ...] = (*made.recomputed, *made.backward)
        if self.splits or not self.compute.framework.tensor_beside:
            back = tuple(part for each in back for part in _apart(each))
        later = tuple(each for each in back if isinstance(each, Gemm) and each.of_weights) if self.splits else ()
        first = tuple(each for each in back if each not in later) if later else back
        phases = {FORWARD: made.forward, BACKWARD: first, WEIGHTS: later}
        floors = {FORWARD: 1, BACKWARD: 2 + (recompute in ("operations", "full")), WEIGHTS: 0}
        layered = kind in ("dense", "mixture")
        return Unit(kind, recompute, made, phases, lambda each: self.costs(phases[each], stage, floors[each] * layered))

    # --- costs ---

    def costs(self, operations: Sequence[Operation], stage: int, floor: int) -> Costs:
        """Return the costs of operations that run one after the other, with `floor` launches of a layer's pass. While
        the GPU waits for launches anyway, exchanges add nothing."""
        parts = dict(zip(PARTS, added(*(self.cost_of(each, stage) for each in operations)), strict=True))
        each = self.launch_s, self.compute.gap_s, self.skew_s
        least, gap, skew = (round(floor * seconds * PS_PER_S) for seconds in each)
        hidden = max(0, least - sum(parts[name] for name in COMPUTING) - gap)
        parts["launch"] = gap + hidden
        for name in EXCHANGES:
            parts[name], hidden = max(0, parts[name] - hidden), max(0, hidden - parts[name])
        parts["tp"] += skew
        return cost(**parts)

    @functools.cached_property
    def launch_s(self) -> float:
        """The least seconds of a pass over a layer, as the CPU launches its kernels."""
        return self.compute.floor_s(self.spec.parallel.tp, self.spec.framework.late_hosts)

    @functools.cached_property
    def skew_s(self) -> float:
        """The seconds for which the exchanges of a pass over a layer wait for the ranks of a group on other nodes."""
        return self.compute.framework.skew * self.layout.remote(self.layout.groups("tp", 0)[0])

    def cost_of(self, operation: Operation, stage: int) -> Costs:
        """Return the costs of one operation."""
        if isinstance(operation, Gemm):
            each = self.slowest * self.compute.gemm_s(operation.m, operation.n, operation.k, operation.dtype)
            return cost(gemm=_ps(each) * operation.times)
        if isinstance(operation, Elementwise):
            return cost(elementwise=_ps(self.compute.elementwise_s(operation.nbytes)))
        if isinstance(operation, Attention):
            return cost(attention=self.attention_ps(operation))
        if isinstance(operation, Beside):
            passes = [self.cost_of(each, stage) for each in operation.passes]
            moves = self.exchanged(operation.exchange, stage)
            shown = sum(max(0, moves - sum(took)) for took in passes[: operation.sends])
            return added(*passes, cost(**{operation.exchange.dimension: shown}))
        took = self.exchanged(operation, stage)
        if operation.dimension == "tp" and self.tensor_overlap and operation.collective != "all_reduce":
            took = round(took * self.compute.framework.tensor_shown)
        return cost(**{operation.dimension: took})

    def attention_ps(self, core: Attention) -> int:
        """Return the time of attention's core."""
        shape = core.batch, core.heads, core.kv_heads, core.queries, core.keys, core.width
        return _ps(self.compute.attention_s(*shape, causal=core.causal, backward=core.backward))

    def exchanged(self, exchange: Exchange, stage: int) -> int:
        """Return the time of an exchange within a pass."""
        return exchange.times * self.call_time(self.call_of(exchange, stage))

    def call_of(self, exchange: Exchange, stage: int) -> Call:
        """Return the call of an exchange."""
        spec, kernel, dtype = self.spec, None, "float32" if exchange.times > 1 else self.activations
        if exchange.tokens:
            width = spec.model.hidden * self.types.itemsize // 2  # in elements of 2 bytes
            chosen = {"topk": spec.model.active_experts, "experts": spec.model.experts}
            moe = ExpertTokens.model_validate({"tokens": exchange.tokens, "hidden": width, **chosen})
            kernel = ExpertKernel.model_construct(moe=moe, executor=spec.executor, sms=spec.sms)
        return Call(exchange.dimension, exchange.collective, exchange.nbytes, dtype, stage, tokens=kernel)

    # --- the plan ---

    def planned(self) -> StepPlan:
        """Return the plan of the whole step."""
        came: dict[tuple[str, int, int], list[int]] = {}  # phase, part, micro batch -> what its pass waits for
        parts = self.stages * self.chunks
        self.gathered: dict[tuple[int, int], list[list[int]]] = {}  # what the optimizer of the step before has shared
        if self.spec.parallel.sharding in ("zero1", "zero2") and self.shares and self.spec.overlap.parameters:
            for stage, chunk in itertools.product(range(self.stages), range(self.chunks)):
                moves = [self.parameter_calls(stage, part) for part in buckets(self.units(stage, chunk))]
                self.gathered[stage, chunk] = [self._moved(stage, "gather", calls, ()) for calls in moves]
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
        """Add a pass over a chunk; `last` tells whether it is the chunk's last one of its phase. With ZeRO-3 the pass
        goes unit by unit: parameters are gathered before a unit, those of the next unit while it computes, and its
        gradients are scattered after it. Else gradients of the last pass move in buckets."""
        overlap, sharding = self.spec.overlap, self.spec.parallel.sharding
        units = self.units(stage, turn.chunk)
        ordered = units if turn.phase == FORWARD else units[::-1]
        name = f"{turn.phase} {turn.k}" + (f" of part {turn.chunk}" if self.chunks > 1 else "")
        ready = turn.phase == (WEIGHTS if self.splits else BACKWARD)
        reduces = ready and self.shares and (self.sharded or last or sharding == "zero2")
        ahead = self.gathered.get((stage, turn.chunk)) if turn.phase == FORWARD and turn.k == 0 else None
        bucketed = buckets(ordered) if reduces or ahead else [ordered]
        parts = [[unit] for unit in ordered] if self.sharded else bucketed
        gathers, passed, scatters = ahead or [], list[int](), list[int]()
        moves = [self.parameter_calls(stage, part) for part in parts if self.sharded and turn.phase != WEIGHTS]
        depth = 2 if overlap.parameters else 1  # units whose parameters are there or on their way
        for number, part in enumerate(parts or [[]]):  # of stages of equal computation, some may hold nothing
            for wanted in range(len(gathers), min(number + depth, len(moves))):
                freed = passed[wanted - depth :][:1] if wanted >= depth else after
                gathers.append(self._moved(stage, "gather", moves[wanted], freed))
            reduced = self.gradient_calls(stage, part) if reduces else []
            hidden = [*(moves[number] if moves and overlap.parameters else ()),
                      *(reduced if overlap.gradients else ())]  # fmt: skip
            before = [*(() if passed else after), *(gathers[number] if gathers else ())]
            before += scatters if self.sharded and not overlap.gradients else []
            passed.append(self._computed(stage, turn.phase, name, part, before, self.interference(hidden)))
            if self.sharded or overlap.gradients:
                scatters = self._moved(stage, "reduce", reduced, passed[-1:])
        if reduces and not (self.sharded or overlap.gradients):
            for part in parts:
                self._moved(stage, "reduce", self.gradient_calls(stage, part), passed[-1:])
        return passed[-1]

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
        took = self.call_time(self.message(0, 1))
        return 2 * took * (self.stages - 1 + (0 if self.sends_beside else self.passes * self.chunks))

    def _sent(self, stage: int, target: int, turn: Turn, done: int) -> int:
        """Add the message with a pass's result to the next stage."""
        if target == stage:
            return done
        call = self.message(stage, target)
        stream, name = f"pp {turn.phase}" if self.sends_beside else COMPUTE, f"send {turn.phase} {turn.k}"
        return self.plan.add("send", name, stage, stream, cost(pp=self.call_time(call)), [done], call)

    # --- data parallelism ---

    def _call(
        self, stage: int, dimension: str, collective: str, parameters: int, dtype: str, target: int | None = None
    ) -> list[Call]:
        """Return the call that moves some parameters or their gradients, or nothing if the group is one rank."""
        group = 2 if target is not None else self.layout.degree(dimension)
        if not parameters or group == 1:
            return []
        unit = BYTES[dtype] * group
        nbytes = -(-parameters * BYTES[dtype] // unit) * unit
        return [Call(dimension, collective, nbytes, WIRE[dtype], stage, target)]

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
        whole = sharding == "none" or (sharding == "zero1" and self.compute.framework.adds_apart)
        collective = "all_reduce" if whole else "reduce_scatter"
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
        return [self.plan.add(kind, kind, stage, SHARDS, cost(dp=self.call_time(call)), after, call) for call in calls]

    def _finished(self) -> None:
        """Add the end of the step: gradients of a tied embedding, the optimizer, which waits for all stages (for the
        norm of all gradients), and the gathering of parameters that no forward pass hides."""
        spec, plan = self.spec, self.plan
        tied = []
        if spec.model.tied and self.stages > 1:
            (call,) = self._call(0, "tied", "all_reduce", self.unit("embedding", 0).block.parameters,
                                 spec.dtypes.gradients, self.stages - 1)  # fmt: skip
            tied = [plan.add("tied", "tied", 0, SHARDS, cost(pp=self.call_time(call)),
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


def buckets(units: Sequence[Unit]) -> list[list[Unit]]:
    """Return consecutive units in buckets of at least BUCKET parameters."""
    found: list[list[Unit]] = [[]] if units else []
    for unit in units:
        if sum(each.block.parameters for each in found[-1]) >= BUCKET:
            found.append([])
        found[-1].append(unit)
    return found


def _last_turns(order: Sequence[Turn]) -> set[Turn]:
    """Return the last turn of each phase and chunk of a stage."""
    return set({(turn.phase, turn.chunk): turn for turn in order}.values())


def _apart(operation: Operation) -> tuple[Operation, ...]:
    """Return a matrix multiplication and the exchange beside it one after the other."""
    if isinstance(operation, Beside) and isinstance(operation.passes[0], Gemm):
        return *operation.passes, operation.exchange
    return (operation,)


def _ps(seconds: float) -> int:
    return round(seconds * PS_PER_S)
