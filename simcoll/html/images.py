"""Figures as pictures within the page."""

from __future__ import annotations

import base64
from html import escape
from typing import Any, Final
from urllib.parse import quote

from simcoll import plot

_PLAIN: Final = " '=:/;,.()!*+?[]{}|@-_~"  # what may stand in the address of an image as it is


def image(figure: Any, text: str) -> str:
    """A figure as an image of the page, vectors unless dots are smaller; `text` is for those who do not see it."""
    vectors, dots = plot.drawn(figure, "svg"), plot.drawn(figure, "png")
    address = f"data:image/svg+xml,{quote(vectors.decode(), safe=_PLAIN)}"
    if len(dots) * 4 / 3 < len(address):
        address = f"data:image/png;base64,{base64.b64encode(dots).decode()}"
    return f'<figure><img src="{escape(address)}" alt="{escape(text)}"></figure>'
