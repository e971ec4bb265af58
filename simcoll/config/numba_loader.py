"""Loops that numba compiles where it is installed (the extra `fast`); the same source runs uncompiled.

A kernel is a module of plain functions in the subset of Python that numba knows, with `jit = jit_for(__name__)` before
them. Imported, they stay plain functions, quickest on lists; `compile_kernel` gives those that are called compiled, on
arrays. To compile one, the file is loaded a second time; a kernel takes functions of another by `load_like`. Machine
code is kept in the cache by what the files say that stand beside a kernel: two checkouts, or one that was installed
anew, compile once.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.config import cache_folder
from simcoll.config._lock_file import alone
from simcoll.config.machine_code import Loop
from simcoll.errors import InputError, SimcollError

WORTH_LOADING: Final = 50_000  # transfers: Python runs about as many while compiled code is loaded
WORTH_COMPILING: Final = 600_000  # transfers: Python runs about as many while kernels are compiled, 4 to 9 s
MOST_PLAIN: Final = 4_000_000  # transfers: as lists, more than these take gigabytes and many minutes
_MARK: Final = "_compiled"  # at the end of the name of a module that is loaded to be compiled

_compiling = threading.RLock()
_run_plain = 0  # transfers that this process has run uncompiled
_announced = False  # that kernels are compiled


@functools.cache
def have_numba() -> bool:
    """Whether numba is installed (the extra `fast`)."""
    return importlib.util.find_spec("numba") is not None


def pays(transfers: int, *kernels: ModuleType) -> bool:
    """Whether to run so many transfers compiled, where these kernels are needed for it.

    A sweep's small runs add up: as soon as they have cost what it costs to load the kernels, or to compile those whose
    code is in no cache, the rest is compiled. So is what follows a run for which they were loaded.
    """
    global _run_plain
    if kernels and all(map(_is_loaded, kernels)):
        return True
    done = _run_plain + transfers
    if done >= WORTH_LOADING and have_numba():
        new = [kernel for kernel in kernels if not is_at_hand(kernel)]
        if done >= WORTH_COMPILING or not new:
            _announce(new)
            return True
    _run_plain += transfers
    return False


def choose(transfers: int, compiled: bool | None = None, *kernels: ModuleType) -> bool:
    """Whether to run so many transfers compiled: `compiled` decides, and if it is None whether that pays.

    Raises InputError if they are too many to run uncompiled.
    """
    if compiled is None:
        compiled = pays(transfers, *kernels)
    if not compiled and transfers > MOST_PLAIN:
        problem = f"{transfers} transfers are too many to run uncompiled"
        raise InputError(problem, 'install the extra fast (pip install "simcoll[fast]"), or ask for fewer ranks')
    return compiled


def is_compiled(name: str) -> bool:
    """Whether the kernel called `name` is being loaded to be compiled."""
    return name.endswith(_MARK)


def jit_for(name: str, *, inner: bool = False, inline: bool = False) -> Any:
    """The decorator for the functions of the kernel called `name`: numba's, or none.

    Only kernels call those that are `inner`: they need no door for Python, which takes long to compile. Those that are
    `inline` become part of their callers: else each call hands on every column that the function takes.
    """
    if not is_compiled(name):
        return _as_it_is
    return functools.partial(_compiled, "Inner" if inner or inline else "Outer", "always" if inline else "never")


def fetch_for(name: str) -> Any:
    """A function of a column and a place for the kernel called `name`, if it is compiled: the processor is to fetch
    that entry, so that who reads it soon need not wait for the memory."""
    if not is_compiled(name):
        return None
    from simcoll.config import _memory_fetch

    return _memory_fetch.fetch


def load_like(name: str, kernel: ModuleType) -> Any:
    """The module that a kernel called `name` takes functions from: compiled if it is."""
    return _for_numba(kernel) if is_compiled(name) else kernel


def _compiled(compiler: str, inline: str, function: Any) -> Any:
    """For numba, which does not count references: it would at every call of one function by another, for each column,
    and that takes most of the time. Kernels make no columns. No door for Python: ours is quicker to compile."""
    return _for_one_width(
        _numba().njit(
            pipeline_class=_compiler(compiler),
            inline=inline,
            _nrt=False,
            no_cpython_wrapper=True,
            no_cfunc_wrapper=True,
        )(function)
    )


@functools.cache
def _compiler(name: str) -> Any:
    """The compiler of kernels called `name`, loaded when something is compiled. What it fails at numba compiles by
    itself, as ours builds on parts of numba that another release may lack: that takes longer, with the same answers."""
    from numba.core.compiler import Compiler

    class Either:
        def __init__(self, typing: Any, target: Any, library: Any, args: Any, result: Any, flags: Any, types: Any):
            self._given = typing, target, library, args, result
            self._flags, self._types = flags, types

        def compile_extra(self, function: Any) -> Any:
            try:
                from simcoll.config import _kernel_compilers

                compiler = getattr(_kernel_compilers, name)
                return compiler(*self._given, self._flags.copy(), self._types).compile_extra(function)
            except Exception:  # whichever: numba raises again what is wrong with the function
                return Compiler(*self._given, self._flags, self._types).compile_extra(function)

    return Either


@functools.cache
def _numba() -> Any:
    """numba, without scipy's linear algebra: before it compiles anything, it loads that to see whether it could, which
    takes longer than all else that it loads. No kernel needs it, and who does loads it then."""
    import numba
    from numba.np import linalg

    if "numba.np.arraymath" not in sys.modules and (ensure_blas := getattr(linalg, "ensure_blas", None)):
        try:
            linalg.ensure_blas = lambda: None
            from numba.np import arraymath
        finally:
            linalg.ensure_blas = ensure_blas
        vars(arraymath).update(ensure_blas=ensure_blas, _HAVE_BLAS=importlib.util.find_spec("scipy") is not None)
    return numba


@contextmanager
def _alone() -> Iterator[None]:
    """Processes that need the same loop wait for the first, and load what it has compiled: a loop takes seconds."""
    folder = cache_folder.folder()
    with _compiling, alone(folder / "lock", "compile a loop") if folder else nullcontext():
        yield


def _for_one_width(function: Any) -> Any:
    """Other kernels hand a function whole numbers of 64 bits: numba would compile it, and all that it calls, once for
    each constant that it is given and once for each width."""
    from numba import types

    template = function.get_call_template

    def wide(kind: Any) -> Any:
        return types.int64 if isinstance(kind, types.Integer) else kind

    def widened(given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return template(tuple(map(wide, given)), {name: wide(kind) for name, kind in named.items()})

    function.get_call_template = widened
    return function


def _as_it_is(function: Any) -> Any:
    return function


class CompiledKernel:
    """A kernel whose functions are called compiled."""

    def __init__(self, kernel: ModuleType):
        self._kernel = kernel

    def __getattr__(self, name: str) -> Loop:
        function = getattr(self._kernel, name)  # that it has it
        loop = Loop(
            f"{_kept_as(self._kernel)}.{function.__name__}", lambda: getattr(_for_numba(self._kernel), name), _alone
        )
        setattr(self, name, loop)
        return loop


_loaded: dict[ModuleType, CompiledKernel] = {}


def compile_kernel(kernel: ModuleType) -> CompiledKernel:
    """A kernel whose functions are called compiled: each is when it is first called, or what was is loaded."""
    if kernel not in _loaded:
        _loaded[kernel] = CompiledKernel(kernel)
    return _loaded[kernel]


class _FromSource(SourceFileLoader):
    """Source as it stands, as the name says under which machine code is kept: bytecode passes for that of a file that
    was changed within its second to as many bytes."""

    def get_code(self, fullname: str) -> CodeType:
        """Return what the source says."""
        return self.source_to_code(self.get_data(self.path), self.path)


@functools.cache
def _for_numba(kernel: ModuleType) -> ModuleType:
    """A kernel's source loaded once more, this time for numba."""
    name = kernel.__name__ + _MARK
    spec = importlib.util.spec_from_file_location(name, kernel.__file__, loader=_FromSource(name, str(kernel.__file__)))
    if spec is None or spec.loader is None:
        raise SimcollError(f"{kernel.__file__} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def is_at_hand(kernel: ModuleType) -> bool:
    """Whether a kernel is loaded, or its compiled code is in the cache."""
    return _is_loaded(kernel) or _is_kept(kernel)


def _is_loaded(kernel: ModuleType) -> bool:
    """Whether a kernel is loaded to be compiled, which the first run with it does."""
    return kernel in _loaded


@functools.cache
def _is_kept(kernel: ModuleType) -> bool:
    """Whether compiled code of a kernel is in the cache when this is first asked."""
    folder = cache_folder.folder()
    return folder is not None and any(folder.glob(f"{_kept_as(kernel)}.*"))


def _announce(new: Sequence[ModuleType]) -> None:
    """Say to a person who waits why, once."""
    global _announced
    if new and not _announced and sys.stderr.isatty():
        print("compiling loops for this machine; once, for about 6 s", file=sys.stderr)
        _announced = True


def _kept_as(kernel: ModuleType) -> str:
    """The beginning of the names of files with a kernel's compiled code."""
    file = Path(kernel.__file__ or "")
    return f"{_state(file.parent)}.{file.stem}"


class Loops:
    """The loops of a kernel, and columns as they take them: arrays if compiled, lists (quicker to index in Python) if
    not."""

    def __init__(self, kernel: ModuleType, compiled: bool):
        self.compiled = compiled
        self.run = self.like(kernel)

    def like(self, kernel: ModuleType) -> Any:
        """Another kernel, compiled if this one is."""
        return compile_kernel(kernel) if self.compiled else kernel

    def give(self, column: NDArray[Any]) -> Any:
        """A column to read, or to work on. Arrays lie without gaps and can be written: numba compiles a loop once more
        for each layout, and for columns that are read-only."""
        if not self.compiled:
            return column.tolist()
        return column if column.flags.carray else np.require(column, requirements=["C", "W"])

    def fill(self, length: int, value: float, kind: type = np.int32) -> Any:
        """A new column of one value; of zeros memory is taken only where it is used."""
        if not self.compiled:
            return [value] * length
        return np.full(length, value, kind) if value else np.zeros(length, kind)

    def room(self, length: int, kind: type = np.int32) -> Any:
        """A new column of anything: memory is taken only where it is written."""
        return np.empty(length, kind) if self.compiled else [0] * length


@functools.cache
def _state(folder: Path) -> str:
    """A name for the contents of all source files in a folder, and of what compiles them."""
    names = "numba_loader.py", "machine_code.py", "_kernel_compilers.py", "_memory_fetch.py"
    ours = (Path(__file__).with_name(name) for name in names)
    files = [*sorted(folder.glob("*.py")), *ours]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
