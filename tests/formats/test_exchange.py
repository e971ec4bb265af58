"""Tables, drawings and files that are written; what every import and every file keeps to."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import foreign
import pytest
from command import simcoll
from foreign import brought

import simcoll as api
from simcoll.config.yaml_tree import shipped
from simcoll.errors import InputError
from simcoll.formats.measured import parse_measured
from simcoll.prediction.result_rows import read as read_results
from simcoll.scenario import scenario_files
from simcoll.topology import topology_builder


def test_single_runs_and_nothing_of_the_environment():
    """With `-J` the median of single runs counts; of the environment only NCCL's variables stay, and no secrets."""
    rows = parse_measured(foreign.TESTS_JSON, "x")
    assert [(row.size_bytes, row.time_us, row.runs) for row in rows] == [(1024, 10.5, 20), (2048, 10.0, 3)]
    assert (rows[1].time_us_min, rows[1].time_us_max) == (9.0, 14.0)
    assert (rows[0].ranks, rows[0].nodes, rows[0].in_place_time_us) == (4, 2, 11.0)
    assert rows[0].others["env.nccl_algo"] == "RING"
    assert "hunter2" not in repr(rows) and "PATH" not in repr(rows)


def test_rccl_tables():
    """rccl-tests' JSON lines: times in place are beside those out of place."""
    (row,) = parse_measured(foreign.RCCL_LINES, "x")
    assert (row.collective, row.ranks, row.time_us, row.in_place_time_us) == ("all_gather", 8, 12.3, 12.1)


