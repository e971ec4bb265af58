"""Texts that the readers of foreign schedules share."""

from __future__ import annotations

import re
from typing import Final

THREADS: Final = (
    "thread blocks and channels are not kept: a transfer waits for its data and its channel; "
    "with model.channels=per-peer what goes to different ranks goes at once, as thread blocks do"
)


def plain(text: str, otherwise: str) -> str:
    """A name that fits a column of results: letters, digits, `_`, `-` and `.`; `otherwise` if none of these is left."""
    return re.sub(r"[^\w.-]+", "_", text).strip("_")[:60] or otherwise
