"""Compiled code is kept where it can be, and wherever that is, a run is not stopped by it."""

from __future__ import annotations

import os
import pwd
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command import SCRIPT, environment, python
from extras import needs

from simcoll.config import cache_folder

pytestmark = needs("numba")

KERNEL = """\
from simcoll.config.numba_loader import jit_for

jit = jit_for(__name__)

@jit
def add(a, b):
    return a + b
"""
SIBLING = """\
import sys
from pathlib import Path
from simcoll.config.numba_loader import jit_for, load_like
sys.path.append(str(Path(__file__).parent))
import other as plain

jit = jit_for(__name__)
other = load_like(__name__, plain)

@jit
def add(a, b):
    return other.twice(a) + b
"""
USE = """\
import importlib.util, sys
from simcoll.config.numba_loader import compile_kernel
spec = importlib.util.spec_from_file_location("kernel", sys.argv[1])
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
print((add := compile_kernel(kernel).add)(2, 3), *[add.made] * ("count" in sys.argv))
assert "scipy.linalg" not in sys.modules, "loaded for nothing"
from numba.np import arraymath, linalg
assert arraymath.ensure_blas is linalg.ensure_blas and linalg.ensure_blas.__name__ == "ensure_blas"
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A small kernel, in a folder of its own."""
    file = tmp_path / "kernels" / "kernel.py"
    file.parent.mkdir()
    file.write_text(KERNEL, encoding="utf-8")
    return file


def _use(kernel: Path, changes: Mapping[str, str | None], *words: str) -> tuple[int, str, str]:
    """Compile and call the kernel in a process with another environment."""
    kept = {"SIMCOLL_CACHE_DIR": None, "XDG_CACHE_HOME": None, **changes}
    code = f"import os; os.environ.update({ {k: v for k, v in kept.items() if v is not None} }); "
    code += f"[os.environ.pop(name, None) for name in {[k for k, v in kept.items() if v is None]}]\n{USE}"
    done = python(code, [kernel, *words])
    return done.returncode, done.stdout, done.stderr


def _compiled(folder: Path) -> bool:
    return any(folder.rglob("*.kernel.add.*"))


def test_a_change_of_another_kernel_is_noticed(kernel: Path, tmp_path: Path):
    """Though numba looks at one file: a function that calls one in another file is compiled anew when that changes. The
    other, which only kernels call, is kept as a part of it."""
    kernel.write_text(SIBLING, encoding="utf-8")
    for factor, result in ((2, "7\n"), (3, "9\n")):
        other = KERNEL.replace("add(a, b)", "twice(a)").replace("a + b", f"{factor} * a")
        other = other.replace("(__name__)", "(__name__, inner=True)")
        (kernel.parent / "other.py").write_text(other, encoding="utf-8")
        assert _use(kernel, {"XDG_CACHE_HOME": str(tmp_path)}) == (0, result, "")
    assert _compiled(tmp_path / "simcoll")
    assert not any(tmp_path.rglob("*.other.*.*"))


def test_what_must_be_compiled_first_has_to_pay_more(kernel: Path, tmp_path: Path):
    """Python runs what little there is while code that is in no cache would be compiled."""
    count = "print(n.is_at_hand(kernel), *(n.pays(m, kernel) for m in (40_000, 20_000, 600_000)))\n"
    use = "from simcoll.config import numba_loader as n\n" + USE.replace("print((add", f"{count}print((add", 1)
    for first, found in ((True, "False False False True"), (False, "True False True True")):
        done = python(f"import os; os.environ['SIMCOLL_CACHE_DIR'] = {str(tmp_path / 'own')!r}\n{use}", [kernel])
        assert done.stdout == f"{found}\n5\n", (first, done.stderr)


def test_small_runs_after_a_compiled_one_are_compiled(kernel: Path, tmp_path: Path):
    """A kernel that is loaded costs nothing more: Python would take longer for a thousand transfers."""
    asked = "from simcoll.config import numba_loader as n\nfrom simcoll.engine.kernels import link_kernel as kernel\n"
    asked += "before = n.pays(1_000, kernel)\nn.compile_kernel(kernel)\nprint(before, n.pays(1_000, kernel))\n"
    done = python(f"import os; os.environ['SIMCOLL_CACHE_DIR'] = {str(tmp_path / 'own')!r}\n{asked}", [kernel])
    assert done.stdout == "False True\n", done.stderr


def test_kept_in_the_users_cache(kernel: Path, tmp_path: Path):
    """Below the home's .cache, where there is no XDG_CACHE_HOME, and known by what its source says: of two processes of
    two checkouts that begin together one compiles, and the other waits and loads. numba would go by path and time."""
    other = tmp_path / "elsewhere" / "kernel.py"
    other.parent.mkdir()
    other.write_text(KERNEL, encoding="utf-8")
    with ThreadPoolExecutor() as pool:
        uses = [pool.submit(_use, file, {"HOME": str(tmp_path / "home")}, "count") for file in (kernel, other)]
    found = sorted(use.result()[:2] for use in uses)  # on a busy machine one says that it waits
    assert found == [(0, "5 0\n"), (0, "5 1\n")]
    assert len(list((tmp_path / "home/.cache/simcoll").rglob("*.kernel.add.*"))) == 1


