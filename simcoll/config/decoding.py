"""Bytes of a file as text, whatever wrote it."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import Final

from simcoll.errors import InputError

_GZIP: Final = b"\x1f\x8b"
MOST_BYTES: Final = 64 * 2**20  # of a text that is unpacked: a small file may hold any number


def decoded(data: bytes) -> str:
    """Text, whatever its encoding: what a mark says, else UTF-8 with what cannot be read replaced; gzip is unpacked.

    Raises InputError for gzip that is damaged, or that holds too much.
    """
    if data.startswith(_GZIP):
        data = _unpacked(data)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace").replace("\x00", "�")
    if data[1:8:2] == bytes(4) and all(data[:8:2]):  # UTF-16 without its mark
        return data.decode("utf-16-le", errors="replace").replace("\x00", "�")
    return data.decode("utf-8-sig", errors="replace").replace("\x00", "�")


def _unpacked(data: bytes) -> bytes:
    try:
        text = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"a gzip file that cannot be unpacked: {error}", "give the whole file, or its text") from None
    if len(text) > MOST_BYTES:
        raise InputError(f"a gzip file of more than {MOST_BYTES >> 20} MiB of text", "give a part of it")
    return text
