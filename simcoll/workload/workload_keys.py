"""The scenario's key `workload`: the keys of each template, and of operations listed one by one."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from simcoll.config.field_types import Count, Duration, OneOf, Share, parsed, text
from simcoll.config.grouping import equal_groups
from simcoll.config.yaml_tree import BelowError, Model
from simcoll.errors import did_you_mean, wrong
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.topology.topology_keys import TopologySpec
from simcoll.units import PS_PER_S
from simcoll.workload.expert_routing import TOKENS, ExpertKernel
from simcoll.workload.models import gpus, load_model, models
from simcoll.workload.plan import COMPUTE
from simcoll.workload.training_keys import TrainingStep

FIRST_BUCKET: Final = 2**20  # bytes: PyTorch's default
BUCKET_CAP: Final = 25 * 2**20  # bytes: PyTorch's default


Bytes = Annotated[int, parsed("size"), text("25 MiB")]
BucketCap = Annotated[int, parsed("size", {"none": 0}), text("25 MiB")]
First = Annotated[int | None, parsed("size", {"same": None, "none": 0}), text("25 MiB")]


class Layer(NamedTuple):
    """A layer on one rank: the bytes of each tensor, and the times of its forward and backward pass in ps."""

    name: str
    tensors: tuple[int, ...]
    forward: int
    backward: int

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors together."""
        return sum(self.tensors)


class LayerSpec(Model):
    """A layer, or several equal layers in a row."""

    parameters: Bytes
    """Bytes of its parameters, which are one tensor."""
    backward: Duration
    """Time of its backward pass."""
    forward: Duration = 0
    """Time of its forward pass."""
    times: Count = 1
    """Number of equal layers in a row."""


class Ddp(Model):
    """Data parallel, as PyTorch's DistributedDataParallel does it. After the forward pass, the backward pass goes from
    the last layer to the first. Gradients are collected in buckets. Each bucket is all-reduced as soon as it is full.
    At the end the optimizer runs."""

    template: Literal["ddp"]
    algorithm: str = "auto"
    """Algorithm of the collectives. `auto`: for each call the algorithm that is fastest if the call has the machine to
    itself."""
    layers: tuple[LayerSpec, ...] | None = None
    """The layers in the order of the forward pass. Give either `layers` or a `model`."""
    model: Annotated[str, OneOf("model", models)] | None = None
    """A named model. Its tensors have the scenario's `dtype`."""
    gpu: Annotated[str, OneOf("GPU", gpus)] | None = None
    """The GPU whose peak rate gives the computing times of a named model. A backward pass takes twice as long as a
    forward pass. Default: the GPU of the machine."""
    efficiency: Annotated[Share, Field(gt=0, le=1)] = 0.4
    """Share of the GPU's peak rate that computations reach."""
    batch: Count = 1
    """Number of samples of each rank in a step."""
    forward: Duration | None = None
    """Time of the whole forward pass. Default: the sum of the times of the layers."""
    optimizer: Duration = 0
    """Time of the optimizer, after the last gradient has arrived."""
    bucket_cap: BucketCap = BUCKET_CAP
    """Size of a bucket of gradients, as in PyTorch. `none`: each tensor is sent by itself."""
    first_bucket: First = FIRST_BUCKET
    """Size of the first bucket. `same`: as large as the other buckets."""
    overlap: StrictBool = True
    """Whether buckets are sent during the backward pass. Otherwise they are sent after it."""
    streams: Count = 1
    """Number of all-reduces that may be under way at a time (gloo has 2). Buckets use streams in turn."""

    @model_validator(mode="after")
    def _layers_or_model(self) -> Ddp:
        if (self.layers is None) == (self.model is None):
            raise ValueError("a workload needs either 'layers' or a 'model'; write e.g. model: gpt2, gpu: h100")
        if self.layers == ():
            raise ValueError("the list has no layer; write at least one, e.g. {parameters: 4 MiB, backward: 1 ms}")
        return self

    def timed(self, itemsize: int) -> list[Layer]:
        """Return the layers with their times, in forward order. A named model has `itemsize` bytes per parameter."""
        if self.model is None:
            given = [layer for layer in self.layers or () for _ in range(layer.times)]
            return [
                Layer(f"layer{i}", (la.parameters,) if la.parameters else (), la.forward, la.backward)
                for i, la in enumerate(given)
            ]
        speed = gpus()[self.gpu or ""] * self.efficiency  # a multiply-add is two FLOP, a backward pass two forward ones
        layers = []
        for row in load_model(self.model).rows:
            forward = round(2 * row.macs * self.batch * PS_PER_S / speed)
            layers.append(Layer(row.name, tuple(size * itemsize for size in row.tensors), forward, 2 * forward))
        return layers


