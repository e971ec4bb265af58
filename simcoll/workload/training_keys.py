"""The keys of `workload: {template: training}`: a step of training a transformer on any product of parallelisms."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictBool,
    StrictInt,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from simcoll.config.field_types import Count, OneOf
from simcoll.config.yaml_tree import Model
from simcoll.errors import did_you_mean, wrong
from simcoll.workload.compute import attentions, frameworks, gpus
from simcoll.workload.models import transformer, transformers
from simcoll.workload.transformer import Split, Transformer

BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "nvfp4": 1}  # nvfp4: parameters are gathered in fp8
DIMENSIONS: Final = ("tp", "cp", "ep", "dp", "pp")
ORDER: Final = "tp-cp-ep-dp-pp"
MOST_PASSES: Final = 2**16  # of a rank in a step: they take some 6 s and 230 MB
Sharding = Annotated[
    Literal["none", "zero1", "zero2", "fsdp", "hsdp"],
    BeforeValidator(lambda value: "fsdp" if value == "zero3" else value),
]
Recompute = Literal["none", "selective", "operations", "full"]


def _order(value: object) -> object:
    names = str(value).split("-")
    if sorted(set(names) | {"ep"}) != sorted(DIMENSIONS) or len(names) > len(set(names)):
        raise ValueError(f"{value!r} is no order of ranks; write each of tp, cp, dp, pp once, e.g. {ORDER}")
    return value


class Parallel(Model):
    """How a step is divided among ranks. tp · cp · dp · pp is the number of ranks; expert parallelism (ep) divides the
    experts among ranks of dp, cp and, with `etp: 1`, tp."""

    tp: Count = 1
    """Tensor parallelism: ranks that share each matrix."""
    cp: Count = 1
    """Context parallelism: ranks that share each sequence."""
    ep: Count = 1
    """Expert parallelism: ranks that share the experts of a block."""
    pp: Count = 1
    """Pipeline parallelism: number of stages."""
    dp: Count | None = None
    """Data parallelism: replicas. Default: what the other degrees leave of the ranks."""
    etp: Count | None = None
    """Tensor parallelism within an expert. Default: 1 with `ep`, else `tp`."""
    sequence_parallel: StrictBool = True
    """Whether tensor-parallel ranks also share what lies between the matrices (sequence parallelism)."""
    context: Literal["ring", "all-gather"] = "ring"
    """How context parallelism moves keys and values: from rank to rank in a ring, or by an all-gather."""
    sharding: Sharding = "none"
    """What data-parallel ranks share: `zero1` the optimizer's state, `zero2` the gradients too, `fsdp` (ZeRO-3) the
    parameters too, `hsdp` as fsdp, but within `shard_group` ranks only."""
    shard_group: Count | None = None
    """Ranks that share the parameters with `hsdp`. Default: the ranks of data parallelism in a node."""
    order: Annotated[str, BeforeValidator(_order)] = ORDER
    """Order of the ranks: the ranks of the first dimension are neighbours."""


class Batch(Model):
    """The sequences of a step."""

    global_: Annotated[Count, Field(alias="global")]
    """Number of sequences of a step, on all ranks."""
    micro: Count = 1
    """Number of sequences of a micro batch, i.e. of one pass."""
    sequence: Count
    """Tokens of a sequence."""


class PipelineSchedule(Model):
    """The order in which the stages of a pipeline run their micro batches."""

    kind: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = "1f1b"
    """`gpipe`: all forward passes first. `1f1b`: forward and backward passes in turn. `interleaved`: 1F1B with several
    parts of the model on each rank. `zero-bubble`: 1F1B whose weight gradients fill the bubble (ZB-H1)."""
    stages_per_rank: Count = 1
    """Parts of the model on each rank (virtual stages), for `interleaved`."""
    balance: Literal["layers", "compute"] = "layers"
    """How stages share the blocks: equally many `layers`, or, the head included, equal `compute` (nanotron)."""

    @model_validator(mode="after")
    def _parts(self) -> PipelineSchedule:
        if (self.kind == "interleaved") != (self.stages_per_rank > 1):
            problem = f"{self.kind} does not go with {self.stages_per_rank} stages per rank"
            raise ValueError(f"{problem}; write kind: interleaved with stages_per_rank from 2 on, or leave both out")
        return self


class TypesOfData(Model):
    """Types of numbers."""

    compute: Literal["bf16", "fp8", "nvfp4", "fp32"] = "bf16"
    """Type in which linear layers compute. The head, the embedding and attention compute in bf16 beside fp8, nvfp4."""
    parameters: Literal["fp32", "bf16", "fp16", "fp8"] | None = None
    """Type in which parameters are stored and gathered. Default: bf16; fp32 with `compute: fp32`."""
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type in which gradients are added up and reduced."""