@pytest.mark.parametrize("name", foreign.TABLES)
def test_tables_of_other_benchmarks(name: str):
    """Whole buffers in bytes, mean or median times in microseconds; what the text lacks is asked for."""
    text, given, expected = foreign.TABLES[name]
    rows = parse_measured(text, "x", given)
    assert [(row.collective, row.ranks, row.size_bytes, row.time_us) for row in rows] == expected
    for lacking in given:
        with pytest.raises(InputError, match=f"the file does not say .*{lacking}"):
            parse_measured(text, "x", {column: value for column, value in given.items() if column != lacking})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of a small sweep."""
    folder = tmp_path_factory.mktemp("results")
    sets = ["algorithm=[ring, tree, all_pairs]", "size=[1 KiB, 1 MiB, 64 MiB]", "ranks=4", "plots=[]"]
    options = [word for item in sets for word in ("--set", item)]
    assert simcoll("run", "quickstart", *options, "-o", folder).status == 0
    return folder


def test_the_table_of_nccl_tests_reads_back(results: Path):
    """Size, time, ranks and algorithm of every row are there again, to the digits that nccl-tests prints."""
    rows = parse_measured(simcoll("export", results, "--to", "nccl-tests").out, "x")
    ours = read_results(results / "results.csv")
    assert sorted((row.size_bytes, row.time_us, row.algorithm) for row in rows) == sorted(
        (row["size_bytes"], round(row["time_us"], 2), row["algorithm"]) for row in ours
    )
    assert {(row.collective, row.ranks, row.dtype) for row in rows} == {("all_reduce", 4, "float32")}


def test_drawings_hold_every_gpu():
    """Graphviz names all devices."""
    drawn = simcoll("export", "hgx-h100", "--to", "graphviz").out
    assert drawn.count("{") == drawn.count("}") and all(f'"node0.gpu{i}"' in drawn for i in range(8))


MACHINES = [
    {"system": "hgx-h100", "nodes": 2},
    {"system": "gb200-nvl72"},
    {"system": "a100-pcie"},
    {"fabric": "fat-tree", "hosts": 8, "spines": 2, "link": {"bandwidth": "3 GB/s", "latency": "1.23456 us"}},
    {"fabric": "torus", "hosts": 6, "dims": [2, 3], "link": {"bandwidth": "50 GB/s", "latency": "333333 ps"}},
]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: next(iter(machine.values())))
def test_graphml_reads_back(machine: dict[str, Any], tmp_path: Path):
    """Devices, links, rates, latencies to the picosecond and ways are there again; so are they after networkx has read
    the file and written it."""
    import networkx as nx

    topology = api.load({"topology": machine, "collective": "all_reduce", "size": "8 B"})[0].scenario.topology
    built = topology_builder.build(topology)
    (tmp_path / "ours.yaml").write_text(topology_builder.dump(built), encoding="utf-8")
    ours, again, made = tmp_path / "ours.graphml", tmp_path / "again.graphml", tmp_path / "made.yaml"
    assert simcoll("export", tmp_path / "ours.yaml", "--to", "graphml", "-o", ours).status == 0
    nx.write_graphml(nx.read_graphml(ours), again)
    for file in (ours, again):
        assert simcoll("import", file, "-o", made).status == 0
        found = topology_builder.dump(topology_builder.build(scenario_files.topology_spec(str(made))))
        assert (
            found.partition("\n")[2] == topology_builder.dump(built).partition("\n")[2]
        )  # but for the name, the file's


def test_a_graph_of_networkx_is_a_machine(tmp_path: Path):
    """An undirected graph with texts for rates is a machine; what it does not say is said, what it lacks refused."""
    made, done = brought(tmp_path, foreign.GRAPHML)
    found = topology_builder.build(scenario_files.topology_spec(str(made)))
    to, back = found.link("s", "a"), found.link("a", "s")
    assert (len(found.links), to.bandwidth, back.latency_ps) == (4, 25 * 10**9, 500_000)
    assert "the shortest ways" in done.out + done.err and "left out: x" in done.out + done.err
    for lost, problem in (('<data key="l">5e-07</data>', "has no link"), ('<data key="k">host</data>', "has no kind")):
        (tmp_path / "odd.graphml").write_text(foreign.GRAPHML.replace(lost, ""), encoding="utf-8")
        odd = simcoll("import", tmp_path / "odd.graphml", "-o", tmp_path / "odd.yaml")
        assert odd.status == 2 and problem in odd.err and re.search(r"odd.graphml:\d+:5: ", odd.err)


_NODE = '<key id="n" for="node" attr.name="node" attr.type="int"/>\n  <graph '
_HOST = '<data key="k">host</data><data key="x">0.5</data>'
_EDGE = '<edge source="b" target="s">'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (_HOST, f'{_HOST}<data key="n">-4</data>', "8:5: device 'a': node -4 is no node number"),
        (_HOST, f'{_HOST}<data key="n">fast</data>', "8:67: a: node is 'fast', and its key says int"),
        (_HOST, '<data key="k"> </data>', "8:5: device 'a' has no kind"),
        ('<node id="b"', '<node id=" "', "9:5: a device is named ' '"),
        (
            "5e-07</data></edge>\n  </g",
            "soon</data></edge>\n  </g",
            "12:61: b->s: latency is 'soon'",
        ),
        ("25 GB/s", "0 GB/s", "11:5: a->s: a link cannot have a bandwidth of 0"),
        ("25 GB/s", "fast", "11:5: a->s: a link's bandwidth: 'fast' is not a bandwidth"),
        (_EDGE, '<edge source="b" target="q">', "12:5: device 'q' has no kind"),
        (_EDGE, '<edge source="s" target="a">', "12:5: 2 links from "),
    ],
)
def test_mistakes_of_a_graph_stand_at_their_line(old: str, new: str, said: str, tmp_path: Path):
    """What no topology can be is refused at the node, the edge or the value, and nothing is written."""
    file = tmp_path / "odd.graphml"
    text = foreign.GRAPHML.replace("<graph ", _NODE)
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    odd = simcoll("import", file, "-o", tmp_path / "odd.yaml")
    assert (odd.status, odd.err.count("\n")) == (2, 1) and odd.err.startswith(f"{file}:{said}")
    assert not (tmp_path / "odd.yaml").exists()


def test_arrow_and_parquet(results: Path, tmp_path: Path):
    """Rows as an Arrow table keep their numbers, by the PyCapsule interface and in a Parquet file."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = api.run(api.load("quickstart", ["algorithm=[ring, tree]", "size=1 MiB"]))
    table = pyarrow.RecordBatchReader.from_stream(rows).read_all()
    assert table.column("time_us").to_pylist() == [row["time_us"] for row in rows]
    assert simcoll("export", results, "--to", "parquet", "-o", tmp_path / "r.parquet").status == 0
    assert parquet.read_table(tmp_path / "r.parquet").num_rows == 9
    rows.to_parquet(tmp_path / "s.parquet")
    assert parquet.read_table(tmp_path / "s.parquet").equals(table)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["all_reduce/ring", "--to", "msccl"], "the number of ranks is missing; add --ranks N"),
        (["all_reduce/ring", "--to", "mscl", "--ranks", 4], "'mscl' is no format; did you mean 'msccl'?"),
        (["hgx-h100", "--to", "goal", "--ranks", 4], "'hgx-h100' is not COLLECTIVE/ALGORITHM"),
        (["all_reduce/ring", "--to", "goal", "--ranks", 4, "--size", "8"], "--size: '8' has no unit"),
        (["nowhere.csv", "--to", "nccl-tests"], "nowhere.csv: cannot be read"),
    ],
)
def test_export_says_what_is_missing(arguments: list[object], complaint: str):
    """Wrong use ends with 2 and one line."""
    done = simcoll("export", *arguments)
    assert done.status == 2 and complaint in done.err


