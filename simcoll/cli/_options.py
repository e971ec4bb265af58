"""Options that several commands have, and files read with one complaint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from simcoll.errors import InputError

SETS = click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Override a key of the scenario; YAML.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def check_timeout(timeout: float) -> None:
    """Raise InputError where `--timeout` is no time that torch.distributed can wait, before a long run."""
    if not 0 < timeout <= LONGEST_S:
        raise InputError(f"--timeout {timeout:g} is no time to wait", f"give seconds above 0, at most {LONGEST_S:.0f}")


def rank_counts(text: str, cure: str) -> list[int]:
    """The numbers of ranks that `--ranks N[,N…]` lists; raises InputError with the cure."""
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if not all(numbers):
        raise InputError(f"--ranks: {text!r} is no number of ranks", cure)
    return numbers


def check_jobs(jobs: int) -> None:
    """Raise InputError where `--jobs` is no number of processes."""
    if jobs < 1 and jobs != -1:
        raise InputError(f"--jobs {jobs} means nothing", "give 1, 2, … or -1 for all cores")


def read_text(path: Path) -> str:
    """A file's text, `-` being stdin; raises InputError."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", "give the path of a file") from None


def measured_text(name: str) -> str:
    """A measured table's text: of a file, a shipped table, or stdin (`-`); raises InputError."""
    if name == "-":
        stream: IO[bytes] = sys.stdin.buffer
        return stream.read().decode("utf-8-sig", errors="replace")
    from simcoll.formats.measured import find_measured

    return read_text(find_measured(name))


TIMEOUT = click.option(
    "--timeout", default=60.0, show_default=True, metavar="SECONDS", help="The most one transfer may take."
)
LONGEST_S = 1e6  # what torch.distributed is given as a time-out has to be a number of milliseconds
QUIET = click.option("--quiet", is_flag=True, help="No progress.")
