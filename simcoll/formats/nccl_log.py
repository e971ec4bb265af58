"""Read from NCCL's log (`NCCL_DEBUG=INFO`, `NCCL_DEBUG_SUBSYS=TUNING`) which algorithm and protocol it chose."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

from simcoll.schedule.names import ALGORITHMS, PROTOCOLS, squashed

_CHOICE: Final = re.compile(r"\bBytes -> Algo (\w+) proto (\w+)", re.IGNORECASE)


def file(name: str) -> Path:
    """Return the log file of this process that NCCL_DEBUG_FILE names; NCCL replaces `%h` by host, `%p` by process."""
    host = socket.gethostname().partition(".")[0]
    return Path(name.replace("%h", host).replace("%p", str(os.getpid())))


def choice(text: str) -> dict[str, str]:
    """Return algorithm and protocol of the last call in a log, as columns of a measured table; empty if there is none.

    Older versions print numbers, newer ones names.

    >>> choice("NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}")
    {'algorithm': 'ring', 'protocol': 'Simple'}
    """
    choices = _CHOICE.findall(text)
    if not choices:
        return {}
    algorithm, protocol = choices[-1]
    return {"algorithm": _named(algorithm, ALGORITHMS), "protocol": _named(protocol, PROTOCOLS)}


def _named(text: str, names: tuple[str, ...]) -> str:
    """Return the name for a number or a spelling; an unknown spelling is returned in small letters."""
    if text.isdecimal():
        return names[int(text)] if len(text) < 4 and int(text) < len(names) else text
    return next((name for name in names if squashed(name) == squashed(text)), text.lower())
