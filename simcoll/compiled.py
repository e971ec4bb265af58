"""Loops that numba compiles where it is installed (the extra `fast`); the same source runs uncompiled.

A kernel is a module of plain functions in the subset of Python that numba knows, with `jit = jit_for(__name__)` before
them. Imported, they stay plain functions, quickest on lists; `compile_kernel` loads the file a second time, and
there they are compiled functions on arrays. Each kernel is one file, as numba's cache on disk sees no other.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from simcoll.errors import SimcollError

WORTH_COMPILING: Final = 100_000  # transfers: below, Python is done before compiled code is loaded
_MARK: Final = "_compiled"  # at the end of the name of a module that is loaded to be compiled


def have_numba() -> bool:
    """Whether numba is installed (the extra `fast`)."""
    return importlib.util.find_spec("numba") is not None


def is_compiled(name: str) -> bool:
    """Whether the kernel called `name` is being loaded to be compiled."""
    return name.endswith(_MARK)


def jit_for(name: str) -> Any:
    """The decorator for the functions of the kernel called `name`: numba's, or none."""
    if not is_compiled(name):
        return _as_it_is
    import numba

    return numba.njit(cache=True)


def _as_it_is(function: Any) -> Any:
    return function


@functools.cache
def compile_kernel(kernel: ModuleType) -> ModuleType:
    """A kernel's source loaded once more, this time for numba."""
    os.environ.setdefault("NUMBA_CACHE_DIR", str(_cache_dir()))
    name = kernel.__name__ + _MARK
    spec = importlib.util.spec_from_file_location(name, kernel.__file__ or "")
    if spec is None or spec.loader is None:
        raise SimcollError(f"{kernel.__file__} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _cache_dir() -> Path:
    """A folder that can be written: the user's cache, else one that lasts as long as the machine runs."""
    asked = os.environ.get("SIMCOLL_CACHE_DIR")
    folder = Path(asked) if asked else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "simcoll"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.gettempdir()) / f"simcoll-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
