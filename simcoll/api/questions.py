"""The questions of the command line as functions."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from simcoll.api.results import MadeSchedule, Reply, Results
from simcoll.api.sweeps import Asked, Machine, Sweep, file_of, machine, named, points_of, python_words, sets_of, spelt
from simcoll.config import input_files, yaml_tree
from simcoll.config.input_files import decoded
from simcoll.errors import InputError, Place, did_you_mean
from simcoll.prediction import predict as predicting
from simcoll.prediction import sweep, workers
from simcoll.prediction.predictions import Prediction
from simcoll.prediction.result_rows import check_writable, write_atomically
from simcoll.prediction.summary_sentence import of_training
from simcoll.scenario import caveats, scenario_files
from simcoll.scenario.scenario_files import Point
from simcoll.schedule import values as schedule_values
from simcoll.schedule.schedule import Schedule
from simcoll.topology.graph import Topology
from simcoll.units import unboxed
from simcoll.workload.training_keys import TrainingStep

if TYPE_CHECKING:
    from simcoll.accuracy.triage.given_files import GivenFile

Where = Mapping[str, Any]  # columns of a measured table, each with a value or a list of values
P = ParamSpec("P")
Answer = TypeVar("Answer")


def _question(ask: Callable[P, Answer]) -> Callable[P, Answer]:
    """Return the function `ask`, with errors that name its arguments instead of options of the command line."""

    @functools.wraps(ask)
    def asked(*args: P.args, **kwargs: P.kwargs) -> Answer:
        with python_words():
            return ask(*args, **kwargs)

    return asked


states = _question(schedule_values.states)


@_question
def load(source: str | Path | dict[str, Any], assignments: Sequence[str] = ()) -> list[Point]:
    """Return the points of a scenario. `source` is a YAML file, the name of a shipped scenario, or a dict of keys.

    `assignments` are texts "path=value", as for the option `--set`. Raises InputError with every mistake. If you want
    to give keys as keywords, use `Sweep`.

    >>> len(load("quickstart", ["size=1 MiB"]))
    5
    """
    if isinstance(source, dict):
        return scenario_files.points(yaml_tree.located(spelt(source), Place("scenario", 1, 1)), assignments)
    return scenario_files.load(str(source), assignments)


@_question
def run(asked: Asked = None, /, jobs: int = 1, cluster: str | None = None, **keys: Any) -> Results:
    """Simulate a sweep, or points. Return a row for each point, in order.

    If a point is impossible, its `status` says why. `keys` are keys of a scenario; they override the keys of `asked`
    (see `Sweep`). The work is divided among `jobs` processes (-1: one for each core), or among the workers of the Dask
    scheduler at the address `cluster`. Raises InputError for wrong keys, and for a value that is wrong at every point,
    such as a file that does not exist.

    >>> run(topology="hgx-h100", collective="all_reduce", size=["1 KiB", "1 MiB"])["algorithm"]
    ['ring', 'ring']
    """
    workers.check_jobs(jobs)
    points = points_of(asked, keys)
    rows = sweep.ordered({index: row for index, row, _ in sweep.sweep(points, jobs, cluster=cluster)})
    sweep.check_answerable(rows)
    notes = caveats.notes(points)
    shown = (named({**row.columns(), "time_ps": row.time_ps if row.status == "ok" else None}) for row in rows)
    return Results(shown, notes)


@_question
def predict(asked: Asked = None, topology: Machine | None = None, **keys: Any) -> Prediction:
    """Simulate one point and return its `Prediction`.

    `topology` replaces the topology of the point. Raises InputError for wrong keys and for several points, RefusedError
    if an algorithm does not support the point.

    >>> print(predict("all_reduce", on="hgx-h100", size="64 MiB"))
    nvls Simple, 325 us (90 %: 298 to 355 us), algbw 206.4 GB/s; fitted to 132 rows on hgx-h100; NVLink is 53% busy.
    """
    if topology is not None and (asked is None or isinstance(asked, str | Path | Mapping | Sweep)):
        keys, topology = {"topology": topology, **keys}, None
    points = points_of(asked, keys)
    if len(points) != 1:
        again = "(points)"
        if asked is None or isinstance(asked, str | Path | Mapping | Sweep):
            again = repr(Sweep(asked, **keys)).removeprefix("Sweep")
        cure = f"to predict each of them, write `simcoll.run{again}`"
        raise InputError(f"{len(points)} points are given, and `predict` takes one", cure)
    if topology is not None and not isinstance(topology, Topology):
        topology = Topology.load(topology) if isinstance(topology, str) else Topology.from_graph(topology)
    return predicting.predict(points[0], topology)


@_question
def show(schedule: Schedule, values: object = "random", op: str | None = None) -> Reply:
    """Work a schedule with numbers; see `states` for `values` and `op`. Its key `states` holds what `states` returns.

    Printed, it has what each rank holds before the first step, after each step and at the end; in a notebook it shows
    itself as an animation. Raises InputError.

    >>> from simcoll import build
    >>> show(build("all_reduce", "naive", 2), [[1, 2], [3, 4]])["states"][-1]
    [[4, 6], [4, 6]]
    """
    from simcoll.report import schedule_view
    from simcoll.report.plot.animation import picture

    operator = schedule_values.operator(schedule.collective, op)
    found = schedule_values.worked(schedule, values, op)
    try:
        svg = picture(schedule, found, operator)
    except InputError:
        svg = None
    line = schedule_view.counts_line(schedule)
    text = f"{line}\n{schedule_view.values(schedule, found, operator)}"
    return Reply({"states": schedule_values.buffers(schedule, found)}, line, text, svg)


@_question
def explain(asked: Asked = None, /, *, what_if: bool = True, **keys: Any) -> Reply:
    """Return the critical path of each point, the links that limit its time, and simulated changes that would make it
    faster.

    `what_if=False` skips the changes. Raises InputError and RefusedError as `predict` does.

    >>> explain("quickstart", size="1 MiB", algorithm="ring", what_if=False).verdict
    'ring takes 26.9 us: hop 77% and launch 21%; no link binds.'
    """
    from simcoll.config import text_table
    from simcoll.explanation.explain import SCHEMA, explanation, text
    from simcoll.explanation.explained_run import explained_run
    from simcoll.explanation.training_advice import explained_step
    from simcoll.report import training_text
    from simcoll.report.overlap import summary
    from simcoll.report.verdicts import of_explanation, of_several

    points = points_of(asked, keys)
    if any(isinstance(point.scenario.workload, TrainingStep) for point in points):
        steps = [explained_step(point, what_if) for point in points]
        said = "\n\n".join(map(training_text.explanation, steps))
        return Reply(named({"schema": SCHEMA, "points": steps}), f"{of_training(steps[0])}.", said)
    runs = [explained_run(point) for point in points]
    found = [explanation(run, what_if) for run in runs]
    shown = "\n".join([text(found), *(line for run in runs for line in summary(run.ran))])
    verdict = of_explanation(found[0]) if len(found) == 1 else of_several(found)
    printed = "\n".join([text_table.wrapped(verdict, "  "), text_table.remarks_wrapped(shown)])
    return Reply(named({"schema": SCHEMA, "points": found}), named(verdict), named(printed))


@_question
def recommend(asked: Asked = None, /, *, among: Sequence[str] | None = None, jobs: int = 1, **keys: Any) -> Reply:
    """Return the best algorithm, protocol and settings for each range of sizes.

    It chooses among all algorithms, or among those that `among` lists. Raises InputError for wrong keys and names,
    RefusedError if no algorithm supports the request.

    >>> keys = {"topology": "hgx-h100", "collective": "all_reduce", "size": "64 MiB", "executor": "nccl"}
    >>> advice = recommend(keys, among=["ring", "tree"])
    >>> advice["recommendations"][0]["ranges"][-1]["algorithm"]
    'ring'
    """
    from simcoll.explanation.recommendation import SCHEMA, recommendations
    from simcoll.explanation.training_advice import StepSearch
    from simcoll.report import recommendation_text, training_text
    from simcoll.report.verdicts import of_recommendations

    workers.check_jobs(jobs)
    names = [among] if isinstance(among, str) else among
    if names is not None and (not isinstance(names, Sequence) or not names):
        raise InputError(f"among={among!r} names no algorithm", "give names, e.g. ['ring', 'tree'], or leave it out")
    points = points_of(asked, keys)
    if isinstance(points[0].scenario.workload, TrainingStep):
        best = StepSearch(points[0], names).document()
        text = training_text.recommendation(best)
        return Reply(named({"schema": SCHEMA, **best}), text.partition("\n#")[0], text)
    questions = recommendations(points, names)
    for question in questions:
        question.simulate(jobs, lambda: None)
    found = [question.document() for question in questions]
    text = recommendation_text.text(found, questions)
    return Reply({"schema": SCHEMA, "recommendations": found}, of_recommendations(found), text)


@_question
def synthesize(collective: str, /, *, max_trees: int = 0, **keys: Any) -> MadeSchedule:
    """Make a schedule that uses a network as well as its bound allows, and return it with the bound and the proofs.

    `keys` are keys of a scenario. Without them the size is 1 GiB and the profile `ideal`. `max_trees` limits the trees
    of a root. Raises InputError for wrong keys and several points, RefusedError if no schedule can be made.

    >>> ring = {"fabric": "ring", "hosts": 4, "link": {"bandwidth": "25 GB/s", "latency": "1 us"}}
    >>> made = synthesize("all_gather", topology=ring, size="1 MiB")
    >>> made["bound_kind"], made["proved"], made.schedule.n
    ('cut', True, 4)
    """
    from simcoll.explanation.synthesis import of_scenario
    from simcoll.report import synthesis_text

    start = {"collective": collective, "algorithm": "synthesized", "size": "1 GiB", "profile": "ideal"}
    points = points_of(start, keys)
    if len(points) != 1:
        raise InputError(f"{len(points)} points are given, and one schedule is made at a time", "give one of each key")
    with points[0].placing():
        made = of_scenario(points[0].scenario, max_trees)
    reply = MadeSchedule(made.document(), synthesis_text.verdict(made), synthesis_text.text(made))
    reply.made, reply.schedule = made, made.schedule
    return reply


@_question
def compare(
    measured: Measured, asked: Asked = None, /, *, on: Machine | None = None, where: Where | None = None, **keys: Any
) -> Reply:
    """Compare predictions with a measured table: errors by point and by region, and how many times lie inside the
    intervals.

    With `on`, every row is predicted on that machine. `nodes` and `collective` select rows; a row without a value in
    this column counts as having the given value. Without `on`, `asked` names the predictions. Raises InputError if no
    row has a prediction.

    >>> kept = {"ranks": 8, "collective": "all_reduce", "dtype": "float16"}
    >>> compare("h100_sxm_nccl-2.27.3.csv", on="hgx-h100", where=kept)["summary"][-1]["points"]
    21
    """
    from simcoll.accuracy.compare import compared
    from simcoll.report import accuracy_text
    from simcoll.report.verdicts import of_comparison

    text, source = table(measured)
    if on is None and (asked is not None or keys):
        found = compared(points_of(asked, keys), text, source, conditions(where), ())
    else:
        rows, sets = _of_rows(where, keys)
        found = compared(f"system={_named_machine(on)}", text, source, rows, sets)
    return Reply(found, of_comparison(found), accuracy_text.comparison_table(found))


@_question
def diagnose(measured: Measured, /, on: Machine | None = None, *, where: Where | None = None, **keys: Any) -> Reply:
    """Return whether measured times are normal for this hardware, and what a job's files say is wrong with it.

    `measured` is a measured table, or files of a job that is slow or stands still: a file, a folder, or a list of them,
    with tables and NCCL's debug logs. With files that show the machine, `on` may be left out. `where`, `nodes` and
    `collective` select rows; a row without a value in the column `nodes` or `collective` counts as having the given
    value. Raises InputError for files and topologies that cannot be read, and if no row can be predicted.

    >>> kept = {"ranks": 8, "collective": "all_reduce", "dtype": "float16"}
    >>> diagnose("h100_sxm_nccl-2.27.3.csv", on="hgx-h100", where=kept).verdict
    'Healthy: 21 points are as hgx-h100 should be by nccl-hopper.'
    """
    from simcoll.accuracy.triage.findings import Case
    from simcoll.accuracy.triage.verdict import triaged
    from simcoll.report.triage_text import answer

    rows, sets = _of_rows(where, keys)
    found = named(triaged(_files(measured), Case(None if on is None else machine(on), rows, sets)))
    return Reply(found, *answer(found))


def _files(measured: Measured) -> list[GivenFile]:
    """Return the files of a folder, of paths, or of a measured table in any form."""
    from simcoll.accuracy.triage.given_files import GivenFile, opened

    if isinstance(measured, list | tuple) and all(isinstance(each, str | Path) for each in measured):
        return opened(map(str, measured))
    if isinstance(measured, str | Path) and "\n" not in str(measured):
        return opened([str(measured)])
    text, source = table(measured)
    return [GivenFile(source, None, text.encode())]


@_question
def calibrate(
    *measured: str | Path,
    on: Machine | None = None,
    output: str | Path | None = None,
    where: Where | None = None,
    fit: Where | None = None,
    free: Sequence[str] = (),
    seed: int = 0,
    **keys: Any,
) -> Reply:
    """Fit a profile to measured tables, and write it to the file `output` if given.

    `where` selects rows, `fit` the rows to fit (default: every second size), `free` the parameters to fit. The reply
    has the profile as text under `profile_text`. Raises InputError for wrong input, and if the rows do not determine a
    parameter of `free`.

    >>> kept = {"ranks": 8, "collective": "all_gather", "dtype": "float16"}
    >>> fitted = calibrate("h100_sxm_nccl-2.27.3.csv", on="hgx-h100", where=kept, free=["launch"])
    >>> fitted["profile_text"].splitlines()[1]
    'description: fitted to 11 rows of the harness library on hgx-h100'
    """
    from simcoll.accuracy.fit import calibrate as fits
    from simcoll.report import accuracy_text
    from simcoll.report.verdicts import of_calibration

    if output:
        check_writable(Path(output))
    name = Path(output).stem if output else "calibrated"
    rows, sets = _of_rows(where, keys)
    options: dict[str, Any] = {"where": rows, "fit": conditions(fit), "free": list(free), "seed": seed}
    fitted = fits.calibrate(list(measured), _named_machine(on), name=name, sets=sets, **options)
    if output:
        write_atomically(Path(output), fitted.text)
    found = fitted.document
    return Reply({**found, "profile_text": fitted.text}, of_calibration(found), accuracy_text.calibration_table(found))


@_question
def measure(
    asked: Asked = None,
    /,
    *,
    backend: Literal["gloo", "nccl"] = "gloo",
    output: str | Path | None = None,
    timeout_s: float = 60.0,
    **keys: Any,
) -> list[dict[str, Any]]:
    """Run points for real with torch.distributed on this machine. Return the rows of a measured table.

    If `output` is given, the table is also written to this file. Raises SimcollError without torch, InputError for
    points that cannot run here, MeasureError if a rank dies, hangs or computes a wrong result.

    >>> hosts = {"fabric": "single-switch", "hosts": 2, "link": {"bandwidth": "1 GB/s", "latency": "1 us"}}
    >>> rows = measure(topology=hosts, collective="all_reduce", algorithm="ring", size="1 KiB")  # doctest: +SKIP
    >>> [(row["ranks"], row["harness"], row["runs"]) for row in rows]  # doctest: +SKIP
    [(2, 'p2p', 20)]
    """
    from simcoll.measurement import real_run

    if backend not in ("gloo", "nccl"):
        raise InputError(f"backend={backend!r} is not known", "give 'gloo' or 'nccl'")
    rows = real_run.run(points_of(asked, keys), backend=backend, timeout_s=timeout_s)
    if output:
        real_run.write(Path(output), rows, backend)
    return [dict(row) for row in rows]


@_question
def export(what: Any, to: str, path: str | Path | None = None, **options: Any) -> Any:
    """Return a `Schedule`, a `Topology`, `Results` or a scenario's file in the format of another program, and write it
    to `path` if given.

    Formats and `options` are those of `simcoll export`. Formats of schedules are `msccl` and `goal`; of topologies
    `graphviz`, `graphml`, …; of results `nccl-tests`, `nccl-tuner`, `parquet`, …; of workloads `chakra`, a file a rank
    (a mapping from the endings of names to bytes). Options are the `protocol` of a schedule, and the size of its
    buffer, `nbytes`. Warns (`UserWarning`) if the other program would reject the contents. Raises InputError for an
    unknown format, RefusedError for contents that the format cannot hold.

    >>> from simcoll import build
    >>> export(build("all_reduce", "ring", 4), "msccl").splitlines()[0][:5]
    '<algo'
    """
    from simcoll.config.input_files import ImportLog
    from simcoll.report import exports

    for name in options:
        if name not in exports.Options.__annotations__:
            raise InputError(f"{name}= is no option of `export`", did_you_mean(name, exports.Options.__annotations__))
    notes = ImportLog()
    written = exports.convert(
        file_of(what), to, exports.Options(**{name: unboxed(value) for name, value in options.items()}), notes
    )
    for line in notes.warnings:
        warnings.warn(line, stacklevel=2)
    if path is not None:
        exports.save(written, Path(path))
    return written


def _named_machine(on: Machine | None) -> str:
    """Return, as a text, the machine on which a table was measured; raises InputError without `on`."""
    if on is None:
        cure = 'add on=, e.g. on="hgx-h100" (`simcoll list topologies` has all), a file, or a Topology'
        raise InputError("the measured machine is missing", cure)
    return machine(on)


Measured = Any  # a file, a shipped table, the text of one, rows, or a data frame


def table(measured: Measured) -> tuple[str, str]:
    """Return the text of a measured table, and a name for it in messages; raises InputError."""
    from simcoll.formats.measured import find_measured

    if isinstance(measured, str) and "\n" in measured:
        return measured, "measured"
    if isinstance(measured, str | Path):
        path = find_measured(str(measured))
        return decoded(input_files.bytes_of(path, "give a file, or a name of a shipped table"), str(path)), str(path)
    if hasattr(measured, "to_csv"):
        return str(measured.to_csv(index=False)), "data frame"
    import csv
    import io

    if not isinstance(measured, Iterable) or not all(isinstance(row, Mapping) for row in measured):
        cure = "give a file, a shipped table, the text of one, rows as mappings, or a data frame"
        raise InputError(f"{type(measured).__name__} is no measured table", cure)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(column for row in measured for column in row)))
    writer.writeheader()
    writer.writerows(measured)
    return text.getvalue(), "rows"


def _of_rows(where: Where | None, keys: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return two lists: conditions on rows (`where`, `nodes`, `collective`), and the other keys as `--set` takes
    them."""
    rows = {key: value for key, value in keys.items() if key in ("nodes", "collective")}
    return [*conditions(rows), *conditions(where)], sets_of({k: v for k, v in keys.items() if k not in rows})


def conditions(where: Where | None) -> list[str]:
    """Return conditions on rows as texts that `--where` takes. Raises InputError if `where` is no mapping."""
    if where is not None and not isinstance(where, Mapping):
        texts = [where] if isinstance(where, str) else [str(each) for each in where]
        meant = {column: value for column, equals, value in (text.partition("=") for text in texts) if equals}
        raise InputError(f"{where!r} is no mapping of columns to values", f"write {meant or {'nodes': 2}!r}")

    def listed(value: Any) -> str:
        value = unboxed(value)
        return ",".join(map(str, value)) if isinstance(value, list | tuple | set) else str(value)

    return [f"{column}={listed(value)}" for column, value in (where or {}).items()]
