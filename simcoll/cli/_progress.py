"""Progress of long runs: a bar on a terminal, lines elsewhere, nothing for what is done in a blink."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simcoll.cli._streams import terminal_of
from simcoll.errors import visible

EVERY_S = 10  # between lines; a terminal sees more


class Watch:
    """Points that are done and points that are under way; `name(index)` names a point. In one process (`in_turn`) those
    that were begun before wait while another is prepared.
    """

    def __init__(self, total: int, name: Callable[[int], str], in_turn: bool = False):
        self.total, self.name, self.in_turn = total, name, in_turn
        self.done: set[int] = set()
        self.since: dict[int, float] = {}
        self.replications: dict[int, tuple[int, int]] = {}  # done, and all

    def begun(self, index: int) -> None:
        """A point is being computed from now on; a cluster may say so after its row has come."""
        now = self.since.get(index, time.monotonic())  # replications of a point begin in shares
        if self.in_turn:
            self.since.clear()
        if index not in self.done:
            self.since[index] = now

    def replicated(self, index: int, done: int, every: int) -> None:
        """So many of all replications of a point are done."""
        self.replications[index] = done, every

    def finished(self, index: int) -> None:
        """A point has a row."""
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
        """The number of points that are done, with the shares of those whose replications are done in part."""
        return len(self.done) + sum(done / every for done, every in self.replications.copy().values())


@contextmanager
def progress(total: int, name: Callable[[int], str], quiet: bool, in_turn: bool = False) -> Iterator[Watch]:
    """Show on stderr how far the watch has come, until the block ends."""
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
    """Prints some of the lines that it gets: one a second on a terminal, one every EVERY_S seconds elsewhere."""

    def __init__(self) -> None:
        self._next = time.monotonic() + (0 if sys.stderr.isatty() else EVERY_S)

    def __call__(self, line: str) -> None:
        """Print it, if it is time to."""
        if line.startswith(("left out", "taken over")) or time.monotonic() >= self._next:
            self._next = time.monotonic() + (1 if sys.stderr.isatty() else EVERY_S)
            print(line, file=sys.stderr)
