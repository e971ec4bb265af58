"""Regular expressions of a library that are compiled when they are first used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _LatePattern:
    """Stands for a compiled pattern: what it is asked for is asked of that."""

    def __init__(self, *given: Any, **options: Any):
        self._given, self._options = given, options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = vars(self)[name] = getattr(re.compile(*self._given, **self._options), name)
        return found


@contextmanager
def late_patterns() -> Iterator[None]:
    """Within, `re.compile` compiles nothing yet: for the import of one library."""
    compile_now = re.compile
    re.compile = _LatePattern  # type: ignore[assignment]  # serves those who only match and search
    try:
        yield
    finally:
        re.compile = compile_now