class Overlap(Model):
    """What communication runs beside computation."""

    gradients: StrictBool = True
    """Gradients are reduced during the backward pass (Megatron: overlap_grad_reduce)."""
    parameters: StrictBool = True
    """Parameters are gathered during the forward pass (Megatron: overlap_param_gather; FSDP: prefetching)."""
    tensor: StrictBool | None = None
    """Tensor-parallel exchanges run beside matrix products (Megatron: tp_comm_overlap). Default: as the framework does
    with sequence parallelism."""
    pipeline: StrictBool | None = None
    """A stage goes on while it sends (Megatron: overlap_p2p_comm). Default: as Megatron, with `interleaved` and
    `zero-bubble` only."""


class FrameworkSpec(Model):
    """The training framework, as far as it sets computing times."""

    name: Annotated[str, OneOf("framework", frameworks)] = "megatron"
    """Name of the framework."""
    kernels: Literal["eager", "compiled", "fused"] | None = None
    """How elementwise operations run. Default: the framework's own way."""
    cuda_graphs: StrictBool = False
    """Whether CUDA graphs launch the kernels, so that the CPU is no limit."""
    late_hosts: StrictBool = False
    """Whether hosts are busy with other work, so that the ranks of a tensor-parallel group launch late, and wait for
    each other."""
    attention: Annotated[str, OneOf("way to compute attention", attentions)] | None = None
    """How attention is computed. Default: the framework's own way."""


