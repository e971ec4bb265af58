"""A headless chromium for the tests. Where it or what drives it is missing, those that ask for it are skipped, or fail
if SIMCOLL_BROWSER is `required`, as it is in CI."""

from __future__ import annotations

import functools
import http.server
import importlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


PATIENCE_MS = 300_000  # for an element to come: long enough on a machine with ten times as much to do
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")  # as root, and in small containers


def needed(name: str) -> Any:
    """A module of the extra `browser`; without it the test ends."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return _missing(f"needs {name.partition('.')[0]}: make browser")


def _missing(reason: str) -> None:
    if os.environ.get("SIMCOLL_BROWSER") == "required":
        pytest.fail(f"SIMCOLL_BROWSER=required, and the test {reason}")
    pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright; without it the test ends by the name of what is missing."""
    sync_api = needed("playwright.sync_api")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        _missing("needs chromium: make browser, as root")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
