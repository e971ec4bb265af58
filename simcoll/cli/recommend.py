"""`simcoll recommend`: the best algorithm, protocol and settings by size."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simcoll.cli._options import JSON, QUIET, SETS, check_jobs, with_machine
from simcoll.cli._progress import progress
from simcoll.errors import InputError

if TYPE_CHECKING:
    from simcoll.explanation.recommendation import Recommendation


@click.command()
@click.argument("scenario")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write: JSON, or what --to says.")
@click.option("--to", type=click.Choice(["json", "nccl-tuner"]), help="Write CSV of NCCL's example tuner plugin.")
@click.option("--among", metavar="NAMES", help="Choose among these algorithms only, e.g. 'ring,tree'.")
@SETS
@click.option("--jobs", default=1, show_default=True, metavar="N", help="Points simulated at the same time; -1: all.")
@JSON
@QUIET
@with_machine
def recommend(
    scenario: str,
    output: Path | None,
    to: str | None,
    among: str | None,
    sets: tuple[str, ...],
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Recommend the best algorithm, protocol and settings for a scenario, by ranges of sizes.

    From the smallest to the largest size of the scenario all that serves is simulated, and the sizes at which the best
    changes are found by bisection. Of a workload the algorithm and the size of buckets are recommended.
    """
    from simcoll.config.import_log import ImportLog
    from simcoll.explanation.recommendation import SCHEMA, recommendations
    from simcoll.prediction import result_rows
    from simcoll.report.exports import nccl_tables
    from simcoll.scenario.loading import load

    check_jobs(jobs)
    if to and not output:
        raise InputError("--to says what to write, and not where", "name a file with -o")
    names = [name.strip() for name in among.split(",")] if among is not None else None
    asked = recommendations(load(scenario, sets), names)
    _simulate(asked, jobs, quiet)
    document: dict[str, Any] = {"schema": SCHEMA, "recommendations": [each.document() for each in asked]}
    notes = ImportLog()
    if output:
        written = json.dumps(document, indent=1) + "\n"
        if to == "nccl-tuner":
            written = nccl_tables.tuner([row for each in asked for row in each.rows()], notes)
        result_rows.write_atomically(output, written)
    pasted = [] if as_json else list(_pasted(document["recommendations"], asked))
    print(json.dumps(document, indent=1) if as_json else "\n".join([_text(document["recommendations"]), *pasted]))
    if output and not quiet:
        print(f"{notes}\n{output}".strip(), file=sys.stderr)


def _simulate(asked: Sequence[Recommendation], jobs: int, quiet: bool) -> None:
    total = sum(len(each.sizes) * len(each.of) for each in asked)
    with progress(total, lambda _: "", quiet) as watch:

        def done() -> None:
            watch.finished(len(watch.done))
            watch.total = max(watch.total, len(watch.done))  # how many a bisection takes is not known before

        for each in asked:
            each.simulate(jobs, done)


def _text(documents: Sequence[Mapping[str, Any]]) -> str:
    from simcoll import __version__
    from simcoll.report.result_tables import described

    fitted = "; ".join(map(described, dict.fromkeys(document["profile"] for document in documents)))
    lines = [f"# simcoll {__version__}: recommend {documents[0]['scenario']}   {fitted}"]
    for document in documents:
        lines += [*_lines(document), ""]
    return "\n".join(lines[:-1])


