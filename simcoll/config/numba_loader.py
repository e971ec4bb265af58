"""Load the engines' loops (kernels), either compiled by numba or as plain Python, from the same source.

A kernel is a module of functions in numba's subset of Python, with `jit = jit_for(__name__)` before them. Imported
normally, its functions stay plain Python, so that a small job needs no numba. `compile_kernel` loads the file a second
time, for numba. A kernel imports another kernel's functions with `load_like`. numba keeps machine code in the user's
cache folder, in a subfolder named by a hash of the source of all kernels in the package.
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

WORTH_COMPILING: Final = 40_000  # transfers, for which plain Python takes about 0.6 s, as long as numba's start
MOST_PLAIN: Final = 4_000_000  # most transfers in plain Python: beyond, lists take gigabytes and many minutes
_MARK: Final = "_compiled"  # suffix of the name of a module that is loaded for numba

_run_plain = 0  # transfers that this process has run uncompiled


@functools.cache
def have_numba() -> bool:
    """Return whether numba is installed; it does not support every Python release."""
    return importlib.util.find_spec("numba") is not None


def pays(transfers: int, *kernels: ModuleType) -> bool:
    """Return whether to compile the kernels for a run of `transfers` transfers, or to run them as plain Python. The
    answer depends on this process's work only, never on a cache, so that a repeated command does the same. Small runs
    of a sweep add up: once they reach WORTH_COMPILING, later runs are compiled. Compiled kernels are always used."""
    global _run_plain
    if kernels and all(kernel in _loaded for kernel in kernels):
        return True
    if _run_plain + transfers >= WORTH_COMPILING and have_numba():
        return True
    _run_plain += transfers
    return False


def choose(transfers: int, compiled: bool | None = None, *kernels: ModuleType) -> bool:
    """Return whether to run compiled kernels: the value of `compiled`, or if it is None, the answer of `pays`. Raises
    InputError for more than MOST_PLAIN uncompiled transfers."""
    if compiled is None:
        compiled = pays(transfers, *kernels)
    if not compiled and transfers > MOST_PLAIN:
        problem = f"{transfers} transfers are too many to run uncompiled"
        raise InputError(problem, "use a release of Python that numba supports, or fewer ranks")
    return compiled


def is_compiled(name: str) -> bool:
    """Return whether the module called `name` is the copy of a kernel that numba compiles."""
    return name.endswith(_MARK)


def jit_for(name: str) -> Callable[[Any], Any]:
    """Return the decorator for functions of the module `name`: numba's for a kernel's copy, else the identity."""
    return _compiled if is_compiled(name) else lambda function: function


def load_like(name: str, kernel: ModuleType) -> Any:
    """Return the module `kernel`, or its copy for numba if the importing module `name` is such a copy."""
    return _for_numba(kernel) if is_compiled(name) else kernel


def _compiled(function: Any) -> Any:
    """Compile a function with numba, inlined into each caller (`forceinline`) and without reference counts (`_nrt`),
    because kernels create no arrays. Passing arrays at each call and counting references take most of the time."""
    import numba

    kept = _folder(Path(function.__code__.co_filename).parent)
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(kept or "")  # numba reads it when the function is decorated
    try:
        made = numba.njit(forceinline=True, cache=kept is not None, nogil=True, _nrt=False)(function)
    finally:
        numba.config.CACHE_DIR = before
    template = made.get_call_template

    def widened(given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Pass whole numbers between kernels as 64 bits: otherwise numba compiles for each width and constant."""
        return template(tuple(map(_wide, given)), {name: _wide(kind) for name, kind in named.items()})

    made.get_call_template = widened
    return made


def _wide(kind: Any) -> Any:
    from numba import types

    return types.int64 if isinstance(kind, types.Integer) else kind


@functools.cache  # read and checked once for all functions of a folder
def _folder(kernels: Path) -> Path | None:
    """Return the cache folder for machine code of the kernels in a source folder; None if there is no safe one. numba
    checks the source file of a function, but not the files of functions that it calls. So the folder's name is a hash
    of all source in `kernels`. Code that other users could have written is never loaded."""
    source = b"".join(file.read_bytes() for file in sorted(kernels.glob("*.py")))
    name = hashlib.sha256(source + Path(__file__).read_bytes()).hexdigest()[:16]
    folder = cache_folder.private(f"kernels-{name}")
    if folder is None or not any(folder.rglob("*.nbc")):
        print("compiling loops for this machine; once, for up to half a minute", file=sys.stderr, flush=True)
    return folder


class CompiledKernel:
    """A kernel whose functions are compiled at their first call."""

    def __init__(self, kernel: ModuleType):
        self._module = _for_numba(kernel)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._module, name)

        def call(*given: Any) -> Any:
            mask = os.umask(0o077)  # numba's cache files are the user's alone
            try:
                return function(*given)
            finally:
                os.umask(mask)

        setattr(self, name, call)
        return call


_loaded: dict[ModuleType, CompiledKernel] = {}


def compile_kernel(kernel: ModuleType) -> CompiledKernel:
    """Return a kernel whose functions are compiled, or loaded from the cache, at their first call."""
    if kernel not in _loaded:
        _loaded[kernel] = CompiledKernel(kernel)
    return _loaded[kernel]


@functools.cache
def _for_numba(kernel: ModuleType) -> ModuleType:
    """Return a second copy of a kernel's module, loaded for numba."""
    name = kernel.__name__ + _MARK
    spec = importlib.util.spec_from_file_location(name, kernel.__file__)
    if spec is None or spec.loader is None:
        raise SimcollError(f"{kernel.__file__} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Loops:
    """The functions of a kernel, and the form of columns that they take: arrays if they are compiled, else lists."""

    def __init__(self, kernel: ModuleType, compiled: bool):
        self.compiled = compiled
        self.run = self.like(kernel)

    def like(self, kernel: ModuleType) -> Any:
        """Return the functions of another kernel, compiled if these are compiled."""
        return compile_kernel(kernel) if self.compiled else kernel

    def give(self, column: NDArray[Any]) -> Any:
        """Convert a column into the form that the functions need. Arrays are made contiguous and writable, because
        numba compiles a function again for each layout."""
        if not self.compiled:
            return column.tolist()
        return column if column.flags.carray else np.require(column, requirements=["C", "W"])

    def fill(self, length: int, value: float, kind: type = np.int32) -> Any:
        """Return a new column of `length` entries `value`; memory for zeros is allocated on first use."""
        if not self.compiled:
            return [value] * length
        return np.full(length, value, kind) if value else np.zeros(length, kind)

    def room(self, length: int, kind: type = np.int32) -> Any:
        """Return a new uninitialized column of `length` entries; memory is allocated on first use."""
        return np.empty(length, kind) if self.compiled else [0] * length
