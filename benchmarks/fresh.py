"""A process of its own for each measurement, so that its memory is its own and nothing is remembered from the last."""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

ROOT: Final = Path(__file__).parent.parent
LONG: Final = 10.0  # seconds: what takes longer is run once

Found = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)


def measure(work: str, *, limit: int = 0, **what: Any) -> Any:
    """The result of a function of `benchmarks.work` that is called in a fresh process; of one that takes more than
    `limit` CPU seconds only a remark (0: no limit)."""
    command = [sys.executable, "-m", "benchmarks.work", work, json.dumps(what)]
    limits = functools.partial(resource.setrlimit, resource.RLIMIT_CPU, (limit, limit + 1)) if limit else None
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=limits)
    if limit and done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"how": f"stopped at {limit} cpu s"}
    if done.returncode:
        raise SystemExit(f"benchmarks: {work} failed with exit status {done.returncode}: {json.dumps(what)}")
    return json.loads(done.stdout.splitlines()[-1])


def command(words: Iterable[str], *, statuses: Container[int] = (0,), **environment: str) -> Found:
    """Wall and CPU seconds and peak memory of a command that ends with one of these statuses, with all processes that
    it starts and waits for. Bytecode is kept, as an installed package has it."""
    began = time.perf_counter()
    words, variables = list(words), {**os.environ, **environment}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=ROOT, env=variables)
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode not in statuses:
        raise SystemExit(f"benchmarks: {' '.join(words)} failed with exit status {running.returncode}")
    cpu = used.ru_utime + used.ru_stime
    return {"s": time.perf_counter() - began, "cpu s": cpu, "MB": used.ru_maxrss / 1024}


def rounds(points: Mapping[Key, Callable[[], Found]], runs: int) -> dict[Key, Found]:
    """Medians of several runs of each point; all points take turns, so that a busy spell of the machine hits them all.

    What takes long is run once.
    """
    found: dict[Key, list[Found]] = {key: [] for key in points}
    for turn in range(runs):
        for key, run in points.items():
            if not turn or found[key][0].get("s", LONG) < LONG:
                found[key].append(run())
    return {key: middle(rows) for key, rows in found.items()}


def middle(rows: list[Found]) -> Found:
    """The first row with the medians of all that is measured."""
    medians = {
        name: statistics.median(row[name] for row in rows)
        for name, value in rows[0].items()
        if isinstance(value, float)
    }
    return {**rows[0], **medians}