def test_a_stopped_process_is_waited_for_in_words_and_not_for_ever(kernel: Path, tmp_path: Path):
    """Whoever holds the lock may be stopped: the next process says for whom it waits, then compiles by itself; it waits
    once, not for each loop, and keeps what it has compiled."""
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    hold = "import sys; from pathlib import Path; from simcoll.config import _lock_file as f\n"
    hold += "with f.alone(Path(sys.argv[1]), 'wait'): print('held', flush=True); sys.stdin.read()"
    impatient = f"from simcoll.config import _lock_file as f; f.SAID_AFTER, f.GIVEN_UP_AFTER = 0.1, 0.4\n{USE}"
    impatient += "print(compile_kernel(kernel).add(2.5, 3.0))"
    impatient = f"import os; os.environ['SIMCOLL_CACHE_DIR'] = {str(folder)!r}\n{impatient}"
    words = [sys.executable, "-c", hold, folder / "lock"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as stopped:
        try:
            assert stopped.stdout and stopped.stdout.readline() == b"held\n"
            stopped.send_signal(signal.SIGSTOP)
            done = python(impatient, [kernel, "count"])
        finally:
            stopped.kill()
    assert done.stdout == "5 1\n5.5\n", done.stderr
    said, gave_up = done.stderr.splitlines()
    assert said.startswith(f"waiting for process {stopped.pid} on ") and "to compile a loop" in said
    assert gave_up.startswith(f"process {stopped.pid} on ") and gave_up.endswith("; going on without it")
    assert _compiled(folder)


def _chosen(monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, object]) -> Path | None:
    """The folder for compiled code, in an environment of its own."""
    for name in ("SIMCOLL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in changes.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(tempfile, "tempdir", None)  # known since it was first asked for
    return cache_folder.folder()


def test_kept_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In SIMCOLL_CACHE_DIR, before the user's cache."""
    ours, home = tmp_path / "ours", {"HOME": tmp_path / "home"}
    assert _chosen(monkeypatch, home) == tmp_path / "home/.cache/simcoll"
    assert _chosen(monkeypatch, {**home, "XDG_CACHE_HOME": tmp_path / "xdg"}) == tmp_path / "xdg/simcoll"
    assert _chosen(monkeypatch, {**home, "SIMCOLL_CACHE_DIR": ours}) == ours


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("SIMCOLL_CACHE_DIR", "/sys"),  # which os.access calls writable, to root
        ("SIMCOLL_CACHE_DIR", "below/the/current"),
        ("XDG_CACHE_HOME", "below/the/current"),
        ("XDG_CACHE_HOME", "/sys"),
        ("SIMCOLL_CACHE_DIR", "a file"),
        ("HOME", "a file/below"),
        ("SIMCOLL_CACHE_DIR", "/proc/none"),
        ("XDG_CACHE_HOME", "a file"),
    ],
)
def test_a_cache_that_cannot_be_written(
    name: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The next best folder is taken, as a run needs no cache; that one was asked for in vain is said once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    asked = Path(where) if where.startswith("below") else tmp_path / where
    given = {"HOME": tmp_path / "home", "TMPDIR": tmp_path, name: asked}
    users, own = tmp_path / "home/.cache/simcoll", tmp_path / f"simcoll-{os.getuid()}"
    for first in (True, False):
        assert _chosen(monkeypatch, given) == (own if name in ("HOME", "XDG_CACHE_HOME") else users)
        said = f"{name}={asked} is not used" if first and name.endswith("CACHE_DIR") else ""
        assert capsys.readouterr().err.partition(";")[0] == said
    assert not (tmp_path / "below").exists()


MIXED = """\
from simcoll.config.numba_loader import jit_for

jit = jit_for(__name__)

@jit
def add(columns, nothing, factor, certain):
    (small, large), (real,) = columns
    for i in range(len(small)):
        large[len(large) - 1 - i] += small[i] if certain else 0
        real[i] *= factor if nothing is None else 1.0
    return not certain, small[0], real[1] * factor, len(large)
"""
MIX = """\
import importlib.util, os, sys
import numpy as np
from simcoll.config import machine_code
from simcoll.config.numba_loader import compile_kernel
os.environ["SIMCOLL_CACHE_DIR"] = sys.argv[2]
spec = importlib.util.spec_from_file_location("kernel", sys.argv[1])
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
for add in (kernel.add, compile_kernel(kernel).add):
    small, large, real = np.array([-3, 2, 127], np.int8), np.array([2**62, -5, 7]), np.array([1.5, -0.1, 3.0])
    for how in ((0.3, True), (-7.25, False), (np.float64(2), np.bool_(True))):
        print(*map(float, add(((small, large), (real,)), None, *how)), large, real)
print("numba" in sys.modules, add.made)
"""


def _mixed(kernel: Path, folder: Path, before: str = "") -> tuple[list[str], str]:
    """What the kernel gives, as in Python and compiled; whether numba was there, and how often it compiled."""
    kernel.write_text(MIXED, encoding="utf-8")
    done = python(MIX.replace("for add", f"{before}\nfor add", 1), [kernel, folder])
    *lines, how = done.stdout.splitlines()
    assert (done.stderr, lines[:3]) == ("", lines[3:])
    return lines, how


def test_kept_code_is_called_without_numba(kernel: Path, tmp_path: Path):
    """Columns, numbers and what comes back are as in Python. Code that is damaged is compiled anew, without a word."""
    lines, how = _mixed(kernel, tmp_path)
    assert how == "True 1"
    assert _mixed(kernel, tmp_path) == (lines, "False 0")
    (file,) = tmp_path.glob("*.kernel.add.*")
    file.write_bytes(file.read_bytes()[:-9])
    assert _mixed(kernel, tmp_path) == (lines, "True 1")
    assert _mixed(kernel, tmp_path) == (lines, "False 0")


OTHERS = {
    "release": ("machine_code._machine = lambda: 'another'", "True 1"),
    "arrays": ("machine_code.DATA += 8", "True 0"),
    "llvmlite": ("import llvmlite.binding as llvm; del llvm.ObjectFileRef", "True 0"),
    "numba": ("from simcoll.config import _kernel_compilers as ours; del ours.arrayobj", "True 2"),
}


@pytest.mark.long
@pytest.mark.parametrize("other", OTHERS)
def test_another_numba_or_llvmlite(other: str, kernel: Path, tmp_path: Path):
    """Compiled code of another release is not run. Where parts of one are not there that doors are made of, loops are
    called by numba: that takes longer, with the same answers."""
    before, how = OTHERS[other]
    if other != "numba":
        _mixed(kernel, tmp_path)
    assert _mixed(kernel, tmp_path, before)[1] == how


def test_no_cache_at_all(kernel: Path, tmp_path: Path):
    """Where nothing can be written anywhere, code is compiled and not kept."""
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "SIMCOLL_CACHE_DIR"), "/proc/none")
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    (tmp / f"simcoll-{os.getuid()}").touch()
    status, printed, said = _use(kernel, {**nowhere, "TMPDIR": str(tmp)})
    assert (status, printed) == (0, "5\n")
    assert re.findall(r"^(\w+)=/proc/none is not used;", said, re.M) == ["SIMCOLL_CACHE_DIR"]
    assert not _compiled(tmp_path)


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """HOME unset, and a user that the machine does not know: the folder for temporary files serves."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda user: {}[user])
    assert _chosen(monkeypatch, {"TMPDIR": tmp_path}) == tmp_path / f"simcoll-{os.getuid()}"


@pytest.mark.parametrize("explicit", [False, True])
def test_a_folder_of_anyones_is_not_trusted(explicit: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Compiled code is run as it is found: a folder that others can write to is passed over, also one asked for."""
    nowhere: dict[str, object] = dict.fromkeys(("HOME", "XDG_CACHE_HOME"), "/proc/none") | {"TMPDIR": tmp_path}
    own = tmp_path / f"simcoll-{os.getuid()}"
    if explicit:
        own = tmp_path / "asked" / "for"
        nowhere["SIMCOLL_CACHE_DIR"] = own
    assert _chosen(monkeypatch, nowhere) == own
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    own.chmod(0o777)
    assert _chosen(monkeypatch, nowhere) != own


@pytest.mark.long
def test_a_run_without_a_cache(tmp_path: Path):
    """A run large enough to be compiled, with a file in place of the cache: the result of one with a cache."""
    (tmp_path / "file").touch()
    words = ["predict", "all_reduce", "--on", "hgx-h100", "--nodes", "32", "--size", "64 MiB", "--json"]
    words += ["--algorithm", "ring", "--set", "shortcuts=off"]
    code = "import os, sys; os.environ.update(SIMCOLL_CACHE_DIR=sys.argv.pop(1)); "
    spoilt = python(code + SCRIPT, [tmp_path / "file", *words])
    assert spoilt.returncode == 0
    told = [line for line in spoilt.stderr.splitlines() if not re.fullmatch(r"\d+ of \d+ points; .* for \d+ s", line)]
    assert [line.partition("=")[0] for line in told] == ["SIMCOLL_CACHE_DIR"]
    assert spoilt.stdout == python(SCRIPT, words).stdout
