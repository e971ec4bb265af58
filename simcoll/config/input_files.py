"""Files that a user names, as bytes or text: within a limit, and without waiting for what nobody writes.

A pipe is read once, as it can be (`<(command)`, `mkfifo`); who asks for it again gets what it said.
"""

from __future__ import annotations

import functools
import io
import os
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Final

from simcoll import units
from simcoll.config.decoding import MOST_BYTES, check_text, decoded
from simcoll.errors import InputError

MAX_KEPT_BYTES: Final = 64 * 2**10  # longer files are read whenever they are asked for
TICK_NS: Final = 10**9  # of the clock of any file system, and more: within one a file may change twice unseen
WAIT_S: Final = 10.0  # for the program that opens a pipe to write: a shell starts both at once
_HEAD: Final = 4096  # bytes that show whether a file is text
_GLANCE_MS: Final = 50

_CARRIED: Final[ContextVar[Mapping[str, bytes] | None]] = ContextVar("carried", default=None)
_SAID: Final[dict[str, bytes]] = {}  # what pipes said


@contextmanager
def carrying(files: Mapping[str, bytes]) -> Iterator[None]:
    """Within, these files say what they said elsewhere: a worker on another machine may have none of them."""
    token = _CARRIED.set(files)
    try:
        yield
    finally:
        _CARRIED.reset(token)


def to_carry(paths: Iterable[Path]) -> dict[str, bytes]:
    """Contents of those of these files that are there, for `carrying`; raises OSError."""
    return {str(path): _SAID.get(str(path)) or path.read_bytes() for path in paths if path.is_file() or _said(path)}


def is_file(path: Path) -> bool:
    """Whether there is something to read."""
    return str(path) in (_CARRIED.get() or {}) or path.is_file() or path.is_fifo()


def names_yaml(name: str) -> bool:
    """Whether a name is that of a YAML file, not of something shipped: by its end, or as it is a pipe (`<(…)`)."""
    if name.endswith((".yaml", ".yml")) or name in (_CARRIED.get() or {}):
        return True
    try:
        return "/" in name and Path(name).is_fifo()
    except OSError:  # a name that no file can have
        return False


def text_of(path: Path) -> str:
    """The text of a file that was carried along, or of one on this machine; raises OSError, InputError.

    A small one is read again only after a change; so is one that changed just now, as it may do so twice in a tick.
    """
    if str(path) not in (_CARRIED.get() or {}):
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_KEPT_BYTES:
            state = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            if time.time_ns() - status.st_mtime_ns > TICK_NS:
                return _text(path, state)
    return decoded(_bytes(path, str(path), MOST_BYTES, "split the file"), str(path))


@functools.lru_cache(maxsize=64)
def _text(path: Path, state: tuple[int, ...]) -> str:
    return decoded(path.read_bytes(), str(path))


def bytes_of(
    path: Path, cure: str, most: int = MOST_BYTES, smaller: str = "give a part of it", name: str | None = None
) -> bytes:
    """The bytes of a file that was carried along, or of one on this machine.

    Raises InputError, which calls the file `name`: with `cure` if it cannot be read or is no text, with `smaller` if it
    has more than `most` bytes.
    """
    source = name or str(path)
    try:
        return _bytes(path, source, most, smaller, cure)
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}", cure) from None


def text_of_stdin(most: int = MOST_BYTES) -> str:
    """All that comes on stdin, decoded; raises InputError if that is no text, or too much."""
    stream: IO[bytes] = sys.stdin.buffer
    return decoded(_bounded(stream, "-", most, "give a part of it"))


def _bytes(path: Path, source: str, most: int, smaller: str, cure: str = "give a text") -> bytes:
    carried = (_CARRIED.get() or {}).get(str(path))
    if carried is not None:
        return _bounded(io.BytesIO(carried), source, most, smaller, cure)
    if not path.is_fifo():
        with path.open("rb") as file:
            return _bounded(file, source, most, smaller, cure)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:  # to open it otherwise waits for ever
        first = _first_of(pipe.fileno(), str(path), source)
        _SAID[str(path)] = said = first if first is _said(path) else _bounded(pipe, source, most, smaller, cure, first)
    return said


def _said(path: Path) -> bytes | None:
    return _SAID.get(str(path))


def _first_of(pipe: int, path: str, source: str) -> bytes:
    """The first bytes of a pipe, as soon as somebody has it open to write; what it said before if nobody writes now.

    Afterwards the pipe blocks: who writes may take any time. Raises InputError if nobody opens it in time.
    """
    poll, end = select.poll(), time.monotonic() + WAIT_S
    poll.register(pipe, select.POLLIN)
    while True:
        state = sum(event for _, event in poll.poll(_GLANCE_MS))
        try:
            first = os.read(pipe, _HEAD)
        except BlockingIOError:  # somebody has it open, and has written nothing yet
            first, state = b"", select.POLLIN
        if first or state & select.POLLIN:
            os.set_blocking(pipe, True)
            return first
        if path in _SAID:
            return _SAID[path]
        if state & select.POLLHUP:
            return b""
        if time.monotonic() > end:
            problem = f"{source}: a pipe that no program writes to (waited {WAIT_S:g} s)"
            raise InputError(problem, f"start the program first (`PROGRAM > {path} &`), or give a file")


def _bounded(
    file: IO[bytes], source: str, most: int, smaller: str, cure: str = "give a text", first: bytes = b""
) -> bytes:
    """The rest of a file after its `first` bytes, and these; raises InputError as soon as it is no text or too long."""
    data = bytearray(first)
    while len(data) < _HEAD and (more := file.read(_HEAD - len(data))):
        data += more
    check_text(bytes(data[:_HEAD]), source, cure)
    data += file.read(most + 1 - len(data)) if len(data) == _HEAD else b""
    if len(data) > most:
        raise InputError(f"{source}: larger than {units.format_size(most)}", smaller)
    return bytes(data)
