"""House rules of the tests: hypothesis is the same everywhere, and modules are compiled once."""

import os
import sys

import pytest
from hypothesis import settings

# Images of containers often forbid it; pytest would then rewrite every test module, and every process that a test
# starts would compile the package, anew each time: five seconds to collect, a fifth of a second a process.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("simcoll", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("simcoll")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --update-golden` writes tests/golden/*.out, and what commands print in docs/*.md, anew: look at the
    difference before committing it."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*.out and docs' samples anew")
