"""Measured tables: one vocabulary whoever wrote them, and either rows or one located complaint."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command import simcoll
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.config.yaml_tree import shipped
from simcoll.errors import InputError
from simcoll.formats.measured import MeasuredRow, find_measured, parse_measured, read_measured, remarks
from simcoll.formats.measured.gpu_names import contradiction
from simcoll.schedule.collectives import COLLECTIVES

HEADER = "collective,ranks,size_bytes,time_us"


def only(text: str, **defaults: object) -> MeasuredRow:
    """The single row of a text."""
    (row,) = parse_measured(text, "t", defaults)
    return row


def complaints(text: str, **defaults: object) -> list[str]:
    """What is wrong with a text, one mistake a line."""
    with pytest.raises(InputError) as caught:
        parse_measured(text, "t.csv", defaults)
    return [str(diagnostic) for diagnostic in caught.value.diagnostics]


def test_a_compressed_table_is_the_table(tmp_path: Path):
    """gzip is unpacked, whatever the file is called; a damaged or endless one is refused in words."""
    table = find_measured("h100_sxm_nccl-2.27.3.csv").read_bytes()
    packed, path = gzip.compress(table), tmp_path / "log"
    path.write_bytes(packed)
    assert read_measured(path) == read_measured(find_measured("h100_sxm_nccl-2.27.3.csv"))
    for data, complaint in [
        (packed[: len(packed) // 2], "a gzip file that cannot be unpacked"),
        (packed[:20] + b"?" * 20, "a gzip file that cannot be unpacked"),
        (gzip.compress(bytes(65 * 2**20)), "a gzip file of more than 64 MiB of text; give a part of it"),
    ]:
        path.write_bytes(data)
        with pytest.raises(InputError, match=complaint):
            read_measured(path)


# --- CSV ----------------------------------------------------------------------------------------------------------


def test_shipped_tables_are_read_whole():
    """Every shipped table of NCCL gives one row a line, with known collectives and whole elements."""
    files = sorted(shipped("measured").glob("*_nccl-[0-9]*.csv"))  # named by their release
    assert len(files) == 4
    for file in files:
        rows = read_measured(file)
        assert len(rows) == len(file.read_text().splitlines()) - 1
        assert {row.collective for row in rows} <= set(COLLECTIVES)
        assert {row.dtype for row in rows} == {"float16", "int8"}
        assert all(row.time_us_min <= row.time_us <= row.time_us_max for row in rows)
        assert all(row.harness == "library" and row.algorithm is None for row in rows)


@pytest.mark.parametrize(
    ("columns", "cells", "meant"),
    [
        *[
            ("collective", written, meant)
            for written, meant in (
                *(("alltoall", "all_to_all"), ("AllReduce", "all_reduce"), ("sendrecv", "send_recv")),
                *(("reduce-scatter", "reduce_scatter"), ("Broadcast", "broadcast"), ("all gather", "all_gather")),
            )
        ],
        *[("dtype", *pair) for pair in (("float", "float32"), ("half", "float16"), ("double", "float64"))],
        ("algorithm,protocol", "Ring,SIMPLE", "ring Simple"),
        ("algorithm,protocol", "NVLSTree,ll128", "nvls_tree LL128"),
        *[("algorithm,protocol", none, "None None") for none in ("none,auto", ",")],
        ("algorithm,protocol", "AUTO,ll", "None LL"),
        ("harness,timing", "p2p,nccl-tests", "p2p nccl-tests"),
        ("harness,timing", ",nccl-tests", "nccl-tests nccl-tests"),
        ("harness,timing", ",rccl-tests out of place", "nccl-tests rccl-tests out of place"),
        ("harness,timing", ",median of 20", "library median of 20"),
    ],
)
def test_spellings(columns: str, cells: str, meant: str):
    """Names may be spelt as libraries and C spell them; none, auto and empty mean: not forced. The harness is what the
    column says, else nccl-tests if `timing` names it, else library."""
    head, line = (
        ("ranks,size_bytes,time_us", "8,64,1.5") if columns == "collective" else (HEADER, "all_reduce,8,64,1.5")
    )
    row = only(f"{head},{columns}\n{line},{cells}")
    assert " ".join(str(getattr(row, column)) for column in columns.split(",")) == meant


def test_unknown_columns_are_kept_apart():
    """A column that is not known changes nothing; its text stays with the row for --where."""
    row = only(f"table,{HEADER}\nfirst run,all_reduce,8,64,1.5")
    assert (row.size_bytes, row.time_us, row.others) == (64, 1.5, {"table": "first run"})


def test_forms_of_a_csv_file(tmp_path: Path):
    """BOM, undecodable bytes, CRLF, comments, empty lines, quotes and whole numbers with a point are all read."""
    file = tmp_path / "t.csv"
    file.write_bytes(
        b"\xef\xbb\xbf# taken at night\r\n\r\nCollective, ranks,size_bytes,time_us,timing\r\n"
        b'all_reduce,8.0,64,1.5,"median, warm"\r\n\r\nall_reduce,8,128,2e0,caf\xe9\r\n'
    )
    first, second = read_measured(file)
    assert (first.ranks, first.timing, second.time_us) == (8, "median, warm", 2.0)


def test_defaults_fill_what_a_table_lacks():
    """A default serves where column or cell is absent, and never overrides what the table says."""
    text = "ranks,size_bytes,time_us,nodes\n8,64,1.5,\n8,64,1.5,4"
    rows = parse_measured(text, "t", {"collective": "allreduce", "nodes": 2})
    assert [(row.collective, row.nodes) for row in rows] == [("all_reduce", 2), ("all_reduce", 4)]


def test_mistakes_are_located_and_told_all_at_once():
    """Every mistake of a file is named with line, column, key, what is wrong and what to write."""
    text = f'{HEADER},timing\nall_reduce,8,64,1.5,x\nallredcue,8,64,1.5,x\nall_reduce,"8,0",64,0,x\nall_reduce,8,,1,x'
    assert complaints(text) == [
        "t.csv:3:1: collective: 'allredcue' is no collective; did you mean 'all_reduce'?",
        "t.csv:4:12: ranks: '8,0' is not a number; write e.g. 8",
        "t.csv:4:21: time_us: '0' is not a duration; write microseconds above 0, e.g. 53.2",
        "t.csv:5:14: size_bytes: is missing; write a value",
    ]
    assert complaints(f'{HEADER},timing\nall_reduce,8,64,1,"two\nlines"\nall_reduce,x,64,1,x')[0].startswith(
        "t.csv:4:12: "
    )


@pytest.mark.parametrize(
    ("column", "text"),
    [
        *[("time_us", text) for text in ("-1", "inf", "fast", "1e999", "nan")],
        *[("ranks", text) for text in ("0", "-2", "2.5", "inf", "9" * 30, "9" * 5000, "８")],
    ],
)
def test_numbers_that_cannot_be(column: str, text: str):
    """A time is a finite number above 0, ranks are whole and at least 1; full-width digits are none."""
    line, place = (f"all_reduce,8,64,{text}", "2:17") if column == "time_us" else (f"all_reduce,{text},64,1", "2:12")
    assert complaints(f"{HEADER}\n{line}")[0].startswith(f"t.csv:{place}: {column}: ")


def test_a_required_column_is_missed_once():
    """A missing column is one mistake, whatever the number of rows, and the cure shows what could be meant."""
    assert complaints("collective,ranks,size,time_us\n" + "all_reduce,8,64,1\n" * 3) == [
        "t.csv:1:1: column 'size_bytes' is missing; add it, or rename one of: size"
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"{HEADER}\nall_reduce,8,64\nall_reduce,8,64,1\na,8,64,1,2", ["2", "4"]),  # cells could be in wrong columns
        (HEADER, ["1"]),
        (f"{HEADER},ranks\nall_reduce,8,64,1,8", ["1"]),
        (f'"#x",{HEADER}', ["1"] * 4),
    ],
)
def test_tables_whose_header_is_not_that_of_their_rows(text: str, lines: list[str]):
    """A row of another length, a header without rows and a column that stands twice are mistakes."""
    assert [complaint.split(":")[1] for complaint in complaints(text)] == lines


def test_nodes_are_not_more_than_ranks():
    """A node without a rank took no part: such a row is refused at its nodes, before any network is built for it."""
    text = f"{HEADER},nodes\nall_reduce,2,64,1.5,2\nall_reduce,2,64,1.5,4096"
    assert complaints(text) == [
        "t.csv:3:21: nodes: 4096 nodes are more than the 2 ranks that ran on them; "
        "write the number of machines that had a rank",
    ]
    assert complaints(f"{HEADER}\nall_reduce,2,64,1.5", nodes=3)[0].startswith("nodes: 3 nodes are more than the 2 ran")


def test_many_mistakes_are_capped():
    """No more than 20 mistakes are listed; the last then says how many are left."""
    found = complaints(HEADER + "\nall_reduce,8,64,0" * 50)
    assert len(found) == 20
    assert found[-1] == "31 more mistakes; mend these first"


def test_defaults_are_checked():
    """A default for an unknown column, or with an impossible value, is a mistake."""
    assert complaints(f"{HEADER}\nall_reduce,8,64,1", rank=8, nodes="two") == [
        "rank: unknown column; did you mean 'ranks'?",
        "nodes: 'two' is not a number; write e.g. 8",
    ]


@pytest.mark.parametrize("name", ["missing.csv", ".", "a\0b"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str):
    """A path that leads to no file is wrong input."""
    with pytest.raises(InputError, match="cannot be read"):
        read_measured(f"{tmp_path}/{name}")


def test_finding_a_table(tmp_path: Path):
    """A path goes before the name of a shipped table; a name that is neither is told with the nearest."""
    name = "h100_sxm_nccl-2.27.3.csv"
    assert find_measured(name) == shipped("measured") / name
    (tmp_path / name).touch()
    assert find_measured(tmp_path / name) == tmp_path / name
    with pytest.raises(InputError, match="did you mean 'h100_sxm_nccl"):
        find_measured("h100_sxm_nccl-2.27.csv")


# --- what nccl-tests prints ---------------------------------------------------------------------------------------

OLD = """\
# nThread 1 nGpus 4 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   4021 on      box1 device  0 [0x1a] Tesla V100-SXM2-16GB
#   Rank  1 Pid   4021 on      box1 device  1 [0x1b] Tesla V100-SXM2-16GB
#   Rank  2 Pid   4021 on      box1 device  2 [0x3d] Tesla V100-SXM2-16GB
#   Rank  3 Pid   4021 on      box1 device  3 [0x3e] Tesla V100-SXM2-16GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256   float     sum    21.50    0.05    0.07  2e-07    21.10    0.05    0.07  1e-07
     1048576        262144   float     sum    52.43   20.00   30.00  2e-07    50.00   20.97   31.46  1e-07
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 15.4
"""


def new(
    program: str = "all_gather",
    redop: str = "none",
    root: int = -1,
    bus: float = 0.875,
    before: str = "",
    wrong: str = "0",
) -> str:
    """A run of 8 ranks on 2 hosts, as versions from 2.13 on print it; 100 GB/s and 200 GB/s."""
    inside = "N/A" if program in ("alltoall", "sendrecv") else wrong
    ranks = [
        f"#  Rank {r:2} Group  0 Pid {700 + r:6} on   node{r // 4} device {r % 4:2} [0x{r:02x}] NVIDIA H100 80GB HBM3"
        for r in range(8)
    ]
    rows = [
        f"{size:12}  {size // 4:12}     float  {redop:>6}  {root:6}  {size / 1e3 / bw:7.2f}  {bw:6.2f}  "
        f"{bw * bus:6.2f}  {wrong:>6}  {size / 1e3 / bw + 1:7.2f}  {bw:6.2f}  {bw * bus:6.2f}  {inside:>6}"
        for size, bw in ((10_000_000, 100), (40_000_000, 200))
    ]
    return "\n".join(
        [
            before or f"# Collective test starting: {program}_perf",
            "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 graph: 0",
            "# Using devices",
            *ranks,
            "#",
            f"#{'out-of-place':>74}{'in-place':>31}",
            f"#       size         count      type   redop    root{'     time   algbw   busbw #wrong' * 2}",
            f"#        (B)    (elements)                          {'     (us)  (GB/s)  (GB/s)       ' * 2}",
            *rows,
            "# Out of bounds values : 0 OK",
            "# Avg bus bandwidth    : 131.25",
            "#",
            f"# Collective test concluded: {program}_perf" if not before else "#",
            "",
        ]
    )


def test_old_text_is_read():
    """Version 2.0: no root column, `error` for `#wrong`; a collective that nothing names is inferred and marked so."""
    first, second = parse_measured(OLD, "log")
    assert (first.collective, first.ranks, first.nodes, first.dtype, first.size_bytes) == (
        ("all_reduce", 4, 1, "float32", 1024)
    )
    assert (second.time_us, second.in_place_time_us, second.harness) == (52.43, 50.0, "nccl-tests")
    assert "inferred" in first.timing


def test_new_text_is_read():
    """Version 2.13 and later: groups, root, #wrong, N/A; hosts are nodes; the collective is the program's."""
    rows = parse_measured(new(), "log")
    assert [(r.collective, r.ranks, r.nodes, r.size_bytes, r.time_us) for r in rows] == [
        ("all_gather", 8, 2, 10_000_000, 100.0),
        ("all_gather", 8, 2, 40_000_000, 200.0),
    ]
    assert rows[0].timing == "nccl-tests"
    assert (rows[0].place.line, rows[0].place.column) == (16, new().splitlines()[15].index("100.00") + 1)


