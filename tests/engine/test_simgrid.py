"""Contention on networks that are not stars is what SimGrid says, another simulator of flows that share links."""

from __future__ import annotations

from typing import Final

import pytest

from tools import simgrid

# Makespans in ps that SimGrid 3.32 says: the first numbers of `python tools/simgrid.py`.
MAKESPANS: Final = {
    ("tree", "all_to_all", "direct"): 1920020000,
    ("tree", "all_reduce", "ring"): 1760440000,
    ("tree", "all_reduce", "recursive_doubling"): 640080000,
    ("tree", "all_reduce", "halving_doubling"): 2960153333,
    ("ring", "all_to_all", "direct"): 800020000,
    ("ring", "all_reduce", "ring"): 1120280000,
    ("ring", "all_reduce", "recursive_doubling"): 560060000,
    ("ring", "all_reduce", "halving_doubling"): 1920120000,
    ("torus", "all_to_all", "direct"): 720020000,
    ("torus", "all_reduce", "ring"): 1760440000,
    ("torus", "all_reduce", "recursive_doubling"): 440070000,
    ("torus", "all_reduce", "halving_doubling"): 2400160000,
    ("mesh", "all_to_all", "direct"): 80020000,
    ("mesh", "all_reduce", "ring"): 640160000,
    ("mesh", "all_reduce", "recursive_doubling"): 240060000,
    ("mesh", "all_reduce", "halving_doubling"): 1120120000,
}
APART: Final = 3e-4  # latencies differ by 20 ns a message of 80 us


@pytest.mark.parametrize("case", MAKESPANS)
def test_links_are_shared_as_simgrid_shares_them(case: tuple[str, str, str]) -> None:
    """Two levels of switches, a ring, a torus and a mesh: makespans are equal but for the latency of a step."""
    assert simgrid.time_ps(*case) == pytest.approx(MAKESPANS[case], rel=APART)
