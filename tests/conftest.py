"""House rules of the tests: hypothesis is the same everywhere."""

import pytest
from hypothesis import settings

settings.register_profile("simcoll", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("simcoll")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --update-golden` writes tests/golden/*.out, and what commands print in docs/*.md, anew: look at the
    difference before committing it."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*.out and docs' samples anew")
