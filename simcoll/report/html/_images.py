"""Figures as pictures within the page."""

from __future__ import annotations

import base64
from html import escape
from typing import Any, Final
from urllib.parse import quote

from simcoll.report import plot

SMALL: Final = 60_000  # bytes: smaller vectors are not even compared with dots
_PLAIN: Final = " '=:/;,.()!*+?[]{}|@-_~"  # what may stand in the address of an image as it is


def image(figure: Any, text: str) -> str:
    """A figure as an image of the page, vectors unless dots are smaller; `text` is for those who do not see it."""
    address = f"data:image/svg+xml,{quote(plot.drawn(figure, 'svg').decode(), safe=_PLAIN)}"
    if len(address) > SMALL:
        dots = f"data:image/png;base64,{base64.b64encode(plot.drawn(figure, 'png')).decode()}"
        address = min(address, dots, key=len)
    return f'<figure><img src="{escape(address)}" alt="{escape(text)}"></figure>'
