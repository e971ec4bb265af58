"""The command line for the tests: in this process, or in one of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simcoll.cli import main

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600  # for a process to end: long enough on a machine with ten times as much to do
# The kernel ends the process at the first byte beyond so many in a file, as abruptly as SIGKILL does.
KILLED = (
    "import os, resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); "
    "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (int(sys.argv.pop(1)),)); "
    "sys.dont_write_bytecode = True; os.environ['PYTHONDONTWRITEBYTECODE'] = '1'; "  # the log is the first to end it
)
SCRIPT = "import sys; from simcoll.cli import main; sys.exit(main())"  # what the console script does


class Outcome(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as one JSON document."""
        return json.loads(self.out)


def simcoll(*argv: object) -> Outcome:
    """Run a command in this process; an exception that escapes is a traceback that a user would see."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(word) for word in argv])
    return Outcome(status, out.getvalue(), err.getvalue())


def python(code: str, argv: Sequence[object] = (), **how: Any) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that finds this checkout from any folder."""
    words = [sys.executable, "-c", code, *map(str, argv)]
    return subprocess.run(words, text=True, env=environment(), timeout=PATIENCE_S, **{"capture_output": True, **how})


def start(*argv: object, **how: Any) -> subprocess.Popen[bytes]:
    """Start a command in a process of its own, and do not wait for it."""
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, argv)], env=environment(), **how)


def process(*argv: object, **how: Any) -> Outcome:
    """Run a command in a process of its own."""
    done = python(SCRIPT, argv, **how)
    return Outcome(done.returncode, done.stdout, done.stderr)


def command_names() -> list[str]:
    """The commands that `simcoll --help` lists."""
    return re.findall(r"^  ([a-z]+)  +\S", simcoll("--help").out.partition("Commands:")[2], re.M)


def environment() -> dict[str, str]:
    """Ours, with this checkout in the path and text in UTF-8."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
