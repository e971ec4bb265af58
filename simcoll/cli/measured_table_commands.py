"""Commands about measured tables: `simcoll compare`, `diagnose`, `calibrate` and `validate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from simcoll.cli._options import (
    JSON,
    QUIET,
    SETS,
    TIMEOUT,
    WHERE,
    Number,
    Whole,
    check_timeout,
    completed,
    measured_on,
    measured_text,
    output_folder,
    with_measured_on,
)
from simcoll.cli._terminal import Lines
from simcoll.errors import InputError


@click.command()
@click.argument(
    "tables",
    nargs=-1,
    required=True,
    metavar="[SCENARIO|RESULTS.csv|system=NAME] MEASURED.csv|-",
    shell_complete=completed("file", "scenario", "table"),
)
@WHERE
@SETS
@click.option("--max-mape", type=Number(), metavar="X", help="Exit with status 1 if the mean error exceeds X percent.")
@output_folder("Folder for compare.csv and the picture.")
@JSON
@with_measured_on
def compare(
    tables: tuple[str, ...],
    topology: str | None,
    where: tuple[str, ...],
    sets: tuple[str, ...],
    max_mape: float | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Compare predictions with a measured table, or with nccl-tests' text.

    With `--on` (or `system=NAME`, which takes a file, too) all rows are predicted on that machine. `-` reads a pipe.
    Prints the error of each point, errors by region, whether intervals hold, and whether algorithms come in the right
    order.
    """
    from simcoll.accuracy.compare import compared
    from simcoll.report import accuracy_text, run_plots

    if max_mape is not None and not max_mape >= 0:
        raise InputError(f"--max-mape {max_mape:g} is no error in percent", "give a number from 0 on, e.g. 20")
    *given, measured = tables
    predicted = given[0] if given else f"system={measured_on(topology)}"
    if len(given) > 1 or (topology and predicted.startswith("system=") and given):
        raise InputError("more than two tables", "give a prediction and a measured table, or --on and a measured table")
    if given and topology:
        sets = (f"topology={topology}", *sets)
    document = compared(predicted, measured_text(measured), measured, where, sets)
    if output:
        for path in run_plots.comparison(document, output):
            print(path, file=sys.stderr)
    print(json.dumps(document, indent=1) if as_json else accuracy_text.comparison_table(document))
    mape = document["summary"][-1]["mape"]
    if max_mape is not None and mape > max_mape:
        print(f"mean error {mape:.1f} % exceeds {max_mape:g} %", file=sys.stderr)
        return 1
    return 0


@click.command()
@click.argument("table", metavar="TABLE.csv|-", shell_complete=completed("file", "table"))
@WHERE
@JSON
def steps(table: str, where: tuple[str, ...], as_json: bool) -> int:
    """Predict each row of a table of published training steps.

    TABLE.csv has a step in each row: shapes of the model, GPUs, parallelism, batch, framework. A row that has a time is
    compared with the prediction. A row that says whether it ran out of memory, or how much memory it took, is compared
    with the predicted memory. A row that does not say enough is refused, with the reason.
    """
    from simcoll.accuracy.published_steps import predicted
    from simcoll.report.accuracy_text import steps_table

    document = predicted(measured_text(table), table, where)
    print(json.dumps(document, indent=1) if as_json else steps_table(document))
    return 0


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…|DIR|-", shell_complete=completed("file", "table"))
@WHERE
@SETS
@click.option("--next", "following", is_flag=True, help="Print the commands of nccl-tests that would decide, too.")
@output_folder("Folder for the picture of recorded calls and ranks.")
@JSON
@with_measured_on
def diagnose(
    files: tuple[str, ...],
    topology: str | None,
    where: tuple[str, ...],
    sets: tuple[str, ...],
    following: bool,
    output: Path | None,
    as_json: bool,
) -> int:
    """Find out why a job is slow or stands still.

    FILE is a measured table, the output of nccl-tests, NCCL's debug log (NCCL_DEBUG=INFO), a dump of PyTorch's flight
    recorder, lines of its watchdog, an answer of NCCL's RAS, or lines of NCCL Inspector, of one rank or of all, packed
    by gzip or not; DIR is a folder of such files; `-` reads a pipe. The first lines say what is wrong, where, how sure
    that is, and what to do next. With a log `--on` may be left out if the log shows the machine.

    For a table alone the output says for each point whether its time is as this hardware should give. It names the
    regions of sizes whose times are not normal, and the simulated fault that explains them best. The exit status is 0
    if nothing is wrong, 1 if something is, and 2 if the files do not tell.
    """
    from simcoll.accuracy.triage.findings import Case
    from simcoll.accuracy.triage.given_files import opened
    from simcoll.accuracy.triage.verdict import triaged
    from simcoll.report import run_plots
    from simcoll.report.triage_text import STATUS, answer

    document = triaged(opened(files), Case(topology, where, sets, Lines(), following=following))
    if output:
        for path in run_plots.recorded(document, output):
            print(path, file=sys.stderr)
    print(json.dumps(document, indent=1) if as_json else answer(document).text)
    return STATUS[document["verdict"]]


