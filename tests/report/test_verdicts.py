"""The sentence that a command opens with."""

from __future__ import annotations

import simcoll as sc


def test_a_tie_has_no_slowest() -> None:
    """Algorithms that take the same time are named as equal, and none as slower; of others the verdict says how far."""
    tied, apart = (
        sc.run("quickstart", algorithm=algorithms, collective="all_reduce", size="64 MiB", plots=[]).verdict
        for algorithms in (["nvls", "auto"], ["nvls", "ring"])
    )
    assert "nvls = auto" in tied
    assert "slowest" not in tied
    assert "the slowest takes 1." in apart
