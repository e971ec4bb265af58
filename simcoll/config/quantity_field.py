"""Quantities as keys of files hold them: how each is written, and the number in base units that it means.

Durations are ps, sizes bytes, bandwidths B/s; 0 stands for none, whole or per-peer.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictInt, WithJsonSchema

from simcoll import units


def parsed(kind: units.Unit, words: Mapping[str | None, int | None] | None = None) -> BeforeValidator:
    """Read the number in base units that a text of this kind means, or that one of `words` stands for."""
    known = words or {}

    def read(value: object) -> int | None:
        if isinstance(value, str | None) and value in known:
            return known[value]
        return units.parse(value, kind)

    return BeforeValidator(read)


def _number(what: str, word: str) -> BeforeValidator:
    """Read a number from 1 on, or the word that stands for 0; `what` says of what it is the number."""

    def read(value: object) -> int:
        if value == word:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{value!r} is no number of {what}; write 1, 2, … or {word}")
        return value

    return BeforeValidator(read)


def _gamma(value: object) -> int:
    """Kept as a bandwidth: floor(10¹² / (ps/B)); 0 is none."""
    if value == "none" or units.is_zero(value):
        return 0
    if isinstance(value, str) and units.kind_of(value) == "byte_time":
        per_byte = units.parse_exact(value, "byte_time")
        return int(Fraction(units.PS_PER_S) / per_byte) if per_byte else 0
    if isinstance(value, str) and units.kind_of(value) == "bandwidth":
        return units.parse(value, "bandwidth")
    raise ValueError(f"{value!r} is no cost of a reduction; write e.g. '1.3 ps/B' or '800 GB/s'")


def text(*examples: str) -> WithJsonSchema:
    """The JSON Schema of a key that is written as a text, or 0."""
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
