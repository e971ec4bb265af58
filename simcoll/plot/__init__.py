"""Pictures, drawn with matplotlib's object API: no window, no global state."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the suffix says, whole or not at all; makes the folder.

    Equal figures make equal PNG files: nothing in them tells of time or versions.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.lstrip(".").lower() or "png"
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        figure.savefig(partial, format=kind, dpi=150, metadata={"Software": "simcoll"} if kind == "png" else None)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
