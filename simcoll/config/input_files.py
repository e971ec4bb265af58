"""Read files that a user names as bytes, text or JSON, up to a size limit; also the log of an import.

A pipe (`<(command)`, `mkfifo`) can be read only once, so its content is cached for later reads. A carried file is one
whose content another machine has sent.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from simcoll import units
from simcoll.config.text_table import wrapped
from simcoll.errors import InputError, Place

PICKLE: Final = b"\x80"  # what every pickle since protocol 2 begins with
_GZIP: Final = b"\x1f\x8b"
MOST_BYTES: Final = 64 * 2**20  # of one input, unpacked, to bound memory; logs are far smaller
_PACKED: Final = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "packed by bzip2",
    b"\xfd7zXZ": "packed by xz",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
}
# Undecodable bytes, and control characters except \t \n \v \f \r \b and escape, which programs print.
_STRANGE: Final = re.compile("[\ufffd\x00-\x07\x0e-\x1a\x1c-\x1f]")
_HEAD: Final = 4096  # bytes that show whether a file is text
_AT_ONCE: Final = 1 << 20  # bytes that are read at a time

_CARRIED: Final[ContextVar[Mapping[str, bytes] | None]] = ContextVar("carried", default=None)
_SAID: Final[dict[int, bytes]] = {}  # content of the pipes read so far, by inode


@contextmanager
def carrying(files: Mapping[str, bytes]) -> Iterator[None]:
    """Return a context in which paths are read from `files` (path -> content), because workers on other machines lack
    the files."""
    token = _CARRIED.set(files)
    try:
        yield
    finally:
        _CARRIED.reset(token)


def to_carry(paths: Iterable[Path]) -> dict[str, bytes]:
    """Return the contents of those paths that exist, as `carrying` needs them; raises OSError."""
    there = (path for path in paths if path.is_file() or path.is_fifo())
    return {str(path): _SAID.get(path.stat().st_ino) or path.read_bytes() for path in there}


def is_file(path: Path) -> bool:
    """Return whether a path can be read: a file, a pipe, or a carried file."""
    return str(path) in (_CARRIED.get() or {}) or path.is_file() or path.is_fifo()


def names_yaml(name: str) -> bool:
    """Return whether a name is the path of a YAML file or of a pipe (`<(…)`), and not the name of a shipped file."""
    if name.endswith((".yaml", ".yml")) or name in (_CARRIED.get() or {}):
        return True
    try:
        return "/" in name and Path(name).is_fifo()
    except OSError:  # a name that no file can have
        return False


def text_of(path: Path) -> str:
    """Return the text of a carried file, or of a file on this machine; raises OSError, InputError."""
    return decoded(_bytes(path, str(path), MOST_BYTES, "split the file"), str(path))


def bytes_of(
    path: Path,
    cure: str,
    most: int = MOST_BYTES,
    smaller: str = "give a part of it",
    name: str | None = None,
    pickled: bool = False,
) -> bytes:
    """Return the bytes of a carried file, or of a file on this machine. Raises InputError, which calls the file `name`.
    Its fix is `cure` for a file that is unreadable or no text (nor a pickle, if `pickled`), and `smaller` for a file of
    more than `most` bytes."""
    source = name or str(path)
    try:
        return _bytes(path, source, most, smaller, cure, pickled)
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}", cure) from None


def text_of_stdin(most: int = MOST_BYTES) -> str:
    """Return the decoded text of stdin; raises InputError if it is not text or has more than `most` bytes."""
    stream: IO[bytes] = sys.stdin.buffer
    return decoded(_bounded(stream, "-", most, "give a part of it"))


def _bytes(path: Path, source: str, most: int, smaller: str, cure: str = "give a text", pickled: bool = False) -> bytes:
    carried = (_CARRIED.get() or {}).get(str(path))
    if carried is not None:
        return _bounded(io.BytesIO(carried), source, most, smaller, cure)
    pipe = path.stat().st_ino if path.is_fifo() else None
    if pipe in _SAID:
        return _SAID[pipe]
    with path.open("rb") as file:
        data = _bounded(file, source, most, smaller, cure, pickled)
    if pipe is not None:
        _SAID[pipe] = data
    return data


def _bounded(
    file: IO[bytes], source: str, most: int, smaller: str, cure: str = "give a text", pickled: bool = False
) -> bytes:
    """Read a file and return its bytes. Raises InputError with the fix `cure` if they are no text (nor a
    pickle, if `pickled`), or with `smaller` if there are more than `most`."""
    data = bytearray()
    while len(data) <= most and (more := file.read(_AT_ONCE)):  # `read` allocates all bytes requested
        data += more
    if not (pickled and (data.startswith(PICKLE) or data[1:2] == b"\n")):  # the latter: Chakra's protobuf
        check_text(bytes(data[:_HEAD]), source, cure)
    if len(data) > most:
        raise InputError(f"{source}: larger than {units.format_size(most)}", smaller)
    return bytes(data)


# --- bytes as text ---


def check_text(head: bytes, source: str, cure: str) -> None:
    """Raise InputError if the first bytes of a file are no text: if over a third are undecodable or control codes. Text
    in another encoding than UTF-8 has fewer such bytes, because its ASCII characters have the same codes."""
    if what := next((what for mark, what in _PACKED.items() if head.startswith(mark)), None):
        raise InputError(f"{source}: {what}", "unpack it first")
    if head.startswith(_GZIP):
        return
    text = _as_text(head)
    strange = len(_STRANGE.findall(text))
    if 3 * strange > len(text):
        raise InputError(f"{source}: not text: {strange} of its first {len(text)} characters are not printable", cure)


def decoded(data: bytes, source: str = "") -> str:
    """Decode data by its byte order mark, else as UTF-8 with undecodable bytes replaced; unpack gzip first. `source`
    names the file in errors. Raises InputError for gzip that is damaged, too large when unpacked, or not text."""
    if data.startswith(_GZIP):
        named = f"{source}: a gzip file" if source else "a gzip file"
        data = unpacked(data, source)
        check_text(data[:4096], named, "give packed text")
    return _as_text(data)


def _as_text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace").replace("\x00", "�")
    if data[1:8:2] == bytes(4) and all(data[:8:2]):  # UTF-16 without its mark
        return data.decode("utf-16-le", errors="replace").replace("\x00", "�")
    return data.decode("utf-8-sig", errors="replace").replace("\x00", "�")


def unpacked(data: bytes, source: str = "", most: int = MOST_BYTES) -> bytes:
    """Return data as they are, or unpacked if they are of gzip. Raises InputError, which calls the file `source`, if
    they cannot be unpacked or have more than `most` bytes."""
    if not data.startswith(_GZIP):
        return data
    named = f"{source}: a gzip file" if source else "a gzip file"
    try:
        text = gzip.GzipFile(fileobj=io.BytesIO(data)).read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{named} that cannot be unpacked: {error}", "give the whole file, or its text") from None
    if len(text) > most:
        raise InputError(f"{named} of more than {most >> 20} MiB of text", "give a part of it")
    return text


def json_mapping(text: str, source: str, cure: str, line: int = 1) -> dict[str, Any]:
    """Return the mapping in a JSON text, which begins at `line` of the file `source`. Raises InputError with the place
    of the mistake and the fix `cure`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = Place(source, getattr(error, "lineno", 1) + line - 1, getattr(error, "colno", 1))
        deep = isinstance(error, RecursionError)  # else a number has more digits than Python reads
        problem = (
            f"not JSON: {getattr(error, 'msg', 'nested too deeply' if deep else 'a number of thousands of digits')}"
        )
        raise InputError(problem, cure, place) from None
    if not isinstance(document, dict):
        raise InputError("not a mapping", cure, Place(source, line, 1))
    return document


# --- remarks ---


@dataclass
class ImportLog:
    """The remarks that an import makes for the user, in order. `assume` and `warn` add a line, equal lines once."""

    read: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def assume(self, line: str) -> None:
        """Record a line about a value that the import assumed because the file lacks it."""
        if line not in self.assumed:
            self.assumed.append(line)

    def warn(self, line: str) -> None:
        """Record a line about missing or superfluous data of the file."""
        if line not in self.warnings:
            self.warnings.append(line)

    def __str__(self) -> str:
        remarks = (("read", self.read), ("assumed", self.assumed), ("warning", self.warnings))
        return "\n".join(wrapped(f"{kind}: {line}", "  ") for kind, lines in remarks for line in lines)
