"""What kernels are compiled by changes how long that takes, never what they compute."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from command import python
from extras import needs

pytestmark = needs("numba")

BOTH = """\
import os, sys
from pathlib import Path
from types import ModuleType
os.environ["SIMCOLL_CACHE_DIR"] = sys.argv[1] + "/cache"
import numba
import numpy as np
exec(sys.argv[2])
from simcoll.config.numba_loader import compile_kernel
for file in sorted(Path(sys.argv[1]).glob("*.py")):
    source, ours, numbas = file.read_text(), ModuleType(file.stem), {"jit_for": lambda name, **how: numba.njit}
    ours.__file__ = str(file)
    exec(source, vars(ours))
    exec(source.split("import jit_for")[1], numbas)
    left = []
    for run in (compile_kernel(ours).run, numbas["run"]):
        draw = np.random.default_rng(len(source))
        columns = [draw.integers(-2**63, 2**63 - 1, 4).astype(kind) for kind in KINDS]
        columns += [draw.random(4), draw.integers(0, 4, 4)]
        run(*columns)
        left.append([column.tobytes() for column in columns])
    print(left[0] == left[1] or source, len(list(Path(sys.argv[1], "cache").glob(f"*.{file.stem}.run.*"))))
""".replace("KINDS", '("int8", "int64", "uint32", "bool")')
INDICES = ["i", "3 - i", "int(i > 1)", "n[i]", "n[3 - i]", "0", "3", "i // 2"]
NUMBERS = ["i", "0", "3", "-7", str(2**31), str(2**62)]


def _program(draw: random.Random) -> str:
    """A kernel with statements on entries of columns of several types: indices from 0 on, sums that overflow."""

    def entry(columns: str) -> str:
        return f"{draw.choice(columns)}[{draw.choice(INDICES)}]"

    def term(columns: str, deep: int) -> str:
        if not deep:
            return draw.choice([f"int({entry('d')})", entry(columns), entry(columns), *NUMBERS])
        one, other = term(columns, deep - 1), term(columns, deep - 1)
        return draw.choice([f"({one} {draw.choice('+-*')} {other})", f"int({one} < {other})", f"min({one}, {other})"])

    def lines() -> str:
        whole = [f"{entry('abcd')} = {term('abc', 2)}", f"{entry('f')} = {term('abcf', 2)}", f"{entry('abf')} += 3"]
        return "\n        ".join(whole)

    text = "from simcoll.config.numba_loader import jit_for\n"
    for how, name in ((", inner=True", "inside"), (", inline=True", "inlined"), ("", "run")):
        text += f"@jit_for(__name__{how})\ndef {name}(a, b, c, d, f, n{', i' * bool(how)}):\n"
        text += f"    for i in range({'i, i + 1' if how else '4'}):\n        {lines()}\n"
        text += "    return b[i]\n" if how else ""
    return text + "        b[i] = inside(a, b, c, d, f, n, i) - inlined(a, b, c, d, f, n, i)\n"


LACKS = {
    "the name": "from numba.core import codegen; del codegen.JITCodeLibrary",
    "what ends it": "from simcoll.config import _kernel_compilers as ours; ours._dynfunc = None",
    "what it calls": "from simcoll.config import _kernel_compilers as ours; ours._ColumnLowering._entry = None",
}


@pytest.mark.parametrize(
    ("programs", "broken"),
    [(1, ""), *(pytest.param(5, broken, marks=pytest.mark.long) for broken in ("", *LACKS.values()))],
    ids=["one", "many", *LACKS],
)
def test_as_numba_computes(programs: int, broken: str, tmp_path: Path):
    """Also where numba lacks something that the compilers of kernels need, as another release may."""
    for number in range(programs):
        (tmp_path / f"kernel{number}.py").write_text(_program(random.Random(number)), encoding="utf-8")
    done = python(BOTH, [tmp_path, broken])
    kept = int(broken != LACKS["the name"])
    assert (done.stdout, done.stderr) == (f"True {kept}\n" * programs, "")
