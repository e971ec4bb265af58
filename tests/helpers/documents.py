"""Markdown that is run: its fenced blocks, and the commands in them with what stands below each."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from command import simcoll


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


def ran(console: str, elsewhere: tuple[str, ...] = ()) -> str:
    """A console as it is when its commands are run: below those that show something stands what they print now.

    `| head -n 8` and `| tail -n 8` behind a command keep some lines of it. Commands that hold a text of `elsewhere` are
    not run. A command ends with 0, unless `echo $?` below it shows another status.
    """
    text, shown = "", lines(console)
    for (line, sample), (after, status) in zip(shown, [*shown[1:], ("", "")], strict=True):
        command, _, pipe = commands(line)[0].command.partition(" | ")
        if command != "echo $?" and not any(other in command for other in elsewhere):
            assert command.startswith("simcoll "), f"{command!r} is not run: put what is not simcoll into a block of sh"
            done = simcoll(*shlex.split(command)[1:])
            ends_with = int(status) if "echo $?" in after else 0
            assert done.status == ends_with or (pipe and done.status == 1 and done.out), f"{command}: {done.err}"
            printed = (done.out or done.err).strip("\n").splitlines()
            if pipe:
                end, count = re.findall(r"^(head|tail) -n (\d+)$", pipe)[0]
                printed = printed[: int(count)] if end == "head" else printed[-int(count) :]
            sample = "".join(f"{row.rstrip()}\n" for row in printed) if sample else ""
        text += line + sample
    return text
