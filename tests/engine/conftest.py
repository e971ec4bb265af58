"""Columns that refuse what machine code would not notice."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from simcoll.config.numba_loader import Loops


class _FromTheStart(list[Any]):
    """A column whose entries kernels count from 0: compiled, they would read other memory."""

    def __getitem__(self, at: Any) -> Any:
        self._check(at)
        return super().__getitem__(at)

    def __setitem__(self, at: Any, value: Any) -> None:
        self._check(at)
        super().__setitem__(at, value)

    def _check(self, at: Any) -> None:
        if not isinstance(at, slice) and at < 0 and ".kernels." in sys._getframe(2).f_globals["__name__"]:
            raise AssertionError(f"a kernel asks for entry {at}")


def _strict(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make columns that are lists strict."""

    @functools.wraps(make)
    def made(*given: Any) -> Any:
        column = make(*given)
        return _FromTheStart(column) if isinstance(column, list) else column

    return made


@pytest.fixture
def from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are not compiled count entries from 0, never from the end."""
    for name in ("give", "fill", "room"):
        monkeypatch.setattr(Loops, name, _strict(getattr(Loops, name)))
