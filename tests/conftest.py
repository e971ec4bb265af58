"""House rules of the tests: markers by room, hypothesis the same everywhere, modules compiled once."""

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

# Images of containers often forbid it; pytest would then rewrite every test module, and every process that a test
# starts would compile the package, anew each time: five seconds to collect, a fifth of a second a process.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell without job control starts what is in the background with SIGINT ignored, and children inherit that: a command
# that a test interrupts would go on for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No limit is one of time: a busy machine may take long over anything, the drawing of examples too.
settings.register_profile(
    "simcoll", derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("simcoll")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --update-golden` writes tests/golden/*.out, and what commands print in docs/*.md, anew: look at the
    difference before committing it."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*.out and docs' samples anew")


@pytest.fixture(scope="session", autouse=True)
def no_terminal() -> None:
    """Output is as wide as in a pipe: pytest-xdist gives its workers a terminal's width."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands say nothing of how far they are, however long a busy machine takes over them."""
    from simcoll.cli import _terminal

    monkeypatch.setattr(_terminal, "EVERY_S", 10_000)


@pytest.fixture(scope="module", autouse=True)
def as_in_a_process_of_its_own() -> None:
    """Only what a module itself runs makes loops worth compiling: else every worker compiles them for runs that are
    small, which takes a minute whenever a kernel has changed."""
    from simcoll.config import numba_loader  # after what is said of bytecode above

    numba_loader._run_plain = 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `law` each test that quantifies: over random cases of hypothesis, or over enumerated parameters."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) or hasattr(item, "callspec"):
            item.add_marker("law")
