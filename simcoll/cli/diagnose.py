"""`simcoll diagnose`: whether measured times are what the hardware should give, and if not, why."""

from __future__ import annotations

import json

import click

from simcoll.cli._options import JSON, SETS, WHERE, completed, measured_on, measured_text, with_measured_on
from simcoll.cli._progress import Lines


@click.command()
@click.argument("measured", metavar="MEASURED|-", shell_complete=completed("file", "table"))
@WHERE
@SETS
@JSON
@with_measured_on
def diagnose(measured: str, topology: str | None, where: tuple[str, ...], sets: tuple[str, ...], as_json: bool) -> int:
    """Say whether measured times are what this hardware should give.

    MEASURED is a measured table or what nccl-tests printed; `-` reads a pipe. Prints of each point whether it is what
    is expected, which region is off, and then what explains it best, by simulating what may be wrong. Ends with
    status 1 unless the machine is healthy: no region is off.
    """
    from simcoll.accuracy.diagnosis.diagnose import diagnosed
    from simcoll.report.accuracy_text import diagnosis_text

    document = diagnosed(measured_text(measured), measured, measured_on(topology), where, sets, Lines())
    print(json.dumps(document, indent=1) if as_json else diagnosis_text(document))
    return 0 if document["verdict"] == "healthy" else 1
