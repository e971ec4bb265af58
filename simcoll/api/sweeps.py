"""Sweeps, and how Python values (mappings, objects, arrays, numbers) become texts like those in scenario files."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import re
import tempfile
from collections import deque
from collections.abc import Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simcoll.api.results import Results
from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import OptionValue
from simcoll.errors import Diagnostic, InputError, Place, RefusedError
from simcoll.formats.schedules import schedule_json
from simcoll.prediction.result_rows import to_csv
from simcoll.scenario import scenario_files
from simcoll.scenario.scenario import Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.schedule.names import collective_named
from simcoll.schedule.schedule import Schedule
from simcoll.topology import topology_builder
from simcoll.topology.graph import Topology
from simcoll.units import MOST_DIGITS, unboxed

# keys of bytes, of B/s and of seconds: no other mapping of a scenario has them for something else
_SIZES: Final = frozenset({"size", "chunk", "bucket_cap", "first_bucket", "activations", "parameters"})
_PREFIX: Final = str(Path(tempfile.gettempdir()) / "simcoll-")  # of the folder with the files of objects
# … and of a place in such a file: the user knows only the name of the object
_FILE: Final = rf"{re.escape(_PREFIX)}\w+/[0-9a-f]+/([^/\n]+?)\.(?:json|yaml|csv)(?::\d+:\d+(?=:))?"
_MOST_BITS: Final = int(MOST_DIGITS * 3.32)  # of a number of as many digits
_WITHIN: Final = frozenset({"from", "to", "step", "value"})  # keys of a range and of a spread, whose quantity they are
_OPTIONS: Final = {"on": "topology", "nodes": "topology.nodes"}  # options of the commands, and the keys that they set
_RATES: Final = frozenset({"bandwidth", "channel_bandwidth"})
_TIMES: Final = frozenset({
    "latency", "o_send", "o_recv", "g", "arrivals", "at", "until", "down_for", "period", "detection", "timeout",
    "median", "mean", "low", "high", "forward", "backward", "optimizer", "experts", "local", "time",
})  # fmt: skip


def _name(key: str) -> str:
    """Return the key of a scenario that a keyword means, e.g. `model.sharing` for `model__sharing`."""
    return _OPTIONS.get(key, key).replace("__", ".")


class Sweep:
    """A scenario whose keys may have lists and ranges of values. It starts from a shipped scenario, a file, a mapping
    or a collective, or from keys alone. Keys that you give here override the keys of the scenario.

    Keys are those of a scenario file. Write a nested key with two underscores: `model__sharing="fifo"`. `on` and
    `nodes` are the machine (`topology`) and the number of its nodes, as in the options of the commands. `topology` may
    be a name, a mapping, a `Topology` or a networkx graph. `algorithm` may be a name or a `Schedule`. Sizes, bandwidths
    and times may be numbers of bytes, B/s and seconds. If keys are wrong, `points` raises InputError with every
    mistake.

    >>> sweep = Sweep(topology="hgx-h100", collective="all_reduce", algorithm=["ring", "tree"], size=2**20)
    >>> [point.scenario.algorithm for point in sweep.points]
    ['ring', 'tree']
    >>> len(Sweep("all_reduce", on="hgx-h100", nodes=[1, 2], size="64 MiB"))
    2
    """

    def __init__(self, source: str | Path | Mapping[str, Any] | Sweep | None = None, /, **keys: Any):
        keys = {key: _kept_values(value) for key, value in keys.items()}
        self.keys: dict[str, Any] = keys
        self.source: str | Path | Mapping[str, Any] | None
        if isinstance(source, str) and collective_named(source) and not Path(source).exists():
            source = {"collective": source}
        if isinstance(source, Sweep):
            given = set(map(_name, keys))
            kept = {key: value for key, value in source.keys.items() if _name(key) not in given}
            self.source, self.keys = source.source, {**kept, **keys}
        else:
            self.source = _kept_values(source) if isinstance(source, Mapping) else source

    @functools.cached_property
    def points(self) -> list[Point]:
        """One point for each combination of values. The last key varies fastest."""
        if self.source is None or isinstance(self.source, Mapping):
            tree = yaml_tree.located(spelt(dict(self.source or {})), Place("scenario", 1, 1))
        else:
            tree = scenario_files.read_scenario(str(self.source))
        named: dict[str, tuple[str, Any]] = {}
        for key, value in self.keys.items():
            if (name := _name(key)) in named:
                raise InputError(f"{key}= and {named[name][0]}= are the same key, {name}", "give one of them")
            named[name] = (key, value)
        parents_first = sorted(named.items(), key=lambda each: each[0].count("."))
        for name, (key, value) in parents_first:
            node = yaml_tree.located(_spelt_at(name, value), Place(f"{key}=", 1, 1))
            tree = scenario_files.with_machine(yaml_tree.put(scenario_files.with_machine(tree), name, node))
        return scenario_files.points(tree)

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __repr__(self) -> str:
        words = [
            *([repr(self.source)] if self.source is not None else []),
            *(f"{k}={v!r}" for k, v in self.keys.items()),
        ]
        return f"Sweep({', '.join(words)})"


Asked = str | Path | Mapping[str, Any] | Sweep | Scenario | Point | Sequence[Point] | None


Machine = Any  # a name, a file, the key `topology` of a scenario, a Topology, or a networkx graph


def points_of(asked: Asked, keys: Mapping[str, Any]) -> list[Point]:
    """Return the points that `asked` means (see `run`); `keys` override its own keys. Raises InputError."""
    if isinstance(asked, Scenario):
        asked = Point(asked)
    if isinstance(asked, Point):
        asked = [asked]
    if asked is None or isinstance(asked, str | Path | Mapping | Sweep):
        return Sweep(asked, **keys).points
    made = isinstance(asked, list | tuple) and all(isinstance(point, Point) for point in asked)
    if keys and made:
        raise InputError("keys change a sweep, not a list of points", "give the keys to `Sweep(...)` or `load(...)`")
    if not made:
        cure = "give a collective, a scenario's name or file, a mapping, a Sweep, or points"
        raise InputError(f"{type(asked).__name__} is no scenario", cure)
    return list(asked)


def sets_of(keys: Mapping[str, Any]) -> list[str]:
    """Return keys as texts that `--set` takes; error messages call them by their keywords."""
    paths = {key: key.replace("__", ".") for key in keys}
    return [OptionValue(paths[key], json.dumps(_spelt_at(paths[key], keys[key])), f"{key}=") for key in keys]


_COMMAND: Final = r"simcoll [a-z]+[^;`]*"  # whose options stay as they are
_CONDITION: Final = r"--(where|filter|fit) ([\w.]+)=([^\s;,]+)"
_VALUED: Final = r"--(on|size|ranks|profile|jobs) (?=[\w./'-])"
_OPTION: Final = r"--set (?=[\w.]+=)|--([a-z][a-z-]*)"


def _in_python(text: str) -> str:
    """Return a message with Python's arguments in place of command-line options.

    >>> _in_python("keep one value with --filter ranks=8, or name fewer with --among")
    "keep one value with filter={'ranks': '8'}, or name fewer with among="
    """

    def said(found: re.Match[str]) -> str:
        command, of, column, value, valued, option = found.groups()
        if command:
            return command
        name = valued or option
        return f"{of}={{{column!r}: {value!r}}}" if of else f"{name.replace('-', '_')}=" if name else ""

    return re.sub(rf"({_COMMAND})|{_CONDITION}|{_VALUED}|{_OPTION}", said, text)


@contextmanager
def python_words() -> Iterator[None]:
    """Make errors that are raised in this context name Python's arguments in place of command-line options."""
    try:
        yield
    except InputError as error:
        error.diagnostics = tuple(map(_of_objects, error.diagnostics))
        error.args = ("\n".join(map(str, error.diagnostics)),)
        raise
    except RefusedError as error:
        error.args = (named(_in_python(str(error))),)
        raise


