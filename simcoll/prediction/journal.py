"""Finished rows on disk: one line a row, written as they come, so that no kill loses them.

A run appends to `results.jsonl`, shard 2 of 4 to `results.2of4.jsonl`. Nobody writes to a log of someone else and
everybody reads all of them, so that shards may run side by side on a shared file system.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final, Generic, NamedTuple, TypeVar

from simcoll.errors import InputError, unwritable
from simcoll.prediction.result_rows import ResultRow

LOG: Final = "results.jsonl"

Row = TypeVar("Row")


class Shard(NamedTuple):
    """Share `number`, from 1, of the `of` shares that the points of a sweep are dealt out to."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `2/4`; raises InputError.

        >>> Shard.parse("2/4")
        Shard(number=2, of=4)
        """
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"--shard: {text!r} is no share", "write i/n with i from 1 to n, e.g. 2/4")
        return cls(int(match[1]), int(match[2]))

    def share(self, keys: Sequence[str]) -> list[int]:
        """The indices of the keys that are this shard's, whatever the other shards have done.

        Keys are hashes, so every n-th in their order mixes sizes and algorithms: no shard gets all of the long ones.
        """
        return sorted(sorted(range(len(keys)), key=keys.__getitem__)[self.number - 1 :: self.of])


class RowLog(Generic[Row]):
    """A log of rows, each under the key of what decides it; `read` makes a row of what `written` made of it, and fails
    for what is none."""

    def __init__(self, own: Path, read: Callable[[Any], Row], written: Callable[[Row], Any]):
        self.own, self._read, self._written = own, read, written

    def _all(self) -> list[Path]:
        return [self.own]

    def rows(self) -> dict[str, Row]:
        """Key and row of every line that is whole."""
        rows = {}
        for log in self._all():
            for line in _text(log).splitlines():
                try:
                    entry = json.loads(line)
                    rows[entry["key"]] = self._read(entry["row"])
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # cut short by a kill, or not ours
        return rows

    def append(self, key: str, row: Row) -> None:
        """Write a row; raises SimcollError if that cannot be, e.g. on a full disk."""
        line = json.dumps({"key": key, "row": self._written(row)}) + "\n"
        try:
            self.own.parent.mkdir(parents=True, exist_ok=True)
            with self.own.open("a+b") as file:
                file.write(line.encode() if _at_a_line(file) else f"\n{line}".encode())
        except OSError as error:
            raise unwritable(self.own, error) from None

    def drop(self) -> None:
        """Remove all logs: their rows stand in results.csv."""
        for log in self._all():
            log.unlink(missing_ok=True)


class Journal(RowLog[ResultRow]):
    """The logs of a folder, of which one's own is appended to."""

    def __init__(self, folder: Path, shard: Shard | None = None):
        self.folder = folder
        name = LOG if shard is None else f"results.{shard.number}of{shard.of}.jsonl"
        super().__init__(folder / name, ResultRow.of, ResultRow.record)

    def _all(self) -> list[Path]:
        return [self.folder / LOG, *sorted(self.folder.glob("results.*of*.jsonl"))]


def _text(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # also when another shard has just written results.csv and dropped the logs
        return ""
    except OSError as error:
        raise InputError(f"{log}: cannot be read: {error.strerror}", "give another folder with -o") from None


def _at_a_line(file: IO[bytes]) -> bool:
    """Whether what is written next begins a line; what a kill or a full disk cut short has no end."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
