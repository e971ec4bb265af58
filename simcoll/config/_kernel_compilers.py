"""Compilers of kernels: a function with all that it calls is one piece, optimised and made machine code once.

By itself numba does that for each function, and again in each of its callers, which takes half of the time. Another
third goes into its search, at every operator, through all that Python lets this do; kernels ask for few of these, so
each is looked up once. What is left are columns, whose entries are read in one instruction in place of thirty: kernels
count them from 0, never from the end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir
from numba import _dynfunc, typeof
from numba.core import cgutils, lowering, typed_passes, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.types import containers
from numba.np import arrayobj

from simcoll.config.machine_code import DATA, DOOR, WORDS

_NUMBERS: Final = (types.Number, types.Boolean)
_LOOKED_UP: Final = (*_NUMBERS, types.Array)
_TYPES: Final = {bool: types.Boolean, int: types.Integer, float: types.Float}
_WORD: Final = ir.IntType(64)


class _Library(JITCodeLibrary):
    """The code of a function and of all that it calls, of which `with_door` makes machine code."""

    def _optimize_functions(self, module: Any) -> None:
        """The passes over the whole do the same."""
        module.data_layout = self._codegen._data_layout

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _InnerLibrary(_Library):
    """The code of a function as callers take it in: these optimise it."""

    def _optimize_final_module(self) -> None:
        pass


class _ColumnLowering(lowering.Lower):
    """Writes instructions for the entries of columns by itself: numba's serve arrays of any shape and layout."""

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        entry = self._entry(value, index)
        if entry is None:
            return super().lower_getitem(resty, expr, value, index, signature)
        kind = self.typeof(value.name).dtype
        return self.context.cast(self.builder, self.context.unpack_value(self.builder, kind, entry), kind, resty)

    def lower_setitem(self, target: Any, index: Any, value: Any, signature: Any) -> Any:
        entry = self._entry(target, index)
        if entry is None:
            return super().lower_setitem(target, index, value, signature)
        kind = self.typeof(target.name).dtype
        given = self.context.cast(self.builder, self.loadvar(value.name), self.typeof(value.name), kind)
        return self.context.pack_value(self.builder, kind, given, entry)

    def _entry(self, column: Any, index: Any) -> Any:
        """The address of an entry; None if the index is not that of an entry of a column. Whether it is below 0 is not
        asked: that would be a third of the instructions of a kernel."""
        kind, number = self.typeof(column.name), self.typeof(index.name)
        if not (isinstance(kind, types.Array) and isinstance(number, types.Integer)):
            return None
        if kind.ndim != 1 or kind.layout != "C" or not (kind.aligned and isinstance(kind.dtype, _NUMBERS)):
            return None
        builder, model, array = self.builder, self.context.data_model_manager[kind], self.loadvar(column.name)
        at = self.context.cast(builder, self.loadvar(index.name), number, types.intp)
        return cgutils.gep(builder, model.get(builder, array, "data"), at)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    """numba's pass, with instructions for columns."""

    _name = "column_lowering"
    lowering_class = _ColumnLowering


@functools.cache
def _with_memory(typing: Any) -> Any:
    """numba's table of what can be called, which remembers what it found for numbers and columns."""
    found: dict[Any, Any] = {}

    class Remembering(type(typing)):  # type: ignore[misc]  # whichever class of table numba has
        def resolve_function_type(self, function: Any, given: Any, named: Any) -> Any:
            plain = isinstance(function, types.Function) and all(isinstance(kind, _LOOKED_UP) for kind in given)
            if named or not plain:
                return super().resolve_function_type(function, given, named)
            if (function, given) not in found:
                found[function, given] = super().resolve_function_type(function, given, named)
            return found[function, given]

    remembering = Remembering.__new__(Remembering)
    remembering.__dict__ = vars(typing)  # it is the same table
    return remembering


