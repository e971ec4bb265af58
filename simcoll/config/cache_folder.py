"""The folders in which simcoll keeps compiled code, trees of files and what takes long to find from run to run."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def folder() -> Path | None:
    """The first folder that serves, made if it is not there: the user's own.

    It is the one of SIMCOLL_CACHE_DIR, the user's cache, or one that lasts as long as the machine runs; None if none
    serves. One that was asked for and does not serve is named on stderr, once.
    """
    if asked := os.environ.get("SIMCOLL_CACHE_DIR"):
        with suppress(RuntimeError):  # ~ of a user without a home
            if _serves(named := Path(asked).expanduser()):
                return named
        _say(asked)
    return next(filter(_serves, _of_the_user()), None)


def kept(name: str) -> bytes | None:
    """The bytes that were kept under a name; None if there are none, or if they are damaged."""
    with suppress(OSError, ValueError):
        if held := folder():
            check, body = (held / name).read_bytes().split(b"\n", 1)
            if check == hashlib.sha256(body).hexdigest().encode():
                return body
    return None


def keep(name: str, body: bytes) -> None:
    """Keep something under a name, where there is a folder for it."""
    with suppress(OSError):
        if held := folder():
            part = held / f"{name}.{os.getpid()}"
            part.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            part.replace(held / name)


@functools.cache
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
    """Whether a folder can be written, and by nobody else: what lies in it runs with the user's rights.

    One whose place depends on the current directory does not serve, as that may be anyone's.
    """
    if not folder.is_absolute():
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        link, status = folder.lstat(), folder.stat()
        if hasattr(os, "getuid") and ({link.st_uid, status.st_uid} != {os.getuid()} or status.st_mode & 0o022):
            return False
    except OSError:
        return False
    return _takes_files(folder)


@functools.cache
def _takes_files(folder: Path) -> bool:
    """Whether a file can be made in a folder: of some (/sys) permissions say so to root, and nothing can be written."""
    probe = folder / f"probe.{os.getpid()}"
    try:
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError:
        return False
    return True
