"""One process at a time, by a lock on a file in which stands who holds it.

Nobody waits for ever: who holds a lock may be stopped (Ctrl-Z, SIGSTOP, a debugger) or hang. What is done under a lock
may therefore be done by several at once, and the lock only saves them the work.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

SAID_AFTER: Final = 2.0  # s: about what one loop takes to compile; who waits for longer wants to know for whom
GIVEN_UP_AFTER: Final = 20.0  # s: no loop takes so long to compile, unless many processes share a processor
_LOOKS_EVERY: Final = 0.05  # s

_gave_up = False  # so that a process waits for another that is stopped once, not before each of its loops


@contextmanager
def alone(lock: Path, work: str) -> Iterator[None]:
    """Wait until no other process is in here with the same `lock`, for a bounded time; `work` says what they do there.

    Where a system has no locks of files, nobody waits.
    """
    with ExitStack() as held:
        with suppress(ImportError, OSError):
            file = held.enter_context(lock.open("a+", encoding="utf-8"))  # `w` would wipe out the holder's name
            if _taken_in_time(file, work):
                file.truncate(0)
                file.write(f"{os.getpid()} on {platform.node()}")
                file.flush()
        yield


def _taken_in_time(file: IO[str], work: str) -> bool:
    global _gave_up
    began, said = time.monotonic(), False
    while not _taken(file):
        waited = time.monotonic() - began
        if _gave_up or waited >= GIVEN_UP_AFTER:
            if not _gave_up:
                print(f"{_holder(file)} has not done so in {waited:.0f} s; going on without it", file=sys.stderr)
            _gave_up = True
            return False
        if waited >= SAID_AFTER and not said:
            said = True
            words = f"waiting for {_holder(file)} to {work}, {GIVEN_UP_AFTER:.0f} s at most; it may be stopped"
            print(words, file=sys.stderr)
        time.sleep(_LOOKS_EVERY)
    return True


def _taken(file: IO[str]) -> bool:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: IO[str]) -> str:
    file.seek(0)
    name = file.read()
    return f"process {name}" if name else "another process"