@click.command()
@click.argument("measured", nargs=-1, required=True, metavar="MEASURED.csv…", shell_complete=completed("file", "table"))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Profile to write (YAML).")
@WHERE
@click.option(
    "--fit", multiple=True, metavar="COL=V,V", help="Rows to fit; the others are scored.  [default: every second size]"
)
@click.option("--free", metavar="NAME,NAME", help="Parameters to fit.  [default: those that the rows determine]")
@SETS
@click.option("--seed", type=Whole(), default=0, show_default=True, help="Seed of the bootstrap.")
@JSON
@with_measured_on
def calibrate(
    measured: tuple[str, ...],
    topology: str | None,
    output: Path,
    where: tuple[str, ...],
    fit: tuple[str, ...],
    free: str | None,
    sets: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Fit parameters of the model to measured tables, and write a profile.

    Rows that are not fitted are scored. The residuals are drawn into a picture beside the profile.
    """
    from simcoll.accuracy.fit import calibrate as fits
    from simcoll.prediction import result_rows
    from simcoll.report import accuracy_text
    from simcoll.report.plot import save
    from simcoll.report.plot.comparison import residual_figure

    if output.suffix not in (".yaml", ".yml"):
        raise InputError(f"{output}: a profile is a YAML file", "give a name that ends with .yaml")
    result_rows.check_writable(output)
    names = [name.strip() for name in free.split(",")] if free else []
    fitted = fits.calibrate(
        measured, measured_on(topology), name=output.stem, where=where, fit=fit, free=names, sets=sets, seed=seed,
        tell=Lines(),
    )  # fmt: skip
    result_rows.write_atomically(output, fitted.text)
    print(output, file=sys.stderr)
    picture = output.with_name(f"{output.stem}-residuals.png")
    try:
        save(residual_figure(fitted.document["points"]), picture)
    except ValueError as reason:
        print(f"{picture}: not drawn: {reason}", file=sys.stderr)
    else:
        print(picture, file=sys.stderr)
    print(json.dumps(fitted.document, indent=1) if as_json else accuracy_text.calibration_table(fitted.document))
    return 0


@click.command()
@click.argument("studies", nargs=-1, metavar="[STUDY…]")
@click.option(
    "--folder", default="validation", show_default=True, type=click.Path(path_type=Path), help="Folder of studies."
)
@output_folder("Folder to write to.  [default: --folder]")
@click.option("--reuse", is_flag=True, help="Reuse measured tables in either folder; measure only the missing ones.")
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

    Runs the named studies. Without names it runs all studies of the folder that this machine can run: gloo over
    loopback always, the lab as root, NCCL with GPUs. Writes REPORT.md, plots, measured tables and fitted profiles. If
    you name studies without -o, it prints their report and does not change REPORT.md. Exit status 1 if a goal is
    missed.
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
