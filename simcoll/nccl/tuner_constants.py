"""The constants of the tuners of NCCL and RCCL by release: the YAML files `nccl.yaml` and `rccl.yaml`.

A release is a text such as `2.27` or `2.27.3`. The three numbers of a `Triple` are for the protocols LL, LL128 and
Simple, or for one, two and more nodes; the files say which.
"""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from simcoll.config import yaml_tree
from simcoll.config.grouping import grouped
from simcoll.config.yaml_tree import Model
from simcoll.errors import InputError, wrong
from simcoll.nccl.algorithm_names import MESSAGES, TunedCollective
from simcoll.schedule.names import NcclAlgorithm, Protocol

Library = Literal["nccl", "rccl"]
Generation = Literal["volta", "ampere", "hopper", "blackwell"]
Hop = Literal["nvlink", "pci", "net"]

FIGURES: Final = Path(__file__).parent
_UNKNOWN: Final = " is not known, so the rules of "
_OLDEST_MESSAGES: Final = "2.7"  # the first release with point-to-point messages

Triple = tuple[float, float, float]
Fractional = Annotated[float, BeforeValidator(lambda value: float(Fraction(str(value))))]  # `5/6` as well
ByGeneration = Mapping[Generation, Triple]


class NvlsChannels(Model):
    """A rule for the number of NVLS channels: on `nodes` nodes (None: any), with at most `gpus` GPUs a node, and NICs
    of at least `nic_GBps`."""

    channels: int
    nodes: int | None = None
    gpus: int | None = None
    nic_GBps: float = 0  # noqa: N815


class Sockets(Model):
    """GB/s that NCCL assumes between two processors whose name matches the regular expression `model`."""

    model: str
    GBps: float


class SymmetricFigures(Model):
    """Figures of symmetric kernels: us without data and GiB/s at most, by protocol, and GiB/s of a block."""

    LL: tuple[float, float]
    Simple: tuple[float, float]
    block: float


class CopyEngines(Model):
    """Figures of copy engines: us of a call and us more for each rank, by itself and in a CUDA graph; GB/s; bytes from
    which NCCL takes them without being asked."""

    launched: tuple[float, float]
    graph: tuple[float, float]
    GBps: float
    by_itself_from: int | None = None


class Constants(Model):
    """The tuner's constants that NCCL and RCCL both have, for one release: mainly parts of latencies. The defaults are
    those of RCCL, whose file lacks the keys. The files have the meaning of each key."""

    release: str
    default: str
    newest: str
    oldest: str
    base_us: Mapping[NcclAlgorithm, Triple]
    hop_us: Mapping[Hop, Mapping[NcclAlgorithm, Triple]]
    proxy_us: Mapping[str, float]
    ring_extra_net_hops: int
    lone_gpu_takes_tree_hop: bool
    plateau: Mapping[str, float]
    blackwell_by_nics: bool = False
    plateau_within_blackwell: bool = False
    pat_on_request: bool = False
    slow_ring_has_fewer_threads: bool = True
    knows_p2c: bool = True
    sockets_GBps: tuple[Sockets, ...] = ()  # noqa: N815
    nvls_channels: Mapping[Generation, tuple[NvlsChannels, ...]] = Field(default_factory=dict)
    symmetric: Mapping[TunedCollective, Mapping[Generation, SymmetricFigures]] = Field(default_factory=dict)
    copy_engines: Mapping[Generation, CopyEngines] = Field(default_factory=dict)


class NcclConstants(Constants):
    """The constants of a release of NCCL. `ceilings_GBps` has upper limits in GB/s per channel (`ll`: for all channels
    together), each for one, two and more nodes; `shares` what is left of the bandwidth of an algorithm's channels."""

    library: Literal["nccl"]
    arm_nic_GBps: float | None  # noqa: N815
    ceilings_GBps: Mapping[str, ByGeneration]  # noqa: N815
    shares: Mapping[str, Fractional]
    nvls_efficiency: Mapping[Generation, float]
    nvls_share: Fractional | None
    correction: Mapping[Protocol, tuple[float, ...]]
    corrects_nvls_tree: bool


class RcclConstants(Constants):
    """The constants of a release of RCCL."""

    library: Literal["rccl"]
    shares_to_two_nodes: Mapping[NcclAlgorithm, Triple]
    shares_beyond: Mapping[NcclAlgorithm, Triple]
    correction: Mapping[NcclAlgorithm, Mapping[Protocol, tuple[float, ...]]]


