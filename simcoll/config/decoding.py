"""Bytes of a file as text, whatever wrote it."""

from __future__ import annotations


def decoded(data: bytes) -> str:
    """Text, whatever its encoding: what a mark says, else UTF-8 with what cannot be read replaced."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace").replace("\x00", "�")
    return data.decode("utf-8-sig", errors="replace").replace("\x00", "�")
