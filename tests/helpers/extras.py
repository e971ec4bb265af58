"""Packages that are not everywhere, and slow to import: tests skip without them, and import them when they run."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from simcoll.measurement import network_namespaces

needs_root = pytest.mark.skipif(bool(network_namespaces.why_not()), reason=str(network_namespaces.why_not()))


def needs(package: str) -> pytest.MarkDecorator:
    """Skips tests where a package is not installed; it is not imported to find out."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def batches(daily: int, count: int) -> pytest.MarkDecorator:
    """A test for each `batch` of so many, of which only the first are run every day, the others with `-m long`."""
    long = (pytest.param(batch, marks=pytest.mark.long) for batch in range(daily, count))
    return pytest.mark.parametrize("batch", [*range(daily), *long])


class Late:
    """A module that is imported when something in it is first used: torch alone takes two seconds."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks whatever it collects for `_mock_name`
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