def _of_objects(wrong: Diagnostic) -> Diagnostic:
    """Return an error with arguments in place of options, and with an object's name in place of its temporary file."""
    words = {part: named(_in_python(getattr(wrong, part))) for part in ("what", "cure", "path")}
    if wrong.place and (name := named(wrong.place.source)) != wrong.place.source:
        return replace(wrong, **{**words, "path": ": ".join(filter(None, [name, words["path"]]))}, place=None)
    return replace(wrong, **words)


def machine(topology: Machine) -> str:
    """Return a topology as the text that `--on` takes: a name, a file's path, or JSON."""
    plain = spelt(topology, "topology")
    if isinstance(plain, str):
        return plain
    if set(plain) in ({"system"}, {"file"}):
        return str(next(iter(plain.values())))
    return json.dumps(plain)


def _listed(value: Any) -> Any:
    """Return an iterator or a view as a list; any other value unchanged.

    Raises InputError for an endless iterator, and for a set, whose order differs between processes.
    """
    if isinstance(value, Set) and not isinstance(value, KeysView):
        raise InputError(f"{value!r} has no order", "give a list: sorted(…)")
    if not isinstance(value, Iterator | KeysView | ValuesView | deque):
        return value
    most = scenario_files.MAX_VARIANTS
    values = list(itertools.islice(value, most + 1))
    if len(values) > most:
        raise InputError(f"a {type(value).__name__} of more than {most} values", "give fewer")
    return values