class Composition(Model):
    """A small program: each rank computes for the time `local`, and the ranks communicate. `mean` has an all-reduce.
    `softmax` has two: for the maximum and for the sum. `argmax` has an all-reduce and an all-gather. `scatter` hands
    out a dataset, `gather` collects predictions, `broadcast` sends out parameters."""

    template: Literal["mean", "softmax", "argmax", "scatter", "gather", "broadcast"]
    size: Bytes
    """Size of the collectives, as nccl-tests counts it."""
    local: Duration = 0
    """Time for which each rank computes."""
    root: Annotated[StrictInt, Field(ge=0)] = 0
    """The root, for collectives that have one."""
    algorithm: str = "auto"
    """Algorithm of the collectives."""


class EqualGroups(Model):
    """All ranks, in groups of one size, as those of a dimension of PyTorch's DeviceMesh."""

    size: Count
    """Number of ranks of a group."""
    apart: Count = 1
    """Distance between ranks of a group: `{size: 2, apart: 4}` of 8 ranks are [0, 4], [1, 5], [2, 6] and [3, 7]."""

    def of(self, n: int) -> tuple[tuple[int, ...], ...]:
        """Return the groups of `n` ranks. Raises InputError if they do not fill groups."""
        if n % (block := self.size * self.apart):
            problem = f"{n} ranks do not fill groups of {self.size} ranks, {self.apart} apart"
            raise wrong("workload", problem, f"take a multiple of {block} ranks")
        return equal_groups(n, self.size, self.apart)


Listed = tuple[tuple[Annotated[StrictInt, Field(ge=0)], ...], ...]
Groups = Annotated[
    Annotated[EqualGroups, Tag("<equal>")] | Annotated[Listed, Tag("<listed>")],
    Discriminator(lambda value: "<equal>" if isinstance(value, dict | EqualGroups) else "<listed>"),
]


class OperationSpec(ExpertKernel):
    """One operation of a plan: a computation with a `time`, or a `collective`. A recorded collective has a `time`, too,
    see `measured_on`."""

    name: str
    """Name of the operation, for the key `after` of later operations."""
    stream: str | None = None
    """Name of a stream. The operations of a rank on one stream run one after the other. Default: one stream for
    computations, and one for collectives."""
    time: dict[Annotated[int, Field(ge=0)], Duration] | Duration | None = None
    """Duration of a computation; of a collective the measured duration, waiting for other ranks included. `{0: 1 ms, 4:
    2 ms}` gives the times of ranks; a rank that is not listed takes the time of the listed rank below it."""
    kind: Literal["compute", "host", "copy"] = COMPUTE
    """What a time without a collective is: computation of the GPU, time of the host, or a copy of memory."""
    collective: Annotated[str, OneOf("collective", lambda: COLLECTIVES)] | None = None
    """Name of a collective."""
    size: Bytes | None = None
    """Size of the collective."""
    algorithm: str | None = None
    """Algorithm of the collective. Default: the `algorithm` of the workload."""
    protocol: Literal["none", "auto", "LL", "LL128", "Simple"] | None = None
    """NCCL's protocol for the collective. Default: the `protocol` of the scenario."""
    root: Annotated[StrictInt, Field(ge=0)] = 0
    """Root of the collective, if it has one."""
    ranks: tuple[Annotated[StrictInt, Field(ge=0)], ...] | None = None
    """The ranks that take part. Default: all ranks."""
    groups: Groups | None = None
    """Lists of ranks. Each list does the operation by itself; all lists do it at the same time. `{size: 8, apart: 1}`
    are all ranks, in groups of 8 that follow each other."""
    after: tuple[str, ...] = ()
    """Names of the operations that must end before this one begins."""

    @field_validator("size")
    @classmethod
    def _none_of_a_barrier(cls, value: int | None, info: ValidationInfo) -> int | None:
        return None if info.data.get("collective") == "barrier" else value  # as of a barrier by itself

    @model_validator(mode="after")
    def _one_thing(self) -> OperationSpec:
        if self.time is None and self.collective is None:
            raise ValueError("an operation has either a 'time' or a 'collective'; write one of them")
        if (self.moe is None) == (self.collective in TOKENS) or (self.moe and self.size):
            raise ValueError(f"`moe` is for {' and '.join(TOKENS)}, in place of 'size'; write it there and only there")
        if self.collective not in (None, "barrier", *TOKENS) and not self.size and self.time is None:
            raise ValueError("a collective needs 'size'; add e.g. size: 64 MiB")
        if self.ranks is not None and self.groups is not None:
            raise ValueError("an operation has both 'ranks' and 'groups'; keep one of them")
        if () in (self.ranks, self.groups, *(self.groups if isinstance(self.groups, tuple) else ())):
            raise ValueError("the list has no rank; write e.g. ranks: [0, 1], or leave it out for all ranks")
        unused = self.model_fields_set & {"size", "algorithm", "protocol", "root"}
        if self.collective is None and unused:
            raise ValueError(f"a computation has no {min(unused)!r}; leave it out, or write a collective")
        return self


