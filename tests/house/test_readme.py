"""What the README shows is what happens."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from itertools import chain
from pathlib import Path

import documents
import pytest
from command import ROOT, simcoll

from simcoll.scenario.scenario_files import load
from simcoll.schedule import registry

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_what_it_shows_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """From top to bottom, in one folder, each simcoll command ends with 0 and prints what stands below it.

    Each YAML file is a scenario. Blocks of Python are one program, with an own algorithm beside a ring.
    With `--update-golden` the README is written anew with what its commands print."""
    monkeypatch.chdir(tmp_path)
    known = {name: dict(entries) for name, entries in registry.ALGORITHMS.items()}
    world: dict[str, object] = {"__name__": "readme"}
    whole, printed = README, io.StringIO()
    try:
        for language, text in documents.every_block(README):
            if language == "yaml":
                file = Path(re.findall(r"^# ([\w.-]+)\n", text)[0])
                file.write_text(text, "utf-8")
                assert load(str(file))
            elif language == "console" and "$ make" not in text:
                now = documents.ran(text)
                if request.config.getoption("update_golden"):
                    (ROOT / "README.md").write_text(whole := whole.replace(text, now), "utf-8")
                else:
                    assert now == text
            elif language == "python":
                with contextlib.redirect_stdout(printed):
                    exec(compile(text, "README.md", "exec"), world)
    finally:
        own = {name for entries in registry.ALGORITHMS.values() for name in entries} - {*chain(*known.values())}
        registry.ALGORITHMS.clear()
        registry.ALGORITHMS.update(known)
    assert Path("busbw.svg").exists()
    assert len(own) == 1
    assert all(re.search(rf"^ +64 KiB +{name} ", printed.getvalue(), re.M) for name in ("ring", *own))


def test_the_picture_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The picture is there, and the command below it makes one of that kind, here of fewer sizes and algorithms."""
    monkeypatch.chdir(tmp_path)
    ((picture, command),) = re.findall(r"^!\[.*\]\((.*)\)\n\n\(Made by `(.*?)`\.", README, re.M)
    assert (ROOT / picture).stat().st_size < 130_000
    fewer = ["--set", "size=[512 B, 512 MiB]", "--set", "algorithm=[auto, ring]"]
    assert simcoll(*shlex.split(command)[1:], *fewer).status == 0
    assert [path.name for path in Path("out/plots").iterdir()] == ["latency.png"]


def test_what_it_links_to_is_there():
    """Every link of the README leads to a file of the repository."""
    assert not [link for link in re.findall(r"\]\(([^)]+)\)", README) if not (ROOT / link).exists()]


def test_every_place_that_architecture_names_is_there():
    """Paths in ARCHITECTURE.md exist, below simcoll/ or as they stand, with the names in brackets behind them.

    It has a row for every room."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    paths = {path for path in re.findall(r"`([\w/.-]+)`", text) if "/" in path}
    assert not [path for path in sorted(paths) if not ((ROOT / "simcoll" / path).exists() or (ROOT / path).exists())]
    for path, names in re.findall(r"`([\w/]+\.py)` \(((?:`\w+`,? ?)+)\)", text):
        code = (ROOT / "simcoll" / path).read_text("utf-8")
        assert not [name for name in re.findall(r"\w+", names) if not re.search(rf"\b{name}\b", code)], path
    rooms = {path.parent.name for path in (ROOT / "simcoll").glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"`(\w+)/`", text.split("| room |")[1].split("\n\n")[0]))