def test_nothing_is_written_beside_what_is_asked_for(tmp_path: Path):
    """A name in a file never becomes a path: files that name others write and read no more than the one."""
    text = foreign.RING.replace('name="ring"', 'name="../../etc/passwd"')
    path, _ = brought(tmp_path, text)
    assert json.loads(path.read_text())["algorithm"] == ".._.._etc_passwd".strip("_")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["given", "made.json"]


@pytest.mark.parametrize("name", foreign.FILES)
def test_every_import_can_be_used(name: str, tmp_path: Path):
    """What import writes is read by our own loader and keeps to physics: a machine carries an all_reduce no faster than
    its links can, so does a schedule on it, and a table imported again is the same table."""
    (tmp_path / "given").write_text(foreign.FILES[name])
    made = simcoll("import", tmp_path / "given", *foreign.MORE.get(name, [])).out
    path = tmp_path / ("made.json" if made.startswith("{") else "made.csv" if "," in made.split()[0] else "made.yaml")
    path.write_text(made)
    if path.suffix == ".csv":
        assert simcoll("import", path).out == path.read_text()
        return
    if path.suffix == ".yaml":
        words = [
            "predict",
            "all_reduce",
            "--on",
            path,
            "--size",
            "1 MiB",
            "--profile",
            "one-port",
            "--algorithm",
            "ring",
        ]
    else:
        schedule = json.loads(path.read_text())
        machine = ["hgx-h100", "--ranks", schedule["ranks"]] if "agents" in schedule else [tmp_path / "star.yaml"]
        words = ["predict", schedule["collective"], "--on", *machine, "--size", f"{1 << 20} B"]
        words += ["--algorithm", path, "--set", f"root={schedule.get('root', 0)}"]
        link = "link: {bandwidth: 50 GB/s, latency: 1 us}"
        (tmp_path / "star.yaml").write_text(f"{{fabric: single-switch, hosts: {schedule['ranks']}, {link}}}")
    done = simcoll(*words, "--json")
    assert done.status == 0, done.err
    (row,) = done.json["points"]
    assert (row["status"], row["proved"]) == ("ok", "full")
    assert 0 < row["lower_bound_us"] <= row["time_us"] < 1e6


def test_every_csv_opens_without_arguments(results: Path, tmp_path: Path):
    """Results, comparisons, measured tables and those that ship begin with their header, each row has as many cells,
    and no cell is a formula: `pandas.read_csv(file)` reads them."""
    measured = tmp_path / "measured.csv"
    assert simcoll("import", results / "results.csv", "--as", "measured", "-o", measured).status == 0
    assert simcoll("compare", results / "results.csv", measured, "-o", tmp_path / "c").status == 0
    ours = [results / "results.csv", measured, tmp_path / "c" / "compare.csv", *shipped("measured").glob("*.csv")]
    assert len(ours) > 25
    for path in ours:
        header, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
        assert all(re.fullmatch(r"[\w.]+", name) for name in header) and len(set(header)) == len(header), path
        assert rows and {len(row) for row in rows} == {len(header)}, path
        assert not any(cell.startswith(("=", "@")) for row in rows for cell in row), path


def test_a_name_like_a_formula_stays_a_name(tmp_path: Path):
    """A spreadsheet takes it for a text, and simcoll reads it back."""
    (tmp_path / "s.yaml").write_text(
        "name: =1+1\ntopology: {system: hgx-h100}\ncollective: all_reduce\nsize: 1 MiB\nplots: []\n"
    )
    assert simcoll("run", tmp_path / "s.yaml", "-o", tmp_path / "o").status == 0
    assert "\n'=1+1," in (tmp_path / "o" / "results.csv").read_text()
    assert read_results(tmp_path / "o" / "results.csv")[0]["scenario"] == "=1+1"
