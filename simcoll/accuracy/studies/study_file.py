"""Read study files: which cases a study measures, which rows it fits, and how well it must predict the other rows.

A study is a YAML file; `simcoll validate` runs a folder of studies. Its cases are scenario files to measure, or tables
that others measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Model, Node
from simcoll.errors import InputError, did_you_mean
from simcoll.scenario.profile import find_profile

STUDIES, CASES = "studies", "cases"  # folders
Venue = Literal["loopback", "lab", "nccl", "tables"]
Percent = Annotated[float, Field(ge=0)]


def _profile(name: str) -> str:
    find_profile(name)
    return name


PLACES: Final = {
    "loopback": "processes of one machine, gloo over loopback",
    "lab": "hosts made of network namespaces, gloo over TCP on shaped links",
    "nccl": "GPUs, NCCL",
    "tables": "tables measured by others",
}


class Goals(Model):
    """Goals of a study, in percent. `at_least` and `at_most` bound the share of times inside their 90 % intervals.

    `median`, `p95`, `mape` limit absolute errors on rows that were not fitted. A larger median passes, too, if it is at
    most `spreads` times the spread of repeated measurements. For `in_order`, `regret_mean`, `regret_worst` see
    `scores.ranking`. `bucket_regret` limits how much longer the advised bucket size takes than the best. `lost`: by how
    many percentage points the mean absolute error on rows that were held out may grow, from the profile with which the
    fit began to the fitted one.
    """

    median: Percent | None = None
    spreads: Percent | None = None
    p95: Percent | None = None
    mape: Percent | None = None
    in_order: Percent | None = None
    regret_mean: Percent | None = None
    regret_worst: Percent | None = None
    bucket_regret: Percent | None = None
    at_least: Percent | None = None
    at_most: Percent | None = None
    width: Percent | None = None
    lost: Percent | None = None


class StudyCase(Model):
    """A case to measure, or a table measured on a system, and the choice of rows to fit.

    `fit`: `all`, `nothing`, every second size of each series, or rows with certain values in certain columns. `where`
    selects the rows to use; `score` selects rows to score among those not fitted. `profile` replaces the study's.
    """

    case: str | None = None
    table: str | None = None
    system: str | None = None
    where: dict[str, list[str]] = Field(default_factory=dict)
    profile: Annotated[str, AfterValidator(_profile)] | None = None
    fit: Literal["all", "nothing", "every second size"] | dict[str, list[str]] = "nothing"
    score: dict[str, list[str]] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> StudyCase:
        if (self.case is None) == (self.table is None) or (self.table is None) != (self.system is None):
            raise ValueError("is neither a case nor a table; write case: NAME, or table: FILE and system: NAME")
        return self

    @property
    def name(self) -> str:
        """The name of the case, or the file of the table."""
        return str(self.case or self.table)


class Study(Model):
    """A study. Each combination of values in columns `by` is fitted separately; `free` names the parameters to fit."""

    name: str
    title: str
    description: str = ""
    place: Venue
    profile: Annotated[str, AfterValidator(_profile)] = "one-port"
    free: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    cases: tuple[StudyCase, ...] = ()
    goals: Goals = Goals()

    @model_validator(mode="after")
    def _has_cases(self) -> Study:
        if not self.cases:
            raise ValueError("a study needs cases; write `cases: [{case: NAME}]`")
        return self


def load(folder: Path, names: Sequence[str] = ()) -> list[Study]:
    """Return the studies of a folder, sorted by name, or the studies called `names`.

    Raises InputError if there is none, for an unknown name, and with every mistake in their files.
    """
    known = {path.stem: path for path in sorted((folder / STUDIES).glob("*.yaml"))}
    if not known:
        raise InputError(f"{folder}: has no {STUDIES}/*.yaml", "give the folder of studies with --folder")
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{unknown[0]!r} is no study of {folder}", did_you_mean(unknown[0], known))
    return [_read(known[name]) for name in names or known]


def _read(path: Path) -> Study:
    tree = yaml_tree.read(path)
    if isinstance(tree.value, dict):
        tree = Node({"name": yaml_tree.located(path.stem, tree.place), **tree.value}, tree.place, tree.keys)
    return yaml_tree.validate(Study, [tree])[0]


def case_file(folder: Path, name: str) -> Path:
    """Return the path of a case's scenario file. Raises InputError if it does not exist."""
    path = folder / CASES / f"{name}.yaml"
    if not path.exists():
        known = [file.stem for file in (folder / CASES).glob("*.yaml")]
        raise InputError(f"{path}: there is no such case", did_you_mean(name, known))
    return path
