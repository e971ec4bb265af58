"""Compiled code is kept where only its user can write, and a run is not stopped where nothing can be kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from command import python
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
import importlib.util, os, sys
from simcoll.config.numba_loader import WORTH_COMPILING, compile_kernel, pays
spec = importlib.util.spec_from_file_location("kernel", sys.argv[1])
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
few = WORTH_COMPILING * 3 // 5
print(pays(few, kernel), pays(few, kernel), compile_kernel(kernel).add(2, 3), pays(1, kernel), sep=",")
"""
SAID = "compiling loops for this machine; once, for up to half a minute\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A small kernel, in a folder of its own."""
    file = tmp_path / "kernels" / "kernel.py"
    file.parent.mkdir()
    file.write_text(KERNEL, encoding="utf-8")
    return file


def _use(kernel: Path, folder: Path) -> tuple[str, str]:
    """What a process prints, and says, that calls the kernel compiled."""
    done = python(f"import os; os.environ['SIMCOLL_CACHE_DIR'] = {str(folder)!r}\n{USE}", [kernel])
    return done.stdout, done.stderr


def test_work_alone_decides_what_is_compiled(kernel: Path, tmp_path: Path):
    """Small runs add up, and kernels that are loaded cost nothing more; an empty cache and a full one decide alike. A
    person who waits is told once."""
    for said in (SAID, ""):
        assert _use(kernel, tmp_path / "own") == ("False,True,5,True\n", said)


@pytest.mark.thorough
def test_a_change_of_another_kernel_is_noticed(kernel: Path, tmp_path: Path):
    """Though numba looks at one file: a function that calls one in another file is compiled anew when that changes."""
    kernel.write_text(SIBLING, encoding="utf-8")
    for factor, result in ((2, "7"), (10, "23")):  # of other lengths: Python's own cache compares length and second
        other = KERNEL.replace("add(a, b)", "twice(a)").replace("a + b", f"{factor} * a")
        (kernel.parent / "other.py").write_text(other, encoding="utf-8")
        assert _use(kernel, tmp_path / "own") == (f"False,True,{result},True\n", SAID)


@pytest.mark.thorough
def test_machine_code_is_the_users_alone(kernel: Path, tmp_path: Path):
    """Nobody else can read it. Where somebody else could have written a file, none of them is loaded."""
    folder = tmp_path / "own"
    _use(kernel, folder)
    (code,) = folder.rglob("*.nbc")
    assert not any(file.stat().st_mode & 0o077 for file in folder.rglob("*") if file.is_file())
    code.chmod(0o666)
    before = code.read_bytes()
    assert _use(kernel, folder) == ("False,True,5,True\n", SAID)
    assert code.read_bytes() == before
    code.chmod(0o600)
    assert _use(kernel, folder) == ("False,True,5,True\n", "")


def test_where_nothing_can_be_kept_it_is_compiled(kernel: Path, tmp_path: Path):
    """A run needs no cache."""
    env = "import os; os.environ |= dict.fromkeys(('SIMCOLL_CACHE_DIR', 'XDG_CACHE_HOME', 'HOME', 'TMPDIR'), '/proc')"
    done = python(f"{env}\nimport tempfile; tempfile.gettempdir = lambda: '/proc'\n{USE}", [kernel])
    assert (done.returncode, done.stdout) == (0, "False,True,5,True\n"), done.stderr


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
