"""Types of keys that several kinds of files share: names out of a known set, and quantities with units.

Durations are read as ps, sizes as bytes, bandwidths as B/s, and the words `none`, `whole` and `per-peer` as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, StrictInt, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from simcoll import units
from simcoll.errors import did_you_mean


@dataclass(frozen=True, eq=False)
class OneOf:
    """An annotation for a text that must be one of `names()`, which is called when the text is read.

    `kind` is the word for such names in messages. `also` maps other spellings to names. `hidden` names are accepted,
    but neither suggested nor listed. `instead` returns the fix for any other text; default: the nearest name.
    """

    kind: str
    names: Callable[[], Iterable[str]]
    also: Mapping[str, str] = field(default_factory=dict)
    hidden: Collection[str] = ()
    instead: Callable[[str], str] | None = None

    def __call__(self, value: object) -> str:
        """Return the name that a text stands for; raises ValueError for an unknown name."""
        text, names = str(value), list(self.names())
        meant = self.also.get(text, text)
        if meant not in names and meant not in self.hidden:
            cure = self.instead(text) if self.instead else did_you_mean(text, names)
            raise ValueError(f"{value!r} is no {self.kind}; {cure}")
        return meant

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": [*self.names(), *self.also]}


def parsed(kind: units.Unit, words: Mapping[str | None, int | None] | None = None) -> BeforeValidator:
    """Return a validator that converts a quantity into an int of base units, and a word such as `none` into its number
    in `words`."""
    known = words or {}

    def read(value: object) -> int | None:
        if isinstance(value, str | None) and value in known:
            return known[value]
        return units.parse(value, kind)

    return BeforeValidator(read)


def _number(what: str, word: str) -> BeforeValidator:
    """Return a validator for a whole number of `what` from 1 on; it converts `word` into 0."""

    def read(value: object) -> int:
        if value == word:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{value!r} is no number of {what}; write 1, 2, … or {word}")
        return value

    return BeforeValidator(read)


def _gamma(value: object) -> int:
    """Convert a cost of reduction (per byte, or a bandwidth) into B/s: floor(10¹² / (ps/B)); 0 means no cost."""
    if value == "none" or units.is_zero(value):
        return 0
    if isinstance(value, str) and units.kind_of(value) == "byte_time":
        per_byte = units.parse_exact(value, "byte_time")
        return int(Fraction(units.PS_PER_S) / per_byte) if per_byte else 0
    if isinstance(value, str) and units.kind_of(value) == "bandwidth":
        return units.parse(value, "bandwidth")
    raise ValueError(f"{value!r} is no cost of a reduction; write e.g. '1.3 ps/B' or '800 GB/s'")


def text(*examples: str) -> WithJsonSchema:
    """Return the JSON Schema of a key whose value is a text with a unit, or 0."""
    return WithJsonSchema({"type": ["string", "integer"], "minimum": 0, "maximum": 0, "examples": list(examples)})


def _number_or(word: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": word}]})


Duration = Annotated[int, parsed("duration"), text("1.5 us")]
Gamma = Annotated[int, BeforeValidator(_gamma), text("1.3 ps/B", "800 GB/s", "none")]
BandwidthCap = Annotated[int, parsed("bandwidth", {"none": 0}), text("20 GB/s", "none")]
Chunk = Annotated[int, parsed("size", {"whole": 0}), text("512 KiB", "whole")]
Size = Annotated[int | None, parsed("size", {None: None}), text("64 MiB")]
Slots = Annotated[int, _number("slots", "none"), _number_or("none")]
Channels = Annotated[int, _number("channels, which is at least 1", "per-peer"), _number_or("per-peer")]


def _share(value: object) -> float:
    return value if isinstance(value, float) else float(units.parse_exact(value, "share"))


Share = Annotated[
    float,
    BeforeValidator(_share),
    Field(ge=0),
    WithJsonSchema({"type": ["number", "string"], "examples": ["95 %"]}),
]

Count = Annotated[StrictInt, Field(ge=1)]
