"""Write result rows as tables of nccl-tests, and as the CSV that NCCL's example tuner plugin reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError
from simcoll.prediction.result_rows import ResultRow
from simcoll.schedule.collectives import collective
from simcoll.schedule.names import ALGORITHMS, COLLECTIVES, DTYPES, PROTOCOLS, spellings

OFTEN: Final = 1000  # launches of a graph, so many that the first does not matter
STEP: Final = 1 << 20  # bytes: nccl-tests' default step between sizes
_TESTS: Final = spellings(COLLECTIVES, lambda row: row.nccl_tests)
_TYPES: Final = {row.name: row for row in DTYPES}
_PER_RANK: Final = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
_UNSAID: Final = ("topology", "profile", "dtype")
_TUNER: Final = spellings(COLLECTIVES, lambda row: row.tuner)
_PROTOCOLS: Final[Mapping[str, str]] = {name: name.lower() for name in PROTOCOLS}


def timed(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Return the rows that have a time. Raises InputError if no row has one."""
    having = [row for row in rows if row.status == "ok" and row.time_us]
    if not having:
        raise InputError("no row has a time", "give results with status ok")
    return having


def tests(rows: Sequence[ResultRow]) -> str:
    """Return rows as nccl-tests prints them: a table for each collective, algorithm and number of ranks. A row has a
    single time: the in-place columns repeat it if buffers are in place, and else hold `N/A`."""
    tables: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in timed(rows):
        if row.collective in _TESTS:
            launched = (row.settings.get(f"launch.{key}") for key in ("gpus_per_process", "graph", "replays", "calls"))
            key = (row.collective, row.asked or row.algorithm, row.ranks, row.nodes, row.topology, *launched)
            tables.setdefault(key, []).append(row)
    if not tables:
        raise InputError("nccl-tests has no such collective", f"it has {', '.join(_TESTS)}")
    return "\n".join(line for key, table in tables.items() for line in _table(key, table))


def _table(key: tuple[Any, ...], rows: Sequence[ResultRow]) -> Iterable[str]:
    name, algorithm, ranks, nodes, topology, many, graph, replays, calls = key
    sizes = sorted(row.size_bytes or 0 for row in rows)
    each = max(1, int(ranks) // int(nodes or 1))
    gpus = each if many == "all" else int(many or 1)
    launches = int(replays or OFTEN) if str(graph).lower() == "true" else 0
    runs = f"warmup iters: 0 iters: {calls or OFTEN} graph: {launches}"  # so many that a loop's end does not count
    yield f"# simcoll: predicted, {_TESTS[name]}_perf, algorithm {algorithm}, {topology}"
    threads = f"nThread {each // gpus} nGpus {gpus}"
    yield f"# {threads} minBytes {sizes[0]} maxBytes {sizes[-1]} step: {_step(sizes)} {runs}"
    yield "# Using devices"
    for rank in range(int(ranks)):
        yield f"#  Rank {rank:2d} Group  0 Pid {1:6d} on host{rank // each} device {rank % each:2d} [0x00] predicted"
    yield "#"
    yield f"#{'out-of-place':>62}{'in-place':>38}"
    lead = f"#{'size':>12}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
    yield lead + f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}" * 2
    yield (
        f"#{'(B)':>12}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}"
        + f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}" * 2
    )
    for row in sorted(rows, key=lambda row: row.size_bytes or 0):
        yield _line(row)
    total = math.fsum(_bandwidths(row)[1] for row in rows)
    yield "# Out of bounds values : 0 OK"
    yield f"# Avg bus bandwidth    : {total / len(rows):g}"
    yield "#"


def _step(sizes: Sequence[int]) -> str:
    """Return in nccl-tests' words how sizes grow: by a common factor or difference, else nccl-tests' default step."""
    pairs = list(pairwise(sizes))
    factors = {high / low if low else 0 for low, high in pairs}
    if len(factors) == 1 and (factor := min(factors)) == int(factor) > 1:
        return f"{int(factor)}(factor)"
    added = {high - low for low, high in pairs}
    return f"{min(added) if len(added) == 1 else STEP}(bytes)"


