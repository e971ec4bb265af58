"""A row of results: its columns with types, units and meaning, and its forms in CSV and JSON.

The fields of `ResultRow` determine results.csv, the JSON documents and their schema, how both are read, the column
types for Arrow, and the table in the documentation. To add a column, add a field.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from simcoll.config import input_files, text_table
from simcoll.config.input_files import decoded
from simcoll.errors import Diagnostic, InputError, Place, unwritable
from simcoll.units import exact_us, float_of, int_of

SCHEMA: Final = "simcoll.results/1"
CHOSEN: Final = "chosen."  # prefix of a bound's own choices, e.g. `chosen.copies`: they are an answer, no question
NEEDED: Final = ("collective", "ranks", "size_bytes", "time_us", "status")  # every results.csv has them


def _column(text: str, unit: str = "", **options: Any) -> Any:
    return field(**{"default": None, **options}, metadata={"text": text, "unit": unit})


def _quantile(text: str) -> Any:
    return _column(f"{text} of the time of all replications", "us")


@dataclass(frozen=True, kw_only=True)
class ResultRow(Mapping[str, Any]):
    """The result of one point; a column is None where it does not apply to the point.

    As a mapping, the row has the public columns, then the swept keys of the scenario (`settings`), e.g. `model.o_send`.
    The fields below `settings` are internal: they are written to the journal only.
    """

    scenario: str | None = _column("name of the scenario")
    topology: str | None = _column("name of the topology")
    collective: str = _column("collective, or `workload`", default="")
    algorithm: str | None = _column("algorithm that ran; for a workload the algorithms of all its calls")
    protocol: str | None = _column("protocol of NCCL that ran, or `none`")
    ranks: int | None = _column("ranks that take part; with several groups, ranks of one group")
    nodes: int | None = _column("nodes of these ranks")
    size_bytes: int | None = _column("largest buffer of a rank, as nccl-tests counts it", "B")
    time_us: float | None = _column(
        "from the arrival of the first rank to the end of the last transfer, to the picosecond", "us"
    )
    algbw_GBps: float | None = _column("size over time", "GB/s")  # noqa: N815  the column
    busbw_GBps: float | None = _column("`algbw_GBps` times nccl-tests' factor for the collective", "GB/s")  # noqa: N815
    steps: int | None = _column("steps of the schedule")
    messages: int | None = _column("transfers, in all loops")
    wire_bytes: int | None = _column("payload, summed over the links that it crosses", "B")
    lower_bound_us: float | None = _column("time that no schedule can beat on these links", "us")
    engine: str | None = _column("engine that ran: `fast` or `event`")
    seed: int | None = _column("seed of all random draws")
    status: str = _column(
        "`ok`, or the reason for a missing time: `refused: …` (the algorithm cannot serve), `failed: …`",
        default=MISSING,
    )
    dtype: str | None = _column("type of the elements")
    op: str | None = _column("reduction, `none` where nothing is reduced")
    root: int | None = _column("root rank, where the collective has one")
    in_place: bool | None = _column("whether input and output share a buffer")
    profile: str | None = _column("profile that gives the costs")
    sharing: str | None = _column("how transfers share a link: `fair` or `fifo`")
    shortcut: str | None = _column("shortcut that the engine took")
    proved: str | None = _column("how the schedule was proved: `full`, `fingerprint` or `off`")
    bytes_per_rank: int | None = _column("largest number of bytes that a rank sends", "B")
    confidence: str | None = _column("`calibrated`, `interpolated`, `extrapolated`, `modelled` or `uncalibrated`")
    low_us: float | None = _column("lower end of the 90 % interval of a single measurement", "us")
    high_us: float | None = _column("upper end of the 90 % interval of a single measurement", "us")
    median_low_us: float | None = _column("lower end of the 90 % interval of the median of many measurements", "us")
    median_high_us: float | None = _column("upper end of the 90 % interval of the median of many measurements", "us")
    asked: str | None = _column("algorithm that the scenario asked for: `auto`, `best`, or a name")
    bound_kind: str | None = _column(
        "what gives `lower_bound_us`: `latency`, `compute`, `cuts` (of devices, nodes and switches; the optimum may be "
        "longer), or the exact optimum by a `cut` or by linear programming (`lp`)"
    )
    binding_link: str | None = _column("busiest link; `host` where launches take longer")
    binding_busy: float | None = _column("share of the run in which the busiest link carried bytes at full rate")
    staged: int | None = _column("transfers that arrived while the old contents of their slot were still being sent")
    staged_bytes: int | None = _column("largest number of staged bytes at one time", "B")
    executor: str | None = _column(
        "way in which the schedule is run, with a profile of kernels: `nccl`, `msccl` or `p2p`"
    )
    workload: str | None = _column("template of the workload")
    step_us: float | None = _column("from the start to the end of the last operation of a workload", "us")
    exposed_us: float | None = _column("time that communication adds to `compute_us` and `waiting_us`", "us")
    compute_us: float | None = _column("computation of the rank that computes most", "us")
    waiting_us: float | None = _column("time that this rank waits for other ranks' computations, or for its host", "us")
    buckets: int | None = _column("gradient buckets, or collective calls, of a rank")
    replications: int | None = _column("runs of a point with variability")
    time_us_p50: float | None = _quantile("median")
    time_us_p95: float | None = _quantile("95th percentile")
    time_us_p99: float | None = _quantile("99th percentile")
    slowdown_shares: Mapping[str, float] | None = _column(
        "share of each cause in the mean slowdown; the shares add up to 1", hash=False
    )
    time_us_p50_low: float | None = _quantile("lower end of the 95 % interval of the median")
    time_us_p50_high: float | None = _quantile("upper end of the 95 % interval of the median")
    time_us_p95_low: float | None = _quantile("lower end of the 95 % interval of the 95th percentile")
    time_us_p95_high: float | None = _quantile("upper end of the 95 % interval of the 95th percentile")
    time_us_p99_low: float | None = _quantile("lower end of the 95 % interval of the 99th percentile")
    time_us_p99_high: float | None = _quantile("upper end of the 95 % interval of the 99th percentile")
    even_paths_us: float | None = _column("time if switches spread each message evenly over its equal routes", "us")
    failed_runs: int | None = _column("replications that a fault made fail; each counts with the time of its failure")
    transport: str | None = _column("profile of the messages between nodes, where `profile` has only the costs of GPUs")
    library_version: str | None = _column("release of the library that was asked for")
    notify_us: float | None = _column("exchange of counts before a kernel of `deepep`, beside `time_us`", "us")
    never_fitted: str | None = _column("model of the machine's GPUs, if the profile was fitted to other chips only")

    mfu: float | None = _column("model FLOPs of a training step over the dense peak of its type of compute")
    hfu: float | None = _column("as `mfu`, with the FLOPs of recomputation")
    tokens_per_s_per_gpu: float | None = _column("tokens of a training step per second and GPU", "1/s")
    memory_GB: float | None = _column("memory of the GPU that needs most in a training step", "GB")  # noqa: N815
    memory_limit_GB: float | None = _column("memory that this GPU has", "GB")  # noqa: N815
    memory_parameters_GB: float | None = _column("of it: parameters", "GB")  # noqa: N815
    memory_gradients_GB: float | None = _column("of it: gradients", "GB")  # noqa: N815
    memory_optimizer_GB: float | None = _column("of it: the optimizer's state", "GB")  # noqa: N815
    memory_activations_GB: float | None = _column("of it: activations kept for backward passes", "GB")  # noqa: N815
    memory_buffers_GB: float | None = _column("of it: gathered parameters, CUDA and NCCL", "GB")  # noqa: N815
    compute_gemm_us: float | None = _column("of `compute_us`: matrix products", "us")
    compute_attention_us: float | None = _column("of `compute_us`: the core of attention", "us")
    compute_elementwise_us: float | None = _column("of `compute_us`: elementwise kernels", "us")
    compute_launch_us: float | None = _column("of `compute_us`: waiting for kernels to be launched", "us")
    bubble_us: float | None = _column("idle time that the schedule of a pipeline costs", "us")
    wait_us: float | None = _column("further waiting for ranks that compute longer", "us")
    optimizer_us: float | None = _column("the optimizer", "us")
    interference_us: float | None = _column("computing time that hidden communication costs", "us")
    exposed_tp_us: float | None = _column("time that tensor-parallel exchanges add to a training step", "us")
    exposed_pp_us: float | None = _column("time that messages between stages add", "us")
    exposed_dp_us: float | None = _column("time that gradients and parameters add", "us")
    exposed_ep_us: float | None = _column("time that exchanges with experts add", "us")
    exposed_cp_us: float | None = _column("time that exchanges of context parallelism add", "us")

    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)  # by dotted key of the scenario
    time_ps: int = 0  # 0 also if there is no time
    left_out: bool = False  # refused, and one of `algorithm: all`, which leaves out what cannot serve
    wrong_input: bool = False  # failed by a mistake in the user's input
    passing: bool = False  # failed for a reason that can be mended: the next run tries it again
    times_ps: Mapping[str, Sequence[int]] | None = field(default=None, hash=False)  # of replications, by causes

    def __getitem__(self, column: str) -> Any:
        return getattr(self, column) if column in KINDS else self.settings[column]

    def __iter__(self) -> Iterator[str]:
        return iter((*KINDS, *self.settings))

    def __len__(self) -> int:
        return len(KINDS) + len(self.settings)

    def columns(self) -> dict[str, Any]:
        """Return the row as a dict: the public columns, then the swept keys."""
        return {**dict(zip(KINDS, _VALUES(self), strict=True)), **self.settings}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ResultRow:
        """Return a row from its columns, e.g. of a CSV file; names with a dot are settings. Raises TypeError."""
        settings = {name: value for name, value in record.items() if "." in name}
        return cls(**{name: value for name, value in record.items() if "." not in name}, settings=settings)

    def record(self) -> dict[str, Any]:
        """Return the names and values of all fields that are set; `of` turns them into a row again."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "settings"}
        unset = {each.name: each.default for each in fields(self)}
        return {name: value for name, value in values.items() if value != unset[name]} | dict(self.settings)


