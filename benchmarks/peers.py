"""SimGrid, where it is installed: its ring is compiled for the occasion, in a folder that goes when all is done."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import cases

SOURCE: Final = Path(__file__).parent / "simgrid_ring.cpp"
INSTALL: Final = (
    "SimGrid is not measured: it needs a C++ compiler and SimGrid (on Debian: apt-get install g++ libsimgrid-dev)"
)


@contextmanager
def simgrid() -> Iterator[Path | None]:
    """The compiled program; None where there is no SimGrid."""
    compiler = shutil.which("c++")
    with TemporaryDirectory() as folder:
        program = Path(folder) / "ring"
        command = [compiler or "", "-O2", "-o", str(program), str(SOURCE), "-lsimgrid"]
        fails = not compiler or subprocess.run(command, capture_output=True).returncode
        yield None if fails else program


def ring(program: Path, ranks: int) -> dict[str, Any]:
    """Wall and CPU seconds, MB and the makespan of a ring of `ranks`, on equal links."""
    arguments = [str(ranks), str(cases.SIZE // ranks), str(cases.BANDWIDTH), str(cases.LATENCY / 1e12)]
    done = subprocess.run(
        [program, *arguments], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "how": "SimGrid", "messages": 2 * ranks * (ranks - 1)}
