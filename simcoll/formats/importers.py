"""Import files of other programs: recognise the kind of a file, and convert it to a file of simcoll.

Text may have any encoding; its size is limited. No imported file can make simcoll read another file. The notes of an
import list its assumptions, for example on speeds that the file lacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from simcoll import units
from simcoll.config import input_files, yaml_tree
from simcoll.config.input_files import ImportLog, decoded
from simcoll.errors import Diagnostic, InputError, Place, ScheduleError, did_you_mean
from simcoll.formats import measured
from simcoll.formats.measured import gpu_names
from simcoll.formats.recordings import chakra, flight_recorder, kineto, recorded_plan
from simcoll.formats.recordings.events import Recording
from simcoll.formats.schedules import goal, msccl, mscclpp, schedule_json, thread_programs
from simcoll.formats.topologies import infragraph, nccl_xml, networkx_graphs, nvidia_smi, rocm_smi
from simcoll.formats.topologies._sketch import Sketch
from simcoll.schedule.schedule import Schedule
from simcoll.topology.graph import Topology
from simcoll.topology.machine_files import read_machine, template
from simcoll.topology.topology_builder import dump, load_system

MOST_BYTES: Final = 16 * 2**20  # to bound memory; real files are far smaller
MOST_OF_TRACE: Final = 256 * 2**20  # a trace of some steps with its stacks; reading it takes ten times its size


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import: `assumed` is the shipped system that supplies missing speeds; then the collective of a
    schedule or table, and values for further columns of a table."""

    assumed: str | None = None
    collective: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


class Imported(NamedTuple):
    """An imported file: its recognised `kind`, the `text` of the file of simcoll made from it (a topology, a schedule
    or a measured table), the `suffixes` that this file may have, and the notes."""

    kind: str
    text: str
    suffixes: tuple[str, ...]
    notes: ImportLog


Reader = Callable[[str, str, ImportOptions], Imported]


def read_bounded(path: Path) -> str:
    """Return the text of a file; raises InputError if it cannot be read or is too large."""
    return decoded(input_files.bytes_of(path, "give the path of a file", MOST_BYTES, "give a part of it"), str(path))


def convert(text: str, source: str, asked: ImportOptions, kind: str | None = None) -> Imported:
    """Convert a text into a file of simcoll; `kind` is a key of `KINDS` (default: recognised). Raises InputError."""
    if kind is None:
        kind = recognise(text)
        if kind is None:
            if not text.strip():
                raise InputError(f"{source}: the file is empty", f"give {_WHAT}")
            known = "; or name the kind of file with --as: " + ", ".join(KINDS)
            raise InputError(f"{source}: the kind of this file is not recognised", f"give {_WHAT}{known}")
    if kind not in KINDS:
        raise InputError(f"{kind!r} is no kind of file", did_you_mean(kind, KINDS))
    try:
        return KINDS[kind].read(text, source, asked)
    except RecursionError:
        raise InputError("nested too deeply", "flatten the file", Place(source, 1, 1)) from None


def recorded(paths: Sequence[Path], asked: ImportOptions) -> Imported | None:
    """Convert recordings of a job, or a folder of them, into the workload of a step: traces, and dumps of PyTorch's
    flight recorder. Return None if the files are none. Raises InputError for damaged files, or a folder without any."""
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    read, notes = list[Recording](), ImportLog()
    for path in files:
        if not path.is_file():
            continue
        source = str(path)
        data = input_files.bytes_of(path, "give the path of a file", MOST_OF_TRACE, "trace fewer steps", pickled=True)
        data = input_files.unpacked(data, source, MOST_OF_TRACE)
        if flight_recorder.looks(data):
            read.append(flight_recorder.read(data, source))
        elif kineto.looks(data):
            read.append(kineto.read(data, source, asked.columns.get("step"), notes))
        elif chakra.looks(data):
            read.append(chakra.read(data, source, len(files), notes))
        else:
            continue
        if read[-1].rank is None and not flight_recorder.looks(data):
            read[-1].rank = flight_recorder.rank_of(source) if len(files) > 1 else 0
        if read[-1].rank is None:
            raise InputError(f"{source}: the rank is not known", "end the name in the rank, e.g. trace_0")
        if read[-1].rank in [each.rank for each in read[:-1]]:
            raise InputError(f"{source}: a second file of rank {read[-1].rank}", "give one file a rank")
    if not read:
        if len(paths) > 1 or paths[0].is_dir():
            raise InputError(
                f"{paths[0]}: no dump of a flight recorder and no trace", "give the files of one job, or one other file"
            )
        return None
    system = asked.assumed or "hgx-h100"
    if asked.assumed is None:
        notes.assume(f"the machine is {system}; --assume NAME takes another")
    gpus = load_system(system).counts.get("gpu") or 1
    try:
        ranks = int(asked.columns["ranks"]) if "ranks" in asked.columns else None
        cap = units.parse(asked.columns.get("bucket_cap", "0 B"), "size")
    except ValueError as error:
        raise InputError(f"--set: {error}", "write e.g. --set ranks=64, or --set 'bucket_cap=100 MiB'") from None
    written = recorded_plan.plan(read, system, gpus, notes, ranks, cap)
    return Imported("workload", written, (".yaml", ".yml"), notes)