_KINDS: Final = {"str": str, "int": int, "float": float, "bool": bool, "Mapping[str, float]": dict}
KINDS: Final[Mapping[str, type]] = {  # the type of each public column, in order
    each.name: _KINDS[str(each.type).removesuffix(" | None")] for each in fields(ResultRow) if each.metadata
}
COLUMNS: Final = tuple(KINDS)
_VALUES: Final = operator.attrgetter(*COLUMNS)
UNITS: Final[Mapping[str, str]] = {each.name: each.metadata["unit"] for each in fields(ResultRow) if each.metadata}
TEXTS: Final[Mapping[str, str]] = {each.name: each.metadata["text"] for each in fields(ResultRow) if each.metadata}


def swept(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the swept keys that need a column of their own, i.e. have a dot, e.g. `model.o_send`."""
    return [column for column in dotted(rows) if not column.startswith(CHOSEN)]


def dotted(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns that are not in COLUMNS: swept keys, and choices of the fastest variant (`chosen.…`)."""
    return list(dict.fromkeys(column for row in rows for column in row if "." in column))


# --- CSV ---


def to_csv(rows: Sequence[ResultRow]) -> str:
    """Return the rows as CSV text; times in us have six decimals, so that no picosecond is lost."""
    columns = [*COLUMNS, *dotted(rows)]
    return text_table.csv_text(columns, ([_cell(row, column) for column in columns] for row in rows))


def _cell(row: ResultRow, column: str) -> str:
    value = row.get(column)
    if column == "time_us" and row.time_ps:
        return exact_us(row.time_ps)
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return json.dumps(value)
    if UNITS.get(column) == "us":
        return f"{value:.6f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def read(path: Path) -> list[ResultRow]:
    """Return the rows of a results.csv; raises InputError with line and column of a value that is no finite number."""
    text = decoded(input_files.bytes_of(path, "give the path of a results.csv"), str(path))
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in NEEDED if column not in (reader.fieldnames or ())]
    if missing:
        mistake = f"no column {missing[0]!r}"
        cure = "give a results.csv of `simcoll run`"
        from simcoll.formats import measured  # readers of results.csv alone need not load it

        if measured.looks(text):
            mistake, cure = "a measured table", f"draw it with `simcoll compare {path} --on SYSTEM -o FOLDER`"
        raise InputError([Diagnostic(mistake, cure, "", Place(str(path), 1, 1))])
    return [_parsed(cells, Place(str(path), reader.line_num, 1)) for cells in reader]


