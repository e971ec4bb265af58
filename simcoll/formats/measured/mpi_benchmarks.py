"""Read the tables that the OSU micro-benchmarks and the Intel MPI benchmarks print for collectives.

    # OSU MPI Allreduce Latency Test v7.0          # Benchmarking Allreduce
    # Size       Avg Latency(us) …                 # #processes = 4
    1024                   12.34                         #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]

For all_gather, gather, scatter and all_to_all these programs count the bytes of one rank's part, and simcoll counts the
whole buffer. So the reader multiplies such sizes by the number of ranks; reduce_scatter already counts the whole.
"""

from __future__ import annotations

import re
from typing import Final

from simcoll.errors import InputError, Place
from simcoll.formats.measured.measured_row import LocatedCells, unsaid
from simcoll.schedule import names

_OSU: Final = re.compile(
    r"#\s*OSU (?:MPI|NCCL|XCCL|UPC\S*|OpenSHMEM)?\S*\s*(?:\S+ )?([\w -]+?)\s+Latency Test", re.IGNORECASE
)
_IMB: Final = re.compile(r"#\s*Benchmarking\s+(\w+)")
_RANKS: Final = re.compile(
    r"#\s*#processes\s*=\s*([0-9]+)|#\s*(?:Number of processes|NP)\s*[:=]\s*([0-9]+)", re.IGNORECASE
)
_WORD: Final = re.compile(r"\S+")
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
CURE: Final = "give what OSU's or Intel's MPI benchmarks print, with heads"
_NAMES: Final = names.names_by(names.COLLECTIVES, lambda row: row.mpi)
_PER_RANK: Final = frozenset(("all_gather", "gather", "scatter", "all_to_all"))


def looks(text: str) -> bool:
    """Return whether a text has the title line of an OSU or Intel MPI benchmark."""
    return _OSU.search(text) is not None or _IMB.search(text) is not None


def cells(text: str, source: str, given: LocatedCells) -> list[LocatedCells]:
    """Return the cells of every row, with their places. Raises InputError if neither text nor `given` has the ranks."""
    rows: list[LocatedCells] = []
    suite, collective, ranks = "", None, given.get("ranks", ("", None))[0]
    columns: list[str] = []  # of the current table
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        place = Place(source, number, 1)
        if title := _OSU.search(line) or _IMB.search(line):
            suite = "osu" if "osu" in title[0].lower() else "imb"
            collective, columns = _NAMES.get(names.squashed(title[1].lower().removeprefix("mpi"))), []
            continue
        if said := _RANKS.search(line):
            ranks = said[1] or said[2]
        elif collective and _is_header(line):
            columns = _columns(line)
        elif (
            collective
            and columns
            and (words := list(_WORD.finditer(line)))
            and all(_NUMBER.fullmatch(word[0]) for word in words)
        ):
            places = [(word[0], Place(source, number, word.start() + 1)) for word in words]
            if row := _row(collective, suite, dict(zip(columns, places, strict=False)), ranks, place):
                rows.append(row)
    return rows


def _is_header(line: str) -> bool:
    low = line.lower()
    return ("size" in low or "bytes" in low or "t_avg" in low) and ("latency" in low or "t_avg" in low)


def _columns(line: str) -> list[str]:
    """Return the column names of a header line; OSU's `Avg Latency(us)` becomes `avg_latency`."""
    text = re.sub(r"\b(avg|min|max) +latency ?\(us\)", r"\1_latency", line.lstrip("# \t"), flags=re.IGNORECASE)
    text = re.sub(r"\blatency ?\(us\)", "latency", text, flags=re.IGNORECASE)
    return [word.lower().lstrip("#") for word in text.split()]


_TIME: Final = ("t_avg[usec]", "avg_latency", "latency")
_LEAST: Final = ("t_min[usec]", "min_latency")
_MOST: Final = ("t_max[usec]", "max_latency")


def _row(
    collective: str, suite: str, named: dict[str, tuple[str, Place]], ranks: str, place: Place
) -> LocatedCells | None:
    size = named.get("size") or named.get("bytes") or (("0", place) if collective == "barrier" else None)
    time = next((named[header] for header in _TIME if header in named), None)
    if size is None or time is None or (collective != "barrier" and not size[0].strip("0.")):
        return None
    if not ranks:
        raise InputError([unsaid("ranks", place)])
    each = int(float(size[0])) if len(size[0]) < 20 else 0
    nbytes = each * int(ranks) if collective in _PER_RANK and len(ranks) < 10 else each
    row: LocatedCells = {"collective": (collective, place), "ranks": (ranks, place), "time_us": time}
    row |= {"size_bytes": (str(nbytes), size[1]), "timing": (f"{suite} benchmarks, mean over ranks", place)}
    row |= {"library": ("mpi", place), "harness": ("library", place)}
    for column, headers in (("time_us_min", _LEAST), ("time_us_max", _MOST)):
        times = [named[header] for header in headers if header in named and named[header][0].strip("0.")]
        row |= {column: times[0]} if times else {}
    runs = named.get("repetitions") or named.get("iterations")
    return row | ({"runs": runs} if runs else {})
