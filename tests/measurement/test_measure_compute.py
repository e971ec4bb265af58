"""`simcoll measure compute`: tables of computing times of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import command

torch = pytest.importorskip("torch")


def test_without_a_gpu_it_says_what_is_missing(tmp_path: Path) -> None:
    """Without --gpu, or on a machine without GPUs, nothing is measured, and the message says why."""
    told = command.simcoll("measure", "compute")
    assert (told.status, told.out) == (2, "")
    assert "simcoll measure compute --gpu -o gemm.csv" in told.err
    if not torch.cuda.is_available():
        told = command.simcoll("measure", "compute", "--gpu", "-o", tmp_path / "gemm.csv")
        assert (told.status, told.out) == (2, "")
        assert "torch sees no GPU" in told.err
