"""Types of single scenario keys: `measure`, `plots`, `placement`, `groups`, `weights` and `library_version`."""

from typing import Annotated, Any, Final, Literal, TypeGuard

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    Tag,
    WithJsonSchema,
)

from simcoll.config import yaml_tree
from simcoll.config.field_types import OneOf
from simcoll.config.yaml_tree import Model


class MeasureSpec(Model):
    """The key `measure`: how a point of the scenario is run on real hardware."""

    harness: Literal["p2p", "library", "nccl-tests", "graph"] = "p2p"
    """How the collective is called. `p2p`: as the sends and receives of the schedule. `library`: as the library's own
    collective, one call at a time. `nccl-tests`: as the library's own collective, many calls in a row; their mean
    counts, as in nccl-tests. `graph`: many calls in a row from a CUDA graph."""
    calls: Annotated[StrictInt, Field(ge=1)] = 20
    """Number of calls in one timed run of `nccl-tests` and `graph`."""
    warmup: Annotated[StrictInt, Field(ge=0)] = 3
    """Number of runs before the timed runs."""
    repeats: Annotated[StrictInt, Field(ge=1)] = 20
    """Number of timed runs, in all launches together."""
    launches: Annotated[StrictInt, Field(ge=1)] = 1
    """How often the ranks are started anew. The timed runs are divided among the launches."""
    verify: StrictBool = True
    """Whether every element of the result is checked before the timed runs."""
    buckets: Annotated[StrictInt, Field(ge=1)] = 1
    """Number of equal calls into which the library's collective is cut."""
    async_op: StrictBool = False
    """Whether these calls run at the same time. Otherwise they run one after the other."""
    compute: Literal["sleep", "real"] = "sleep"
    """What the layers of a workload do: they sleep, or they multiply matrices."""


PLOTS: Final = {
    "busbw": "bus bandwidth over size, a curve for each algorithm",
    "latency": "time over size",
    "scaling": "time over ranks",
    "crossover": "map of the fastest algorithm, by size and ranks",
    "timeline": "the sends of each rank over time, at the largest size; for up to 4,000 transfers",
    "utilisation": "the topology, coloured by how busy its links are at the largest size",
    "step": "for a workload: time of a step by bucket size",
    "overlap": "for a workload: computation and communication of a rank over time, and where they overlap",
}


def listed(value: object) -> object:
    """Return a single value as a list of one; return lists unchanged."""
    return [value] if isinstance(value, str | dict) else value


_Names = Annotated[tuple[str, ...], BeforeValidator(listed)]


class KeyPlot(Model):
    """A plot of a quantity in the results over any column or swept key."""

    x: str
    """Column or swept key across, e.g. `size`, `nodes`, `topology.oversubscription`."""
    y: str = "time"
    """Column up, e.g. `time`, `busbw`, `step`."""
    group: _Names | None = None
    """Columns or keys; each of their values is a line. Default: the algorithm."""
    facet: _Names = ()
    """Columns or keys; each of their values is a panel."""
    filter: dict[str, Any] = Field(default_factory=dict)
    """Values that rows must have, by column or key: `{nodes: 2}`."""

    @property
    def name(self) -> str:
        """The name of the picture's file."""
        parts = [self.y, "over", self.x, *(f"by-{name}" for name in self.facet)]
        parts += [f"{key}-{value}" for key, value in self.filter.items()]
        return "-".join(parts).replace("/", "-").replace(" ", "")

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


_Plot = Annotated[
    Annotated[str, OneOf("plot", lambda: PLOTS), Tag("<name>")] | Annotated[KeyPlot, Tag("<over a key>")],
    Discriminator(lambda value: "<over a key>" if isinstance(value, dict | KeyPlot) else "<name>"),
]
Plots = Annotated[tuple[_Plot, ...], BeforeValidator(listed)]


class Placement(Model):
    """The key `placement`: the nodes or devices on which ranks run, e.g. two ranks on each node."""

    per_node: Annotated[StrictInt, Field(ge=1)]
    """Number of ranks on each node."""


def _placement(value: object) -> Placement | tuple[str, ...] | None:
    if value is None or isinstance(value, Placement):
        return value
    if isinstance(value, dict) and list(value) == ["per_node"] and _positive(value["per_node"]):
        return Placement(per_node=value["per_node"])
    if isinstance(value, list | tuple) and value and all(isinstance(device, str) for device in value):
        return tuple(value)
    raise ValueError(f"{value!r} is no placement; write {{per_node: 2}} or a list of devices")


def groups_of(value: object) -> int | tuple[Any, ...] | None:
    """Return a number of groups, or nested lists of ranks as tuples; raises ValueError for anything else."""
    if value is None or _positive(value):
        return value
    if isinstance(value, list | tuple) and value:
        return tuple(
            part if isinstance(part, int) and not isinstance(part, bool) else groups_of(part) for part in value
        )
    raise ValueError(f"{value!r} are no groups; write a number of groups, or lists of ranks: [[0, 1], [2, 3]]")


def _positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def weighed(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check the key `weights`: whole numbers, or for all_to_all one row of them per rank. Raises ValueError."""
    rows = [row if isinstance(row, list | tuple) else (row,) for row in value]
    for weight in (weight for row in rows for weight in row):
        if not isinstance(weight, int) or isinstance(weight, bool) or weight < 0:
            raise ValueError(f"{weight!r} is no weight; write whole numbers of at least 0, e.g. [1, 2]")
    if (
        len({(isinstance(row, int), len(weights)) for row, weights in zip(value, rows, strict=True)}) != 1
        or not rows[0]
    ):
        raise ValueError("the rows of weights differ in length or are empty; write numbers, or rows of one length")
    return value


# Parsed values: None, a Placement or names of devices; None, a number of groups or nested tuples of ranks.
Placed = Annotated[Any, PlainValidator(_placement, json_schema_input_type=Placement | list[str])]
Grouped = Annotated[Any, PlainValidator(groups_of, json_schema_input_type=int | list[Any])]


def _as_written(value: object) -> object:
    """Return a release as the text in the file, because YAML reads `2.3` and `2.30` as one number."""
    if isinstance(value, yaml_tree.WrittenFloat):
        return value.text
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Release = Annotated[str, BeforeValidator(_as_written), WithJsonSchema({"type": ["string", "number"]})]
