"""Bytes of a file as text, whatever wrote it."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import Final

from simcoll.errors import InputError

_GZIP: Final = b"\x1f\x8b"
MOST_BYTES: Final = 64 * 2**20  # of one input: bounds memory, and no log is near it; packed text may hold any number
_PACKED: Final = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "packed by bzip2",
    b"\xfd7zXZ": "packed by xz",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
}
_WRITTEN: Final = "\t\n\v\f\r\b\x1b"  # control characters that programs print


def check_text(head: bytes, source: str, cure: str) -> None:
    """Raise InputError where the first bytes of a file are no text: a third of them stand for nothing that is written.

    Text of another encoding than UTF-8 has fewer, as its digits and its English are the same.
    """
    if what := next((what for mark, what in _PACKED.items() if head.startswith(mark)), None):
        raise InputError(f"{source}: {what}", "unpack it first")
    if head.startswith(_GZIP):
        return
    text = _as_text(head)
    strange = sum(letter == "\ufffd" or (letter < " " and letter not in _WRITTEN) for letter in text)
    if 3 * strange > len(text):
        raise InputError(f"{source}: not text: {strange} of its first {len(text)} characters stand for nothing", cure)


def decoded(data: bytes, source: str = "") -> str:
    """Text, whatever its encoding: what a mark says, else UTF-8 with what cannot be read replaced; gzip is unpacked.
    `source` names the file in errors.

    Raises InputError for gzip that is damaged, or that holds too much, or no text.
    """
    if data.startswith(_GZIP):
        named = f"{source}: a gzip file" if source else "a gzip file"
        data = _unpacked(data, named)
        check_text(data[:4096], named, "give packed text")
    return _as_text(data)


def _as_text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace").replace("\x00", "�")
    if data[1:8:2] == bytes(4) and all(data[:8:2]):  # UTF-16 without its mark
        return data.decode("utf-16-le", errors="replace").replace("\x00", "�")
    return data.decode("utf-8-sig", errors="replace").replace("\x00", "�")


def _unpacked(data: bytes, named: str) -> bytes:
    try:
        text = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{named} that cannot be unpacked: {error}", "give the whole file, or its text") from None
    if len(text) > MOST_BYTES:
        raise InputError(f"{named} of more than {MOST_BYTES >> 20} MiB of text", "give a part of it")
    return text
