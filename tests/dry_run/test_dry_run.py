"""Dry runs of training scripts: they find the collectives that the same script makes on real gloo ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from command import PATIENCE_S, ROOT
from extras import needs

from simcoll.api.dry_runs import dry_run

SCRIPT = ROOT / "tests" / "dry_run" / "scripts" / "training.py"
KINDS = ("ddp", "fsdp2", "hsdp", "tp", "tp_fsdp", "pp", "moe", "mixed", "zero", "fsdp1")

torch_needed = needs("torch")


def real_calls(folder: Path, world: int, *args: str) -> dict[int, list[list[object]]]:
    """Return the collectives of each gloo rank: name, bytes and ranks."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = str(found.getsockname()[1])
    ranks = []
    for rank in range(world):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        environment = {**os.environ, "MASTER_ADDR": "localhost", **{key: str(value) for key, value in own.items()}}
        command = [sys.executable, str(ROOT / "tests/helpers/gloo_calls.py"), str(folder / f"{rank}.json"), *args]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    assert [each.wait(PATIENCE_S) for each in ranks] == [0] * world
    return {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)}


@torch_needed
@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.filterwarnings("default")  # torch's own
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_collectives_are_those_of_real_ranks(kind: str, world: int, tmp_path: Path) -> None:
    """A dry run lists the calls of each rank, in order, with the bytes."""
    real = real_calls(tmp_path, world, str(SCRIPT), kind)
    found = dry_run(str(SCRIPT), [kind], world=world, on="hgx-h100", all_ranks=True).collectives(everyone=True)
    for rank, calls in real.items():
        mine = [[row["collective"], row["bytes"], row["ranks"]] for row in found if row["rank"] == rank]
        assert mine == [call for call in calls if len(call[2]) > 1]  # type: ignore[arg-type]
