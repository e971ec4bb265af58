"""The folder in which simcoll keeps machine code from run to run."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOM: Final = 2**20  # bytes: more than the machine code of one loop takes


def folder() -> Path | None:
    """Return the first folder that serves, made if it is not there: the user's own.

    It is the one of SIMCOLL_CACHE_DIR, the user's cache, or one that lasts as long as the machine runs; None if none
    serves. One that was asked for and does not serve is named on stderr, once.
    """
    if asked := os.environ.get("SIMCOLL_CACHE_DIR"):
        with suppress(RuntimeError):  # ~ of a user without a home
            if _serves(named := Path(asked).expanduser()):
                return named
        _say(asked)
    return next(filter(_serves, _of_the_user()), None)


def private(name: str) -> Path | None:
    """Return a folder in the cache for code to be executed, made if it is not there; None where none can be had.

    Only the user can have written to it and to the files in it, and the disk has room.
    """
    with suppress(OSError):
        if held := folder():
            own = held / name
            own.mkdir(mode=0o700, exist_ok=True)
            probe = own / f"probe.{os.getpid()}"
            probe.write_bytes(bytes(ROOM))
            probe.unlink()
            if all(_is_private(each) for each in (own, *own.rglob("*"))):
                return own
    return None


@functools.cache  # so that it is said once
def _say(asked: str) -> None:
    from multiprocessing import parent_process

    if parent_process() is None:  # workers say nothing again
        cure = "give the whole path of a folder that you, and nobody else, can write to"
        print(f"SIMCOLL_CACHE_DIR={asked} is not used; {cure}", file=sys.stderr)


def _of_the_user() -> Iterator[Path]:
    with suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simcoll"
    with suppress(OSError, AttributeError):  # nowhere for temporary files; a system without user ids
        import tempfile

        yield Path(tempfile.gettempdir()) / f"simcoll-{os.getuid()}"


def _serves(folder: Path) -> bool:
    """Return whether a folder can be written by the user and by nobody else.

    One whose place depends on the current directory does not serve, as that may be anyone's.
    """
    if not folder.is_absolute():
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return _is_private(folder) and _takes_files(folder)
    except OSError:
        return False


def _is_private(path: Path) -> bool:
    """Return whether a file or folder, and what it links to, is the user's and nobody else may write to it."""
    if not hasattr(os, "getuid"):
        return True
    found = path.lstat(), path.stat()
    return all(one.st_uid == os.getuid() for one in found) and not found[1].st_mode & 0o022


@functools.cache  # a probe is written once
def _takes_files(folder: Path) -> bool:
    """Return whether a file can be made in a folder: of some (/sys) permissions say so to root, and none can."""
    probe = folder / f"probe.{os.getpid()}"
    try:
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError:
        return False
    return True
