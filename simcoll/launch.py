"""Starting ranks on this machine, watching them, and ending them whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


def _nothing_before(rank: int) -> Sequence[str]:
    return ()


def _nothing_added(rank: int) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Launcher:
    """How rank r is started: `prefix(r)` stands before its command, `environment(r)` is added to its environment."""

    prefix: Callable[[int], Sequence[str]] = _nothing_before
    environment: Callable[[int], Mapping[str, str]] = _nothing_added


LOCAL: Final = Launcher()
