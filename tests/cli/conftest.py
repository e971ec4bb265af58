"""A small scenario, and a table measured of it."""

from __future__ import annotations

from pathlib import Path

import pytest

SCENARIO = """\
name: small
topology: {fabric: single-switch, hosts: 4, link: {bandwidth: 50 GB/s, latency: 0.5 us}}
collective: all_reduce
algorithm: [ring, naive]
size: [64 KiB, 1 MiB]
"""
MEASURED = """\
collective,ranks,size_bytes,dtype,algorithm,time_us
all_reduce,4,65536,float32,ring,10
all_reduce,4,65536,float32,naive,20
all_reduce,4,1048576,float32,ring,40
all_reduce,4,4096,float32,ring,5
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A small scenario: two algorithms, two sizes."""
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A measured table: three rows that the small scenario covers, and one that it does not."""
    path = tmp_path / "measured.csv"
    path.write_text(MEASURED, encoding="utf-8")
    return path
