"""Pictures, drawn with matplotlib's object API: no window, no global state."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure, in the format that the suffix says; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