class Operations(Model):
    """A plan of your own, which lists its operations: `{name: a, time: 1 ms}`, `{name: b, collective: all_reduce, size:
    64 MiB, after: [a]}`."""

    template: Literal["operations"] = "operations"
    algorithm: str = "auto"
    """Algorithm of the collectives."""
    measured_on: TopologySpec | None = None
    """The `topology` on which the times of collectives were measured. There collectives take these times; on any other
    topology, or if this is left out, they are simulated. The time of a collective without a size holds everywhere."""
    operations: tuple[OperationSpec, ...]
    """The operations, in order."""

    @model_validator(mode="after")
    def _names_before(self) -> Operations:
        known = set[str]()
        all_names = {operation.name for operation in self.operations}
        if not self.operations:
            raise ValueError("the list has no operation; write at least one, e.g. {name: a, time: 1 ms}")
        for i, operation in enumerate(self.operations):
            for j, name in enumerate(operation.after):
                problem = f"{operation.name!r} comes after {name!r}"
                if name not in all_names:
                    cure = did_you_mean(name, all_names)
                    raise BelowError(["operations", i, "after", j], f"{problem}, which names no operation; {cure}")
                if name not in known:
                    raise BelowError(["operations", i, "after", j], f"{problem}, which is listed later; list it first")
            if operation.name in known:
                problem = f"two operations are called {operation.name!r}; rename one"
                raise BelowError(["operations", i, "name"], problem)
            known.add(operation.name)
        return self


SMALL: Final = ("mean", "softmax", "argmax", "scatter", "gather", "broadcast")
SAID_BY: Final = {"fsdp": "sharding: fsdp", "tensor_parallel": "tp: 8", "pipeline": "pp: 4", "moe": "ep: 8"}
TEMPLATES: Final = ("training", "ddp", *SMALL, "operations")


def _template(value: object) -> str:
    name = value.get("template") if isinstance(value, dict) else getattr(value, "template", None)
    return "<small>" if name in SMALL else f"<{name}>"


def _known(value: object) -> object:
    if isinstance(value, Model):
        return value
    if isinstance(value, dict) and "operations" in value:
        value = {"template": "operations", **value}
    if not isinstance(value, dict) or "template" not in value:
        raise ValueError("a workload needs a template; write e.g. workload: {template: ddp, model: gpt2, gpu: h100}")
    if value["template"] not in TEMPLATES:
        name = str(value["template"])
        said = f"write template: training, with parallel: {{{SAID_BY[name]}}}" if name in SAID_BY else None
        raise ValueError(f"{value['template']!r} is no template; {said or did_you_mean(name, TEMPLATES)}")
    return value


Workload = Annotated[
    Annotated[TrainingStep, Tag("<training>")]
    | Annotated[Ddp, Tag("<ddp>")]
    | Annotated[Composition, Tag("<small>")]
    | Annotated[Operations, Tag("<operations>")],
    Discriminator(_template),
    BeforeValidator(_known),
]


def templates() -> dict[str, str]:
    """Return the first sentence about each template, by its name."""
    kinds = [get_args(each)[0] for each in get_args(get_args(Workload)[0])]
    said = {name: kind for kind in kinds for name in get_args(kind.model_fields["template"].annotation)}
    return {name: " ".join((said[name].__doc__ or "").split()).partition(". ")[0].rstrip(".") for name in TEMPLATES}


def with_algorithm(spec: Any, algorithm: str, protocol: str = "none") -> Any:
    """Return a copy of a workload in which all collectives use `algorithm`, also those that name another algorithm. The
    protocols that they name are removed, unless `protocol` is `none`."""
    changed: dict[str, Any] = {"algorithm": algorithm}
    if isinstance(spec, Operations):
        own = {"algorithm": None, **({} if protocol == "none" else {"protocol": None})}
        changed["operations"] = tuple(each.model_copy(update=own) for each in spec.operations)
    return spec.model_copy(update=changed)
