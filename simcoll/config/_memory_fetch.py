"""An instruction for compiled kernels: the processor is to fetch what is read soon."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numba.np import arrayobj


@extending.intrinsic  # type: ignore[untyped-decorator]  # numba has no types here
def fetch(typing: Any, column: Any, at: Any) -> Any:
    """Have the processor fetch an entry of a column; one that there is not does no harm."""

    def written(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        entries = arrayobj.make_array(column)(context, builder, given[0]).data
        place = cgutils.gep(builder, entries, context.cast(builder, given[1], at, types.intp))
        to_read, near, of_data = flag(0), flag(3), flag(1)
        builder.call(function, [builder.bitcast(place, byte), to_read, near, of_data])
        return context.get_dummy_value()

    return types.void(column, at), written