def _pasted(documents: Sequence[Mapping[str, Any]], asked: Sequence[Recommendation]) -> Iterator[str]:
    """Lines for a shell: variables of NCCL for each choice of its own, the tuner's file, and exports of schedules."""
    from simcoll.config.import_log import ImportLog
    from simcoll.report.exports import nccl_tables
    from simcoll.units import format_size

    variables: dict[str, list[str]] = {}
    exports: dict[str, list[str]] = {}

    def add(lines: dict[str, list[str]], line: str, choice: Mapping[str, Any]) -> None:
        end = "up" if choice["to_bytes"] is None else f"to {format_size(choice['to_bytes'])}"
        lines.setdefault(line, []).append(f"{format_size(choice['from_bytes'])} {end}")

    for document in documents:
        for choice in document.get("nccl_ranges", document["ranges"]):
            if "NCCL_PROTO" in choice["env"]:
                add(variables, " ".join(f"{name}={value}" for name, value in choice["env"].items()), choice)
        for choice in document["ranges"]:
            if line := _export(document, choice):
                add(exports, line, choice)
    if exports:
        yield "# a schedule for MSCCL's executor, which was not measured so: the times are modelled"
        yield from (f"{line}  # {', '.join(sizes)}" for line, sizes in exports.items())
    if not variables:
        return
    yield "# NCCL takes such a choice of its own where it is given"
    yield from (f"{line}  # {', '.join(sizes)}" for line, sizes in variables.items())
    yield "# and each where it is best by the file of its example tuner plugin (NCCL_TUNER_CONFIG_FILE)"
    try:
        yield nccl_tables.tuner([row for each in asked for row in each.rows()], ImportLog()).rstrip()
    except InputError as error:
        yield f"# {error}"


def _export(document: Mapping[str, Any], choice: Mapping[str, Any]) -> str | None:
    """The command that writes a schedule as a program of MSCCL; None of what it cannot run."""
    from simcoll.formats.schedules import schedule_json
    from simcoll.schedule import registry

    name = choice["algorithm"]
    if choice.get("executor") != "msccl" or schedule_json.is_file(name):
        return None
    entry, _ = registry.find(document["collective"], name)
    if entry.needs_agent:
        return None
    groups = f" --groups {document['nodes']}" if entry.uses_groups and document["nodes"] > 1 else ""
    what = f"{document['collective']}/{name}" if "(" not in name else f"'{document['collective']}/{name}'"
    options = f"--ranks {document['ranks']}{groups} --protocol {choice['protocol']}"
    return f"simcoll export {what} {options} --to msccl -o {entry.name}_{choice['protocol']}.xml"


def _lines(advice: Mapping[str, Any]) -> Iterator[str]:
    from simcoll.config import text_table
    from simcoll.scenario.profile import titled

    subject = advice["workload"] if "workload" in advice else f"{advice['collective']}, {advice['dtype']}"
    nodes = f"{advice['nodes']} node{'s' if advice['nodes'] > 1 else ''} of {advice['topology']}"
    profile = f"{titled(advice['profile'])} ({advice['confidence']})"
    yield f"# {subject}, {advice['ranks']} ranks on {nodes}   profile {profile}   sharing {advice['sharing']}"
    shown = [{**row, "margin": _margin(row), "choice": row["choice"]} for row in advice["ranges"]]
    sizes = [] if "workload" in advice else ["from_bytes", "to_bytes"]
    yield text_table.render([*sizes, "time_us", "choice", "margin", "runner_up"], shown)
    remark = "time: where a range begins; margin: how much longer the runner-up takes"
    yield f"# of {advice['candidates']} choices; {remark}"
    if any(row["tie"] for row in advice["ranges"]):
        yield "# a tie: within the 90 % interval of the profile, or equal"
    if "choices" in advice:
        yield "# the best choices"
        yield text_table.render(["time_us", "longer", "choice"], [
            {**row, "longer": f"{100 * row['longer']:.1f} %"} for row in advice["choices"][:10]
        ])  # fmt: skip
    if regret := advice.get("regret"):
        yield f"# NCCL's own choice takes longer by {_regret(regret)}"
    if regret := advice.get("nccl_regret"):
        yield f"# NCCL's own choice takes longer than the best of its own by {_regret(regret)}"


def _regret(regret: Mapping[str, Any]) -> str:
    worst = f"{100 * regret['worst']:.1f} % at {regret['worst_size_bytes']} B"
    return f"{100 * regret['mean']:.1f} % in the mean, {worst} at worst"


def _margin(row: Mapping[str, Any]) -> str:
    least, most = row["margin_least"], row["margin_most"]
    if least is None:
        return "-"
    text = f"{100 * least:.1f} %" if least == most else f"{100 * least:.1f} to {100 * most:.1f} %"
    return f"{text}, a tie" if row["tie"] else text
