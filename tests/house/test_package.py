"""The wheel: whole, and usable from anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from command import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from this checkout, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


@pytest.mark.thorough
def test_a_wheel_carries_its_files(wheel: Path) -> None:
    """Topologies, scenarios, measured tables and profiles of the checkout are all in the wheel."""
    for inside, outside in (
        ("shipped/topologies", ROOT / "topologies"),
        ("shipped/scenarios", ROOT / "scenarios"),
        ("shipped/measured", ROOT / "validation" / "measured"),
        ("scenario/profiles", ROOT / "simcoll" / "scenario" / "profiles"),
    ):
        assert {p.name for p in (wheel / "simcoll" / inside).iterdir()} == {p.name for p in outside.iterdir()}
    assert (wheel / "simcoll" / "py.typed").exists()
    figures = {p.name for p in (ROOT / "simcoll" / "nccl").glob("*.yaml")}
    assert figures == {p.name for p in (wheel / "simcoll" / "nccl").glob("*.yaml")} and figures


@pytest.mark.thorough
def test_a_wheel_works_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    """An installed simcoll finds its systems and scenarios wherever it is called."""
    env = {**os.environ, "PYTHONPATH": str(wheel)}
    command = [
        sys.executable,
        "-m",
        "simcoll",
        "run",
        "quickstart",
        "--set",
        "size=1 MiB",
        "--set",
        "plots=[]",
        "-o",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True)
    assert "hgx-h100" in done.stdout
    assert (tmp_path / "out" / "results.csv").exists()
