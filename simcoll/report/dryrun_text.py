"""The text that `simcoll dryrun` prints."""

from __future__ import annotations

from typing import Any


def text(found: Any) -> str:
    """Return what a step takes, where its time goes, and what was assumed."""
    return "\n".join(
        [
            *(f"assumed: {line}" for line in found.cluster.assumed),
            f"step {found.prediction.time_ps / 1e9:.3f} ms on {found.world} ranks, MFU {100 * found.mfu:.1f} %",
        ]
    )
