"""What tests of pages share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import browser
import pytest


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser, which starts once for all tests of a module: that takes longer than what most of them do in it."""
    with browser.chromium() as started:
        yield started
