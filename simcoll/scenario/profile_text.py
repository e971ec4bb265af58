"""Parameters as files write them: exact decimals with units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simcoll import units
from simcoll.engine.timing_model import Params


def spelt(params: Params) -> dict[str, object]:
    """Write parameters as the key `model` of a profile has them, exactly; those equal to `one-port` are left out."""
    plain = Params()
    given = {name: value for name, value in vars(params).items() if value != getattr(plain, name)}
    return {name: _SPELT[name](value) if name in _SPELT else value for name, value in given.items()}


def _exact(value: int, digits: int) -> str:
    return f"{value // 10**digits}.{value % 10**digits:0{digits}d}".rstrip("0").rstrip(".")


def _duration_text(ps: int) -> str:
    return f"{_exact(ps, 6)} us"


def _bandwidth_text(rate: int) -> str:
    return f"{_exact(rate, 9)} GB/s"


_SPELT: Final[dict[str, Callable[[Any], object]]] = {
    **dict.fromkeys(("o_send", "o_recv", "g"), _duration_text),
    **dict.fromkeys(("gamma", "channel_bandwidth"), _bandwidth_text),
    "channels": lambda channels: channels or "per-peer",
    "chunk": units.format_size,
    "blocking": lambda blocking: blocking == "sends-first" or blocking,
}