_WHAT: Final = (
    "nvidia-smi topo -m, rocm-smi --showtopo, XML of NCCL or MSCCL, JSON of MSCCL++, GOAL, infragraph, GraphML, "
    "node-link JSON, a measured table, or a trace of torch.profiler or Chakra"
)
_ROOT: Final = re.compile(r"<([A-Za-z_][\w.-]*)")
_REMARK: Final = re.compile(r"<!--.*?(-->|\Z)|<\?.*?(\?>|\Z)", re.DOTALL)


def recognise(text: str) -> str | None:
    """Return the kind of file that a text is from, by a feature that no other kind has; None if no kind fits."""
    return next((name for name, kind in KINDS.items() if kind.looks(text)), None)


def _root(name: str) -> Callable[[str], bool]:
    """Return a function that tests whether a text is XML with a root of this name."""

    def looks(text: str) -> bool:
        start = text.lstrip("\ufeff \t\r\n")[:65536]
        root = _ROOT.search(_REMARK.sub("", start)) if start.startswith("<") else None
        return root is not None and root[1] == name

    return looks


def _json(looks: Callable[[str], bool]) -> Callable[[str], bool]:
    """Return a function that tests whether a text begins like a JSON mapping and `looks` accepts it."""
    return lambda text: text.lstrip("\ufeff \t\r\n").startswith("{") and looks(text)


def _topology(reader: Callable[[str, str, str | None], Sketch]) -> Reader:
    def read(text: str, source: str, asked: ImportOptions) -> Imported:
        sketch = reader(text, source, asked.assumed)
        written = _loadable(sketch.document(Path(source).name), source)
        return Imported("topology", written, (".yaml", ".yml"), sketch.notes)

    return read


def _graph(reader: Callable[[str, str, str | None, ImportLog], Topology]) -> Reader:
    def read(text: str, source: str, asked: ImportOptions) -> Imported:
        notes = ImportLog()
        written = _loadable(dump(reader(text, source, asked.assumed, notes)), source)
        return Imported("topology", written, (".yaml", ".yml"), notes)

    return read


def _loadable(written: str, source: str) -> str:
    """Return the text of a topology file unchanged, after loading it once, so that a bad file is refused at its import.
    Raises InputError that names the key in the file to be written."""
    try:
        machine = read_machine(yaml_tree.parse(written, source))
        template(machine.file, machine.tree)
    except InputError as error:
        raise InputError([replace(wrong, place=Place(source, 1, 1)) for wrong in error.diagnostics]) from None
    return written


def _schedule(reader: Callable[[str, str, str | None, ImportLog], Schedule]) -> Reader:
    def read(text: str, source: str, asked: ImportOptions) -> Imported:
        notes = ImportLog()
        try:
            schedule = reader(text, source, asked.collective, notes)
        except ScheduleError as error:
            cure = "it does not do what its collective promises"
            raise InputError([Diagnostic.of(error, "", Place(source, 1, 1), cure=cure)]) from None
        notes.read.append(f"proved: {schedule.n_steps} steps, {schedule.messages} messages")
        return Imported("schedule", schedule_json.dump(schedule), (".json",), notes)

    return read


