"""Markdown that is run: its fenced blocks, and the commands in them with what stands below each."""

from __future__ import annotations

import re
from typing import NamedTuple


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str


def every_block(text: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    return [Block(*found) for found in re.findall(r"^(?:```|````)(\w+)\n(.*?)^(?:```|````)$", text, re.M | re.S)]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [block.text for block in every_block(text) if block.language == language]


class Shown(NamedTuple):
    """A command, the remark behind it, and what stands below: empty if only the command is shown."""

    command: str
    remark: str
    sample: str


def commands(console: str) -> list[Shown]:
    """The commands of a console block."""
    found = []
    for line, sample in lines(console):
        command, _, remark = line.removeprefix("$ ").partition("  #")
        found.append(Shown(command.strip(), remark.strip(), sample))
    return found


def lines(console: str) -> list[tuple[str, str]]:
    """The lines of a console block that are commands, whole, and what stands below each."""
    return re.findall(r"^(\$ .*\n)((?:(?!\$ ).*\n)*)", console, re.M)