def _parsed(cells: Mapping[str, str | None], place: Place) -> ResultRow:
    """Return a row; raises InputError for a number that is none, and for a row longer or shorter than the header."""
    if None in cells or None in cells.values():  # how csv says that cells are left over, or missing
        raise InputError([Diagnostic("the row has more or fewer cells than the header", "mend it", "", place)])
    record: dict[str, Any] = {}
    for column, text in cells.items():
        try:
            if column in KINDS or "." in column:
                record[column] = _value(KINDS.get(column, str), text)
        except ValueError:
            raise InputError([Diagnostic(f"{text!r} is no finite number", "mend this cell", column, place)]) from None
    return ResultRow.of(record)


def _value(kind: type, text: str | None) -> Any:
    if text is None or text == "":
        return None
    if kind is dict:
        return json.loads(text)  # raises ValueError for no JSON
    if kind is str:
        return text_table.csv_meaning(text)
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    number = int_of(text) if kind is int else float_of(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


# --- JSON ---


def document(rows: Sequence[ResultRow], reused: int = 0) -> str:
    """Return the JSON document that `--json` prints, see `schema`; `reused` counts rows of an earlier run."""
    return json.dumps({"schema": SCHEMA, "points": [row.columns() for row in rows], "reused": reused}, indent=1)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the document that `run --json` and `predict --json` print."""
    names = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
    columns = {
        column: {
            "description": TEXTS[column] + (f" ({UNITS[column]})" if UNITS[column] else ""),
            "type": [names[kind], "null"],
        }
        for column, kind in KINDS.items()
    }
    point = {
        "type": "object",
        "properties": columns,
        "patternProperties": {"[.]": {"description": "key of the scenario without a column of its own"}},
        "required": list(columns),
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "simcoll results",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "points": {"type": "array", "items": point},
            "reused": {"description": "points that an earlier run had simulated", "type": "integer"},
        },
        "required": ["schema", "points", "reused"],
    }


# --- files ---


def check_writable(path: Path) -> None:
    """Raise InputError if `write_atomically` could not write this file. Call it before long work."""
    import tempfile

    folder = next((folder for folder in path.parents if folder.exists()), path.parent)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable(path, error) from None


# The mark of simcoll in each kind of picture.
OWN_PICTURE: Final = {
    ".png": b"Software\0simcoll",
    ".svg": b"<dc:title>simcoll</dc:title>",
    ".pdf": b"/Creator (simcoll)",
}


def own_pictures(folder: Path) -> list[Path]:
    """Return the pictures in a folder that simcoll drew; empty if the folder does not exist."""
    found = (file for file in sorted(folder.glob("*")) if file.suffix in OWN_PICTURE and file.is_file())
    return [file for file in found if OWN_PICTURE[file.suffix] in file.read_bytes()]


def check_own(path: Path) -> None:
    """Raise InputError if another program wrote the results.csv at `path`, which simcoll would overwrite."""
    if path.is_file() and path.stat().st_size:
        with path.open(encoding="utf-8", errors="replace") as file:
            header = next(csv.reader(file), [])
        if not {*NEEDED} <= {*header}:
            problem = f"{path} is no results.csv of simcoll, and this run would overwrite it"
            raise InputError(problem, "move it, or name another folder with -o")


def write_atomically(path: Path, text: str | bytes) -> None:
    """Write a file completely, or leave the old one unchanged; raises SimcollError if that fails (see `unwritable`).

    A link, a pipe or a device (`/dev/null`) is written to, not replaced by a file.
    """
    import tempfile

    body = text if isinstance(text, bytes) else text.encode()
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(body)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unwritable(path, error) from None
