"""Run many points: in order or in parallel, and resumable. Each finished row is appended at once to a log (`Journal`),
under a key made from everything that decides the row. When all rows are there, `results.csv` is written and the logs
are removed. If a run is killed and started again, it computes only the missing rows."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final, Generic, NamedTuple, TypeVar

import simcoll
from simcoll.engine.run import Keep
from simcoll.errors import NO_MEMORY, Diagnostic, InputError, RefusedError, SimcollError, unwritable
from simcoll.prediction import workers
from simcoll.prediction.predict import describe, predict, row
from simcoll.prediction.result_rows import ResultRow, own_pictures, to_csv, write_atomically
from simcoll.scenario.scenario_files import Point
from simcoll.units import format_size

MANIFEST = "manifest.json"
PART: Final = 25  # replications that a worker takes at a time: the same for any number of workers
TOGETHER: Final = 256  # replications of a part if there are no workers

Replicated = Callable[[int, int, int], None]  # called with a point's index, finished and all replications


def key(point: Point) -> str:
    """Return a digest of what decides a point's row: the point, the contents of its files, and simcoll's version."""
    scenario = point.scenario.model_dump_json(exclude={"plots", "measured"})
    parts = [simcoll.__version__, scenario, str(point.optional), point.scenario.contents()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def run_point(point: Point, *, related: bool = False, keep: Keep = "auto") -> ResultRow:
    """Return the row of a point; its `status` says why if there is no time. For `related` and `keep` see `predict`."""
    return _swept(_merged([_row(part, related, keep) for part in parts(point)]), point)


def run_points(points: Sequence[Point], begun: workers.Begun = lambda _: None, keep: Keep = "auto") -> list[ResultRow]:
    """Return the row of each point; `begun(number)` is called before each. For `keep` see `Policy`."""
    rows: list[ResultRow] = []
    for number, point in enumerate(points):
        begun(number)
        rows.append(run_point(point, keep=keep))
    return rows


def parts(point: Point, size: int = TOGETHER) -> Iterator[Point]:
    """Yield parts of the point, each with at most `size` of its replications; the point itself if it has none."""
    count = point.scenario.replications
    if count is None:
        yield point
        return
    for first in range(0, count, size):
        yield replace(point, replicas=(first, min(count, first + size)))


def _merged(shares: Sequence[ResultRow]) -> ResultRow:
    """Return a point's row from the rows of its parts, in order; if a part failed, the first failed row."""
    failed = next((share for share in shares if share.status != "ok"), None)
    if failed or shares[0].times_ps is None:
        return failed or shares[0]
    from simcoll.prediction.replications import merged

    return merged(shares)


def _row(point: Point, related: bool = False, keep: Keep = "auto") -> ResultRow:
    try:
        if point.replicas:
            from simcoll.prediction import replications

            return replications.part(point)
        return row(predict(point.scenario, related=related, keep=keep))
    except RefusedError as error:
        marks = {"left_out": point.optional, "wrong_input": bool(error.path)}
        return describe(point.scenario, refusal(error, point), **marks)
    except InputError as error:
        located = InputError(map(point.placed, error.diagnostics))
        return describe(point.scenario, f"failed: {located}", wrong_input=True, passing=True)
    except SimcollError as error:
        return describe(point.scenario, f"failed: {error}")
    except MemoryError:
        return describe(point.scenario, f"failed: {NO_MEMORY}", passing=True)


def check_answerable(rows: Iterable[ResultRow]) -> None:
    """Raise InputError if every row failed because of wrong input: there would be no result to show."""
    wrong = [row.status.partition(": ")[2] if row.wrong_input else None for row in rows]  # failed, or refused at a key
    mistakes = [reason for reason in wrong if reason is not None]
    if not mistakes or len(mistakes) < len(wrong):
        return
    once: dict[str, str] = {}  # the cure of one mistake may differ from point to point
    for line in "\n".join(mistakes).splitlines():
        once.setdefault(line.partition("; ")[0], line)
    raise InputError(map(Diagnostic.of, once.values()))


def refusal(error: RefusedError, point: Point) -> str:
    """Return the status text for a point that cannot be served, with the place of the key that caused it."""
    return f"refused: {point.placed(Diagnostic.of(error, error.path)) if error.path else error}"


