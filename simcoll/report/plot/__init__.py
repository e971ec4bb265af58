"""Draw pictures with matplotlib's object API, which opens no window and has no global state."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.figure import Figure

from simcoll.errors import InputError, did_you_mean
from simcoll.prediction.result_rows import write_atomically

# Metadata by which a run recognizes pictures of an earlier run; see `result_rows.own_pictures`.
_METADATA: Final = {"png": {"Software": "simcoll"}, "svg": {"Creator": "simcoll"}, "pdf": {"Creator": "simcoll"}}
# Fonts named by each text of an SVG: the font that texts are laid out by, and another of equal width.
_FONTS: Final = ["DejaVu Sans", "Verdana", "sans-serif"]


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file, whole or not at all, in the format of its suffix; create a missing folder.

    Equal figures make equal PNG files, without date or version. Raises InputError for a suffix that is no picture
    format, and if the file cannot be written.
    """
    kind, known = path.suffix.lstrip(".").lower() or "png", figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise InputError(f"{path}: {kind!r} is no kind of picture", did_you_mean(kind, known))
    write_atomically(path, _written(figure, kind, dpi=150, metadata=_METADATA.get(kind)))


def drawn(figure: Figure, kind: str) -> bytes:
    """Return a figure as bytes, as `svg` or `png`; equal figures give equal bytes. SVG keeps texts as texts."""
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": "simcoll"}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "simcoll", "font.sans-serif": _FONTS}):
        return _written(figure, kind, dpi=120, metadata=metadata)


def _written(figure: Figure, kind: str, **options: Any) -> bytes:
    if engine := figure.get_layout_engine():  # lay out once and for all: savefig with a layout engine draws twice
        engine.execute(figure)
        figure.set_layout_engine(None)
    file = io.BytesIO()
    figure.savefig(file, format=kind, **options)
    return file.getvalue()
