"""Compiled loops that are called without numba, which takes 0.3 s to import: llvmlite alone loads what it has compiled.

Beside each loop stands a door in its machine code, made by `_kernel_compilers.with_door`: a function of two rows of
64-bit words, what is given and what comes back. A column is given as the place of its array object and its length.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import platform
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import numpy as np

from simcoll.config import cache_folder

DATA: Final = object.__basicsize__  # bytes from the place of an array object to the address of its entries
DOOR: Final = "door"
WORDS: Final = {bool: "?7x", int: "q", float: "d"}
NUMBERS: Final = {bool: (bool, np.bool_), int: (int, np.integer), float: (float, np.floating)}


class Door:
    """The door of one loop for arguments of some types: `code` is what comes back, as `struct` reads it, a line end,
    and an object file."""

    def __init__(self, code: bytes):
        import llvmlite.binding as llvm

        back, _, machine = code.partition(b"\n")
        several, words = back[:1], back[1:].decode()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)  # its own: names stay apart
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(machine))
        self._engine.finalize_object()
        self._call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            self._engine.get_function_address(DOOR)
        )
        self._back, self._several = struct.Struct(words), several == b"("
        self._room = ctypes.c_char * max(8, self._back.size)

    def __call__(self, given: bytes) -> Any:
        """Call the loop. Raises ArithmeticError if it fails."""
        room = self._room()
        if self._call(given, ctypes.addressof(room)):
            raise ArithmeticError("a compiled loop divides by zero")
        back = self._back.unpack_from(room)
        return back if self._several else back[0] if back else None


class Loop:
    """A function of a kernel that is called compiled.

    Its name begins that of the file with its machine code, and names all that this follows from but for what compiles
    it and the types of arguments; `compiled` gives numba's function; `alone` lets one process compile, while others
    wait for it.
    """

    def __init__(self, name: str, compiled: Callable[[], Any], alone: Callable[[], AbstractContextManager[None]]):
        self._name, self._compiled, self._alone = name, compiled, alone
        self._doors: dict[tuple[Any, ...], tuple[struct.Struct, Door | None]] = {}
        self.made = 0  # that were compiled, as the cache had them not

    def __call__(self, *given: Any) -> Any:
        """Call the function."""
        kinds: list[Any] = []
        words: list[Any] = []
        if not _lay_out(given, kinds, words):
            return self._by_numba(*given)
        types = tuple(kinds)
        if types not in self._doors:
            self._doors[types] = struct.Struct("".join(map(_word, kinds))), self._door(kinds, given)
        form, door = self._doors[types]
        return self._by_numba(*given) if door is None else door(form.pack(*words))

    def _door(self, kinds: list[Any], given: tuple[Any, ...]) -> Door | None:
        """The door for arguments of these types; None where llvmlite or numba lack what it takes, as another release
        may."""
        try:
            key = hashlib.sha256(f"{[*map(_text, kinds)]} {_machine()}".encode()).hexdigest()[:16]
            name = f"{self._name}.{key}"
            code = cache_folder.kept(name)
            if code is None:
                with self._alone():
                    code = cache_folder.kept(name)
                    if code is None:
                        from simcoll.config import _kernel_compilers

                        self.made += 1
                        code = _kernel_compilers.with_door(self._compiled(), given)
                        cache_folder.keep(name, code)
            return Door(code)
        except Exception:  # whichever: numba raises again what is wrong with the loop
            return None

    @functools.cached_property
    def _by_numba(self) -> Any:
        import numba

        return numba.njit(nogil=True, _nrt=False)(self._compiled().py_func)


def _lay_out(given: tuple[Any, ...], kinds: list[Any], words: list[Any]) -> bool:
    """Append what the types of arguments are known by, and the words that they are at the door; whether they fit
    through one. This is done at each call, for up to 100 columns."""
    for one in given:
        kind = type(one)
        if kind is np.ndarray:
            if one.ndim != 1 or not one.flags.carray:
                return False
            kinds.append(one.dtype)
            words.append(id(one))
            words.append(len(one))
        elif isinstance(one, tuple):
            kinds.append(kind)
            kinds.append(len(one))
            if not _lay_out(one, kinds, words):
                return False
        else:
            kinds.append(kind)
            if one is not None:
                words.append(one)
    return True


def _word(kind: Any) -> str:
    """The letters of `struct` for one of the kinds of `_lay_out`."""
    if isinstance(kind, np.dtype):
        return "qq"
    if isinstance(kind, int) or kind is type(None) or issubclass(kind, tuple):
        return ""
    return WORDS[next(word for word, known in NUMBERS.items() if issubclass(kind, known))]


def _text(kind: Any) -> str:
    """The same in each process, and for numbers of Python and of numpy."""
    if isinstance(kind, type) and issubclass(kind, tuple):
        return f"{kind.__module__}.{kind.__qualname__}"
    return str(kind) if isinstance(kind, np.dtype | int) else _word(kind)


@functools.cache
def _machine() -> str:
    """The releases of what compiles, and the processor."""
    import llvmlite
    import llvmlite.binding as llvm

    probe = np.zeros(1, np.int64)
    if ctypes.c_void_p.from_address(id(probe) + DATA).value != probe.ctypes.data:
        raise RuntimeError("arrays lie in memory as no door reads them")
    numba = importlib.util.find_spec("numba")
    release = Path(numba.origin).with_name("_version.py").read_text() if numba and numba.origin else ""
    cpu = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return repr((release, llvmlite.__version__, llvm.get_process_triple(), cpu, platform.python_version(), DATA))
