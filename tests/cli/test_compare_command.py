"""`plot` and `compare`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import process, simcoll

NCCL_TESTS = """\
# nThread 1 nGpus 4 minBytes 65536 maxBytes 65536 step: 1048576(bytes) warmup iters: 5 iters: 20 validation: 1
host:1:1 [0] NCCL INFO Bootstrap : Using eth0
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
       65536         16384     float     sum      -1    20.00    3.28    4.92      0    21.00    3.12    4.68      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 4.8
"""


@pytest.mark.parametrize(
    ("words", "name"),
    [(["topology", "show", "hgx-h100", "--png"], "a.xyz"), (["topology", "show", "hgx-h100", "--png"], "file/a.png"),
     (["plot", "out", "-o"], "file"), (["compare", "small.yaml", "measured.csv", "-o"], "file/inside")],
)  # fmt: skip
def test_pictures_that_cannot_be_written(
    words: list[str], name: str, scenario: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A folder that is a file, or a suffix that is no picture's, is wrong input and names the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    simcoll("run", scenario, "--quiet", "-o", tmp_path / "out", "--set", "plots=[]")
    found = simcoll(*words, name)
    assert (found.status, found.out) == (2, "")
    assert name in found.err


def test_plot_of_a_table_that_is_no_result(measured: Path):
    """A measured table is no results.csv: exit 2, and the message names the command that draws it."""
    found = simcoll("plot", measured)
    assert (found.status, found.out) == (2, "")
    assert "a measured table; draw it with `simcoll compare" in found.err


def test_compare_joins_and_sums_up(scenario: Path, measured: Path):
    """`compare --json`: agreed keys, error = predicted/measured − 1, and the rows that match nothing are counted."""
    found = simcoll("compare", scenario, measured, "--json").json
    assert {"points", "summary"} <= set(found)
    keys = [*("collective", "algorithm", "protocol", "ranks", "nodes", "size_bytes", "dtype", "measured_us")]
    keys += ["predicted_us", "error", "low_us", "high_us", "confidence", "region"]
    assert [list(point) for point in found["points"]] == [keys] * 3
    for point in found["points"]:
        assert point["error"] == pytest.approx(point["predicted_us"] / point["measured_us"] - 1)
    mape = sum(abs(point["error"]) for point in found["points"]) / 3 * 100
    assert found["summary"][-1]["mape"] == pytest.approx(mape)
    assert found["summary"][-1]["points"] == 3


def test_compare_max_mape(scenario: Path, measured: Path):
    """`--max-mape` turns the mean error into the exit status; the result is printed all the same."""
    for limit, status in ((1000, 0), (0.001, 1)):
        found = simcoll("compare", scenario, measured, "--max-mape", limit, "--json")
        assert found.status == status
        assert found.json["summary"]
        assert bool(found.err) == bool(status)


@pytest.mark.parametrize("limit", ["nan", "-3"])
def test_compare_max_mape_is_a_percentage(scenario: Path, measured: Path, limit: str):
    """What no error can be at most is told, and not taken for a limit that is kept."""
    found = simcoll("compare", scenario, measured, "--max-mape", limit)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(f"--max-mape {limit} is no error in percent; ")


def test_compare_reads_nccl_tests_from_a_pipe(scenario: Path):
    """`-` reads what all_reduce_perf prints, with debug lines in between."""
    words = ["--where", "collective=all_reduce", "--where", "algorithm=ring"]
    found = process("compare", scenario, "-", *words, "--json", input=NCCL_TESTS)
    (point,) = found.json["points"]
    assert (found.status, point["measured_us"], point["size_bytes"]) == (0, 20.0, 65536)


def test_compare_writes(scenario: Path, measured: Path, tmp_path: Path):
    """`-o` leaves the points and a picture."""
    assert simcoll("compare", scenario, measured, "-o", tmp_path / "out").status == 0
    assert (tmp_path / "out/compare.csv").read_text(encoding="utf-8").count("\n") == 4
    assert (tmp_path / "out/compare.png").stat().st_size > 5000


def test_rows_of_other_nodes_than_bare_hosts_have(tmp_path: Path) -> None:
    """A machine of hosts has one rank on each: rows that say otherwise are predicted there, and it is said."""
    path, table = tmp_path / "hosts.yaml", tmp_path / "table.csv"
    path.write_text("fabric: single-switch\nhosts: 8\nlink: {bandwidth: 25 GB/s, latency: 1 us}\n", encoding="utf-8")
    for nodes, said in ((1, True), (4, False)):
        table.write_text(f"collective,ranks,nodes,size_bytes,time_us\nall_reduce,4,{nodes},1024,9\n", encoding="utf-8")
        done = simcoll("compare", table, "--on", path)
        assert done.status == 0 and ("1 of 1 rows say that several ranks share a node" in done.out + done.err) == said
