"""Read the tables that nccl-tests and rccl-tests of any version print, by the words of their headers.

The text may be a whole log: several tests one after the other, labels before each line, NCCL's debug output between
lines or within a line, colours, and bars of a Markdown table. A header may lack its `#` (a heading in Markdown). It may
even be missing, if only one header fits the rows. The reader skips rows without a complete out-of-place part, and rows
of 0 bytes (fewer elements than ranks). Some programs have no in-place part. Sizes are total bytes, times microseconds.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Final, NamedTuple

from simcoll.errors import Diagnostic, InputError, Place
from simcoll.formats.debug_logs.log_lines import FROM, RANK_LIST, VERSION
from simcoll.formats.measured.measured_row import SAME, LocatedCells, alone, fitting_ranks, unsaid, wrong_cell
from simcoll.nccl.algorithm_names import MESSAGES
from simcoll.schedule import names
from simcoll.schedule.collectives import COLLECTIVES

# NCCL's debug output `host:pid:tid [device] …`, to the end of the line. No space may separate it from the number
# before. After the root -1 (no root) the host may begin with a digit. Elsewhere only hosts that also begin lines may.
_HOST: Final = r"^\S{1,253}|(?<=\s-1)[\w.\-]{1,253}|[A-Za-z][\w.\-]{0,252}"
_BEGINS: Final = re.compile(rf"^([\w.\-]{{1,253}}){FROM}", re.MULTILINE)
_DRESS: Final = re.compile(  # colours of a terminal, bars of a table, quotes of JSON and YAML with what follows a line
    r"""\x1b\[[0-9;]*[A-Za-z]|\||(?:\\n)?["'](?:\s*[,}].*)?$|["']"""
)
_UNIT: Final = re.compile(r"\((?:B|bytes|elements|us|GB/s)\)")  # units in a header of one line
_HEADER: Final = re.compile(r"(?<![^\s#])(size\s+(?:count\s+)?type\s.*)|#\s*(size\s.*)")
_BEGUN: Final = re.compile(
    r"(?<!\S)[0-9]+\s+[0-9]+(?:\s+[a-z]\w*){0,2}(?:\s+-)?\s*$"
)  # the beginning of a row: its size, its count and more
_CALL: Final = re.compile(r"\bNCCL INFO (\w+): opCount ")
_VERDICT: Final = re.compile(r"Out of bounds values\s*:\s*([0-9]+)\s+(\w+)")  # a line below a table
_FINISHED: Final = re.compile(r"Out of bounds values|Avg bus bandwidth")
_CUT: Final = re.compile(
    r"\s*([0-9]{1,18})\s+([0-9]{1,18})(?:\s+[a-z]\w*){0,2}\s*"
)  # a row, cut off in its first columns
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|N/A|[-+]?(?:nan|inf)")
_RANK_0: Final = re.compile(r"\bRank\s+0\s+(?:Group\s+0\s+)?Pid\b")
_WORD: Final = re.compile(r"\S+")
_LABEL: Final = re.compile(r"\s*(\S{0,252}[:>\]])")  # of a launcher, before a line and perhaps within it
_COMM: Final = re.compile(rf"([\w.\-]{{1,253}}){FROM}.*\brank ([0-9]+) nranks ([0-9]+)\b", re.IGNORECASE)
_LOOP: Final = re.compile(r"(?<!warmup )(?<!agg )\biters:\s*([1-9][0-9]{0,6})\b(?!.*\bagg iters: (?!1\b))")
_THREADS: Final = re.compile(r"\bnThread\s+([1-9][0-9]{0,5})\s+nGpus\s+([1-9][0-9]{0,5})\b")
_PROGRAM: Final = re.compile(r"(?<![a-z_])([a-z][a-z_]*)_perf(?![\w/.])")  # the program, not its folder
_CODE: Final = re.compile(r"\bnccl-library=([0-9]{4,6})\b")  # NCCL_VERSION_CODE in nccl-tests from 2.17 on
_FORCED: Final = {  # settings in a command line, in NCCL's debug output, or in simcoll's own tables
    "algorithm": re.compile(r"NCCL_ALGO(?:=| set by environment to )['\"]?([\w^,;:]+)|_perf, algorithm (\w+)"),
    "protocol": re.compile(r"NCCL_PROTO(?:=| set by environment to )['\"]?([\w^,;:]+)"),
}
CURE: Final = (
    "give CSV with the columns collective,ranks,size_bytes,time_us, or the output of nccl-tests, rccl-tests, "
    "OSU or Intel MPI benchmarks, best with its header"
)
_MEASURED: Final = frozenset(names.spellings(names.COLLECTIVES, lambda row: row.nccl_tests))
_TYPES: Final = frozenset(names.spellings(names.DTYPES, lambda row: row.nccl_tests).values())
_LEAD: Final = {"count": r"[0-9]+", "type": r"[a-z]\w*", "redop": r"[a-zA-Z]\w*", "root": r"-?[0-9]+"}
_OPERATORS: Final = ("sum", "prod", "min", "max", "avg", "mulsum", "none")
_OPERATOR: Final = re.compile("|".join(_OPERATORS))
_TYPED: Final = re.compile(rf"(?<!\S)[0-9]+\s+[0-9]+\s+(?:{'|'.join(_TYPES)})\s+$")  # a row up to its type
_ROW: Final = re.compile(  # a row of a table without header
    rf"(?<!\S)(?P<size>[0-9]{{1,18}})\s+[0-9]+\s+(?:{'|'.join(_TYPES)})(?:\s+(?P<redop>{'|'.join(_OPERATORS)}))?"
    r"(?P<numbers>(?:\s+\S+){3,9})\s*$"
)
# Columns after type and operation: with or without a root, two parts or one, each with or without `#wrong`.
_LAYOUTS: Final = tuple(itertools.product(("root ", ""), ("time algbw busbw #wrong", "time algbw busbw"), (2, 1)))
_PARTS: Final = ("all_gather", "reduce_scatter")
_ROUNDED: Final = 0.0051, 0.01  # rounding errors of printed numbers: GB/s of a bandwidth, share of a time
_TAIL: Final = ("time", "algbw", "busbw", "#wrong", "error")
LONGEST: Final = 10_000  # most characters of a line that may be a row
_COLUMN: Final = {"size": "size_bytes", "type": "dtype", "time": "time_us"}


@dataclass
class _Test:
    """One table: its header, the lines before it, its rows (header word → cell), collectives in debug output."""

    place: Place
    before: list[str]
    lead: re.Pattern[str]
    tail: list[str]
    rows: list[LocatedCells] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)  # numbers of unreadable lines that look like rows
    calls: set[str | None] = field(default_factory=set)
    unfinished: list[str] = field(default_factory=list)  # lines before tables that had not ended when this one began


