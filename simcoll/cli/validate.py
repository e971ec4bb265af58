"""`simcoll validate`: the studies of a folder carried out, and a report."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from simcoll.cli._options import QUIET, TIMEOUT, check_timeout, output_folder
from simcoll.cli._progress import Lines


@click.command()
@click.argument("studies", nargs=-1, metavar="[STUDY…]")
@click.option(
    "--folder", default="validation", show_default=True, type=click.Path(path_type=Path), help="Studies and cases."
)
@output_folder("Folder of what is written.  [default: --folder]")
@click.option("--reuse", is_flag=True, help="Take tables that are there, in either folder; measure what is missing.")
@TIMEOUT
@QUIET
def validate(
    studies: tuple[str, ...],
    folder: Path,
    output: Path | None,
    reuse: bool,
    timeout: float,
    quiet: bool,
) -> int:
    """Measure, fit, predict, and report how good predictions are.

    Runs the studies of a folder that this machine can (gloo over loopback always, the lab with root, NCCL with GPUs),
    or those that are named. Writes REPORT.md, plots, measured tables and fitted profiles. Where studies are named and
    -o is not, the report of these is printed, and REPORT.md stays as it is. Exit status 1 if a goal is missed.
    """
    from simcoll.accuracy.studies import study_file as known
    from simcoll.accuracy.studies import study_report
    from simcoll.accuracy.studies.validate import StudyOptions, carry_out
    from simcoll.report.verdicts import of_studies

    check_timeout(timeout)
    tell = (lambda line: None) if quiet else Lines()
    options = StudyOptions(folder, output or folder, reuse, timeout, tell)
    asked = known.load(folder, studies)
    findings = [carry_out(study, options) for study in asked]
    missed = study_report.check(findings)
    print(of_studies(sum(not finding.why_not for finding in findings), len(findings), len(missed)))
    if studies and output is None:  # the report in the folder is of all its studies
        print(study_report.text(findings))
        print(
            f"{folder / study_report.REPORT} stays as it is; -o DIR writes a report of these studies", file=sys.stderr
        )
    else:
        print(study_report.write(options.output, findings))
    for finding in findings:
        if finding.why_not:
            print(f"{finding.study.name}: not carried out: {finding.why_not}", file=sys.stderr)
    for goal in missed:
        print(f"{goal.study}: {goal.name}: {goal.reached}, goal {goal.asked}", file=sys.stderr)
    return 1 if missed else 0
