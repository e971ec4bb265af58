"""Pictures, drawn with matplotlib's object API: no window, no global state."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.figure import Figure

from simcoll.errors import InputError, did_you_mean
from simcoll.prediction.result_rows import write_atomically

# By which a run knows the pictures of an earlier one; see `result_rows.own_pictures`.
_METADATA: Final = {"png": {"Software": "simcoll"}, "svg": {"Creator": "simcoll"}, "pdf": {"Creator": "simcoll"}}
# Each text of vectors names all of its fonts: the font that texts are laid out by, and another one as wide.
_FONTS: Final = ["DejaVu Sans", "Verdana", "sans-serif"]


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the suffix says, whole or not at all; makes the folder.

    Equal figures make equal PNG files: they hold no date and no version. Raises InputError for a suffix that
    is no picture's, and where nothing can be written.
    """
    kind, known = path.suffix.lstrip(".").lower() or "png", figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise InputError(f"{path}: {kind!r} is no kind of picture", did_you_mean(kind, known))
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=150, metadata=_METADATA.get(kind))
    write_atomically(path, file.getvalue())


def drawn(figure: Figure, kind: str) -> bytes:
    """A figure as `svg` or `png`; equal figures give equal bytes. Texts of vectors remain texts."""
    file = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": "simcoll"}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "simcoll", "font.sans-serif": _FONTS}):
        figure.savefig(file, format=kind, dpi=120, metadata=metadata)
    return file.getvalue()
