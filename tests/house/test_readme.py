"""What the README shows is what happens."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import documents
import foreign
import pytest
from command import ROOT

from simcoll.cli import main
from simcoll.formats import importers
from simcoll.schedule import registry

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return documents.blocks(README, language)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the README's scenario (at fewer sizes) and a measured table, as a reader would have them."""
    monkeypatch.chdir(tmp_path)
    scenario = next(block for block in blocks("yaml") if "collective:" in block)
    (tmp_path / "allreduce.yaml").write_text(scenario)
    machine = next(block for block in blocks("yaml") if "devices:" in block)
    (tmp_path / "my-machine.yaml").write_text(machine)
    (tmp_path / "topo.txt").write_text(foreign.MATRIX)
    (tmp_path / "ring.xml").write_text(foreign.RING)
    for given, made in (("topo.txt", "machine.yaml"), ("ring.xml", "ring.json")):
        found = importers.convert((tmp_path / given).read_text(), given, importers.ImportOptions())
        (tmp_path / made).write_text(found.text)
    return tmp_path


def test_it_opens_with_the_two_commands() -> None:
    """The first block of commands is make demo and make test."""
    assert re.findall(r"^\$ (make \w+)", blocks("console")[0], re.M) == ["make demo", "make test"]


ELSEWHERE = (
    "measured.csv",
    "simcoll validate",
)  # real runs: tests/measurement/test_real_run.py and tests/accuracy/test_validate.py
LINES = [line for block in blocks("console") for line in documents.commands(block)]
SHOWN = [line for line in LINES if line.command.startswith("simcoll ")]
COMMANDS = [each.command for each in SHOWN if not any(text in each.command + each.remark for text in ELSEWHERE)]
SHORTER = ("--fit ranks=2,4", "--fit ranks=2,4 --where collective=all_gather")  # of a third of the rows


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_works(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each simcoll command of the README exits with 0."""
    if "out/results.csv" in command:
        assert main(["run", "allreduce.yaml", "--set", "size=1 MiB", "-o", "out"]) == 0
    assert main(shlex.split(command.replace(*SHORTER))[1:]) == 0
    assert capsys.readouterr().out


SAMPLES = [(each.command, each.sample) for each in SHOWN if each.sample]


@pytest.mark.parametrize(("command", "sample"), SAMPLES)
def test_every_sample_is_printed(command: str, sample: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What stands below a command is what it prints."""
    assert main(shlex.split(command)[1:]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.strip("\n").splitlines()] == sample.splitlines()


def test_there_are_samples() -> None:
    """The README shows a table, what pipelining does, why a point takes so long, and what to use."""
    shown = ["predict all_reduce", "predict broadcast", "explain oversubscribed-fat-tree", "recommend quickstart"]
    assert [" ".join(command.split()[1:3]) for command, _ in SAMPLES] == shown


def test_the_picture_can_be_made(folder: Path) -> None:
    """The picture is there, and the command below it makes one like it."""
    picture, command = re.findall(r"^!\[.*\]\((.*)\)\n\n\(Made by `(.*)`\.\)$", README, re.M)[0]
    assert (ROOT / picture).stat().st_size < 60_000
    assert main(shlex.split(command)[1:]) == 0
    assert (folder / "out/plots/crossover.png").exists()


@pytest.mark.parametrize("line", [b for b in "\n".join(blocks("yaml")).splitlines() if b.startswith("topology: {")])
def test_every_topology_builds(line: str, folder: Path) -> None:
    """Each topology line of the README can be used as it stands."""
    (folder / "t.yaml").write_text(f"{line}\ncollective: barrier\nalgorithm: dissemination\n")
    assert main(["run", "t.yaml"]) == 0


@pytest.mark.parametrize("code", blocks("python"))
def test_every_program_runs(code: str, folder: Path) -> None:
    """Each Python block of the README runs as it stands."""
    try:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    finally:
        registry.ALGORITHMS["broadcast"].pop("star", None)


def test_every_key_and_command_is_told() -> None:
    """Every key of a scenario stands in the README's table."""
    from simcoll.scenario.scenario import Scenario

    table = README.split("| key | meaning |")[1].split("\n\n")[0]
    missing = [key for key in Scenario.model_fields if f"`{key}`" not in table and f"`{key}:" not in table]
    assert not missing


def test_every_key_of_a_topology_and_every_column_is_told() -> None:
    """The tables below Topologies and of results.csv hold every name."""
    from simcoll.prediction.result_rows import COLUMNS
    from simcoll.topology.systems import TopologySpec

    topologies = README.split("## Topologies")[1].split("## ")[0]
    assert not [key for key in TopologySpec.model_fields if f"`{key}`" not in topologies]
    columns = README.split("| column | meaning |")[1].split("\n\n")[0]
    assert not [column for column in COLUMNS if f"`{column}`" not in columns]


ERRORS = re.findall(r"^\| `([\w-]+)` `([\w.-]+)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", README, re.M)


@pytest.mark.parametrize(("system", "table", "points", "mape", "median"), ERRORS)
def test_every_error_is_as_told(
    system: str, table: str, points: str, mape: str, median: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The errors in the README are what the command above them prints."""
    assert main(["compare", f"system={system}", table, "--where", "dtype=float16"]) == 0
    assert capsys.readouterr().out.split()[-7:-1][1:5] == ["-", points, mape, median]
