"""NCCL's log (`NCCL_DEBUG=INFO`, `NCCL_DEBUG_SUBSYS=TUNING`): which algorithm and protocol it chose."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

_CHOICE: Final = re.compile(r"\bBytes -> Algo (\w+) proto (\w+)", re.IGNORECASE)
_ALGORITHMS: Final = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")  # by NCCL's number
_PROTOCOLS: Final = ("LL", "LL128", "Simple")


def file(name: str) -> Path:
    """The file of this process that NCCL_DEBUG_FILE names: NCCL puts host and process for `%h` and `%p`."""
    host = socket.gethostname().partition(".")[0]
    return Path(name.replace("%h", host).replace("%p", str(os.getpid())))


def choice(text: str) -> dict[str, str]:
    """Algorithm and protocol of the last call that a log tells of, as columns of a measured table; empty for none.

    Older versions print numbers, newer ones names.

    >>> choice("NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}")
    {'algorithm': 'ring', 'protocol': 'Simple'}
    """
    found = _CHOICE.findall(text)
    if not found:
        return {}
    algorithm, protocol = found[-1]
    return {"algorithm": _named(algorithm, _ALGORITHMS), "protocol": _named(protocol, _PROTOCOLS)}


def _named(text: str, names: tuple[str, ...]) -> str:
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else text
    return next((name for name in names if name.lower() == text.lower()), text.lower())
