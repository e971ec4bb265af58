from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import PATIENCE_S, SCRIPT, environment, simcoll
from extras import needs, needs_root

from simcoll.formats.measured import read_measured
from simcoll.measurement import network_lab, network_namespaces, real_run
from simcoll.measurement.network_namespaces import BuiltNetwork
from simcoll.scenario.scenario_files import load
from simcoll.topology import topology_builder

pytestmark = needs("torch")

SCENARIO = """
name: little-lab
topology: {fabric: single-switch, hosts: 3, link: {bandwidth: 100 Mb/s, latency: 50 us}}
collective: all_reduce
algorithm: [ring, naive]
size: 96 KiB
measure: {repeats: 4, warmup: 1}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A scenario of a second or two."""
    path = tmp_path / "lab.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def _left() -> list[str]:
    return [path.name for path in network_namespaces.NAMES.glob(f"{network_namespaces.PREFIX}{os.getpid()}.*")]


def test_without_root_it_says_so(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Who may not build networks is told with exit status 2, and nothing is written."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = simcoll("lab", scenario, "-o", tmp_path / "table.csv")
    assert found.status == 2
    assert found.err.startswith("the lab cannot be built: ")
    assert not found.out
    assert not (tmp_path / "table.csv").exists()


@needs_root
@pytest.mark.ranks
def test_a_scenario_runs_in_the_lab(scenario: Path, tmp_path: Path):
    """Points become rows of a measured table that tells harness and network; no time beats the links; nothing stays."""
    table = tmp_path / "table.csv"
    found = simcoll("lab", scenario, "--set", "topology.hosts=2", "-o", table, "--quiet")
    assert found.status == 0, found.err
    rows = read_measured(table)
    assert [(row.system, row.harness, row.algorithm, row.ranks, row.runs) for row in rows] == [
        ("single-switch", "p2p", "ring", 2, 4),
        ("single-switch", "p2p", "naive", 2, 4),
    ]
    bound = 2 * 1 / 2 * 96 * 1024 / 12.5e6 * 1e6
    assert all(row.time_us > 0.9 * bound for row in rows)  # a first burst may leave an idle port at once
    assert not _left()


@needs_root
@pytest.mark.long
def test_slow_links_cost_what_they_cost(scenario: Path):
    """Points on other links run on a network of their own: a ring with one slow link waits for it in every step."""
    sets = ["algorithm=ring", "topology.hosts=2", "measure.verify=false"]
    sets += ['topology.links=[{}, {"host1->switch": {bandwidth: 1 MB/s}}]']
    fast, slow = (row["time_us"] for row in network_lab.run(load(str(scenario), sets)))
    assert slow > 2 * 48 * 1024 / 1e6 * 1e6 > fast  # type: ignore[operator]


def _sent(network: BuiltNetwork) -> dict[str, int]:
    """The bytes that each link has carried so far, headers included."""
    sent = {}
    for (device, peer), port in network.plan.port.items():
        words = ["tc", "-n", network.names[device], "-s", "class", "show", "dev", f"port{port}"]
        sent[f"{device}->{peer}"] = int(re.findall(r"Sent (\d+) bytes", network_namespaces.run(*words))[0])
    return sent


@needs_root
@pytest.mark.ranks
@pytest.mark.parametrize("algorithm", ["ring", pytest.param("all_pairs", marks=pytest.mark.long)])
def test_the_schedule_is_what_runs(scenario: Path, algorithm: str):
    """On every link the bytes of the runs are those of the schedule, and those of TCP: headers of 66 for 1,448 bytes
    (4.6 %), an acknowledgement of 66 for at most every second of them (2.3 %), and what a busy machine sends again.
    One run more would be 33 % and its headers, one less leaves too few bytes."""
    points = load(str(scenario), [f"algorithm={algorithm}", "size=2304 KiB", "measure={repeats: 1, warmup: 1}"])
    with BuiltNetwork(topology_builder.build(points[0].scenario.topology)) as network:
        before = _sent(network)
        real_run.run(points, network_lab.launcher(network))
        sent = {name: count - before[name] for name, count in _sent(network).items()}
    runs = 1 + 1 + 1  # timed, warm-up, checked
    wanted = runs * {"ring": 4 / 3, "all_pairs": 2}[algorithm] * 2304 * 1024
    for link, count in sent.items():
        assert wanted < count < 1.3 * wanted, (link, count / wanted)


@pytest.mark.thorough
@needs_root
@pytest.mark.parametrize("ending", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_an_interrupted_lab_leaves_nothing(scenario: Path, ending: signal.Signals):
    """Ctrl-C and `kill` take down the network and the ranks in it."""
    words: list[Any] = [
        sys.executable,
        "-c",
        SCRIPT,
        "lab",
        scenario,
        "--set",
        "measure.repeats=10000",
        "--set",
        "topology.hosts=2",
    ]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        names = f"{network_namespaces.PREFIX}{running.pid}.*"
        while not any(
            network_namespaces.run("ip", "netns", "pids", path.name) for path in network_namespaces.NAMES.glob(names)
        ):
            assert running.poll() is None
        running.send_signal(ending)
        assert running.wait(timeout=PATIENCE_S) in (130, 128 + ending)
    assert not list(network_namespaces.NAMES.glob(names))