def test_rccl_text_is_read():
    """rccl-tests: wider columns, a command line that names the program, the library's own version line."""
    text = """\
+ mpirun -np 2 /opt/rccl-tests/build/alltoall_perf -b 8M -e 8M -g 1
# nThread 1 nGpus 1 minBytes 8388608 maxBytes 8388608 step: 1048576(bytes) warmup iters: 5 iters: 20 graph: 10
rccl-tests: Version develop:abcdef0
# Using devices
#   Rank  0 Group  0 Pid   1211 on      amd-a device  0 [0000:0c:00] AMD Instinct MI300X
#   Rank  1 Group  0 Pid   1212 on      amd-a device  1 [0000:22:00] AMD Instinct MI300X
RCCL version : 2.20.5-HEAD:xyz
#
#                                                                          out-of-place                              in-place
#       size              count          type     redop      root        time     algbw     busbw    #wrong        time     algbw     busbw    #wrong
#        (B)         (elements)                                          (us)    (GB/s)    (GB/s)                  (us)    (GB/s)    (GB/s)
     8388608            1048576         float      none        -1       100.2     83.72     41.86         0       101.1     82.97     41.49       N/A
"""  # noqa: E501
    row = only(text)
    assert (row.collective, row.ranks, row.nodes, row.time_us) == ("all_to_all", 2, 1, 100.2)
    assert (row.library, row.library_version, row.harness) == ("rccl", "2.20.5", "graph")