def read(library: Library, version: str | None = None) -> NcclConstants | RcclConstants:
    """Return the constants of a release of a library, by default of the one that its file names. The files list the
    releases that changed constants. Any other release has the constants of the nearest earlier one. Raises InputError
    for a text that is no release, and for a release that is too old."""
    return yaml_tree.once(_read, library, version)


def _read(library: Library, version: str | None) -> NcclConstants | RcclConstants:
    file = yaml_tree.read(FIGURES / f"{library}.yaml", f"{library}.yaml").plain()
    history = file.pop("history", ())
    newest = file["release"]
    wanted = _checked(version or file["default"], file["oldest"], newest, library)
    for change in history:
        if wanted < numbers(change["before"]):
            file = _changed(file, change["was"])
    of_library = NcclConstants if library == "nccl" else RcclConstants
    return of_library.model_validate({**file, "newest": newest, "release": version or file["default"]})


def socket_GBps(model: str, version: str | None) -> float | None:  # noqa: N802
    """Return the GB/s that a release of NCCL (default as in `read`; of releases too old to be known, the oldest known)
    assumes between two processors of a model; None if it is what topology files have."""
    rows = read("nccl", version and nearest(version)).sockets_GBps
    return next((row.GBps for row in rows if re.search(row.model, model)), None)


def check(version: str | None, collective: str) -> None:
    """Raise InputError for a release of NCCL whose calls of a collective are unknown because it is too old."""
    _checked(version, _oldest_of(collective), read("nccl").newest, "nccl")


def nearest(version: str, collective: str = "", library: Library = "nccl") -> str | None:
    """Return the release of a library in a text such as `2.27.3+cuda12.4`; for an older release than simcoll knows,
    return the oldest known one. None if the text has no release."""
    release = re.search(r"[0-9]+\.[0-9]+", version)
    oldest = read("rccl").oldest if library == "rccl" else _oldest_of(collective)
    return max(oldest, release[0], key=numbers) if release else None


def _oldest_of(collective: str) -> str:
    """Return the oldest release of NCCL whose calls of a collective are known."""
    return _OLDEST_MESSAGES if collective in MESSAGES else read("nccl").oldest


def newer_than_known(version: str, library: Library = "nccl") -> str | None:
    """Return a warning for a release newer than all known ones; None for other releases."""
    newest = read(library).newest
    if numbers(version) <= numbers(newest):
        return None
    return f"{library.upper()} {version}{_UNKNOWN}{newest}, the newest known, are used"


_NEEDS_UNKNOWN: Final[Mapping[str, str]] = {"cdna4": "RCCL of ROCm 7, without which these GPUs do not run,"}


def newer_chip(generation: str, library: Library) -> str | None:
    """Return a warning for GPUs that no known release of the library serves; None for others."""
    needed = _NEEDS_UNKNOWN.get(generation)
    return f"{needed}{_UNKNOWN}{read(library).newest}, the newest known, are used" if needed else None


def unknown_first(notes: Iterable[str]) -> tuple[list[str], list[str]]:
    """Divide notes into those that name an unknown release, which belong before the answer, and all others."""
    split = grouped(dict.fromkeys(notes), lambda note: _UNKNOWN in note)
    return split.get(True, []), split.get(False, [])


def _checked(version: str | None, oldest: str, newest: str, library: Library) -> tuple[int, int]:
    wanted = numbers(newest if version is None else version)
    if wanted < numbers(oldest):
        problem = f"{library.upper()} {version}: the constants of this release are not known"
        lost = re.fullmatch(r"[0-9]\.[0-9]", version or "")  # Python's numbers lose their last zero
        cut = lost and numbers(oldest) <= numbers(f"{version}0") <= numbers(newest)
        text = f"; quote it, '{version}0', if that is meant" if cut else ""
        raise wrong("library_version", problem, f"the oldest is {oldest}{text}")
    return wanted


def numbers(version: str) -> tuple[int, int]:
    """Return the major and minor number of a release; patches do not change constants. Raises InputError."""
    match = re.fullmatch(r"([0-9]+)\.([0-9]+)(?:\.[0-9]+)*(?:-[0-9]+)?", version.strip(), re.ASCII)
    if match is None:
        raise InputError(f"{version!r} is no release", "write e.g. 2.27 or 2.27.3")
    return int(match[1]), int(match[2])


def _changed(file: Mapping[str, Any], was: Mapping[str, Any]) -> dict[str, Any]:
    """Return `file`, but with the values of `was` where both have a key; nested mappings are merged."""
    merged = dict(file)
    for key, value in was.items():
        merged[key] = _changed(merged[key], value) if isinstance(value, dict) else value
    return merged