def _kept_values(value: Any) -> Any:
    """Return a value with lists in place of iterators, at any depth, because a sweep reads its keys repeatedly."""
    value = _listed(value)
    if isinstance(value, Mapping):
        return {name: _kept_values(each) for name, each in value.items()}
    return [_kept_values(each) for each in value] if type(value) is list else value


def _spelt_at(path: str, value: Any) -> Any:
    """Return the value of a dotted key as a scenario file writes it; experts are counted here, and take time below."""
    return spelt(value, "" if path == "moe.experts" else path.rsplit(".", 1)[-1])


def spelt(value: Any, key: str = "") -> Any:
    """Return a value as a scenario file writes it: objects as file names, bytes and B/s as numbers with units."""
    value = _listed(unboxed(value))
    if type(value).__module__.startswith("networkx."):  # which is loaded then, and not else
        value = Topology.from_graph(value)
    if isinstance(value, Topology):
        return (
            dict(value.spec) if value.spec else {"file": str(_kept(topology_builder.dump(value), value.name, ".yaml"))}
        )
    if isinstance(value, Schedule):
        return str(_kept(schedule_json.dump(value), value.algorithm or "schedule", ".json"))
    if isinstance(value, Mapping) and "hidden" in value:  # a transformer's shapes, of which none has a unit
        return {name: _listed(unboxed(each)) for name, each in value.items()}
    if isinstance(value, Mapping):
        inside = _WITHIN if key in _SIZES | _RATES | _TIMES else frozenset()
        of_ranks, counted = key == "arrivals", {"experts"} if "hidden" in value else set()  # else their time
        return {
            name: spelt(each, key if of_ranks or name in inside else "" if name in counted else name)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple | range):
        return [spelt(child, key) for child in value]
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise InputError(f"{key}: a number of more than {MOST_DIGITS} digits", "give a smaller one")
    if key in _TIMES and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value!r} s"
    if key in _SIZES | _RATES and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or value != int(value):
            cure = "give whole bytes (convert an array by `.astype(int)`), or a text: '64 MiB'"
            raise InputError(f"{key}: {value} is no whole number", cure)
        return f"{int(value)} {'B' if key in _SIZES else 'B/s'}"
    return str(value) if isinstance(value, Path) else value


def file_of(what: Any) -> str:
    """Return the path of a temporary file with this schedule, topology or results; a text is returned unchanged."""
    if isinstance(what, Results):
        return str(_kept(to_csv(what.rows()), "results", ".csv"))
    plain = spelt(what)
    return machine(what) if isinstance(plain, Mapping) else str(plain)


def named(answer: Any) -> Any:
    """Return an answer with the names of schedules and topologies in place of their temporary files."""
    if isinstance(answer, str):
        return re.sub(_FILE, r"\1", answer) if _PREFIX in answer else answer
    if isinstance(answer, dict):
        return {key: named(value) for key, value in answer.items()}
    return [named(each) for each in answer] if isinstance(answer, list) else answer


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder for temporary files of objects; it is removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix=Path(_PREFIX).name)


def _kept(text: str, name: str, suffix: str) -> Path:
    """Return a temporary file with this text; equal texts share one file."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    file = Path(_folder().name) / digest / f"{name.replace('/', '-')}{suffix}"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return file