class _ByName:
    """An annotation for shapes that a named transformer may stand for."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": [*transformers()]}, handler(schema)]}

    def __call__(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value not in (known := transformers()):
            raise ValueError(f"{value!r} is no transformer, and no mapping of shapes; {did_you_mean(value, known)}")
        return transformer(value)


class TrainingStep(Model):
    """A step of training a transformer on any product of tensor, context, expert, pipeline and data parallelism: the
    passes over all micro batches, their exchanges, the reduction of gradients, and the optimizer."""

    template: Literal["training"]
    model: Annotated[Transformer, _ByName()]
    """A named transformer (`simcoll list models`), or the shapes of an own one."""
    parallel: Parallel = Parallel()
    """How the step is divided among ranks."""
    batch: Batch
    """The sequences of a step."""
    schedule: PipelineSchedule = PipelineSchedule()
    """The order in which the stages of a pipeline run."""
    recompute: Recompute = "none"
    """What the backward pass computes again to save memory: nothing, the core of attention (`selective`), all but
    attention and every second matrix product (`operations`; torchtitan: `selective_ac_option: op`), or whole blocks."""
    recompute_every: Count = 1
    """Only each n-th block is computed again (torchtitan: `selective_ac_option`; fms-fsdp: a share of 1/n)."""
    dtypes: TypesOfData = TypesOfData()
    """Types of numbers."""
    overlap: Overlap = Overlap()
    """What communication runs beside computation."""
    framework: FrameworkSpec = FrameworkSpec()
    """The training framework."""
    gpu: Annotated[str, OneOf("GPU", gpus)] | None = None
    """The GPU that computes. Default: the GPU of the machine."""
    memory: Literal["check", "ignore"] = "check"
    """Whether a step that needs more memory than the GPU has is refused."""
    algorithm: str = "auto"
    """Algorithm of the collectives. `auto`: what the library chooses."""
    executor: Literal["pairwise", "deepep", "low-latency"] = "pairwise"
    """How tokens move to their experts and back: by an all_to_all, or by a kernel of DeepEP."""
    sms: Annotated[StrictInt, Field(ge=2, multiple_of=2)] | None = None
    """Number of SMs of `executor: deepep`."""

    @property
    def parameter_type(self) -> str:
        """The type in which parameters are stored and gathered."""
        return self.dtypes.parameters or ("fp32" if self.dtypes.compute == "fp32" else "bf16")

    @property
    def split(self) -> Split:
        """How ranks share the work on a micro batch."""
        p = self.parallel
        return Split(p.tp, p.sequence_parallel and p.tp > 1, p.cp, p.context == "ring", p.ep, self.etp)

    @property
    def etp(self) -> int:
        """The degree of tensor parallelism within an expert."""
        p = self.parallel
        return p.etp or (1 if p.ep > 1 else p.tp)

    def check(self, ranks: int) -> int:
        """Return the degree of data parallelism on so many ranks. Raises InputError, in words, if a degree does not
        divide what it shares."""
        p, model, batch = self.parallel, self.model, self.batch
        product = p.tp * p.cp * p.pp
        _divides(ranks, product, f"{ranks} ranks", f"tp · cp · pp = {product}", "parallel", "change a degree, or ranks")
        dp = p.dp or ranks // product
        if dp * product != ranks:
            problem = f"tp · cp · pp · dp = {dp * product}, and there are {ranks} ranks"
            raise wrong("workload.parallel", problem, f"leave out dp, or write dp: {ranks // product}")
        _divides(model.heads, p.tp, f"{model.heads} heads", f"tp {p.tp}", "parallel.tp", "take a divisor of the heads")
        if model.keys % p.tp and p.tp % model.keys:
            problem = f"{model.keys} heads of keys and tp {p.tp} do not divide each other"
            raise wrong("workload.parallel.tp", problem, "take a divisor or a multiple")
        _divides(model.ffn, p.tp, f"an MLP of width {model.ffn}", f"tp {p.tp}", "parallel.tp", "take a divisor")
        if model.experts:
            _divides(model.experts, p.ep, f"{model.experts} experts", f"ep {p.ep}", "parallel.ep", "take a divisor")
            _divides(model.expert_width, self.etp, "the width of an expert", f"etp {self.etp}", "parallel", "change it")
            inner = p.tp * p.cp * dp
            what = f"tp · cp · dp = {inner}"
            _divides(inner, p.ep * self.etp, what, f"ep · etp = {p.ep * self.etp}", "parallel.ep", "take a divisor")
        elif p.ep > 1:
            raise wrong("workload.parallel.ep", f"ep {p.ep} of a model without experts", "leave it out")
        parts = p.pp * self.schedule.stages_per_rank
        if parts > model.layers:
            problem = f"{model.layers} layers are fewer than {parts} parts of the pipeline"
            raise wrong("workload.parallel.pp", problem, "take fewer stages")
        tokens, ways = batch.sequence, p.cp * (2 if p.cp > 1 else 1) * (p.tp if self.split.sequence_parallel else 1)
        what = f"a sequence of {tokens} tokens"
        _divides(tokens * batch.micro, ways, what, f"the {ways} parts of cp and tp", "batch.sequence", "change one")
        _divides(batch.global_, batch.micro * dp, f"a batch of {batch.global_} sequences",
                 f"micro {batch.micro} · dp {dp}", "batch.global", "change one")  # fmt: skip
        if self.passes(dp) > MOST_PASSES:
            problem = f"{self.passes(dp)} micro batches of a rank; at most {MOST_PASSES} are simulated"
            raise wrong("workload.batch.global", problem, "raise batch.micro")
        if self.schedule.kind == "interleaved" and self.passes(dp) % p.pp:
            problem = f"{self.passes(dp)} micro batches are no multiple of {p.pp} stages, which interleaving needs"
            raise wrong("workload.schedule", problem, "change the batch, pp, or the schedule")
        return dp

    def passes(self, dp: int) -> int:
        """Return the number of micro batches of each rank in a step."""
        return self.batch.global_ // (self.batch.micro * dp)


def _divides(whole: int, part: int, what: str, by: str, key: str, cure: str) -> None:
    if whole % part:
        raise wrong(f"workload.{key}", f"{what} cannot be divided by {by}", cure)


def changed(spec: TrainingStep, **changes: Any) -> TrainingStep:
    """Return a step with other keys; those of `parallel`, `batch`, `schedule` are named as `parallel.tp` → `tp` with a
    mapping, e.g. `parallel={"tp": 4}`."""
    update = {
        key: getattr(spec, key).model_copy(update=value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    return spec.model_copy(update=update)
