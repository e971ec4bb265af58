"""Names in other people's files, in our words."""

from __future__ import annotations

import re
from typing import Final

from simcoll.schedule.collectives import COLLECTIVES

SQUASHED: Final = {name.replace("_", ""): name for name in COLLECTIVES} | {"sendrecv": "send_recv"}

THREADS: Final = (
    "thread blocks and channels are not kept: a transfer waits for its data and its channel; "
    "with model.channels=per-peer what goes to different ranks goes at once, as thread blocks do"
)


def collective_of(text: str) -> str | None:
    """Ours for `allreduce`, `AllReduce`, `all-reduce`; None if it is none."""
    return SQUASHED.get(re.sub(r"[\s_-]", "", text.lower()))


def plain(text: str, otherwise: str) -> str:
    """A name that fits a column of results: letters, digits, `_`, `-` and `.`."""
    return re.sub(r"[^\w.-]+", "_", text).strip("_")[:60] or otherwise
