"""The benchmarks run, and what they compare simcoll with computes the same."""

import json
import subprocess
import sys
from typing import Any

import pytest
from command import ROOT, environment

pytest.importorskip("numba")


def benchmarks(module: str, *words: str) -> str:
    """What `python -m MODULE` prints at the top of the repository."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, cwd=ROOT, env=environment()
    )
    assert not done.returncode, done.stderr
    return done.stdout


def work(name: str, **what: Any) -> dict[str, Any]:
    """What a measurement says of itself."""
    return dict(json.loads(benchmarks("benchmarks.work", name, json.dumps(what))))


@pytest.mark.parametrize(
    "bandwidth", ["50 GB/s", {"value": "50 GB/s", "spread": "20 %"}], ids=["links equal", "links different"]
)
def test_the_naive_ring_in_simpy_ends_when_ours_does(bandwidth: Any) -> None:
    """A ratio means something only if both replay the same ring."""
    links = "equal" if isinstance(bandwidth, str) else "different"
    keys = {
        "topology": {"fabric": "single-switch", "hosts": 16, "link": {"bandwidth": bandwidth, "latency": "0.5 us"}},
        "collective": "all_reduce",
        "algorithm": "ring",
        "size": "64 MiB",
        "model": {"sharing": "fifo"},
    }
    ours = work("point", keys=keys)
    assert ours["time_ps"] == work("naive", links=links, ranks=16)["time_ps"]
    assert ours["messages"] == 2 * 16 * 15


def test_tables_are_printed_with_a_row_a_point() -> None:
    """`make bench`, as small as can be: the head says what was run where, each table has the rows of its section."""
    lines = benchmarks("benchmarks", "smoke", "--only", "contention").splitlines()
    assert lines[0].startswith("# form smoke: ")
    assert "load average" in lines[0]
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    assert rows[0][:4] == ["what", "sharing", "ranks", "messages"]
    assert len(rows) == 4
