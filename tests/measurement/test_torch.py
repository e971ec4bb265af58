"""torch where there is one: the same cuts as its, and CI must have it."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from simcoll.schedule.schedule import split


def test_ci_has_torch():
    """In CI on Python 3.11, where torch is pinned, it is there: tests that need it are not skipped unnoticed."""
    if os.environ.get("CI") == "true" and sys.version_info[:2] == (3, 11):
        assert importlib.util.find_spec("torch"), "torch is pinned in constraints-ci.txt and must be installed in CI"
        import torch  # noqa: F401  (a broken installation is found as well)


@pytest.mark.parametrize(("elements", "parts"), [(0, 3), (1, 4), (7, 3), (12, 4), (1000, 17), (31, 32)])
def test_buffers_are_cut_as_torch_cuts(elements: int, parts: int):
    """`split` and torch.tensor_split agree on every piece, so that what is simulated is what a real run sends."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pieces = torch.tensor_split(torch.zeros(elements, dtype=torch.float32), parts)
    assert split(elements * 4, parts, 4).tolist() == [4 * len(piece) for piece in pieces]
