"""Studies: what is run for real, which of its rows are fitted, and how well the others must be predicted.

A study is a YAML file; `simcoll validate` runs those of a folder. Its cases are scenario files, or measured tables that
others have made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from simcoll import config
from simcoll.config import Model, Node
from simcoll.errors import InputError, did_you_mean
from simcoll.profile import find_profile

STUDIES, CASES = "studies", "cases"  # folders
Place = Literal["loopback", "lab", "nccl", "one-gpu", "tables", "device"]
Percent = Annotated[float, Field(ge=0)]


def _profile(name: str) -> str:
    find_profile(name)
    return name


PLACES: Final = {
    "loopback": "processes of one machine, gloo over loopback",
    "lab": "hosts made of network namespaces, gloo over TCP on shaped links",
    "nccl": "GPUs, NCCL",
    "one-gpu": "ranks that share a GPU, NCCL over sockets",
    "tables": "tables measured by others",
    "device": "one device: the first GPU, else the processor",
}


class Goals(Model):
    """What a study is to reach, in percent; `at_least` and `at_most` bound the share of times within 90 % intervals.

    `median`, `p95`, `mape`: of absolute errors on rows that were not fitted; the median may also be `spreads` times the
    spread of the measurement itself. `in_order`, `regret_mean`, `regret_worst`: see `scores.ranking`.
    """

    median: Percent | None = None
    spreads: Percent | None = None
    p95: Percent | None = None
    mape: Percent | None = None
    in_order: Percent | None = None
    regret_mean: Percent | None = None
    regret_worst: Percent | None = None
    at_least: Percent | None = None
    at_most: Percent | None = None
    width: Percent | None = None


class Used(Model):
    """A case, or a table of a system, and which of its rows are fitted: `all`, `nothing`, every second size of each
    series, or those with certain values in certain columns. `score` says which of the others count; default: all."""

    case: str | None = None
    table: str | None = None
    system: str | None = None
    where: dict[str, str] = Field(default_factory=dict)
    fit: Literal["all", "nothing", "every second size"] | dict[str, list[str]] = "nothing"
    score: dict[str, list[str]] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Used:
        if (self.case is None) == (self.table is None) or (self.table is None) != (self.system is None):
            raise ValueError("is neither a case nor a table; write case: NAME, or table: FILE and system: NAME")
        return self

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.case or self.table)


class Study(Model):
    """A study; `by` names columns of whose values each has a fit of its own, `free` what is fitted."""

    name: str
    title: str
    description: str = ""
    place: Place
    profile: Annotated[str, AfterValidator(_profile)] = "ideal"
    free: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    cases: tuple[Used, ...] = ()
    goals: Goals = Goals()

    @model_validator(mode="after")
    def _has_cases(self) -> Study:
        if bool(self.cases) == (self.place == "device"):
            raise ValueError("a study has cases, unless its place is device; write cases: [{case: NAME}]")
        return self


def load(folder: Path, names: Sequence[str] = ()) -> list[Study]:
    """The studies of a folder, or those that are named, in the order of their names.

    Raises InputError if there is none, for a name that is none of them, and with every mistake of their files.
    """
    known = {path.stem: path for path in sorted((folder / STUDIES).glob("*.yaml"))}
    if not known:
        raise InputError(f"{folder}: has no {STUDIES}/*.yaml", "give the folder of studies with --folder")
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{unknown[0]!r} is no study of {folder}", did_you_mean(unknown[0], known))
    return [_read(known[name]) for name in names or known]


def _read(path: Path) -> Study:
    tree = config.read(path)
    if isinstance(tree.value, dict):
        tree = Node({"name": config.located(path.stem, tree.place), **tree.value}, tree.place, tree.keys)
    return config.validate(Study, [tree])[0]


def case_file(folder: Path, name: str) -> Path:
    """The scenario of a case. Raises InputError if there is none."""
    path = folder / CASES / f"{name}.yaml"
    if not path.exists():
        known = [file.stem for file in (folder / CASES).glob("*.yaml")]
        raise InputError(f"{path}: there is no such case", did_you_mean(name, known))
    return path
