"""The cache folder, in which simcoll keeps machine code and results of long searches between runs."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOM: Final = 2**20  # bytes that must be free on the disk: more than the machine code of one loop


def folder() -> Path | None:
    """Return the first usable cache folder, created if missing; None if there is none. Candidates are
    SIMCOLL_CACHE_DIR, the user's cache folder, and a folder for temporary files. If SIMCOLL_CACHE_DIR is not usable, a
    line on stderr says so, once."""
    if asked := os.environ.get("SIMCOLL_CACHE_DIR"):
        with suppress(RuntimeError):  # ~ of a user without a home
            if _serves(named := Path(asked).expanduser()):
                return named
        _say(asked)
    return next(filter(_serves, _of_the_user()), None)


def kept(name: str) -> bytes | None:
    """Return the bytes that the cache has under a name; None if there are none, or if they are damaged."""
    with suppress(OSError, ValueError):
        if held := folder():
            check, body = (held / name).read_bytes().split(b"\n", 1)
            if check == hashlib.sha256(body).hexdigest().encode():
                return body
    return None


def keep(name: str, body: bytes) -> None:
    """Write bytes to the cache under a name. Does nothing if there is no cache folder."""
    with suppress(OSError):
        if held := folder():
            part = held / f"{name}.{os.getpid()}"
            part.touch(mode=0o600)
            part.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            part.replace(held / name)


def private(name: str) -> Path | None:
    """Return a subfolder of the cache for executable code, created if missing; None if that is impossible. Only the
    user can have written to the folder and its files, and the disk has ROOM for more."""
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


@functools.cache  # print it once
def _say(asked: str) -> None:
    from multiprocessing import parent_process

    if parent_process() is None:  # workers do not repeat it
        cure = "give the whole path of a folder that you, and nobody else, can write to"
        print(f"SIMCOLL_CACHE_DIR={asked} is not used; {cure}", file=sys.stderr)


def _of_the_user() -> Iterator[Path]:
    with suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simcoll"
    with suppress(OSError, AttributeError):  # nowhere for temporary files; a system without user ids
        import tempfile

        yield Path(tempfile.gettempdir()) / f"simcoll-{os.getuid()}"


def _serves(folder: Path) -> bool:
    """Return whether a folder may serve as the cache: the user can write to it, and nobody else can. A relative path is
    refused: the current directory may be anyone's."""
    if not folder.is_absolute():
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return _is_private(folder) and _takes_files(folder)
    except OSError:
        return False


def _is_private(path: Path) -> bool:
    """Return whether the user owns a path (and its target, if it is a link), and nobody else may write to it."""
    if not hasattr(os, "getuid"):
        return True
    found = path.lstat(), path.stat()
    return all(one.st_uid == os.getuid() for one in found) and not found[1].st_mode & 0o022


@functools.cache  # write a probe once
def _takes_files(folder: Path) -> bool:
    """Return whether a file can be created in a folder. Permissions of some folders (/sys) mislead root."""
    probe = folder / f"probe.{os.getpid()}"
    try:
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError:
        return False
    return True