def _msccl(text: str, source: str, asked: ImportOptions) -> Imported:
    """Import an MSCCL program. If a file has several, `--set name=NAME` or `--set program=N` chooses one."""
    programs = list(re.finditer(r"<algo\b.*?(?:</algo\s*>|\Z)", text, re.DOTALL))
    if len(programs) > 1:
        titles = [re.search(r"""\bname=["'](.*?)["']""", program[0]) for program in programs]
        names = [title[1] if title else "?" for title in titles]
        numbers = range(1, len(programs) + 1)
        name, number = asked.columns.get("name"), asked.columns.get("program")
        chosen = [n for n in numbers if name in (None, names[n - 1]) and number in (None, str(n))]
        if len(chosen) != 1:
            listed = ", ".join(f"{n}: {name}" for n, name in zip(numbers, names, strict=True))
            alone = next((name for name in names if names.count(name) == 1), None)
            cure = f"choose one by its number, --set program={numbers[-1]}"
            cure += f", or by its name: --set name={alone}" if alone else ""
            raise InputError(f"{source}: {len(programs)} programs, {listed}", cure)
        kept = programs[chosen[0] - 1]
        text = "\n" * text.count("\n", 0, kept.start()) + kept[0]  # keeps line numbers
    return _schedule(msccl.read)(text, source, asked)


def _table(text: str, source: str, asked: ImportOptions) -> Imported:
    defaults = {**({"collective": asked.collective} if asked.collective else {}), **asked.columns}
    rows = measured.parse_measured(text, source, defaults)
    if given := defaults.get("collective"):
        there = sorted({row.collective for row in rows})
        if measured.normal("collective", given) not in there:  # the table names, or implies, another one
            raise InputError(f"no row of {source} is {given}", f"collective is {', '.join(there)} there; leave it out")
    notes = ImportLog()
    collectives, ranks, libraries = (
        ", ".join(sorted({str(getattr(row, column) or "not named") for row in rows}))
        for column in ("collective", "ranks", "library")
    )
    count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    notes.read.append(f"{count}: {collectives}; {ranks} ranks; library {libraries}")
    for remark in measured.remarks(text, source, rows):
        notes.warn(remark)
    sources = sorted({row.timing for row in rows if row.timing})
    if sources:
        notes.read.append(f"timed by {', '.join(sources)}")
    gpu = load_system(asked.assumed).gpu if asked.assumed else None
    if gpu and asked.assumed and (odd := gpu_names.contradiction(rows, asked.assumed, gpu.model)):
        notes.warn(odd)
    kept = list(dict.fromkeys(name for row in rows for name in row.others if name.startswith("env.")))
    if kept:
        notes.read.append(f"of the environment: {', '.join(kept)}; the rest is dropped")
    for column in ("nodes", "dtype"):
        if any(getattr(row, column) is None for row in rows):
            notes.warn(f"the file has no {column}; add --set {column}=VALUE")
    return Imported("measured table", measured.dump(rows), (".csv",), notes)


def _own(text: str, source: str, asked: str | None, notes: ImportLog) -> Schedule:
    """Return the schedule of a text in simcoll's own format, proved; `asked` is the expected collective, if any."""
    schedule = schedule_json.parse(text, source)
    thread_programs.prove(schedule)
    notes.read.append(f"{schedule.name} of {schedule.n} ranks")
    return schedule


class FileKind(NamedTuple):
    """A kind of file: a function that tests whether a text looks like this kind, and a function that reads it."""

    looks: Callable[[str], bool]
    read: Reader


KINDS: Final[Mapping[str, FileKind]] = {  # tried in this order
    "nccl-topology": FileKind(_root(nccl_xml.TOPOLOGY_ROOT), _topology(nccl_xml.read_topology)),
    "nccl-graph": FileKind(_root(nccl_xml.GRAPHS_ROOT), _topology(nccl_xml.read_graphs)),
    "graphml": FileKind(_root(networkx_graphs.GRAPHML_ROOT), _graph(networkx_graphs.read_graphml)),
    "msccl": FileKind(_root(msccl.ROOT), _msccl),
    "rocm-smi": FileKind(rocm_smi.looks, _topology(rocm_smi.read)),
    "nvidia-smi": FileKind(nvidia_smi.looks, _topology(nvidia_smi.read)),
    "schedule": FileKind(_json(schedule_json.looks), _schedule(_own)),
    "mscclpp": FileKind(_json(mscclpp.looks), _schedule(mscclpp.read)),
    "goal": FileKind(goal.looks, _schedule(goal.read)),
    "infragraph": FileKind(infragraph.looks, _topology(infragraph.read)),
    "node-link": FileKind(_json(networkx_graphs.looks_like_node_link), _graph(networkx_graphs.read_node_link)),
    "measured": FileKind(measured.looks, _table),
}
