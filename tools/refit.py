"""Fit shipped profiles again, each from what its record says: tables, rows, split and parameters.

    python tools/refit.py nccl-hopper nccl-ampere --tables DIR     these, or all that have a record
    python tools/refit.py --list                                   what would be fitted from which tables

A fit begins at the profile as it is, so that what no row decides stays. Tables are looked for among the shipped ones
and in DIR, and must be those of the record, byte for byte. Run it after a change of the model, before
tools/model_errors.py.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from simcoll.accuracy.fit.calibrate import calibrate
from simcoll.config import yaml_tree
from simcoll.errors import InputError
from simcoll.prediction.result_rows import write_atomically
from simcoll.scenario.profile import Calibration, load_network, shipped_profiles

LAUNCHES: Final = ("host", "graph")


class Refit(NamedTuple):
    """A fit to repeat; `way` is the key of the profile that holds the record, empty for the profile's own."""

    way: str
    record: Calibration
    names: list[str]


def refits(name: str) -> Iterator[Refit]:
    """Yield the fits that a profile records, its own first."""
    profile = load_network(name)
    records = [("", profile.calibration)]
    records += [(way, getattr(getattr(profile, way), "calibration", None)) for way in ("host", "graph", "pull")]
    for way, record in records:
        if record and record.files:
            yield Refit(way, record, list(record.intervals))


def table(name: str, digest: str, folders: Sequence[Path]) -> Path:
    """Return the table of this name and hash. Raises InputError if there is none."""
    for path in (folder / name for folder in folders):
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return path
    raise InputError(f"{name} with the hash {digest[:12]} is not there", "give its folder with --tables")


def repeat(path: Path, refit: Refit, folders: Sequence[Path]) -> str:
    """Fit again, beginning at the profile's file, and write it; return a line about it. Raises InputError."""
    record = refit.record
    names = [] if refit.way in LAUNCHES else list(refit.names)  # calibrate finds a launch by what a row says of it
    files = [table(source.file, source.sha256, folders) for source in record.files]
    where = [text for text in record.where if not text.startswith("launch.")]
    sets = [f"profile={path}", *(text for text in record.where if text.startswith("launch."))]
    fit = re.findall(r"--fit (\S+)", record.split)
    head = "".join(line for line in path.read_text("utf-8").splitlines(keepends=True) if line.startswith("#"))
    while True:
        try:
            found = calibrate(
                files, record.topology, name=path.stem, where=where, fit=fit, free=names, sets=sets, seed=record.seed
            )
            break
        except InputError as error:  # a parameter that these rows no longer decide keeps its value
            undecided = [
                name for name in names if f"{name}: these rows" in str(error) or f"{name}: changes" in str(error)
            ]
            if not undecided or len(undecided) == len(names):
                raise
            names = [name for name in names if name not in undecided]
    served = ", ".join(
        load_network(path.stem).generations
    )  # more than those that were measured, where no profile has them
    text = re.sub(r"^generations: .*$", f"generations: [{served}]", found.text, count=1, flags=re.MULTILINE)
    write_atomically(path, head + text)
    errors = found.document["errors"]
    return ", ".join(f"{rows.replace('_', ' ')} {each['mape']:.1f} %" for rows, each in errors.items())


def main() -> int:
    """Repeat the fits of profiles in place."""
    parser = argparse.ArgumentParser(description="Fit shipped profiles again from their records.")
    parser.add_argument("profiles", nargs="*", help="names; default: all that record a fit")
    parser.add_argument(
        "--tables", type=Path, action="append", default=[], help="folder of tables that are not shipped"
    )
    parser.add_argument("--list", action="store_true", help="only say what would be fitted")
    asked = parser.parse_args()
    folders = [yaml_tree.shipped("measured"), *asked.tables]
    failed = 0
    for name in asked.profiles or shipped_profiles():
        for refit in refits(name):
            label = f"{name}{f' ({refit.way})' if refit.way else ''}: {', '.join(s.file for s in refit.record.files)}"
            if asked.list:
                print(f"{label}: {', '.join(refit.names)}")
                continue
            began = time.process_time()
            try:
                outcome = repeat(shipped_profiles()[name], refit, folders)
            except InputError as error:
                outcome, failed = f"left as it is: {error}", failed + 1
            print(f"{label}: {outcome} ({time.process_time() - began:.0f} s of CPU)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
