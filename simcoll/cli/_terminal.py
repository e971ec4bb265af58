"""Output of the command line: stdout and stderr, and the progress of long runs.

The streams escape control characters, so that a name in a file cannot send commands to the user's terminal. They go on
when their reader has gone. Progress is a bar on a terminal, and an occasional line elsewhere.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from simcoll.errors import visible

PLAIN: Final = "simcoll.plain"  # error handler for characters that a stream's encoding lacks
_IN_ASCII: Final = {
    "→": "->",
    "←": "<-",
    "×": "x",
    "−": "-",
    "–": "-",
    "…": "...",
    "·": ".",
    "●": "o",
    "─": "-",
    "│": "|",
}


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(each, "?") for each in error.object[error.start : error.end]), error.end


codecs.register_error(PLAIN, _in_ascii)


class _Lasting(io.FileIO):
    """An output file whose reader may go away (as in `| head`): later writes are then discarded."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


class _EscapedStream:
    """A text stream that escapes control characters by `visible`, and otherwise acts as the stream it wraps."""

    def __init__(self, below: Any):
        self.below = below

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        self.below.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def escaped(stream: Any) -> Any:
    """Return a stream that escapes control characters in its output. If it wraps a plain stream of this process, it
    also survives the loss of its reader: `simcoll … 2>&1 | head` ends quietly, after its files are written. A stream
    that the caller has set is wrapped as it is.
    """
    if isinstance(stream, _EscapedStream):
        return stream
    if type(stream) is not io.TextIOWrapper:
        return _EscapedStream(stream)
    stream.flush()
    file = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
    return _EscapedStream(io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=stream.line_buffering))


def terminal_of(stream: Any) -> Any:
    """Return the stream inside an escaping stream, for code that moves the cursor and calls `visible` itself."""
    return stream.below if isinstance(stream, _EscapedStream) else stream


# --- progress ---

EVERY_S = 10  # seconds between lines; a terminal shows more


class Watch:
    """The points that are done and those under way; `name(index)` names a point. In one process (`in_turn`) only the
    point that began last is under way."""

    def __init__(self, total: int, name: Callable[[int], str], in_turn: bool = False):
        self.total, self.name, self.in_turn = total, name, in_turn
        self.done: set[int] = set()
        self.since: dict[int, float] = {}
        self.replications: dict[int, tuple[int, int]] = {}  # done, total

    def begun(self, index: int) -> None:
        """Note that a point has begun; a cluster may report this after the point's row."""
        now = self.since.get(index, time.monotonic())  # replications of a point begin separately
        if self.in_turn:
            self.since.clear()
        if index not in self.done:
            self.since[index] = now

    def replicated(self, index: int, done: int, every: int) -> None:
        """Note that `done` of the `every` replications of a point are done."""
        self.replications[index] = done, every

    def finished(self, index: int) -> None:
        """Note that a point is done."""
        self.done.add(index)
        self.since.pop(index, None)
        self.replications.pop(index, None)

    def __str__(self) -> str:
        text = f"{len(self.done)} of {self.total} points"
        for index, since in sorted(self.since.copy().items(), key=lambda item: item[1])[:1]:
            text += f"; {self.name(index)} for {time.monotonic() - since:.0f} s"
            if index in self.replications:
                text += ", {:,} of {:,} replications".format(*self.replications[index])
        return text

    @property
    def points_done(self) -> float:
        """Return the number of points done, with fractions for points whose replications are partly done."""
        return len(self.done) + sum(done / every for done, every in self.replications.copy().values())


@contextmanager
def progress(total: int, name: Callable[[int], str], quiet: bool, in_turn: bool = False) -> Iterator[Watch]:
    """Yield a `Watch`, and show its progress on stderr until the context ends."""
    watch, over = Watch(total, name, in_turn), threading.Event()
    if quiet:
        yield watch
        return
    teller = threading.Thread(target=_bar if sys.stderr.isatty() else _lines, args=(watch, over), daemon=True)
    teller.start()
    try:
        yield watch
    finally:
        over.set()
        teller.join()


def _lines(watch: Watch, over: threading.Event) -> None:
    while not over.wait(EVERY_S):
        print(watch, file=sys.stderr, flush=True)


def _bar(watch: Watch, over: threading.Event) -> None:
    if over.wait(0.5):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = BarColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(file=terminal_of(sys.stderr)), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=watch.total)
        while not over.wait(0.2):
            bar.update(task, completed=watch.points_done, description=visible(str(watch)), refresh=True)


class Lines:
    """Prints only some of the lines it gets: one a second on a terminal, one every EVERY_S seconds elsewhere."""

    def __init__(self) -> None:
        self._next = time.monotonic() + (0 if sys.stderr.isatty() else EVERY_S)

    def __call__(self, line: str) -> None:
        """Print the line if it is time for one; lines about left-out or reused points are always printed."""
        if line.startswith(("left out", "taken over")) or time.monotonic() >= self._next:
            self._next = time.monotonic() + (1 if sys.stderr.isatty() else EVERY_S)
            print(line, file=sys.stderr)