def looks(text: str) -> bool:
    """Return whether a text has the header of a table of nccl-tests, or rows that show their header."""
    return _has_header(text) or _bare(text) is not None


def _has_header(text: str) -> bool:
    debug = _debug("")
    return any("size" in line and _header(_plain(line, debug), Place("", 1, 1), []) for line in text.splitlines())


def _bare(text: str) -> str | None:
    """Return the header for a text that lacks one, if exactly one known header fits its rows; else None."""
    if _has_header(text):
        return None
    debug = _debug(text)
    return _header_of([_plain(line, debug) for line in text.splitlines()])


def _header_of(lines: Sequence[str]) -> str | None:
    """Return the only header that fits all rows among the lines; None if there is no row, or not exactly one header.

    A header fits a row if the numbers of columns agree, and each bandwidth is the size divided by the time.
    """
    rows = [match for line in lines if (match := _ROW.search(line))]
    rows = [row for row in rows if all(_NUMBER.fullmatch(word) for word in row["numbers"].split())]
    operation = "redop " if any(row["redop"] for row in rows) else ""
    fitting = [
        f"size count type {operation}{root}{' '.join([run] * runs)}"
        for root, run, runs in _LAYOUTS
        if rows and all(_fits(row, bool(root), len(run.split()), runs) for row in rows)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _fits(row: re.Match[str], rooted: bool, length: int, runs: int) -> bool:
    words = row["numbers"].split()
    if len(words) != rooted + length * runs or (rooted and not re.fullmatch(r"-?[0-9]+", words[0])):
        return False
    parts = [words[rooted + length * run :] for run in range(runs)]
    return all(_is_run(int(row["size"]), part) for part in parts)


def _is_run(size: int, words: Sequence[str]) -> bool:
    """Return whether the first two words are a time (us) and the bandwidth (GB/s) of `size` bytes in this time."""
    if words[0] == "N/A":
        return words[1] == "N/A"
    time_us, algbw = float(words[0]), float("nan") if words[1] == "N/A" else float(words[1])
    most, share = _ROUNDED
    return time_us > 0 and math.isfinite(algbw) and abs(size / time_us / 1e3 - algbw) <= most + share * algbw


def cells(text: str, source: str, given: LocatedCells, chosen: bool = False) -> list[LocatedCells]:
    """Return the cells of every row, with their places: columns of measured tables and some of nccl-tests' own.

    If the text does not name the collective, it is inferred from busbw/algbw, redop and root; `timing` then says so. If
    several fit, the `given` collective is used. With `chosen`, tables that cannot be of the given collective are
    skipped. Raises InputError if neither the text nor `given` has collective or ranks.
    """
    mistakes: list[Diagnostic] = []
    unnamed: list[Diagnostic] = []
    rows: list[LocatedCells] = []
    common, verdicts, members = _library(text), _VERDICT.findall(text), _members(text)
    sound = bool(verdicts) and all(each == ("0", "OK") for each in verdicts)
    runs: dict[frozenset[str], str] = {}  # of different hosts
    for test in _tests(text, source):
        if test.rows and (said := _said(test, members, given, mistakes, unnamed)) is not None:
            hosts = frozenset(match["host"] for line in test.before for match in RANK_LIST.finditer(line))
            of_all = common | said | {"run": (runs.setdefault(hosts, str(len(runs) + 1)), test.place)}
            if sound:  # other text in the number's cell was glued to it
                test.rows = [{column: cell for column, cell in row.items() if column != "wrong"} for row in test.rows]
            own = {"size_bytes", "dtype", "redop", "root", "time_us", "in_place_time_us", "wrong"}
            rows += [{c: cell for c, cell in row.items() if c in own} | of_all for row in test.rows]
    rows = [{c: cell for c, cell in row.items() if c != "run" or len(runs) > 1} for row in rows]
    if mistakes or (unnamed and not (rows and chosen and "collective" in given)):
        raise InputError([*mistakes, *unnamed])
    return rows


def unread(text: str) -> list[int]:
    """Return the numbers of unreadable lines that look like rows: damaged, cut off, or without an out-of-place time."""
    return [line for test in _tests(text, "") for line in test.unread]


def _tests(text: str, source: str) -> list[_Test]:
    tests: list[_Test] = []
    bare = _bare(text)
    before: list[str] = []
    partial: LocatedCells = {}
    values: list[tuple[str, Place | None]] = []
    debug = _debug(text)
    label = held = ""  # held: the beginning of a row that debug output cut off, in line held_at
    held_at = 0
    for number, full in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        if not full:
            continue
        line = _plain(full, debug)
        cut = len(line) < len(full)
        if test := _header(line, Place(source, number, 1), before):
            _end(tests, partial, values)
            if tests and not any(_FINISHED.search(each) for each in before):  # perhaps another run, whose rows follow
                test.unfinished = [*tests[-1].unfinished, *tests[-1].before]
            tests.append(test)
            before, partial, held = [], {}, ""
            continue
        if tests and (call := _CALL.search(full)):
            tests[-1].calls.add(names.collective_named(call[1]))
        if bare and not tests and (test := _header(bare, Place(source, number, 1), before)) and test.lead.search(line):
            tests.append(test)
            before = []
        start = tests[-1].lead.search(line) if tests else None
        if held and (whole := _joined(held, line, tests[-1].lead)):
            line, start = whole.string, whole
            tests[-1].unread = [begun for begun in tests[-1].unread if begun != held_at]
        if start:
            _end(tests, partial, values)
            partial = {
                _COLUMN.get(word, word): (text, Place(source, number, start.start(word) + 1))
                for word, text in start.groupdict().items()
                if text is not None
            }
            values, label = [], line[: start.start()].rstrip()
        after = start.end() if start else len(label) if line.startswith(label) else 0
        words = list(_WORD.finditer(line, after))
        if start or (partial and words and all(_NUMBER.fullmatch(word[0]) for word in words)):
            values += [(word[0], Place(source, number, word.start() + 1)) for word in words]
            if len(values) >= len(tests[-1].tail):
                _complete(tests[-1], partial, tests[-1].tail, values)
                partial = {}
            held = ""
        else:
            before.append(full)
            if tests and (_like_a_row(line) or _cut_off(line)):
                tests[-1].unread.append(number)
            if tests and not held.startswith(line.rstrip()):  # a label alone, or nothing
                held, held_at = line if cut else "", number
                if held and _BEGUN.search(held):
                    tests[-1].unread.append(number)
    _end(tests, partial, values)
    for test in tests:
        _doubt(test)
    return tests


def _doubt(test: _Test) -> None:
    """Move rows whose bandwidth is not size / time to `unread`, if most rows of the table have the right bandwidth."""
    with_bandwidth = [row for row in test.rows if _value(row, "algbw") > 0]
    damaged = [
        row for row in with_bandwidth if not _is_run(int(row["size_bytes"][0]), [row["time_us"][0], row["algbw"][0]])
    ]
    if 2 * len(damaged) < len(with_bandwidth):
        test.rows = [row for row in test.rows if not any(row is each for each in damaged)]
        test.unread += [place.line for row in damaged if (place := row["time_us"][1])]


def _joined(held: str, line: str, lead: re.Pattern[str]) -> re.Match[str] | None:
    """Join a row that is broken over two lines, both perhaps with a label; return its match, None if it is no row.

    Lines broken within a word are not joined: the host name of debug output may have absorbed letters of the word.
    """
    label = commonprefix((held, line)).rstrip()  # noqa: RUF071  (texts, not paths)
    rest = line[len(label) :]
    match = lead.search(held + rest)
    if match is None or rest[:1].isalpha() or match.string[: match.start()].rstrip() != label:
        return None
    if lead.search(line) and not (rest[:1].isdigit() and held[len(label) :].strip().isdigit()):
        return None  # the second line is a row by itself, not the rest of a broken number
    words = match.groupdict()
    return match if words["type"] in _TYPES and words.get("redop", "none") in _OPERATORS else None


def _end(tests: list[_Test], partial: LocatedCells, values: list[tuple[str, Place | None]]) -> None:
    """Complete the current row if the log printed only its first, out-of-place part."""
    if partial:
        tail = tests[-1].tail
        part = tail[: tail.index("time", 1)] if "time" in tail[1:] else tail
        _complete(tests[-1], partial, part, values[: len(part)])


def _cut_off(line: str) -> bool:
    """Return whether a line has only the size, the count and perhaps the type of a row."""
    match = _CUT.fullmatch(line)
    return match is not None and int(match[1]) in {int(match[2]) * each for each in (1, 2, 4, 8)} and match[1] != "0"


def _like_a_row(line: str) -> bool:
    """Return whether a line has a data type and at least three decimal numbers, like a row."""
    words = line.split()
    return not _TYPES.isdisjoint(words) and sum("." in word and bool(_NUMBER.fullmatch(word)) for word in words) > 2


def _debug(text: str) -> re.Pattern[str]:
    """Return a pattern for NCCL's debug output within a line, made from the host names that begin lines of the log.

    If a name ends with another name that is more frequent, its beginning is taken for a number of the row.
    """
    seen = Counter(match[1] for match in _BEGINS.finditer(text))
    digits = [host for host in seen if host[0].isdigit()]
    known = [host for host in digits if not any(host.endswith(o) and seen[o] > seen[host] for o in seen if o != host)]
    hosts = "|".join([*(re.escape(host) for host in sorted(known, key=len, reverse=True)), _HOST])
    return re.compile(rf"(?:\[[0-9\-:. ]+\]\s?)?(?:{hosts}){FROM}.*")


def _plain(line: str, debug: re.Pattern[str]) -> str:
    """Return a line without debug output, colours, bars and quotes; the rest keeps its columns. A line too long for a
    row becomes empty.

    If an operator directly precedes the host's name, the operator stays.
    """
    if not line or len(line) > LONGEST:
        return ""
    if (label := _LABEL.match(line)) and line.count(label[1]) > 1:  # a launcher labels each piece that was written
        line = line[: label.end()] + line[label.end() :].replace(label[1], " " * len(label[1]))
    return debug.sub(_glued, _DRESS.sub(lambda dress: " " * len(dress[0]), line))


def _glued(debug: re.Match[str]) -> str:
    """Return the operator that directly precedes a host's name, if the text before it is the beginning of a row."""
    word = _OPERATOR.match(debug[0])
    return word[0] if word and _TYPED.search(debug.string, 0, debug.start()) else ""


def _header(line: str, place: Place, before: list[str]) -> _Test | None:
    match = _HEADER.search(_UNIT.sub("", line))
    words = (match[1] or match[2]).split() if match else []
    if "time" not in words or "type" not in words[: words.index("time")]:
        return None
    lead, tail = words[: words.index("time")], words[words.index("time") :]
    known = [i for i, word in enumerate(tail) if word in _TAIL and word != "time"]
    tail = tail[: max(known, default=0) + 1]  # without what options add, e.g. the time of day
    if len(set(lead)) < len(lead):
        return None
    parts = [rf"\s+(?P<{word}>{_LEAD[word]})" if word in _LEAD else r"\s+\S+" for word in lead[1:]]
    others = "".join(f"(?:{part})?" if "redop" in part else part for part in parts)  # blank in some versions
    return _Test(place, before, re.compile(rf"(?<!\S)(?P<size>[0-9]{{1,18}}){others}(?!\S)"), tail)


def _complete(test: _Test, lead: LocatedCells, tail: list[str], values: list[tuple[str, Place | None]]) -> None:
    """Add a row to the table, or its line to `unread` if it is damaged or lacks a time; skip rows of 0 bytes. If a
    column appears twice, the first is out of place and the second in place; `#wrong` is the sum of both."""
    measured: LocatedCells = {}
    values = values[: len(tail)]  # options of the tests add columns, for example times of day
    for word, value in zip(tail, values, strict=False):
        column = _COLUMN.get(word, word)
        measured.setdefault(f"in_place_{column}" if column in measured else column, value)
    counted = [value for word, value in zip(tail, values, strict=False) if word == "#wrong"]
    measured |= wrong_cell([text for text, _ in counted], counted[0][1] if counted else None)
    sound = len(values) == len(tail) and all(_NUMBER.fullmatch(text) for text, _ in values)
    size, place = lead["size_bytes"]
    if not size.strip("0"):
        return
    if sound and measured["time_us"][0] != "N/A":
        test.rows.append(lead | measured)
    elif place and lead.get("dtype", ("", None))[0] in _TYPES:
        test.unread.append(place.line)


def _library(text: str) -> LocatedCells:
    library = "rccl" if re.search(r"rccl|\+hip[0-9]", text, re.IGNORECASE) else "nccl"
    said = VERSION.search(text)
    version = said[1] if said else _decoded(code[1]) if (code := _CODE.search(text)) else None
    return {"library": (library, None), **({"library_version": (version, None)} if version else {})}


def _decoded(code: str) -> str:
    """Convert NCCL_VERSION_CODE into a version; minor and patch together have three digits before 2.9, then four."""
    major, rest = (code[:-3], code[-3:]) if len(code) < 5 else (code[:-4], code[-4:])
    return ".".join(str(int(part)) for part in (major, rest[:-2], rest[-2:]))


def _said(
    test: _Test, members: _Members, given: LocatedCells, mistakes: list[Diagnostic], unnamed: list[Diagnostic]
) -> LocatedCells | None:
    """Return the cells that all rows of a table share, from the lines before it; None if these are unknown."""
    if mixed := _mixed(test):
        mistakes.append(mixed)
        return None
    timing = ["nccl-tests"]
    programs = [name for line in test.before if "concluded" not in line for name in _PROGRAM.findall(line)]
    called = next(iter(test.calls)) if len(test.calls) == 1 else None  # None for sends and receives
    collective = names.collective_named(programs[-1], in_table=True) if programs else called
    ranks, nodes = _listed(test.before) or members
    known = ranks or (int(given["ranks"][0]) if "ranks" in given else None)
    of_process = [(int(m[1]) * int(m[2]), int(m[2])) for line in test.before for m in _THREADS.finditer(line)]
    silent = all(_value(row, "busbw") == 0 for row in test.rows) and any(_value(row, "algbw") > 1 for row in test.rows)
    if known == 1 or (silent and known is None):
        mistakes.append(alone(test.place))
        return None
    if known is None:
        numbers = {fit.ranks for fit in _fitting(test, collective, None)}
        if len(numbers) == 1 and None not in numbers:
            timing.append("ranks inferred from busbw")
            known = ranks = numbers.pop()
        elif of_process and (None in numbers or _fitting(test, collective, of_process[-1][0])[0].ranks):
            known = ranks = of_process[-1][0]
    if known is None:
        named = collective or "collective" in given
        also = "" if named else ", or names the collective (collective=NAME, unless its columns show it)"
        mistakes.append(unsaid("ranks", test.place, also))
        return None
    fitting = _fitting(test, collective, known)
    candidates = list(dict.fromkeys(fit.collective for fit in fitting))
    if collective is None:
        asked = given.get("collective", ("", None))[0]
        if len(candidates) == 1 and not programs:
            collective = candidates[0]
            timing.append("collective inferred from busbw, redop and root")
        elif asked not in candidates:
            contrary = f", and its columns are not those of {asked}" if asked else ""
            contrary = f": {programs[-1]}_perf runs none that simcoll knows" if programs else contrary
            unnamed.append(unsaid("collective", test.place, contrary, () if programs else candidates))
            return None
    asked = collective or given["collective"][0]
    if asked in candidates and all(fit.of_rank for fit in fitting if fit.collective == asked):
        for row in test.rows:
            row["size_bytes"] = str(int(row["size_bytes"][0]) * known), row["size_bytes"][1]
        timing.append("sizes of one rank's part")
    graph = next((m[1] for line in test.before if (m := re.search(r"\bgraph:\s*([1-9][0-9]*)", line))), None)
    loop = next((m[1] for line in reversed(test.before) if (m := _LOOP.search(line))), None)
    forced = {
        column: [m[m.lastindex or 1] for line in test.before if (m := found.search(line))]
        for column, found in _FORCED.items()
        if collective not in MESSAGES  # for which NCCL reads neither variable
    }
    variable = {"algorithm": "env.nccl_algo", "protocol": "env.nccl_proto"}  # of values that leave a choice
    said = {
        **{(c if texts[-1].isidentifier() else variable[c]): texts[-1] for c, texts in forced.items() if texts},
        "collective": collective,
        "ranks": ranks,
        "nodes": nodes,
        "timing": "; ".join(timing),
        "harness": "graph" if graph else "nccl-tests",
        "launch.graph": "true" if graph else None,
        "launch.replays": graph,
        "launch.gpus_per_process": of_process[-1][1] if of_process else None,
        "launch.calls": loop if of_process and not graph else None,
        "gpu": _gpus(test.before),
    }
    return {column: (str(value), test.place) for column, value in said.items() if value is not None}


def _mixed(test: _Test) -> Diagnostic | None:
    """Return the error for a table of several runs whose lines are mixed; None if all rows are of one run.

    Started by an MPI for which nccl-tests was not built, each process runs the tests by itself. Then sizes occur
    several times, below several lists of ranks. A run that failed and was repeated has each size once.
    """
    before = [*test.unfinished, *test.before]
    runs = max(sum(bool(found.search(line)) for line in before) for found in (_THREADS, _RANK_0))
    sizes = Counter(tuple(row[c][0] for c in ("size_bytes", "dtype", "redop", "root") if c in row) for row in test.rows)
    if runs < 2 or max(sizes.values()) < 2:
        return None
    hosts = list(dict.fromkeys(m["host"] for line in before for m in RANK_LIST.finditer(line)))
    each = len({m["rank"] for line in before for m in RANK_LIST.finditer(line)})
    what = f"{runs} separate runs{f' of {each} rank' + 's' * (each > 1) + ' each' if each else ''}"
    where = f", on {', '.join(hosts)}" * bool(hosts)
    why = "nccl-tests was built without MPI=1, or started by another MPI than it was built with"
    cure = "build it with MPI=1 and run it again, or give the output of one run by itself"
    return Diagnostic(f"{what}{where}, whose lines are mixed: {why}", cure, "", test.place)


_Members = tuple[int | None, int | None]  # ranks and nodes


def _listed(before: list[str]) -> _Members | None:
    """Return the numbers of ranks and hosts of a communicator from the list of its devices, the last one of the text;
    None without a list."""
    listed: dict[str, tuple[str, str]] = {}
    for match in (m for line in before for m in RANK_LIST.finditer(line)):
        if match["rank"] in listed and int(match["rank"]) == 0:
            listed = {}
        listed[match["rank"]] = match["group"], match["host"]
    if not listed:
        return None
    group = next(iter(listed.values()))[0]
    hosts = [host for its_group, host in listed.values() if its_group == group]
    return len(hosts), len(set(hosts))


def _members(text: str) -> _Members:
    """Return the number of ranks that NCCL's debug output says of all communicators, and the number of hosts if each
    rank said so; None for what it does not say."""
    lines = (line for line in text.splitlines() if "ranks " in line.lower())
    found = {(m[3], m[2]): m[1] for line in lines for m in _COMM.finditer(line)}
    numbers = {int(count) for count, _ in found}
    if len(numbers) != 1:
        return None, None
    return (ranks := numbers.pop()), len({*found.values()}) if len(found) == ranks else None


def _gpus(before: list[str]) -> str | None:
    """Return the distinct names of GPUs, separated by commas; None if there are none."""
    return (
        ", ".join(dict.fromkeys(m["gpu"].strip() for line in before for m in RANK_LIST.finditer(line) if m["gpu"]))
        or None
    )


class _Fit(NamedTuple):
    """A collective and a number of ranks (None: any) that fit a table. `of_rank`: sizes are those of a rank's part."""

    collective: str
    ranks: int | None
    of_rank: bool = False


def _fitting(test: _Test, collective: str | None, ranks: int | None) -> list[_Fit]:
    """Return what fits a table, for a known `collective` and number of `ranks`, or for all (None).

    redop, root and busbw/algbw tell, and errors in place, which sends and receives have not (N/A). Before 2020
    all_gather and reduce_scatter counted sizes of one rank's part, and algbw without the rank's own part. If no
    bandwidths fit, all collectives do that fit redop and root.
    """
    best = max(test.rows, key=lambda row: _value(row, "busbw"))
    algbw, busbw = _value(best, "algbw"), _value(best, "busbw")
    reduces = best.get("redop", ("none", None))[0] not in ("none", "")
    rooted = _value(best, "root", -1) >= 0
    messages = not rooted  # send_recv has a root in simcoll, but none in nccl-tests; old ones print an operation for it
    kind = [
        c
        for c in COLLECTIVES.values()
        if (c.name == collective if collective else c.busbw(2) > 0 and c.name in _MEASURED)
        and (collective or (messages if c.name == "send_recv" else c.reduces == reduces and c.rooted == rooted))
    ]
    fits: list[_Fit] = []
    for each in kind:
        of_given = [ranks] if ranks and abs(float(each.busbw(ranks)) * algbw - busbw) <= SAME else []
        fits += [_Fit(each.name, n) for n in (of_given if ranks else fitting_ranks(each, algbw, busbw))]
    parts = algbw * 1e3 * _value(best, "time_us") / int(best["size_bytes"][0])
    if abs(algbw - busbw) <= SAME < abs(busbw) / 10 and abs(parts / (round(parts) or 1) - 1) < _ROUNDED[1]:
        own = round(parts) + 1
        old = [_Fit(c.name, own, True) for c in kind if c.name in _PARTS and ranks in (None, own)]
        fits = old + fits if own == 2 and "root" not in test.lead.groupindex else old or fits if own > 2 else fits
    errors = [(row.get(f"in_place_{word}"), row.get(word)) for row in test.rows for word in ("#wrong", "error")]
    checked = {inside[0] != "N/A" for inside, out in errors if inside and out and out[0] != "N/A"}
    if len(checked) == 1:
        fits = [fit for fit in fits if (fit.collective not in ("send_recv", "all_to_all")) in checked] or fits
    return fits or [_Fit(c.name, None) for c in kind]


def _value(row: LocatedCells, column: str, absent: float = 0.0) -> float:
    text = row.get(column, ("", None))[0]
    return float(text) if _NUMBER.fullmatch(text) and text != "N/A" else absent
