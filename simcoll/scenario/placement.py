"""The scenario's keys for ranks: their placement on devices, their groups, and the weights of their blocks."""

from typing import Annotated, Any, TypeGuard

from pydantic import Field, PlainValidator, StrictInt

from simcoll.config.yaml_tree import Model


class Placement(Model):
    """The number of ranks on each node, where ranks are not placed one by one."""

    per_node: Annotated[StrictInt, Field(ge=1)]
    """Ranks on each node."""


def _placement(value: object) -> Placement | tuple[str, ...] | None:
    if value is None or isinstance(value, Placement):
        return value
    if isinstance(value, dict) and list(value) == ["per_node"] and _positive(value["per_node"]):
        return Placement(per_node=value["per_node"])
    if isinstance(value, list | tuple) and value and all(isinstance(device, str) for device in value):
        return tuple(value)
    raise ValueError(f"{value!r} is no placement; write {{per_node: 2}} or a list of devices")


def _groups(value: object) -> int | tuple[Any, ...] | None:
    if value is None or _positive(value):
        return value
    if isinstance(value, list | tuple) and value:
        return tuple(part if isinstance(part, int) and not isinstance(part, bool) else _groups(part) for part in value)
    raise ValueError(f"{value!r} are no groups; write a number of groups, or lists of ranks: [[0, 1], [2, 3]]")


def _positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def weighed(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check weights of blocks: whole numbers, or for all_to_all one row of them per rank. Raises ValueError."""
    rows = [row if isinstance(row, list | tuple) else (row,) for row in value]
    for weight in (weight for row in rows for weight in row):
        if not isinstance(weight, int) or isinstance(weight, bool) or weight < 0:
            raise ValueError(f"{weight!r} is no weight; write whole numbers of at least 0, e.g. [1, 2]")
    if (
        len({(isinstance(row, int), len(weights)) for row, weights in zip(value, rows, strict=True)}) != 1
        or not rows[0]
    ):
        raise ValueError("the rows differ or are empty; write numbers, or rows of one length")
    return value


# Values besides None: a Placement or names of devices; a number of groups or nested tuples of ranks.
Placed = Annotated[Any, PlainValidator(_placement, json_schema_input_type=Placement | list[str])]
Grouped = Annotated[Any, PlainValidator(_groups, json_schema_input_type=int | list[Any])]
