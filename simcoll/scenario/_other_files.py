"""Files that are no scenarios: what they are, and which command takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simcoll.config import input_files
from simcoll.config.decoding import decoded
from simcoll.errors import InputError

ASKED: Final = "give a scenario's file or name, or a collective with --on SYSTEM"
_MACHINE: Final = (
    "a machine as another program writes it",
    "`simcoll import {file} -o machine.yaml`: then --on takes it",
)
_SCHEDULE: Final = ("a schedule", "--algorithm {file} takes it, beside a collective and --on SYSTEM")
_FOREIGN: Final = (
    "a schedule as another program writes it",
    "`simcoll import {file} -o own.json`: --algorithm takes that",
)
_RESULTS: Final = (
    "results of simcoll",
    "`simcoll plot {file}` draws them, `simcoll compare {file} MEASURED.csv` holds them against measured times",
)
_MEASURED: Final = ("a table of measured times", "`simcoll compare {file} --on SYSTEM` and `simcoll diagnose` take it")
_KINDS: Final = {
    **dict.fromkeys(("nvidia-smi", "nccl-topology", "nccl-graph", "infragraph", "graphml"), _MACHINE),
    **dict.fromkeys(("msccl", "mscclpp", "goal"), _FOREIGN),
    "schedule": _SCHEDULE,
    "measured": _MEASURED,
}
_OURS: Final = ("lower_bound_us", "status")  # columns that results of simcoll have, and no measured table


def refuse_folder(path: Path) -> None:
    """Raise InputError where a folder has results of simcoll."""
    if (path / "results.csv").is_file():
        raise _refused(path / "results.csv", _RESULTS)


def refuse_other(path: Path) -> None:
    """Raise InputError where a file that is no scenario is known to be something else."""
    from simcoll.formats.importers import recognise  # all readers of other programs' files

    text = decoded(input_files.bytes_of(path, ASKED))
    kind = recognise(text)
    if kind == "measured" and set(_OURS) <= set(text.partition("\n")[0].strip().split(",")):
        raise _refused(path, _RESULTS)
    if kind is not None:
        raise _refused(path, _KINDS[kind])


def _refused(path: Path, kind: tuple[str, str]) -> InputError:
    what, cure = kind
    return InputError(f"{path}: {what}, and no scenario", f"{ASKED} ({cure.format(file=path)})")
