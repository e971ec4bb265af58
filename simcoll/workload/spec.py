"""The scenario's key `workload`: templates of what jobs do, and operations one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, StrictInt, Tag, model_validator

from simcoll import units
from simcoll.config import Model
from simcoll.errors import did_you_mean
from simcoll.profile import Duration, Share
from simcoll.workload.buckets import BUCKET_CAP, FIRST_BUCKET
from simcoll.workload.models import gpus, load_model, models

PS_PER_S: Final = 10**12
Count = Annotated[StrictInt, Field(ge=1)]


def _bytes(value: object) -> int:
    return units.parse(value, "size")


def _cap(value: object) -> int:
    return 0 if value == "none" else _bytes(value)


def _first(value: object) -> int | None:
    return None if value == "same" else _cap(value)


Bytes = Annotated[int, BeforeValidator(_bytes)]
Cap = Annotated[int, BeforeValidator(_cap)]
First = Annotated[int | None, BeforeValidator(_first)]


class Layer(NamedTuple):
    """A layer as a rank has it: bytes of each of its tensors, how long it computes forward and backward, in ps."""

    name: str
    tensors: tuple[int, ...]
    forward: int
    backward: int

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        return sum(self.tensors)


class LayerSpec(Model):
    """A layer, or several that are alike (`times`): one tensor of `parameters` bytes, and what its passes take."""

    parameters: Bytes
    backward: Duration
    forward: Duration = 0
    times: Count = 1


def _one_of(kind: str, choices: Callable[[], Sequence[str]]) -> BeforeValidator:
    def check(value: object) -> str:
        if str(value) not in choices():
            raise ValueError(f"{value!r} is no {kind}; {did_you_mean(str(value), choices())}")
        return str(value)

    return BeforeValidator(check)


class Training(Model):
    """What the templates of training steps have in common: `layers` as given, or those of a named `model`, of which
    each rank takes `batch` samples, on a `gpu` that reaches `efficiency` of its peak.

    `forward` is the whole forward pass, by default what the layers take.
    """

    algorithm: str = "auto"
    layers: tuple[LayerSpec, ...] | None = None
    model: Annotated[str, _one_of("model", models)] | None = None
    gpu: Annotated[str, _one_of("GPU", gpus)] | None = None
    efficiency: Annotated[Share, Field(gt=0, le=1)] = 0.4
    batch: Count = 1
    forward: Duration | None = None
    optimizer: Duration = 0

    @model_validator(mode="after")
    def _layers_or_model(self) -> Training:
        if (self.layers is None) == (self.model is None):
            raise ValueError("it needs either 'layers' or a 'model'; write e.g. model: gpt2, gpu: h100")
        if self.model is not None and self.gpu is None:
            raise ValueError("a model needs a GPU to compute on; add e.g. gpu: h100")
        return self

    def timed(self, itemsize: int) -> list[Layer]:
        """The layers in forward order, `itemsize` bytes a parameter of a named model."""
        if self.model is None:
            given = [layer for layer in self.layers or () for _ in range(layer.times)]
            return [Layer(f"layer{i}", (la.parameters,), la.forward, la.backward) for i, la in enumerate(given)]
        speed = gpus()[self.gpu or ""] * self.efficiency  # multiply-adds count twice, a backward pass twice a forward
        found = []
        for row in load_model(self.model).layers:
            forward = round(2 * row.macs * self.batch * PS_PER_S / speed)
            found.append(Layer(row.name, tuple(size * itemsize for size in row.tensors), forward, 2 * forward))
        return found


class Ddp(Training):
    """Data parallel: gradients in buckets, each all-reduced when all of it is there, beside what is left of the
    backward pass (`overlap`) or behind it; `bucket_cap: none` is an all-reduce for each tensor."""

    template: Literal["ddp"]
    bucket_cap: Cap = BUCKET_CAP
    first_bucket: First = FIRST_BUCKET
    overlap: StrictBool = True


TEMPLATES: Final[dict[str, type[Model]]] = {"ddp": Ddp}


def _template(value: object) -> str:
    name = value.get("template") if isinstance(value, dict) else getattr(value, "template", None)
    return f"<{name}>"


def _known(value: object) -> object:
    if isinstance(value, Model):
        return value
    if not isinstance(value, dict) or "template" not in value:
        raise ValueError("it needs a template; write e.g. workload: {template: ddp, model: gpt2, gpu: h100}")
    if value["template"] not in TEMPLATES:
        raise ValueError(f"{value['template']!r} is no template; {did_you_mean(str(value['template']), TEMPLATES)}")
    return value


Workload = Annotated[
    Annotated[Ddp, Tag("<ddp>")],
    Discriminator(_template),
    BeforeValidator(_known),
]