def test_how_calls_were_launched():
    """GPUs that a thread drives, calls in a loop, and a CUDA graph, as keys of the scenario."""
    line = "# nThread 1 nGpus 1 "
    assert line in new()
    for told, keys in (
        (line, {"launch.gpus_per_process": "1", "launch.calls": "20"}),
        ("# nThread 4 nGpus 1 ", {"launch.gpus_per_process": "1", "launch.calls": "20"}),
        ("# nThread 1 nGpus 4 ", {"launch.gpus_per_process": "4", "launch.calls": "20"}),
        (
            "# nThread 2 nGpus 1 graph: 3 ",
            {"launch.graph": "true", "launch.replays": "3", "launch.gpus_per_process": "1"},
        ),
    ):
        rows = parse_measured(new().replace(line, told), "t")
        assert [{c: text for c, text in row.others.items() if c.startswith("launch.")} for row in rows] == [
            keys for _ in rows
        ]


@pytest.mark.parametrize(("together", "calls"), [(1, "20"), (8, None)])
def test_calls_that_are_launched_together_are_no_loop(together: int, calls: str | None):
    """`agg iters` counts calls of one launch: a loop of single calls has one."""
    rows = parse_measured(new().replace("iters: 20", f"iters: 20 agg iters: {together}"), "t")
    assert {row.others.get("launch.calls") for row in rows} == {calls}


def test_several_tests_in_one_text():
    """Each table belongs to what was printed before it and after the table before."""
    rows = parse_measured(new() + OLD + new("broadcast", root=0, bus=1), "log")
    assert [(r.collective, r.ranks) for r in rows[::2]] == [("all_gather", 8), ("all_reduce", 4), ("broadcast", 8)]


DEBUG = "gpu-7.example:4021:4077 [3] NCCL INFO Channel 00/24 : 0 1 2 3 8 16 2.5"


@pytest.mark.parametrize("host", ["gpu-7.example", "38dcf168f605", "7c1f", "7", "10-0-0-1", "203.0.113.1"])
def test_debug_lines_within_a_row(host: str):
    """A row that debug output broke in two is put together again, though the host's name is glued to its number and
    begins with digits. No root is below -1; a count of wrong elements stays where other lines begin with that host."""
    debug, whole = DEBUG.replace("gpu-7.example", host), parse_measured(new(), "log")
    text = new().replace("    -1   ", f"    -1{debug}\n{debug}\n   ")
    assert text.count(debug) == 4 and parse_measured(text, "log") == whole
    text = new().replace("       0  ", f"       0{debug}\n  ").replace("# Using", f"{debug}\n{debug}\n# Using")
    assert text.count(debug) == 4 and parse_measured(text, "log") == whole
    for column in ("  100.00", "  200.00", "   87.50"):  # a number that ends where the row is broken
        text = new().replace(column, f"{column}{debug}\n{debug}\n")
        assert text != new() and parse_measured(text, "log") == whole


def test_a_time_that_is_not_that_of_its_bandwidth() -> None:
    """A row whose time has a digit too many is not read, and it is said; of a table that counts bandwidth otherwise all
    rows are."""
    sizes = (10_000_000, 20_000_000, 40_000_000)
    rows = [f"{size} {size // 4} float none -1 {size / 1e5:.2f} 100.00 87.50 0" for size in sizes]
    text = "\n".join([new().split("#       size")[0], "# size count type redop root time algbw busbw #wrong", *rows])
    whole = parse_measured(text, "t")
    assert [row.time_us for row in whole] == [100.0, 200.0, 400.0]
    damaged = text.replace(" 200.00 ", " 2000.00 ")
    assert parse_measured(damaged, "t") == [whole[0], whole[2]]
    (remark,) = remarks(damaged, "t", ())
    assert "a line looks like a row and was not read (line" in remark
    assert parse_measured(text.replace(" 100.00 87.50", " 12.50 87.50"), "t") == whole


def test_runs_that_are_apart_at_all_sizes_are_said() -> None:
    """Runs of a machine that differ by a third at one size of many are noise; at all sizes they are two machines."""
    sizes = [2**power for power in range(10, 20)]
    text = HEADER + "".join(f"\nall_reduce,8,{size},{size / 1e3}" for size in sizes)
    for times, said in ((1.3, True), (1.1, False)):
        second = "".join(f"\nall_reduce,8,{size},{times * size / 1e3}" for size in sizes)
        found = remarks(text + second, "t", parse_measured(text + second, "t"))
        assert bool(found) == said
        if said:
            assert "runs of 10 of 10 points" in found[0]
    alone = f"{text}\nall_reduce,8,1024,1.4" + "".join(f"\nall_reduce,8,{size},{size / 1e3}" for size in sizes[1:])
    assert not remarks(alone, "t", parse_measured(alone, "t"))


def test_a_log_within_a_page(tmp_path: Path) -> None:
    """`import` reads the log of a page of HTML as `diagnose` does; other pages are not known."""
    page = tmp_path / "page.html"
    page.write_text(f"<html><body><pre>\n{new()}\n</pre></body></html>", encoding="utf-8")
    assert simcoll("import", page, "-o", tmp_path / "a.csv").status == 0
    assert read_measured(tmp_path / "a.csv") == parse_measured(new(), "log")
    page.write_text("<html><body><pre>hello</pre></body></html>", encoding="utf-8")
    assert "the kind of this file is not recognised" in simcoll("import", page).err


def test_a_table_that_says_that_all_was_right() -> None:
    """`Out of bounds values : 0 OK` outranks a number that the name of a host was glued to, though it is seen once."""
    text = new().replace("       0  ", f"       0{DEBUG.replace('gpu-7.example', '38dcf168f605')}\n  ", 1)
    assert [row.wrong for row in parse_measured(text, "log")] == [row.wrong for row in parse_measured(new(), "log")]
    wrong = new().replace("       0  ", "       3  ").replace(": 0 OK", ": 6 FAILED")
    assert {row.wrong for row in parse_measured(wrong, "log")} == {3}


@pytest.mark.parametrize("columns", [2, 3, 7])
def test_a_row_that_is_cut_off_is_said(columns: int) -> None:
    """Of a text that ends after the size and the count of a row, or later, a remark names the line; one without a whole
    row is told from one that is no table."""
    (row,) = re.findall(r"(?m)^ +40000000 .*$", new())
    text = new()[: new().index(row)] + "  ".join(row.split()[:columns])
    rows = parse_measured(text, "log")
    (remark,) = remarks(text, "log", rows)
    assert rows == parse_measured(new(), "log")[:1] and "a line looks like a row and was not read (line" in remark
    assert complaints("\n".join(new().splitlines()[:15]))[0].startswith("t.csv: holds no measurement: it has a header")


@pytest.mark.parametrize(("code", "version"), [("22902", "2.29.2"), ("21805", "2.18.5"), ("2708", "2.7.8")])
def test_a_library_by_its_number(code: str, version: str):
    """nccl-tests from 2.17 on prints the number of the library; a line with its version outranks it."""
    numbered = f"# nccl-tests version 2.18.3 nccl-headers=22902 nccl-library={code}\n{new()}"
    assert {row.library_version for row in parse_measured(numbered, "log")} == {version}
    both = f"NCCL version 2.30.1+cuda13.0\n{numbered}"
    assert {row.library_version for row in parse_measured(both, "log")} == {"2.30.1"}


