"""Profiles: the parameters of the model with where they come from, and how they are written.

A calibrated profile also says what was fitted to which rows, how well, and what a prediction with it is worth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, StrictBool, WithJsonSchema

from simcoll import config, units
from simcoll.config import Model
from simcoll.errors import did_you_mean
from simcoll.model import Blocking, Params
from simcoll.topology import Link, Topology


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


def _share(value: object) -> float:
    return value if isinstance(value, float) else float(units.parse_exact(value, "share"))


Share = Annotated[float, BeforeValidator(_share), Field(ge=0)]


class LinkScale(Model):
    """What links of a kind have of their rated bandwidth (headers, protocol) and latency, as this harness sees them."""

    efficiency: Annotated[Share, Field(gt=0)] = 1.0
    latency: Share = 1.0

    def of(self, link: Link) -> Link:
        """The link as it serves."""
        return Link(round(link.bandwidth * self.efficiency), round(link.latency * self.latency), link.kind)


class Errors(Model):
    """How far predictions were from some rows; `mape`, `median`, `p95` of |error| and `bias` in percent. `low` and
    `high`: the range of measured / predicted in which 90 % of normal residuals of this spread lie."""

    rows: int
    mape: float
    median: float
    p95: float
    bias: float
    low: float
    high: float


class Series(Model):
    """Rows that differ in size only. `setting` stands for everything else that decides a time: see `fingerprint`."""

    collective: str
    algorithm: str = "auto"
    ranks: int
    topology: str
    setting: str
    fitted: tuple[int, ...] = ()
    held_out: tuple[int, ...] = ()


class Source(Model):
    """A table that rows came from."""

    file: str
    sha256: str
    rows: int


class Calibration(Model):
    """How a profile was found, and on what."""

    topology: str
    date: str
    simcoll: str
    scipy: str
    seed: int
    files: tuple[Source, ...]
    where: tuple[str, ...] = ()
    split: str
    left: dict[str, str] = Field(default_factory=dict)
    intervals: dict[str, tuple[str, str]]
    errors: dict[Literal["fitted", "held_out"], Errors]
    covers: tuple[Series, ...]


class Profile(Model):
    """A set of model parameters with where it comes from.

    Outside of the engines' rules stand `launch`, what a call costs before and after all transfers, and `links`, what
    becomes of the rated links of each kind. `fitted` repeats the parameters that a calibration found.
    """

    name: str
    description: str = ""
    source: str = ""
    harness: str | None = None
    model: ModelSpec = ModelSpec()
    launch: Duration = 0
    links: dict[str, LinkScale] = Field(default_factory=dict)
    fitted: dict[str, str] = Field(default_factory=dict)
    calibration: Calibration | None = None

    def serve(self, topology: Topology) -> Topology:
        """The topology with its links as they serve; the same where nothing changes them."""
        if not self.links.keys() & {link.kind for *_, link in topology.graph.edges.data("link")}:
            return topology
        graph = topology.graph.copy()
        for *_, data in graph.edges(data=True):
            data["link"] = self.links.get(data["link"].kind, LinkScale()).of(data["link"])
        return Topology(graph, topology.name, topology.routing, topology.explicit)


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
    return parse_profile(config.text_of(path), str(path))


@functools.lru_cache(maxsize=32)
def parse_profile(text: str, source: str) -> Profile:
    """A profile from its text; `source` names it in errors. Raises InputError."""
    return config.validate(Profile, [config.parse(text, source)])[0]


# --- writing ---


def spelt(params: Params) -> dict[str, object]:
    """Parameters as the key `model` of a profile has them, exactly; those that are as in `ideal` are left out."""
    plain = Params()
    given = {name: value for name, value in vars(params).items() if value != getattr(plain, name)}
    return {name: _SPELT[name](value) if name in _SPELT else value for name, value in given.items()}


def _exact(value: int, digits: int) -> str:
    return f"{value // 10**digits}.{value % 10**digits:0{digits}d}".rstrip("0").rstrip(".")


def _duration_text(ps: int) -> str:
    return f"{_exact(ps, 6)} us"


def _bandwidth_text(rate: int) -> str:
    return f"{_exact(rate, 9)} GB/s"


_SPELT: Final[dict[str, Callable[[Any], object]]] = {
    **dict.fromkeys(("o_send", "o_recv", "g"), _duration_text),
    **dict.fromkeys(("gamma", "channel_bandwidth"), _bandwidth_text),
    "channels": lambda channels: channels or "per-peer",
    "chunk": units.format_size,
    "blocking": lambda blocking: blocking == "sends-first" or blocking,
}
