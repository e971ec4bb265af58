"""Loops that plain numba compiles, and the same source uncompiled.

A kernel is a module of plain functions in the subset of Python that numba knows, with `jit = jit_for(__name__)` before
them. Imported, its functions stay plain: a small job is done before numba is even imported. `compile_kernel` loads the
file a second time, for numba; a kernel takes functions of another by `load_like`. numba keeps the machine code in the
user's cache folder, in a folder named after the source of all kernels that stand beside each other.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.config import cache_folder
from simcoll.errors import InputError, SimcollError

WORTH_COMPILING: Final = 100_000  # transfers: Python takes about 0.8 s for them, as long as numba takes to start
MOST_PLAIN: Final = 4_000_000  # transfers: as lists, more than these take gigabytes and many minutes
_MARK: Final = "_compiled"  # at the end of the name of a module that is loaded to be compiled

_run_plain = 0  # transfers that this process has run uncompiled


@functools.cache
def have_numba() -> bool:
    """Return whether numba is installed. It serves not every release of Python."""
    return importlib.util.find_spec("numba") is not None


def pays(transfers: int, *kernels: ModuleType) -> bool:
    """Return whether to run so many transfers compiled, where these kernels are needed.

    The answer hangs on the work alone, never on a cache, so that a command that starts again does the same. Small runs
    of a sweep add up: from WORTH_COMPILING on the rest is compiled. Kernels that are loaded cost nothing more.
    """
    global _run_plain
    if kernels and all(kernel in _loaded for kernel in kernels):
        return True
    if _run_plain + transfers >= WORTH_COMPILING and have_numba():
        return True
    _run_plain += transfers
    return False


def choose(transfers: int, compiled: bool | None = None, *kernels: ModuleType) -> bool:
    """Return whether to run so many transfers compiled: as `compiled` says, and if it is None, whether that pays.

    Raises InputError if they are too many to run uncompiled.
    """
    if compiled is None:
        compiled = pays(transfers, *kernels)
    if not compiled and transfers > MOST_PLAIN:
        problem = f"{transfers} transfers are too many to run uncompiled"
        raise InputError(problem, "use a release of Python that numba serves, or ask for fewer ranks")
    return compiled


def is_compiled(name: str) -> bool:
    """Return whether the kernel called `name` is being loaded to be compiled."""
    return name.endswith(_MARK)


def jit_for(name: str, *, inline: bool = False) -> Callable[[Any], Any]:
    """Return the decorator for the functions of the kernel called `name`: numba's, or none.

    Functions that are `inline` become part of their callers: else each call hands on every column that it takes.
    """
    if not is_compiled(name):
        return lambda function: function
    return functools.partial(_compiled, "always" if inline else "never")


def load_like(name: str, kernel: ModuleType) -> Any:
    """Return the module from which a kernel called `name` takes functions: compiled if that kernel is."""
    return _for_numba(kernel) if is_compiled(name) else kernel


def _compiled(inline: str, function: Any) -> Any:
    """Return a function for numba. It counts no references (`_nrt`): kernels make no columns, and to count at every
    call would take most of the time."""
    import numba

    kept = _folder(Path(function.__code__.co_filename).parent)
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(kept or "")  # read once, as the function is decorated
    try:
        made = numba.njit(inline=inline, cache=kept is not None, nogil=True, _nrt=False)(function)
    finally:
        numba.config.CACHE_DIR = before
    template = made.get_call_template

    def widened(given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Whole numbers that one kernel hands another have 64 bits: else numba compiles for each width and constant."""
        return template(tuple(map(_wide, given)), {name: _wide(kind) for name, kind in named.items()})

    made.get_call_template = widened
    return made


def _wide(kind: Any) -> Any:
    from numba import types

    return types.int64 if isinstance(kind, types.Integer) else kind


@functools.cache  # read and checked once for all functions of a folder
def _folder(kernels: Path) -> Path | None:
    """Return the folder for the machine code of the kernels in a folder; None where nothing may be kept.

    numba looks at the file of a function alone, and not at the files of what that calls; so the name is that of all
    source in the folder. Code that others could have written is never loaded.
    """
    source = b"".join(file.read_bytes() for file in sorted(kernels.glob("*.py")))
    name = hashlib.sha256(source + Path(__file__).read_bytes()).hexdigest()[:16]
    folder = cache_folder.private(f"kernels-{name}")
    if folder is None or not any(folder.rglob("*.nbc")):
        print("compiling loops for this machine; once, for up to half a minute", file=sys.stderr, flush=True)
    return folder


class CompiledKernel:
    """A kernel whose functions run compiled."""

    def __init__(self, kernel: ModuleType):
        self._module = _for_numba(kernel)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._module, name)

        def call(*given: Any) -> Any:
            mask = os.umask(0o077)  # what numba keeps is the user's alone
            try:
                return function(*given)
            finally:
                os.umask(mask)

        setattr(self, name, call)
        return call


_loaded: dict[ModuleType, CompiledKernel] = {}


def compile_kernel(kernel: ModuleType) -> CompiledKernel:
    """Return a kernel whose functions run compiled: each is compiled, or loaded from the cache, at its first call."""
    if kernel not in _loaded:
        _loaded[kernel] = CompiledKernel(kernel)
    return _loaded[kernel]


@functools.cache
def _for_numba(kernel: ModuleType) -> ModuleType:
    """Return a kernel's source loaded once more, this time for numba."""
    name = kernel.__name__ + _MARK
    spec = importlib.util.spec_from_file_location(name, kernel.__file__)
    if spec is None or spec.loader is None:
        raise SimcollError(f"{kernel.__file__} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Loops:
    """The loops of a kernel, and columns as they take them: arrays if compiled, lists (quicker to index in Python) if
    not."""

    def __init__(self, kernel: ModuleType, compiled: bool):
        self.compiled = compiled
        self.run = self.like(kernel)

    def like(self, kernel: ModuleType) -> Any:
        """Return another kernel, compiled if this one is."""
        return compile_kernel(kernel) if self.compiled else kernel

    def give(self, column: NDArray[Any]) -> Any:
        """Return a column to read, or to work on.

        Arrays lie without gaps and can be written: numba compiles a loop once more for each layout, and for columns
        that are read-only.
        """
        if not self.compiled:
            return column.tolist()
        return column if column.flags.carray else np.require(column, requirements=["C", "W"])

    def fill(self, length: int, value: float, kind: type = np.int32) -> Any:
        """Return a new column of one value; of zeros memory is taken only where it is used."""
        if not self.compiled:
            return [value] * length
        return np.full(length, value, kind) if value else np.zeros(length, kind)

    def room(self, length: int, kind: type = np.int32) -> Any:
        """Return a new column of anything: memory is taken only where it is written."""
        return np.empty(length, kind) if self.compiled else [0] * length
