"""Progress: what is told of a long run, and where."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command import PATIENCE_S, SCRIPT, environment, simcoll

import simcoll as package
from simcoll.cli import _terminal
from simcoll.schedule import registry

STAR = "{fabric: single-switch, hosts: 4, link: {bandwidth: 50 GB/s, latency: 0.5 us}}"


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Three points, the second by an algorithm that takes long to make."""
    path = tmp_path / "s.yaml"
    keys = f"topology: {STAR}\ncollective: all_reduce\nalgorithm: [ring, lasting, naive]\nsize: 1 MiB\nplots: []\n"
    path.write_text(keys, encoding="utf-8")
    return path


@pytest.fixture
def lasting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An algorithm that lasts until two lines about it are on stderr, or for so many seconds; those lines."""
    told: list[str] = []
    seconds = getattr(request, "param", PATIENCE_S)
    monkeypatch.setattr(_terminal, "EVERY_S", 0.05)

    @package.register("all_reduce", "lasting")
    def steps(request: package.Request) -> Iterator[package.Step]:
        """To the last rank, and back."""
        end = time.monotonic() + seconds
        while len(told) < 2 and time.monotonic() < end:
            time.sleep(0.01)
            told[:] = [line for line in sys.stderr.getvalue().splitlines() if "lasting" in line]  # type: ignore[attr-defined]
        last = request.n - 1
        yield package.send(range(last), last, 0, reduce=True)
        yield package.send(last, range(last), 0)

    yield told
    del registry.ALGORITHMS["all_reduce"]["lasting"]


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_long_point_is_told_of_while_it_lasts(words: list[str], scenario: Path, lasting: list[str]):
    """Again and again: how many points are done, which one is under way, and for how long; stdout has the result."""
    found = simcoll("run", scenario, *words)
    assert found.status == 0
    assert len(lasting) >= 2
    for line in lasting:
        assert re.fullmatch(r"[01] of 3 points; all_reduce lasting, 1 MiB, single-switch for \d+ s", line)
    assert "points;" not in found.out


@pytest.mark.parametrize("lasting", [0.5], indirect=True)
def test_quiet_is_quiet(scenario: Path, lasting: list[str]):
    """--quiet says nothing, however long a point lasts."""
    assert simcoll("run", scenario, "--quiet") == (0, "", "")
    assert not lasting


def test_short_runs_say_nothing(scenario: Path):
    """A run that ends before the first line is due has a result and no progress."""
    assert simcoll("run", scenario, "--set", "algorithm=ring").err == ""


LASTING = """\
import time, simcoll

@simcoll.register("all_reduce", "lasting")
def lasting(request):
    time.sleep(2)
    yield simcoll.send(range(3), 3, 0, reduce=True)
    yield simcoll.send(3, range(3), 0)
"""


def test_a_bar_on_a_terminal(scenario: Path):
    """On a terminal a bar is drawn and wiped away again; stdout has the result alone."""
    screen, terminal = os.openpty()
    words = [sys.executable, "-c", f"{LASTING}\n{SCRIPT}", "run", str(scenario)]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=terminal, text=True) as process:
        os.close(terminal)
        drawn = "".join(_shown(screen))
        out = process.communicate()[0]
    os.close(screen)
    assert process.returncode == 0
    assert "of 3 points; all_reduce lasting" in drawn
    assert "points;" not in out
    assert out.count(" all_reduce ") == 3


def _shown(screen: int) -> Iterator[str]:
    """What is written to a terminal until nobody has it open any more."""
    with suppress(OSError):
        while data := os.read(screen, 4096):
            yield data.decode(errors="replace")