@pytest.mark.parametrize("label", ["", "[1,0]<stdout>:", "[rank0]: "])
def test_debug_lines_within_the_first_columns(label: str):
    """A row may be broken anywhere in its first columns, also within a number, by several lines of debug output: it is
    read as it was, or where words run together not at all, and never as another."""
    whole, kept = parse_measured(new(), "log"), 0
    (row,) = re.findall(r"(?m)^ +40000000 .* -1 ", new())
    for end in range(row.index("4"), len(row)):
        text = new().replace(row, f"{row[:end]}{DEBUG}\n{DEBUG}\n{row[end:]}")
        read = parse_measured(re.sub(r"(?m)^", label, text), "log")
        assert read in (whole, whole[:1]), row[:end]
        assert bool(remarks(re.sub(r"(?m)^", label, text), "log", read)) == (read != whole) or not row[:end].split()[1:]
        kept += read == whole
    assert kept >= (0.5 if label.endswith(" ") else 0.75) * len(row.strip())


def test_nothing_is_lost_without_a_word(tmp_path: Path):
    """Lines that look like rows and could not be read are counted, at every door; whole texts leave none."""
    glued = new().replace("    40000000", "node-a40000000")
    assert parse_measured(glued, "log") == parse_measured(new(), "log")[:1]
    (remark,) = remarks(glued, "log", ())
    assert "a line looks like a row and was not read (line" in remark
    for whole in (new(), "collective,ranks,size_bytes,time_us\n"):
        assert not remarks(whole, "log", ())
    (tmp_path / "a.log").write_text(glued, encoding="utf-8")
    assert "look" in simcoll("import", tmp_path / "a.log", "-o", tmp_path / "a.csv").out
    for words in (
        ["diagnose", tmp_path / "a.log", "--on", "hgx-h100"],
        ["compare", "system=hgx-h100", tmp_path / "a.log"],
    ):
        done = simcoll(*words)
        assert "looks like a row" in done.out + done.err


def test_a_host_that_is_glued_to_the_operator():
    """The name of an operator stays where the host's name follows it without a blank: the row is put together."""
    text = new("reduce_scatter", "sum").replace("   sum      -1", f"   sum{DEBUG}\n      -1")
    assert text.count(DEBUG) == 2
    assert parse_measured(text, "log") == parse_measured(new("reduce_scatter", "sum"), "log")


def test_a_line_of_a_megabyte_is_no_row():
    """A trace of one long line is refused at once: no expression goes over it more than once."""
    with pytest.raises(InputError, match="holds no measurement"):
        parse_measured('{"size": 1, "time": 2},' * 50_000 + "#" + " " * 500_000, "trace")


def test_rows_without_a_measurement_are_left_out():
    """A row of 0 bytes moved nothing, and one without out-of-place time was not measured."""
    lines = new().splitlines()
    lines.insert(
        15, "           0             0     float    none      -1     0.13    0.00    0.00       0     0.13  0 0 0"
    )
    lines.insert(
        15, "           8             2     float    none      -1      N/A     N/A     N/A     N/A     0.13  0 0 0"
    )
    assert parse_measured("\n".join(lines), "log") == parse_measured(new(), "log")


def bare(text: str) -> str:
    """A text whose lines have lost the `#` before them."""
    return re.sub(r"(?m)^# ?", " ", text)


def launches(text: str) -> str:
    """A launch for each size, the output of all appended."""
    lines = text.splitlines()
    sizes = [i for i, line in enumerate(lines) if re.match(r"\s+\d+ ", line)]
    return "\n".join(line for size in sizes for i, line in enumerate(lines) if i == size or i not in sizes)


def headless(text: str) -> str:
    """A text without the header of its table."""
    return "\n".join(line for line in text.splitlines() if "algbw" not in line and "(us)" not in line)