def in_words(point: Point) -> str:
    """Return a short name of a point, for lines of progress."""
    scenario = point.scenario
    where = f"{scenario.ranks} ranks" if scenario.ranks else scenario.topology.title
    more = [f"{name} {value}" for name, value in point.swept.items()]
    if scenario.workload:
        return ", ".join([scenario.workload.template, where, *more])
    return ", ".join([f"{scenario.collective} {scenario.algorithm}", format_size(scenario.nbytes), where, *more])


def sweep(
    points: Sequence[Point],
    jobs: int = 1,
    journal: Journal | None = None,
    *,
    shard: Shard | None = None,
    cluster: str | None = None,
    begun: workers.Begun = lambda _: None,
    replicated: Replicated = lambda *_: None,
) -> Iterator[tuple[int, ResultRow, bool]]:
    """Yield (index, row, reused) for every point of the shard, as rows become ready; `reused`: from the journal.

    The journal keeps finished rows if the run is killed. For `jobs`, `cluster` and `begun` see `workers.compute`.
    `replicated` is called whenever some replications of a point are finished.
    """
    keys = [key(point) for point in points] if journal or shard else []
    known = journal.rows() if journal else {}
    missing = {}
    for index in shard.share(keys) if shard else range(len(points)):
        if known and keys[index] in known:
            yield index, _swept(known[keys[index]], points[index]), True
        else:
            missing[index] = points[index]
    for index, fresh in _computed(missing, jobs, cluster, begun, replicated):
        if journal and not fresh.passing:  # failures that can be mended are tried again
            journal.append(keys[index], fresh)
        yield index, _swept(fresh, points[index]), False


def _computed(
    missing: Mapping[int, Point], jobs: int, cluster: str | None, begun: workers.Begun, replicated: Replicated
) -> Iterator[tuple[int, ResultRow]]:
    """Yield the index and row of every point; workers may share its replications, in parts."""
    size = TOGETHER if jobs == 1 and cluster is None else PART
    tasks = [(index, part) for index, point in missing.items() for part in parts(point, size)]
    count = Counter(index for index, _ in tasks)
    done: dict[int, dict[int, ResultRow]] = defaultdict(dict)

    def begins(number: int) -> None:
        begun(tasks[number][0])

    for number, fresh in workers.compute(_row, dict(enumerate(part for _, part in tasks)), jobs, cluster, begins):
        index = tasks[number][0]
        done[index][number] = fresh
        if whole := missing[index].scenario.replications:
            replicated(index, min(whole, size * len(done[index])), whole)
        if len(done[index]) == count[index]:
            yield index, _merged([row for _, row in sorted(done.pop(index).items())])


def _swept(row: ResultRow, point: Point) -> ResultRow:
    """Return the row with a column for each swept key that has a dot; rows in the journal lack these columns."""
    keys = {path: value for path, value in point.swept.items() if "." in path}
    return row if not keys else replace(row, settings={**row.settings, **keys})


def logged(points: Sequence[Point], journal: Journal) -> dict[int, ResultRow]:
    """Return the journal's rows of these points, by index; other processes may have written them."""
    rows = journal.rows()
    named = {index: key(point) for index, point in enumerate(points)}
    return {index: _swept(rows[name], points[index]) for index, name in named.items() if name in rows}


def ordered(by_index: Mapping[int, ResultRow]) -> list[ResultRow]:
    """Return the rows in order of index, without the algorithms that `algorithm: all` left out, unless all were."""
    rows = [row for _, row in sorted(by_index.items())]
    return [row for row in rows if not row.left_out] or rows


def write(folder: Path, rows: Sequence[ResultRow], points: Sequence[Point], command: str) -> None:
    """Write `results.csv`, then `manifest.json`, which describes the points; remove pictures of other points."""
    for picture in own_pictures(folder / "plots") if replaced(folder, points) else ():
        picture.unlink(missing_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)  # so that it never lies beside results of other points
    write_atomically(folder / "results.csv", to_csv(rows))
    write_atomically(folder / MANIFEST, json.dumps(manifest(rows, points, command), indent=1) + "\n")


def manifest(rows: Sequence[ResultRow], points: Sequence[Point], command: str) -> dict[str, Any]:
    """Return what `manifest.json` holds: a summary of the points, and the program and command that made the rows."""
    return {
        "schema": "simcoll.manifest/1",
        "simcoll": simcoll.__version__,
        "command": command,
        "points": len(points),
        "rows": len(rows),
        "scenarios": sorted({point.scenario.name for point in points}),
        "profiles": sorted({point.scenario.profile for point in points}),
        "keys": _values(points),
        "sweep": _digest(points),
    }


