"""`simcoll import` and `simcoll export`: other people's files, in and out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO

import click

from simcoll.commands.options import JSON


@click.command(name="import")
@click.argument("file", metavar="FILE|-", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.  [default: print it]")
@click.option("--as", "kind", metavar="KIND", help="What the file is, where it is not recognised.")
@click.option("--like", metavar="SYSTEM", help="Shipped system that lends speeds which a topology does not carry.")
@click.option("--collective", metavar="NAME", help="What a schedule does, where the file does not say.")
@click.option(
    "--set",
    "columns",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="What all rows of a measured table say, where absent.",
)
@JSON
def import_(
    file: Path,
    output: Path | None,
    kind: str | None,
    like: str | None,
    collective: str | None,
    columns: tuple[str, ...],
    as_json: bool,
) -> None:
    """Turn a file of another program into one of ours, and tell what was read and assumed.

    Topologies become topology files (nvidia-smi topo -m, NCCL's topology and graph XML, infragraph), schedules become
    JSON that scenarios take as an algorithm (MSCCL XML, MSCCL++ plans, GOAL), measurements become measured tables
    (nccl-tests, rccl-tests, OSU, IMB, CSV).
    """
    from simcoll import incoming, results

    asked = incoming.Asked(like, collective, incoming.assignments(columns))
    text = incoming.decoded(_stdin()) if str(file) == "-" else incoming.read_bounded(file)
    found = incoming.convert(text, str(file), asked, kind)
    notes = found.notes
    told: dict[str, object] = {"kind": found.kind, "file": str(output) if output else None}
    told |= {"read": notes.read, "assumed": notes.assumed, "warnings": notes.warnings}
    if output:
        results.write_atomically(output, found.text if found.text.endswith("\n") else f"{found.text}\n")
        print(json.dumps(told, indent=1) if as_json else f"{found.kind}: {output}\n{notes}")
    else:
        print(found.text)
        print(json.dumps(told, indent=1) if as_json else notes, file=sys.stderr)


def _stdin() -> bytes:
    from simcoll.incoming import MOST_BYTES

    stream: IO[bytes] = sys.stdin.buffer
    return stream.read(MOST_BYTES + 1)