CALLED = (
    "box:41:42 [0] NCCL INFO AllGather: opCount 0 sendbuff 0x7f count 16 datatype 7 op 0 root 0 comm 0x7f [nranks=8]"
)
DRESSED: dict[str, Callable[[str], str]] = {
    "all # lost": bare,
    "the header's # lost": lambda text: text.replace("#       size", "        size"),
    "mpirun": lambda text: re.sub(r"(?m)^", "[1,0]<stdout>:", text),
    "torchrun": lambda text: re.sub(r"(?m)^", "[rank0]: ", text),
    "srun": lambda text: re.sub(r"(?m)^", "0: ", text),
    "kubectl": lambda text: re.sub(r"(?m)^", "2025-01-02T10:11:12.123456Z stdout F ", text),
    "mpirun, all # lost": lambda text: re.sub(r"(?m)^", "[1,0]<stdout>:", bare(text)),
    **{
        f"INFO {debug[:8]}": lambda text, debug=debug: text.replace("\n", f"\n{debug}\n")
        for debug in (DEBUG, f"[2025-01-31 10:00:00] {DEBUG}", "10-0-0-1:12:13 [0] NCCL INFO comm 0x5 8")
    },
    "mpirun and INFO": lambda text: re.sub(r"(?m)^", "[1,0]<stdout>:", text.replace("\n", f"\n{CALLED}\n")),
    "mpirun and INFO in rows": lambda text: re.sub(
        r"(?m)^", "[1,0]<stdout>:", text.replace("    -1   ", f"    -1{CALLED}\n{CALLED}\n   ")
    ),
    "Markdown": lambda text: f"# Runs\n\nA size and a time, of type float.\n\n```\n{text}\n```\n\n| size | time |\n",
    "Markdown, all # lost": lambda text: f"# Runs\n\n```text\n{bare(text)}```\n",
    "Markdown's quotation": lambda text: re.sub(r"(?m)^", "> ", text),
    "bars": lambda text: re.sub(r"(?m)^( +\d.*)$", lambda row: "| " + " | ".join(row[1].split()) + " |", text),
    "colours": lambda text: re.sub(r"(\d{8})", "\x1b[32m\\1\x1b[0m", text).replace("# ", "\x1b[1m# "),
    "one size a launch": launches,
    "one size a launch, all # lost": lambda text: launches(bare(text)),
    "no header": headless,
    "no header, mpirun and INFO": lambda text: re.sub(
        r"(?m)^", "[1,0]<stdout>:", headless(text).replace("\n", f"\n{CALLED}\n")
    ),
    "units in the header": lambda text: text.replace("#       size ", "#  size (B) ").replace(" time ", " time (us) "),
    "Docker's JSON lines": lambda text: re.sub(
        r"(?m)^(.*)$", r'{"log":"\1\\n","stream":"stdout","time":"2026-10-05T12:00:00Z"}', text
    ),
    "a list of quoted lines": lambda text: re.sub(r"(?m)^(.*)$", r'    "\1",', text),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("dress", DRESSED)
def test_logs_as_people_have_them(dress: str):
    """What a launcher, a terminal, an editor or a web page does to a log changes nothing that is read of it."""
    assert parse_measured(DRESSED[dress](new()), "log") == parse_measured(new(), "log")


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("wrong", ["#wrong", "error", None])
@pytest.mark.parametrize("lead", ["sum -1", "none 0", "sum", "0", ""])
@pytest.mark.parametrize("times", [(21.5, 52.43, 9000.0), (21.0, 107374.0, 107374.5)])
def test_rows_alone_say_which_columns_they_have(
    lead: str, wrong: str | None, runs: int, times: tuple[float, ...]
) -> None:
    """Rows without a header are read as with it, whichever version printed them; times may be printed without a point.

    Without ranks the complaint says what is needed."""
    columns = [*(["redop"] if lead[:1].isalpha() else []), *(["root"] if lead[-1:].isdigit() else [])]
    run = ["time", "algbw", "busbw", *([wrong] if wrong else [])]
    header = " ".join(["# size count type", *columns, *run * runs])
    rows = [
        " ".join(
            [
                f"{size} {size // 4} float {lead}",
                *[f"{time:.7g} {size / time / 1e3:.2f} {size / time / 1e3:.2f}{' N/A' * bool(wrong)}"] * runs,
            ]
        )
        for time, size in zip(times, (2**10, 2**20, 2**30), strict=True)
    ]
    given = {"ranks": 8, "collective": "broadcast" if lead.endswith("0") else "all_gather"}
    read = parse_measured("\n".join(rows), "t", given)
    assert [(row.size_bytes, row.time_us) for row in read] == list(zip((2**10, 2**20, 2**30), times, strict=True))
    assert read == parse_measured("\n".join([header, *rows]), "t", given)
    (complaint,) = complaints("\n".join(rows))
    assert "give ranks=N" in complaint and "collective=NAME" in complaint


def test_rows_that_may_mean_two_things_are_not_read() -> None:
    """A number that may be a root or a time, and rows whose bandwidth is not their size over their time, are none."""
    for rows in ("1024 256 float 1 1.02 1.02 0.9 1.1", "1024 256 float sum -1 10.0 5.00 5.00 0", "1024 256 float"):
        assert "holds no measurement" in complaints(rows, ranks=8)[0]


def _sound_times() -> list[tuple[int, float]]:
    """Sizes, and times of an all_reduce that eight H100 take."""
    table = read_measured(find_measured("h100_sxm_nccl-2.27.3.csv"))
    kept = [row for row in table if (row.collective, row.ranks, row.dtype) == ("all_reduce", 8, "float16")]
    return [(row.size_bytes, row.time_us) for row in kept]


def _checked(form: str, wrong: int) -> str:
    """Those times as a harness prints them, with so many elements of the last row wrong in place."""
    rows = [[size, time, 0] for size, time in _sound_times()]
    rows[-1][2] = wrong
    if form == "json":
        results = [
            {"size": size, "type": "half", "redop": "sum", "root": -1,
             "out_of_place": {"time": time, "nwrong": 0}, "in_place": {"time": time, "nwrong": bad}}
            for size, time, bad in rows
        ]  # fmt: skip
        config = {"devices": [{"rank": rank, "group": 0, "hostname": "a"} for rank in range(8)]}
        return json.dumps({"args": ["all_reduce_perf"], "config": config, "results": results})
    if form == "rccl":
        keys = ("name", "nodes", "ranks", "size", "type", "redop", "inPlace", "time", "busBw", "wrong")
        cells = [("AllReduce", 1, 8, s, "half", "sum", k, t, 1, k * bad) for s, t, bad in rows for k in (0, 1)]
        return "\n".join(", ".join(map(str, line)) for line in (keys, *cells))
    if form == "csv":
        cells = [("all_reduce", 8, size, time, "half", bad) for size, time, bad in rows]
        return "\n".join([f"{HEADER},dtype,wrong", *(",".join(map(str, line)) for line in cells)])
    column = "#wrong" if form == "text" else " error"
    part = f"     time   algbw   busbw {column}"
    lines = [
        f"{size} {size // 2} half sum -1 {time:.2f} 1 1.75 0 {time:.2f} 1 1.75 {bad if form == 'text' else '2e-07'}"
        for size, time, bad in rows
    ]
    head = ["# all_reduce_perf", "# nThread 8 nGpus 1", f"#   size   count   type   redop   root {part}{part}"]
    return "\n".join([*head, *lines, f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"])


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["text", "old text", "json", "rccl", "csv"])
def test_a_machine_that_computes_wrong_data_is_not_healthy(form: str, tmp_path: Path):
    """Wrong elements that a harness found are said at every door, first by `diagnose`, whose verdict is not healthy
    though all times are; a table that import made of them keeps them."""
    for wrong in (0, 12):
        log = tmp_path / "log"
        log.write_text(_checked(form, wrong), encoding="utf-8")
        found = simcoll("diagnose", "--on", "hgx-h100", log)
        assert (found.status, found.out.startswith("Wrong data: ")) == ((1, True) if wrong else (0, False)), found.out
        document = simcoll("diagnose", "--on", "hgx-h100", "--json", log).json
        assert document["explained_by"] == ("wrong data" if wrong else "healthy")
        for words in (["import", "-o", tmp_path / "t.csv"], ["compare", "--on", "hgx-h100"]):
            done = simcoll(*words, log)
            assert done.status == 0 and ("of what was computed" in done.out + done.err) == bool(wrong), done.out
        rows = read_measured(tmp_path / "t.csv")
        assert sum(row.wrong or 0 for row in rows) == (0 if form == "old text" else wrong)


def test_files_of_rccl_tests():
    """Rows as JSON, as a list of them and as CSV say the same; rows in place go with those out of place. A hand-made
    CSV has to be completed."""
    keys = ("name", "nodes", "ranks", "size", "type", "redop", "inPlace", "time", "algBw", "busBw", "wrong")
    rows = [("AllReduce", 1, 8, n, "half", "sum", k, 10 * n + k, 1, 1.75, 0) for n in (1024, 2048) for k in (0, 1)]
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    table = "\n".join([", ".join(keys), *(", ".join(map(str, row)) for row in rows)])
    found = parse_measured("\n".join(lines), "t")
    assert [(r.collective, r.size_bytes, r.dtype, r.time_us, r.in_place_time_us, r.library) for r in found] == [
        ("all_reduce", 1024, "float16", 10240.0, 10241.0, "rccl"),
        ("all_reduce", 2048, "float16", 20480.0, 20481.0, "rccl"),
    ]
    assert parse_measured("[\n" + ",\n".join(lines) + "\n]", "t") == parse_measured(table, "t") == found
    own = "size (B),type,time (us),algbw,busbw\n1024,half,10.5,1,1.75\n"
    assert only(own, collective="all_reduce", ranks=8).time_us == 10.5
    assert complaints(own, ranks=8) == [
        "t.csv:2:1: the file does not say which collective this is; give collective=NAME, with --collective NAME"
    ]


def test_the_gpus_that_a_log_names():
    """A log's GPUs stand in a column; those of another machine are noticed, and what neither says is not."""
    rows = parse_measured(new(), "log")
    assert {row.others["gpu"] for row in rows} == {"NVIDIA H100 80GB HBM3"}
    odd = "measured on NVIDIA H100 80GB HBM3, and x has A100 SXM4 80 GB"
    assert contradiction(rows, "x", "A100 SXM4 80 GB") == odd
    assert contradiction(rows, "x", "H100 SXM5") is contradiction(rows, "x", "own chip") is None
    pcie = parse_measured(new().replace("H100 80GB HBM3", "H100 PCIe"), "log")
    assert contradiction(pcie, "x", "H100 SXM5") == "measured on NVIDIA H100 PCIe, and x has H100 SXM5"


def test_debug_output_names_the_collective():
    """Where no program is named, NCCL's debug output between the rows is: all_gather and all_to_all differ there."""
    text = new(before="#").replace("\n", f"\n{CALLED}\n")
    assert {row.collective for row in parse_measured(text, "t")} == {"all_gather"}
    both = text + new(before="#", redop="sum", bus=1.75)
    assert [row.collective for row in parse_measured(both, "t")] == ["all_gather"] * 2 + ["all_reduce"] * 2


@pytest.mark.parametrize(
    ("line", "forced"),
    [
        ("mpirun -np 8 -x NCCL_ALGO=Tree -x NCCL_PROTO=LL128 all_gather_perf", ("tree", "LL128")),
        ("box:41:42 [0] NCCL INFO NCCL_ALGO set by environment to Ring", ("ring", None)),
        ("export NCCL_ALGO=^Tree NCCL_PROTO=LL,Simple", (None, None)),
        ("export NCCL_ALGO='allreduce:ring'", (None, None)),
    ],
)
def test_what_was_forced(line: str, forced: tuple[str | None, str | None]):
    """One algorithm or protocol that the environment allows is that of the rows; several, or all but one, are kept as
    the variable."""
    rows = parse_measured(f"{line}\n{new()}", "t")
    assert {(row.algorithm, row.protocol) for row in rows} == {forced}
    variable = re.search(r"NCCL_ALGO='?([^\s']+)", line)
    assert {row.others.get("env.nccl_algo") for row in rows} == {variable[1] if variable and not forced[0] else None}


@pytest.mark.parametrize(
    ("program", "value", "algorithm"),
    [("all_gather", "Tree", "ring"), ("all_reduce", "Tree", "tree"), ("all_reduce", "^NVLS,Tree", "ring"),
     ("all_reduce", "allgather:ring;allreduce:tree", "tree"), ("broadcast", "NVLS", "ring")],
)  # fmt: skip
def test_what_was_forced_is_predicted(program: str, value: str, algorithm: str, tmp_path: Path):
    """The algorithm that NCCL_ALGO leaves is predicted; a collective that lacks it ran a ring."""
    redop, root, bus = {"all_reduce": ("sum", -1, 1.75), "broadcast": ("none", 0, 1)}.get(program, ("none", -1, 0.875))
    rows, times = new(program, redop, root, bus).replace("node1", "node0"), []
    for forced in (value, algorithm):
        (tmp_path / "log").write_text(f"mpirun -x NCCL_ALGO='{forced}' {program}_perf\n{rows}")
        points = simcoll("compare", tmp_path / "log", "--on", "hgx-h100", "--json").json["points"]
        times.append([point["predicted_us"] for point in points])
    assert times[0] == times[1]


def test_runs_of_a_point_are_one_row():
    """Rows that differ in times only are one: the median, the extremes, and how many they are."""
    texts = [new("all_reduce", "sum", bus=1.75 * factor) for factor in (1, 1, 1)]
    slow = texts[1].replace("  100.00 ", "  120.00 ")
    slower = texts[2].replace("  100.00 ", "  140.00 ")
    first, second = parse_measured(texts[0] + slow + slower, "t")
    assert (first.time_us, first.time_us_min, first.time_us_max, first.runs) == (120, 100, 140, 3)
    assert (second.time_us, second.time_us_min, second.time_us_max, second.runs) == (200, 200, 200, 3)
    table = "collective,ranks,size_bytes,time_us,runs,node\nall_reduce,2,8,1.5,4,a\nall_reduce,2,8,2.5,2,a\n"
    (joined,) = parse_measured(table, "t")
    assert (joined.time_us, joined.runs) == (2.0, 6)
    assert len(parse_measured(table.replace("2,a", "2,b"), "t")) == 2


def test_runs_that_are_far_apart_are_no_noise(tmp_path: Path):
    """Runs of sound and slow machines in one table are said to be so at every door; runs that are alike are not."""
    for least, most, said in ((4400, 6400, False), (4400, 11000, True)):
        table = "collective,ranks,size_bytes,dtype,time_us\n" + "".join(
            f"all_reduce,8,{size},float32,{time}\n"
            for size, times in ((2**30, (least, 4500, most)), (2**29, (2250, 2250)), (2**28, (1150,)))
            for time in times
        )
        (tmp_path / "runs.csv").write_text(table, encoding="utf-8")
        remark = "runs of 1 of 2 points that were measured several times are up to 2.5x apart (1 GiB: 4400, 11000 us)"
        for words in (["import"], ["compare", "system=hgx-h100"], ["diagnose", "--on", "hgx-h100"]):
            done = simcoll(*words, tmp_path / "runs.csv")
            printed = " ".join((done.out + done.err).replace("#", "").split())
            assert done.status == 0 and (remark in printed, "apart" in printed) == (said, said), printed


def test_rows_that_were_measured_out_of_place_only():
    """Some programs print no in-place part under a header that has one; a part that is cut off counts as none."""
    texts = [re.sub(r"(2e-07) .*", r"\1", OLD), re.sub(r"(2e-07 .*) .*", r"\1", OLD)]
    for text in texts:
        rows = parse_measured(text, "log")
        assert [(row.size_bytes, row.time_us, row.in_place_time_us) for row in rows] == [
            (1024, 21.5, None), (2**20, 52.43, None)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("redop", "root", "bus", "collective"),
    [("sum", -1, 1.75, "all_reduce"), ("sum", -1, 0.875, "reduce_scatter"), ("max", 0, 1, "reduce"),
     ("none", 0, 1, "broadcast"), ("none", -1, 1, "send_recv"), ("sum", -1, 1, "send_recv")],
)  # fmt: skip
def test_inferring_the_collective(redop: str, root: int, bus: float, collective: str):
    """Where nothing names the collective, busbw/algbw, redop and root do, and `timing` says so."""
    rows = parse_measured(new(redop=redop, root=root, bus=bus, before="#"), "log")
    assert {(row.collective, "inferred" in row.timing) for row in rows} == {(collective, True)}


def test_a_collective_that_cannot_be_inferred():
    """Unchecked, all_gather and all_to_all print alike: the complaint names both and asks; a default answers. Checked,
    only sends and receives have no errors in place."""
    text = new(before="#", wrong="N/A")
    (complaint,) = complaints(text)
    assert complaint.endswith("give collective=NAME, with --collective NAME, one of all_gather, all_to_all")
    assert {r.collective for r in parse_measured(text, "t", {"collective": "alltoall"})} == {"all_to_all"}
    for program, name in (("all_gather", "all_gather"), ("alltoall", "all_to_all")):
        assert {r.collective for r in parse_measured(new(program, before="#"), "t")} == {name}


def test_a_collective_that_is_given_names_what_is_open_alone(tmp_path: Path):
    """In a log of several tests NAME is that of the tables whose columns leave it open, and of no other: a table that
    can be told keeps its name at every door, and one that is open among others than NAME is not called so."""
    told, open_ = new(before="#", redop="sum", bus=1.75), new(before="#", wrong="N/A")
    (tmp_path / "both.log").write_text(told + open_, encoding="utf-8")
    (tmp_path / "told.log").write_text(told, encoding="utf-8")
    rows = parse_measured(told + open_, "t", {"collective": "all_gather"})
    assert [row.collective for row in rows] == ["all_reduce"] * 2 + ["all_gather"] * 2
    assert [row.given for row in rows] == [()] * 2 + [("collective",)] * 2
    (complaint,) = complaints(told + open_, collective="all_reduce")
    assert "its columns are not those of all_reduce; give collective=NAME" in complaint
    judged = simcoll("compare", "--on", "hgx-h100", "--json", tmp_path / "both.log", "--collective", "all_reduce")
    assert {point["collective"] for point in judged.json["points"]} == {"all_reduce"}
    for words in (["import"], ["compare", "--on", "hgx-h100"], ["diagnose", "--on", "hgx-h100"]):
        open_one = simcoll(*words, tmp_path / "both.log")
        assert (open_one.status, "one of all_gather, all_to_all" in open_one.err) == (2, True)
        contrary = simcoll(*words, tmp_path / "told.log", "--collective", "broadcast")
        assert (contrary.status, "collective is all_reduce there" in contrary.err) == (2, True), contrary.err


def test_number_of_ranks():
    """Without a list of ranks it is the default, or what busbw shows; else threads × GPUs of one process, unless busbw
    contradicts; else it is asked for."""
    assert {row.ranks for row in parse_measured(re.sub(r"(?m)^# +Rank.*\n", "", new()), "t")} == {8}
    text = "\n".join(line for line in new("broadcast", root=0, bus=1).splitlines() if "Rank" not in line)
    threads = text.replace("nThread 1 nGpus 1", "nThread 2 nGpus 4")
    assert {row.ranks for row in parse_measured(threads, "t")} == {8}
    assert {row.ranks for row in parse_measured(threads, "t", {"ranks": 16})} == {16}
    for unknown in (text.replace("nThread", "n"), text.replace("nThread 1", "nThread 0")):
        assert "ranks took part; give ranks=N, with --where ranks=N" in complaints(unknown)[0]


ROWS = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
   134217728      33554432     float     sum      -1    29770    4.51    4.51      0    29873    4.49    4.49      0
   268435456      67108864     float     sum      -1    59440    4.52    4.52      0    59568    4.51    4.51      0
"""
BANNER = "# nThread 1 nGpus 2 warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"


def mixed(*, ranks: bool, header: str, label: str = "") -> str:
    """Two runs of two ranks in one log, lines interleaved; headers at the `top`, or one among the `rows`."""
    lists = [
        f"#  Rank  {r} Group  0 Pid {host}001 on node{host} device  {r} [0x0{r}] NVIDIA A100"
        for host in (1, 2)
        for r in (0, 1)
    ]
    head, *rows = ROWS.splitlines()
    heads = [head, head, *rows, *rows] if header == "top" else [head, rows[0], head, *rows, rows[1]]
    lines = [*(BANNER + BANNER).splitlines(), *(lists if ranks else []), *heads, *["# Avg bus bandwidth    : 4.5"] * 2]
    return "\n".join(f"{label}{line}" for line in lines)


@pytest.mark.parametrize("given", [{}, {"ranks": 4}])
@pytest.mark.parametrize("ranks", [True, False])
@pytest.mark.parametrize("header", ["top", "rows"])
@pytest.mark.parametrize("label", ["", "[1,0]<stdout>: ", "0: "])
def test_two_runs_in_one_log_are_two(given: dict[str, int], ranks: bool, header: str, label: str):
    """Lines of runs that each process made by itself are never merged, nor are ranks asked for; a run that broke off,
    and was repeated, is one."""
    (complaint,) = complaints(mixed(ranks=ranks, header=header, label=label), **given)
    assert "2 separate runs" in complaint and "without MPI=1" in complaint
    broken = BANNER + ROWS.splitlines()[0] + "\nTest NCCL failure\n" + BANNER + ROWS
    assert len(parse_measured(broken, "t", {"collective": "all_reduce", **given})) == 2


def test_one_rank_measures_nothing():
    """A busbw of 0 beside times is of one rank, whether the log lists it or not, and whatever was run."""
    alone = re.sub(r"(4\.5\d)    4\.5\d ", "\\1    0.00 ", ROWS)
    rank = "#  Rank  0 Group  0 Pid    127 on nodea device  0 [0x00] NVIDIA A10G\n"
    for text in (rank + alone, alone, BANNER.replace("nGpus 2", "nGpus 1") + alone):
        (complaint,) = complaints(text)
        assert "one rank: nothing is communicated, so busbw is 0" in complaint and "-g N" in complaint


@pytest.mark.parametrize(
    ("numbers", "header", "ranks", "meant"),
    [
        ("10.0 104.86 104.86 0 10.0 104.86 104.86 0", "redop root", 2, ("all_reduce", 1 << 20)),
        ("10.0 104.86 104.86 0 10.0 104.86 104.86 N/A", "redop root", 2, ("send_recv", 1 << 20)),
        ("10.0 104.86 104.86 N/A 10.0 104.86 104.86 N/A", "redop root", 2, ("all_reduce", "send_recv")),
        ("10.0 104.86 104.86 0 10.0 104.86 104.86 N/A", "redop root", 8, ("send_recv", 1 << 20)),
        ("10.0 734.00 734.00 0 10.0 734.00 734.00 0", "", 8, ("all_gather", 8 << 20)),
        ("10.0 734.00 734.00 0 10.0 734.00 734.00 0", "redop", 8, ("reduce_scatter", 8 << 20)),
        ("10.0 104.86 104.86 0 10.0 104.86 104.86 0", "", 2, ("all_gather", 2 << 20)),
    ],
)
def test_rows_that_two_collectives_print(numbers: str, header: str, ranks: int, meant: tuple[str, object]):
    """Sends and receives have no errors in place; before 2020 all_gather and reduce_scatter had sizes of a rank's part,
    and one bandwidth. Where two collectives fit, both are named."""
    run = "time algbw busbw #wrong" if "root" in header else "time algbw busbw error"
    lead = " ".join({"redop": "sum", "root": "-1"}[word] for word in header.split())
    text = f"# size count type {header} {run} {run}\n 1048576 262144 float {lead} {numbers}\n"
    if isinstance(meant[1], int):
        assert [(row.collective, row.size_bytes) for row in parse_measured(text, "t", {"ranks": ranks})] == [meant]
    else:
        assert complaints(text, ranks=ranks)[0].endswith(f"one of {', '.join(map(str, meant))}")


def test_debug_lines_say_how_many_ranks_there_are():
    """NCCL's own count, where the list of ranks is missing; hosts are counted if each rank has a line."""
    said = "\n".join(f"n{r // 2}:36{r}:37 [{r % 2}] NCCL INFO comm 0x7 rank {r} nranks 4 cudaDev 0" for r in range(4))
    table = re.sub(r"(?m)^#  Rank.*\n", "", new("broadcast", root=0, bus=1))
    assert {(row.ranks, row.nodes) for row in parse_measured(f"{said}\n{table}", "t")} == {(4, 2)}
    assert {(row.ranks, row.nodes) for row in parse_measured(f"{said[:50]}\n{table}", "t")} == {(4, None)}
    other = "n0:1:2 [0] NCCL INFO comm 0x9 rank 0 nranks 2 cudaDev 0"
    assert "how many ranks" in complaints(f"{said}\n{other}\n{table.replace('nThread', 'n')}")[0]


@pytest.mark.parametrize("program", ["alltoall", "sendrecv"])
def test_what_is_forced_does_not_reach_messages(program: str):
    """NCCL reads NCCL_ALGO and NCCL_PROTO for collectives with algorithms only."""
    forced = f"mpirun -x NCCL_ALGO=Tree -x NCCL_PROTO=LL {program}_perf\n"
    assert {(row.algorithm, row.protocol) for row in parse_measured(forced + new(program, bus=1), "t")} == {
        (None, None)
    }


@pytest.mark.parametrize("columns", ["2026-01-05 09:00:00", "12.5", "0.1 0.2 0.3"])
@pytest.mark.parametrize("name", ["", "  time"])
@pytest.mark.parametrize("tag", ["", "[1,0]<stdout>:", "0: "])
def test_rows_with_further_columns_and_repeated_tags(columns: str, tag: str, name: str):
    """Options of the tests add columns at the end, and a launcher may label each piece of a row."""
    text = re.sub(r"(?m)^( +\d+ .*?-1)(.*)$", rf"\g<1>{tag}\g<2> {columns}", new())
    text = re.sub(r"(?m)(size .*)$", rf"\g<1>{name}", text)
    assert parse_measured(re.sub("(?m)^", tag, text), "t") == parse_measured(re.sub("(?m)^", tag, new()), "t")


@pytest.mark.parametrize(
    ("column", "cell", "time_us"),
    [("time_ms", "45", 45e3), ("Time (ms)", "45", 45e3), ("latency_s", "0.045", 45e3), ("busbw", "250", 64424.50944),
     ("busbw_GBps", "250", 64424.50944), ("BusBW (Gbps)", "2000", 64424.50944), ("algbw (GB/s)", "200", 42949.67296)],
)  # fmt: skip
def test_a_csv_may_have_other_units_or_bandwidths(column: str, cell: str, time_us: float):
    """Times in other units, and bandwidths in place of times: the time is size x factor / busbw."""
    header = f"collective,ranks,size_bytes,{column}"
    assert only(f"{header}\nall_reduce,16,8589934592,{cell}\n").time_us == pytest.approx(time_us)


def test_a_bandwidth_that_tells_no_time():
    """A unit that may be of bits or bytes is asked for; 0 GB/s is no time."""
    head = "collective,ranks,size_bytes,"
    assert "busbw_GBps (10^9 bytes a second) or busbw_Gbps" in complaints(f"{head}busbw_gbps\nall_reduce,2,8,1\n")[0]
    assert "busbw: gives no time" in complaints(f"{head}busbw\nall_reduce,2,8,0\n")[0]
    (complaint,) = complaints(f"{head}time_us,busbw\nall_reduce,16,8589934592,64.4,250\nall_reduce,16,2000,15,0.25\n")
    assert (
        complaint.startswith("t.csv:2:") and "64.4 us contradict busbw 250 GB/s, by which it took 64424.5" in complaint
    )


def test_two_bandwidths_of_a_row_agree():
    """busbw is algbw times the factor of collective and ranks, but for what is rounded; a time follows from either."""
    head = "collective,ranks,size_bytes,algbw,busbw"
    assert only(f"{head}\nall_reduce,8,8589934592,200,350\n").time_us == pytest.approx(42949.67296)
    assert only(f"{head}\nall_reduce,8,2000,0.02,0.04\n").time_us == 100
    assert "algbw contradicts busbw 200 GB/s" in complaints(f"{head}\nall_reduce,8,8589934592,200,200\n")[0]


@pytest.mark.parametrize("between", [";", "\t"])
def test_columns_may_have_semicolons_or_tabs_between(between: str):
    """As spreadsheets write them; places of mistakes count the same way."""
    text = f"{HEADER}\nall_reduce,8,64,1.5\n".replace(",", between)
    assert only(text) == only(f"{HEADER}\nall_reduce,8,64,1.5")
    assert complaints(text.replace("1.5", "1,5"))[0].startswith("t.csv:2:17: time_us: '1,5' is not a number")


def test_a_program_that_is_not_known_gives_its_collective_no_other_name():
    """hypercube_perf has all_gather's columns, and runs none of NCCL's collectives; folders are no programs."""
    text = new("all_gather", bus=7 / 8).replace("all_gather_perf", "hypercube_perf")
    assert "hypercube_perf" in text
    (complaint,) = complaints(text)
    assert "which collective this is: hypercube_perf runs none that simcoll knows" in complaint
    folder = text.replace("hypercube_perf", "/opt/my_perf/all_gather_perf")
    assert {row.collective for row in parse_measured(folder, "t")} == {"all_gather"}


def test_a_run_that_failed_is_told_so():
    """The rows before a failure are read, with a remark: others are missing."""
    text = new() + "node0: Test NCCL failure common.cu:958 'unhandled system error'\n"
    assert remarks(text, "t", parse_measured(text, "t")) == [f"t: the benchmark failed (line {text.count(chr(10))})"]
    assert not remarks(new(), "t", parse_measured(new(), "t"))


def test_runs_on_different_hosts_are_kept_apart(tmp_path: Path):
    """Two runs one after the other are repetitions on the same hosts only; else each has its number, to choose by."""
    one = new("all_gather").replace("node1", "node0")
    again, other = one + one, one + one.replace("node0", "node7")
    assert [row.runs for row in parse_measured(again, "t")] == [2, 2]
    assert [row.others["run"] for row in parse_measured(other, "t")] == ["1", "1", "2", "2"]
    (tmp_path / "log").write_text(other)
    asked = ["compare", tmp_path / "log", "--on", "hgx-h100"]
    assert "differ in run (1, 2); choose, e.g. with --where run=1" in simcoll(*asked).err
    assert simcoll(*asked, "--where", "run=2").status == 0


def test_split_groups():
    """With several communicators the ranks are those of one."""
    text = new()
    for rank in range(4, 8):
        text = text.replace(f"Rank {rank:2} Group  0", f"Rank {rank:2} Group  1")
    assert {(row.ranks, row.nodes) for row in parse_measured(text, "t")} == {(4, 1)}


NO_TABLES = ("", "\n\n", "hello", "# size count type\n8 2 float", "# size type type time\n8 half half 1.5", "\x00\x00",
             "a,b,c\n1,2,3")  # fmt: skip


@pytest.mark.parametrize("text", NO_TABLES)
def test_texts_that_are_no_table(text: str):
    """A text with neither form is one complaint that names both."""
    (complaint,) = complaints(text)
    assert all(word in complaint for word in ("holds no measurement", "CSV", "nccl-tests"))


def rows_or_complaint(text: str) -> None:
    """Sound rows or an InputError of at most 20 mistakes."""
    try:
        rows = parse_measured(text, "t")
    except InputError as error:
        assert 1 <= len(error.diagnostics) <= 20
    else:
        assert rows
        assert all(row.time_us > 0 and row.ranks >= 1 and row.collective in COLLECTIVES for row in rows)


LINES = [*new().splitlines(), *OLD.splitlines(), DEBUG, "", "# size type type time", "nThread 0 nGpus 0", HEADER,
         "all_reduce,8,64,1.5"]  # fmt: skip
WORDS = ["#", "size", "count", "type", "redop", "root", "time", "busbw", "algbw", "N/A", "nan", "inf", "1e999", "-1",
         "8", "float", "sum", "9" * 400, "\n", "\r", '"', ",", "collective", "ranks", "size_bytes", "time_us",
         "all_reduce", "Rank 0 Pid 1 on a device", "nThread 0 nGpus 0", DEBUG]  # fmt: skip


@given(st.lists(st.sampled_from(LINES), max_size=60))
def test_shuffled_lines(lines: list[str]):
    """Lines in any order, left out or repeated, give rows or one InputError, never another exception."""
    rows_or_complaint("\n".join(lines))


@settings(max_examples=50)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), max_size=40), st.sampled_from([" ", ",", "\n"]))
def test_arbitrary_words(words: list[str], between: str):
    """Any text gives rows or one InputError, never another exception."""
    rows_or_complaint(between.join(words))


@given(st.data())
def test_damaged_texts(data: st.DataObject):
    """A text cut anywhere, with anything put in its middle, gives rows or one InputError, never another exception."""
    text = data.draw(st.sampled_from([new(), OLD, new() + OLD, f"{HEADER}\nall_reduce,8,64,1.5\nbroadcast,8,64,1\n"]))
    start, middle, end = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=3, max_size=3)))
    rows_or_complaint(text[start:middle] + data.draw(st.text(max_size=20)) + text[middle:end])