class _Compiler(Compiler):
    """Compiles a function of a kernel."""

    library: type[_Library]

    def __init__(self, typing: Any, target: Any, library: Any, *given: Any):
        super().__init__(_with_memory(typing), target, self.library(target.codegen(), "kernel"), *given)

    def compile_extra(self, function: Any) -> Any:
        """With a stand-in for the machine code, by which callers know it."""
        self.state.flags.no_compile = True
        made = super().compile_extra(function)
        module, environment = made.fndesc.lookup_module(), made.environment
        code = _dynfunc.make_function(module, function.__name__, "", 0, environment, (made.library,))
        made.target_context.insert_user_function(code, made.fndesc, [made.library])
        return made._replace(entry_point=code)

    def define_pipelines(self) -> Any:
        (passes,) = super().define_pipelines()
        ours = {typed_passes.NativeLowering: _Lowering}
        passes.passes = [(ours.get(one, one), text) for one, text in passes.passes]
        passes._finalized = False
        passes.finalize()
        return [passes]


class Outer(_Compiler):
    """Compiles what Python calls, through a door."""

    library = _Library


class Inner(_Compiler):
    """Compiles what only kernels call."""

    library = _InnerLibrary


# --- doors ---


def with_door(loop: Any, given: tuple[Any, ...]) -> bytes:
    """A loop of numba, compiled for such arguments and behind a door: see `machine_code.Door`."""
    kinds = tuple(map(_kind, given))
    loop.compile(kinds)
    made = loop.overloads[kinds]
    context, function, convention = made.target_context, made.fndesc, made.target_context.call_conv
    module = context.create_module(DOOR)
    door = ir.Function(module, ir.FunctionType(ir.IntType(32), [_WORD.as_pointer()] * 2), DOOR)
    kind = convention.get_function_type(function.restype, function.argtypes)
    called = ir.Function(module, kind, function.llvm_func_name)
    builder = ir.IRBuilder(door.append_basic_block())
    words = (builder.load(builder.gep(door.args[0], [_WORD(i)])) for i in count())
    values = [_value(context, builder, kind, words) for kind in function.argtypes]
    status, result = convention.call_function(builder, called, function.restype, function.argtypes, values)
    back = _come_back(context, builder, function.restype, result, door.args[1])
    builder.ret(status.code)
    with global_compiler_lock:
        made.library._ensure_finalized()
    whole = llvm.parse_assembly(made.library.get_llvm_str())
    whole.link_in(llvm.parse_assembly(str(module)))
    if missing := [one.name for one in whole.functions if one.is_declaration and not one.name.startswith("llvm.")]:
        raise NotImplementedError(f"{missing} are in no object file")
    machine: bytes = context.codegen()._tm.emit_object(whole)
    return back.encode() + b"\n" + machine


def _kind(one: Any) -> Any:
    """numba's type of an argument: whole numbers have 64 bits."""
    kind = typeof(one)
    return types.int64 if isinstance(kind, types.Integer) else kind


def _value(context: Any, builder: Any, kind: Any, words: Iterator[Any]) -> Any:
    """An argument as the loop takes it, made of the next words at the door."""
    if isinstance(kind, containers.BaseTuple):
        return context.make_tuple(builder, kind, [_value(context, builder, one, words) for one in kind])
    if kind == types.none:
        return context.get_dummy_value()
    word = next(words)
    if isinstance(kind, types.Integer):
        return word
    if isinstance(kind, types.Boolean):
        return builder.trunc(word, ir.IntType(1))
    if kind == types.float64:
        return builder.bitcast(word, ir.DoubleType())
    if kind.ndim != 1 or kind.layout != "C" or not (kind.aligned and kind.mutable):
        raise NotImplementedError(f"{kind} at a door")
    array = arrayobj.make_array(kind)(context, builder)
    size = _WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    place = builder.inttoptr(builder.add(word, _WORD(DATA)), _WORD.as_pointer())
    data = builder.inttoptr(builder.load(place), array.data.type)
    arrayobj.populate_array(array, data, [next(words)], [size], size, None)
    return array._getvalue()


def _come_back(context: Any, builder: Any, kind: Any, result: Any, row: Any) -> str:
    """Write what a loop returns to a row of words; returns how to read that."""
    several = isinstance(kind, containers.BaseTuple)
    back = "(" if several else " "
    for i, part in enumerate(kind if several else [] if kind == types.none else [kind]):
        word = next(word for word, known in _TYPES.items() if isinstance(part, known))
        one = builder.extract_value(result, i) if several else result
        wide = context.cast(builder, one, part, types.float64 if word is float else types.int64)
        builder.store(builder.bitcast(wide, _WORD), builder.gep(row, [_WORD(i)]))
        back += WORDS[word]
    return back