def _line(row: ResultRow) -> str:
    dtype = _TYPES.get(row.dtype or "float32", _TYPES["float32"])
    size, ranks, time_us = row.size_bytes or 0, row.ranks or 1, row.time_us or 0.0
    count = size // dtype.itemsize // (ranks if row.collective in _PER_RANK else 1)
    redop = row.op if collective(row.collective).reduces else "none"
    algbw, busbw = _bandwidths(row)
    time = f"{time_us:.2f}" if time_us < 1e5 else f"{time_us:.0f}"
    cells = f"  {time:>7}  {algbw:6.2f}  {busbw:6.2f}  {0:6d}"
    none = f"  {'N/A':>7}" + f"  {'N/A':>6}" * 3
    root = -1 if row.root is None else row.root
    lead = f"{size:13d}  {count:12d}  {dtype.nccl_tests:>8}  {redop or 'sum':>6}  {root:6d}"
    return lead + cells + (cells if row.in_place else none)


def _bandwidths(row: ResultRow) -> tuple[float, float]:
    algbw = (row.size_bytes or 0) / (row.time_us or 0.0) / 1e3
    return algbw, algbw * float(collective(row.collective).busbw(row.ranks or 1))


def tuner(rows: Sequence[ResultRow], notes: ImportLog) -> str:
    """Return the CSV that NCCL's example tuner plugin (ext-tuner/example) reads: the fastest algorithm for each range
    of sizes, by collective, number of nodes and of ranks. -1 leaves a value to NCCL, or a whole range if the fastest
    row is NCCL's own choice. Raises InputError if rows differ in something that the file cannot express."""
    best: dict[tuple[str, int, int], dict[int, ResultRow]] = {}
    unknown: set[str] = set()
    having = timed(rows)
    for column in _UNSAID:
        if len(several := dict.fromkeys(str(row[column]) for row in having if row[column] is not None)) > 1:
            problem = f"rows differ in {column} ({', '.join(several)}), and the tuner's file has no such column"
            raise InputError(problem, "give rows with one value")
    for row in having:
        own = row.algorithm in (*ALGORITHMS, None) and row.executor in (None, "nccl")  # others just share names
        if row.collective not in _TUNER or not own:
            unknown.add(f"{row.collective}/{row.algorithm}")
            continue
        sizes = best.setdefault((row.collective, row.nodes or -1, row.ranks or 1), {})
        size = row.size_bytes or 0
        if size not in sizes or (row.time_us or 0.0) < (sizes[size].time_us or 0.0):
            sizes[size] = row
    if unknown:
        notes.warn(f"left out, because NCCL's tuner has no such choice: {', '.join(sorted(unknown))}")
    if not any(row.algorithm for sizes in best.values() for row in sizes.values()):
        raise InputError("no row has an algorithm of NCCL", f"give rows of {', '.join(ALGORITHMS)}")
    lines = ["# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"]
    for (name, nodes, ranks), sizes in sorted(best.items()):
        lines += (f"{_TUNER[name]},{line},-1,{nodes},{ranks},-1,-1" for line in _ranges(sizes, notes))
    return "\n".join([*lines, ""])


def _ranges(sizes: Mapping[int, ResultRow], notes: ImportLog) -> Iterable[str]:
    """Yield `min,max,algorithm,protocol` for each range of sizes (bytes) in which the same pair is fastest."""
    changes: list[tuple[int, str]] = []
    for size in sorted(sizes):
        algorithm, protocol = sizes[size].algorithm, _PROTOCOLS.get(sizes[size].protocol or "")
        if algorithm and protocol is None:
            notes.assume("rows name no protocol: `simple` is written")
        pair = f"{algorithm},{protocol or 'simple'}" if algorithm else ""
        if not changes or changes[-1][1] != pair:
            changes.append((size, pair))
    for i, (size, pair) in enumerate(changes):
        least = 0 if not i else size
        most = changes[i + 1][0] - 1 if i + 1 < len(changes) else 2**63 - 1
        if pair:
            yield f"{least},{most},{pair}"
