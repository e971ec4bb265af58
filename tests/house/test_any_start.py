"""The tests give the same result however they are started."""

import signal
import subprocess
import sys
from pathlib import Path

from command import PATIENCE_S, ROOT, environment, python


def test_a_child_can_be_interrupted():
    """SIGINT raises KeyboardInterrupt in the processes that tests start."""
    done = python("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    assert "KeyboardInterrupt" in done.stderr


def test_tests_run_in_the_background_of_a_script():
    """`make test &` of a shell without job control ignores SIGINT; tests that interrupt a command pass there, too."""
    name = f"{Path(__file__).relative_to(ROOT)}::test_a_child_can_be_interrupted"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
