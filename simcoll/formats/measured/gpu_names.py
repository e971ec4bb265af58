"""Compare the GPUs that a measured table names with those of a machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from simcoll.formats.measured.measured_row import MeasuredRow

# Models as drivers name them (`NVIDIA H100 80GB HBM3`, `A100-SXM4-40GB`, `AMD Instinct MI300X`), and their sockets.
_MODEL: Final = re.compile(
    r"(?<![A-Z0-9])(RTX (?:PRO )?[0-9]+(?: ?TI)?|(?:GB|GH|MI|[ABHKLPV])[0-9]{2,4}[A-Z]?|[LT]4)(?![A-Z0-9])"
)
_SOCKET: Final = re.compile(r"(?<![A-Z0-9])(PCIE|SXM|NVL(?![0-9]))")


def contradiction(rows: Iterable[MeasuredRow], machine: str, model: str) -> str | None:
    """Return a remark if the column `gpu` or `system` of rows names other GPUs than the `model` of a `machine`; else
    None.

    >>> said = {"gpu": "NVIDIA A100 PCIe"}
    >>> row = MeasuredRow(collective="broadcast", ranks=2, size_bytes=8, time_us=1.0, others=said)
    >>> contradiction([row], "hgx-h100", "H100 SXM5")
    'measured on NVIDIA A100 PCIe, and hgx-h100 has H100 SXM5'
    >>> contradiction([row], "a100-pcie", "A100 PCIe 40 GB")
    """
    others = [text for text in named(rows) if _other(text, model)]
    return f"measured on {', '.join(others)}, and {machine} has {model}" if others else None


def named(rows: Iterable[MeasuredRow]) -> tuple[str, ...]:
    """Return the distinct names of GPUs or machines in the rows' column `gpu`, or else `system`."""
    return tuple(dict.fromkeys(filter(None, (row.others.get("gpu") or row.system for row in rows))))


def ruled_out(names: Iterable[str], model: str) -> bool:
    """Return whether all names (at least one) are names of GPUs other than the `model`.

    >>> ruled_out(["NVIDIA H100 80GB HBM3"], "MI300X"), ruled_out(["node 7"], "MI300X"), ruled_out([], "MI300X")
    (True, False, False)
    """
    others = [_other(name, model) for name in names]
    return bool(others) and all(others)


def is_of(text: str, model: str) -> bool:
    """Return whether a text names the GPU `model`, and no other socket; HBM3 beside an H100 means an SXM board.

    >>> is_of("NVIDIA H100 80GB HBM3", "H100 SXM5"), is_of("NVIDIA H100 80GB HBM3", "H100 NVL"), is_of("H20", "H200")
    (True, False, False)
    """
    plain = text.upper().replace("HBM3", "SXM")
    said, has = ({*_MODEL.findall(each.upper().replace("-", " "))} for each in (plain, model))
    return bool(said & has) and not _other(plain, model)


def _other(text: str, model: str) -> bool:
    """Return whether both texts name a GPU model, or both a socket type (PCIe, SXM), without a name in common."""
    for pattern in (_MODEL, _SOCKET):
        said, has = ({*pattern.findall(each.upper().replace("-", " "))} for each in (text, model))
        if said and has and not said & has:
            return True
    return False