def replaced(folder: Path, points: Sequence[Point]) -> str | None:
    """Return the command that wrote results of other points into the folder; None if there are none."""
    earlier = _manifest_in(folder)
    return str(earlier["command"]) if earlier and earlier["sweep"] != _digest(points) else None


def is_written(folder: Path, points: Sequence[Point]) -> bool:
    """Whether `results.csv` in the folder holds exactly these points."""
    earlier = _manifest_in(folder)
    return bool(earlier) and earlier["sweep"] == _digest(points) and (folder / "results.csv").is_file()


def _manifest_in(folder: Path) -> dict[str, Any]:
    """Return the manifest in a folder; empty if the folder has none, or one of another program."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return dict(found) if {"sweep", "command"} <= set(found) else {}
    except (OSError, ValueError, TypeError):
        return {}


def _digest(points: Sequence[Point]) -> str:
    return hashlib.sha256(" ".join(map(key, points)).encode()).hexdigest()[:24]


def _values(points: Sequence[Point]) -> dict[str, list[Any]]:
    """Return the scenario's keys that are set in some point, each with all its values."""
    values: dict[str, list[Any]] = {}
    for point in points:
        for key, value in point.scenario.model_dump(mode="json", exclude_none=True).items():
            if value not in values.setdefault(key, []):
                values[key].append(value)
    return values


LOG: Final = "results.jsonl"

Row = TypeVar("Row")


class Shard(NamedTuple):
    """Share `number` (1, 2, …) of `of` shares into which the points of a sweep are divided, e.g. 2 of 4."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `2/4`; raises InputError.

        >>> Shard.parse("2/4")
        Shard(number=2, of=4)
        """
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"--shard: {text!r} names no shard", "write I/N with I from 1 to N, e.g. 2/4")
        return cls(int(match[1]), int(match[2]))

    def share(self, keys: Sequence[str]) -> list[int]:
        """Return the indices of the keys in this share, whatever other shares have done. Keys are hashes: taking every
        n-th of the sorted keys mixes sizes and algorithms, so that no share gets all long points."""
        return sorted(sorted(range(len(keys)), key=keys.__getitem__)[self.number - 1 :: self.of])


class RowLog(Generic[Row]):
    """A log of rows by key. `written` converts a row for JSON; `read` converts it back, or raises an error."""

    def __init__(self, own: Path, read: Callable[[Any], Row], written: Callable[[Row], Any]):
        self.own, self._read, self._written = own, read, written

    def _all(self) -> list[Path]:
        return [self.own]

    def rows(self) -> dict[str, Row]:
        """Return the rows of all complete lines, by key."""
        rows = {}
        for log in self._all():
            for line in _text(log).splitlines():
                try:
                    entry = json.loads(line)
                    rows[entry["key"]] = self._read(entry["row"])
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # cut off by a kill, or another program's
        return rows

    def append(self, key: str, row: Row) -> None:
        """Append a row to the log; raises SimcollError if it cannot be written, e.g. on a full disk."""
        line = json.dumps({"key": key, "row": self._written(row)}) + "\n"
        try:
            self.own.parent.mkdir(parents=True, exist_ok=True)
            with self.own.open("a+b") as file:
                file.write(line.encode() if _at_a_line(file) else f"\n{line}".encode())
        except OSError as error:
            raise unwritable(self.own, error) from None

    def drop(self) -> None:
        """Remove all logs of the folder, as results.csv now has their rows."""
        for log in self._all():
            log.unlink(missing_ok=True)


class Journal(RowLog[ResultRow]):
    """The logs of rows in a results folder, one per shard; a run appends to its shard's log and reads all logs."""

    def __init__(self, folder: Path, shard: Shard | None = None):
        self.folder = folder
        name = LOG if shard is None else f"results.{shard.number}of{shard.of}.jsonl"
        super().__init__(folder / name, ResultRow.of, ResultRow.record)

    def _all(self) -> list[Path]:
        return [self.folder / LOG, *sorted(self.folder.glob("results.*of*.jsonl"))]


def _text(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # also when another shard has just written results.csv and removed the logs
        return ""
    except OSError as error:
        raise InputError(f"{log}: cannot be read: {error.strerror}", "give another folder with -o") from None


def _at_a_line(file: IO[bytes]) -> bool:
    """Whether the file ends with a complete line. A kill or a full disk may have cut the last line short."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
