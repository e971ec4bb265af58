"""Print the tables; docs/speed.md explains them."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import time
from dataclasses import replace

from benchmarks import sections
from benchmarks.cases import FORMS
from simcoll.config import text_table
from simcoll.config.numba_loader import have_numba

HEAD = """\
# each run in a process of its own, start-up and proof taken off; medians of {runs}, what takes over 10 s is run once
# s: wall seconds; cpu s: of a processor, which other programs disturb less; M/s: million messages a wall second
# MB: peak of the process, start MB of it before the point; x: how many times the cpu s of that peer, message by message
# how: naive (SimPy, a process a message, a Resource a link), event (the SimPy engine), heap (shortcuts: off), SimGrid,
# or the shortcut that was taken"""


def head(form: str, runs: int) -> str:
    """What was run where."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("simcoll", "numpy", "numba", "simpy")]
    where = f"{platform.python_implementation()} {platform.python_version()}, {', '.join(versions)}"
    return f"# form {form}: {where}; {os.cpu_count()} cores, {load()}\n{HEAD.format(runs=runs)}"


def load() -> str:
    """How busy the machine is."""
    return "load average " + " ".join(f"{value:.1f}" for value in os.getloadavg())


def show(table: sections.Table) -> None:
    """Print a table, without the columns that nobody has."""
    columns = [column for column in table.columns if any(row.get(column) is not None for row in table.rows)]
    print(f"\n# {table.title}; {load()}\n{text_table.render(columns, table.rows)}", flush=True)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="How fast simcoll is.")
    parser.add_argument("form", nargs="?", default="full", choices=FORMS, help="how large, how often (default: full)")
    parser.add_argument("--only", action="append", choices=sections.SECTIONS, help="these tables; may be repeated")
    parser.add_argument("--runs", type=int, help="of each point, an odd number")
    arguments = parser.parse_args()
    if not have_numba():
        parser.error("numba is not installed; install the extra fast")
    began, form = time.perf_counter(), FORMS[arguments.form]
    form = replace(form, runs=arguments.runs or form.runs)
    print(head(arguments.form, form.runs), flush=True)
    for name in arguments.only or sections.SECTIONS:
        for table in sections.SECTIONS[name](form):
            show(table)
    print(f"\n# {time.perf_counter() - began:.0f} s; {load()}")


if __name__ == "__main__":
    main()
