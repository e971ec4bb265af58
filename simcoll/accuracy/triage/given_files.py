"""Open the files that a user gives: plain or packed by gzip, text or binary, up to a size; folders are walked."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simcoll.config import input_files
from simcoll.errors import InputError
from simcoll.formats.measured import find_measured

MOST_FILES: Final = 20_000  # in folders
_CURE: Final = "give files or folders with tables, logs or dumps"


@dataclass(frozen=True, eq=False)
class GivenFile:
    """A file that is read when its bytes or text are asked for; `name` is as the user gave it."""

    name: str
    path: Path | None = None  # None: `said` is the content
    said: bytes = b""

    @functools.cached_property
    def data(self) -> bytes:
        """The content, unpacked. Raises InputError for files that cannot be read or are too large."""
        if self.path is None:
            return self.said
        data = input_files.unpacked(input_files.bytes_of(self.path, _CURE, name=self.name, pickled=True), self.name)
        if not data.startswith(input_files.PICKLE):
            input_files.check_text(data[:4096], self.name, _CURE)
            if b"\0" in data[:8]:  # UTF-16, as PowerShell writes it
                data = input_files.decoded(data, self.name).encode()
        return data

    @property
    def is_pickle(self) -> bool:
        """Whether the content is a pickle, in which no text is sought: there may be a thousand, of megabytes each."""
        return self.data.startswith(input_files.PICKLE)

    def text(self) -> str:
        """Return the content as text, as `input_files.decoded` does."""
        return input_files.decoded(self.data, self.name)

    def forget(self) -> None:
        """Free the memory of the content, which will be read again if it is asked for again."""
        self.__dict__.pop("data", None)


def opened(names: Iterable[str]) -> list[GivenFile]:
    """Return the files that names give, those of folders in the order of their names; `-` is stdin, and names of
    shipped tables count.

    Hidden files and links within folders are left out. Raises InputError for names that are nothing of this, and for
    folders with more than MOST_FILES files.
    """
    found: list[GivenFile] = []
    for name in names:
        if name == "-":
            found.append(GivenFile("-", None, input_files.text_of_stdin().encode()))
        elif (path := Path(name)).is_dir():
            inside = list(_walked(path))
            if not inside:
                raise InputError(f"{name}: a folder without files", _CURE)
            found += inside
        else:
            found.append(GivenFile(name, find_measured(name)))
    return found


def _walked(folder: Path) -> Iterator[GivenFile]:
    count = 0
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not path.is_symlink() and not hidden:
            if (count := count + 1) > MOST_FILES:
                raise InputError(f"{folder}: more than {MOST_FILES} files", "give a part of them")
            yield GivenFile(str(path), path)
