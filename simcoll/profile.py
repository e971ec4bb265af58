"""Profiles: the parameters of the model with where they come from, and how they are written."""

from __future__ import annotations

import functools
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, StrictBool, WithJsonSchema

from simcoll import config, units
from simcoll.config import Model
from simcoll.errors import did_you_mean
from simcoll.model import Blocking


def _size(value: object) -> int:
    return units.parse(value, "size")


def _size_or_nothing(value: object) -> int | None:
    return None if value is None else _size(value)


def _duration(value: object) -> int:
    return units.parse(value, "duration")


def _bandwidth_or_none(value: object) -> int:
    return 0 if value == "none" else units.parse(value, "bandwidth")


def _chunk(value: object) -> int:
    return 0 if value == "whole" else _size(value)


def _slots(value: object) -> int:
    if value == "none":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is no number of slots; write 1, 2, … or none")
    return value


def _channels(value: object) -> int:
    if value == "per-peer":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is no number of channels, which is at least 1; write 1, 2, … or per-peer")
    return value


def _gamma(value: object) -> int:
    """Kept as a bandwidth: floor(10¹² / (ps/B)); 0 is none."""
    if value == "none":
        return 0
    if isinstance(value, str) and units.kind_of(value) == "byte_time":
        per_byte = units.parse_exact(value, "byte_time")
        return int(Fraction(units.PS_PER_S) / per_byte) if per_byte else 0
    if isinstance(value, str) and units.kind_of(value) == "bandwidth":
        return units.parse(value, "bandwidth")
    raise ValueError(f"{value!r} is no cost of a reduction; write e.g. '1.3 ps/B' or '800 GB/s'")


def _blocking(value: object) -> Blocking:
    known: dict[object, Blocking] = {True: "sends-first", False: "no", "even-odd": "even-odd"}
    if not isinstance(value, bool | str) or value not in known:
        raise ValueError(f"{value!r} is no way of blocking; write true, false or even-odd")
    return known[value]


def _text(*examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": list(examples)})


Duration = Annotated[int, BeforeValidator(_duration), _text("1.5 us")]
Gamma = Annotated[int, BeforeValidator(_gamma), _text("1.3 ps/B", "800 GB/s", "none")]
Cap = Annotated[int, BeforeValidator(_bandwidth_or_none), _text("20 GB/s", "none")]
Chunk = Annotated[int, BeforeValidator(_chunk), _text("512 KiB", "whole")]
Size = Annotated[int | None, BeforeValidator(_size_or_nothing), _text("64 MiB")]
Slots = Annotated[
    int,
    BeforeValidator(_slots),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "none"}]}),
]
Channels = Annotated[
    int,
    BeforeValidator(_channels),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "per-peer"}]}),
]
Blocks = Annotated[Blocking, BeforeValidator(_blocking), WithJsonSchema({"enum": [True, False, "even-odd"]})]


class ModelSpec(Model):
    """The scenario's key `model`: what is not given comes from the profile. Field names are those of model.Params."""

    sharing: Literal["fair", "fifo"] | None = None
    o_send: Duration | None = None
    o_recv: Duration | None = None
    g: Duration | None = None
    gamma: Gamma | None = None
    channels: Channels | None = None
    slots: Slots | None = None
    chunk: Chunk | None = None
    channel_bandwidth: Cap | None = None
    barrier: StrictBool | None = None
    blocking: Blocks | None = None


class Profile(Model):
    """A set of model parameters with where it comes from."""

    name: str
    description: str = ""
    source: str = ""
    model: ModelSpec


def shipped_profiles() -> dict[str, Path]:
    """Name and file of every shipped profile."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "profiles").glob("*.yaml"))}


def find_profile(name: str) -> Path:
    """The file of a shipped profile, or the file of that path; raises ValueError with the nearest name."""
    known = shipped_profiles()
    if name in known:
        return known[name]
    if name.endswith((".yaml", ".yml")) and config.is_file(Path(name)):
        return Path(name)
    raise ValueError(f"{name!r} is neither a shipped profile nor a file; {did_you_mean(name, known)}")


def load_profile(name: str) -> Profile:
    """Read a profile; raises InputError."""
    path = find_profile(name)
    return _parsed(config.text_of(path), str(path))


@functools.lru_cache(maxsize=32)
def _parsed(text: str, source: str) -> Profile:
    return config.validate(Profile, [config.parse(text, source)])[0]
