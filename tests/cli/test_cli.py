"""The command line: what it prints where, with which status, and what it says of mistakes."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import math
import os
import random
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from command import ROOT, SCRIPT, environment, process, python, simcoll

import simcoll as package
from simcoll.cli._group import COMMANDS, OF_RUN
from simcoll.config.yaml_tree import shipped
from simcoll.prediction import result_rows
from simcoll.report.schedule_view import every_pair
from simcoll.schedule import collectives, registry

GOLDEN = ROOT / "tests/golden"
SCENARIOS = sorted(shipped("scenarios").glob("*.yaml"))
STAR = "{fabric: single-switch, hosts: 4, link: {bandwidth: 50 GB/s, latency: 0.5 us}}"
SCENARIO = f"""\
name: small
topology: {STAR}
collective: all_reduce
algorithm: [ring, naive]
size: [64 KiB, 1 MiB]
"""
MEASURED = """\
collective,ranks,size_bytes,dtype,algorithm,time_us
all_reduce,4,65536,float32,ring,10
all_reduce,4,65536,float32,naive,20
all_reduce,4,1048576,float32,ring,40
all_reduce,4,4096,float32,ring,5
"""
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


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A small scenario: two algorithms, two sizes."""
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A measured table: three rows that the small scenario covers, and one that it does not."""
    path = tmp_path / "measured.csv"
    path.write_text(MEASURED, encoding="utf-8")
    return path


# --- the program as such ---


def test_help_imports_nothing_heavy():
    """`simcoll --help` loads none of the libraries that simulate and draw, so it is quick on any machine."""
    heavy = {"numpy", "networkx", "simpy", "matplotlib", "pydantic", "torch", "scipy", "joblib", "yaml"}
    code = f"import sys; from simcoll.cli import main; main(['--help']); print(sorted(sys.modules.keys() & {heavy}))"
    done = python(code)
    assert done.stdout.startswith("Usage: simcoll")
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), ["topology", "show"]])
def test_every_command_has_help(command: list[str]):
    """`--help` is a good answer: stdout, exit 0."""
    found = simcoll(*command, "--help")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith(f"Usage: {' '.join(['simcoll', *command])} ")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_tells_what_they_tell(name: str):
    """What `simcoll --help` says of a command, which it does not import, is the first line of the command's help."""
    own, every = (" ".join(simcoll(*words, "--help").out.split()) for words in ([name], []))
    assert f" {COMMANDS[name][1]} " in own
    assert f" {name} {COMMANDS[name][1]} " in f"{every} "


def test_version():
    """`--version` prints the package's version."""
    assert package.__version__ in simcoll("--version").out


def test_runs_as_a_module(tmp_path: Path):
    """`python -m simcoll` is the same program, from any folder, and ends with the same status."""
    words = [sys.executable, "-m", "simcoll", "verify", "all_reduce/ring"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, simcoll("verify", "all_reduce/ring").out)


@pytest.mark.parametrize(
    "words",
    [["simulate"], ["run"], ["run", "quickstart", "--fast"], ["show"],
     ["run", "--jobs", "x", "quickstart"], ["list", "nothing"], ["verify", "--ranks", "0"],
     ["topology"], ["compare"]],
)  # fmt: skip
def test_words_that_are_no_command(words: list[str]):
    """An unknown or missing command, option or argument: exit 2, nothing on stdout, the word or usage on stderr."""
    found = simcoll(*words)
    assert (found.status, found.out) == (2, "")
    assert "Usage: simcoll" in found.err
    assert re.match(r"simcoll[a-z ]*: .*(; `simcoll.* --help` says more|\?)\n|Usage", found.err)


@pytest.mark.parametrize("name", OF_RUN)
def test_options_that_are_looked_for_as_commands(name: str):
    """What `run` has as an option is no command, and says so; `run` has it."""
    assert f"no such command '{name}'; did you mean `simcoll run SCENARIO --{name} PATH`?" in simcoll(name, "x").err
    assert f"--{name} PATH" in simcoll("run", "--help").out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "quickstat"], "did you mean 'quickstart'"),
        (["run", "nowhere/near.yaml"], "nowhere/near.yaml"),
        (["run", "quickstart", "--jobs", "0"], "--jobs"),
        (["run", "quickstart", "--jobs", "-5"], "--jobs"),
        (["show", "all_reduce/ring", "--ranks", "65536"], "too long to be shown"),
        (["show", "all_gather/ring", "--ranks", "2,4096", "--json"], "too long to be shown"),
        (["show", "all_reduce/ring", "--ranks", "2,4", "--data"], "--data"),
        (["show", "all_reduce/ring", "--ranks", "2,4", "--diagram"], "--diagram"),
        (["show", "broadcast/naive", "--ranks", "8,4", "--root", "5", "--json"], "0 … 3"),
        (["show", "all_reduce/hierarchical(across=ring,across=ring)", "--ranks", "4"], "across"),
        (["run", "quickstart", "--set", "sharing"], "PATH=VALUE"),
        (["run", "quickstart", "--set", "model.sharring=fifo"], "did you mean 'sharing'"),
        (["run", "quickstart", "--set", "size=[1 MiB"], "--set[1]"),
        (
            ["run", "quickstart", "--profile", "nccl-hoppr+tcp", "--set", "seed=x"],
            "--profile:1:1: profile: 'nccl-hoppr'",
        ),
        (["run", "quickstart", "--profile", "nccl-hopper", "--set", "seed=x"], "--set[1]:1:6: seed"),
        (["predict", "all_reduce", "--on", "hgx-h100", "--nodes", "1000000000", "--size", "4 B"], "GB of memory"),
        (["recommend"], "--on SYSTEM"),
        (["run", "quickstart", "--set", "size.unit=MiB"], "--set[1]"),
        (["show", "ring", "--ranks", "3"], "'ring' is not COLLECTIVE/ALGORITHM; write e.g. all_reduce/ring"),
        (["show", "binomal"], "'binomal' is not COLLECTIVE/ALGORITHM; write e.g. reduce/binomial"),
        (["export", "all_reduce/rng", "--to", "msccl"], "did you mean 'ring'"),
        (["show", "all_reduce/rng", "--ranks", "3"], "did you mean 'ring'"),
        (["show", "allreduce/ring", "--ranks", "3"], "did you mean 'all_reduce'"),
        (["show", "all_reduce/ring", "--ranks", "0"], "--ranks"),
        (["show", "all_reduce/ring", "--ranks", "two"], "--ranks"),
        (["show", "broadcast/naive", "--ranks", "3", "--root", "3"], "0 … 2"),
        (["verify", "all_reduce/rng"], "did you mean 'ring'"),
        (["show", "all_reduce/ring", "--ranks", "3,x"], "--ranks"),
        (["verify", "--schedule", "nowhere.json"], "nowhere.json"),
        (["topology", "show", "hgx-h10"], "did you mean 'hgx-h100'"),
        (["topology", "show", "hgx-h100", "--nodes", "0"], "nodes"),
        (["predict", "all_reduce", "--on", "hgx-h10", "--size", "1 MiB"], "did you mean 'hgx-h100'"),
        (["predict", "allreduce", "--on", "hgx-h100", "--size", "1 MiB"], "did you mean 'all_reduce'"),
        (["predict", "all_reduce", "--on", "hgx-h100", "--size", "1"], "no unit"),
        (["predict", "all_reduce", "--on", "hgx-h100", "--size", "0"], "nothing is to be sent; ask for at least '4 B'"),
        (["run", "quickstart", "--set", "size=0"], "nothing is to be sent; ask for at least '4 B'"),
        (["run", "hgx-h100"], "a system, and no scenario; name a collective, and the system with --on"),
        (["explain", "hgx-h100", "--size", "64 MiB"], "simcoll predict all_reduce --on hgx-h100"),
        (
            ["predict", "all_reduce", "--size", "1 MiB"],
            "nothing says which machine; add --on SYSTEM, e.g. --on hgx-h100",
        ),
        (["plot", "nowhere.csv"], "nowhere.csv"),
        (["compare", "quickstart", "nowhere.csv"], "nowhere.csv"),
        (["compare", "nowhere.csv", "h100_sxm_nccl-2.27.3.csv"], "nowhere.csv"),
        (["compare", "system=hgx-h10", "h100_sxm_nccl-2.27.3.csv"], "did you mean 'hgx-h100'"),
        (["compare", "quickstart", "h100_sxm_nccl-2.27.3.csv", "--where", "ranks"], "COL=VALUE"),
        (["compare", "quickstart", "h100_sxm_nccl-2.27.3.csv", "--where", "rank=8"], "ranks"),
    ],
)
def test_values_that_make_no_sense(words: list[str], named: str):
    """Wrong input: exit 2, nothing on stdout, and a message that names what is wrong or what was meant."""
    found = simcoll(*words)
    assert (found.status, found.out) == (2, "")
    assert named in found.err
    assert "Traceback" not in found.err


def test_no_memory():
    """What needs more memory than there is ends with a line, not with a traceback."""

    @package.register("broadcast", "greedy")
    def greedy(request: package.Request) -> Iterator[package.Step]:
        """It asks for more than there is."""
        raise MemoryError

    try:
        found = simcoll("verify", "broadcast/greedy", "--ranks", 4)
    finally:
        del registry.ALGORITHMS["broadcast"]["greedy"]
    assert (found.status, found.out) == (1, "")
    assert "memory" in found.err


@pytest.mark.parametrize("both", [False, True])
def test_a_reader_that_goes_away(scenario: Path, tmp_path: Path, both: bool):
    """A closed pipe (`| head`, `2>&1 | head`) ends the program quietly, and what it writes to files is whole."""
    out = tmp_path / "out"
    assert simcoll("run", scenario, "-o", out, "--set", "plots=[]", "--set", "seed=1").status == 0
    reading, writing = os.pipe()
    os.close(reading)
    again = ["run", scenario, "-o", out, "--set", "plots=[]"]  # it says on stderr what it replaces, before it runs
    done = python(SCRIPT, again, capture_output=False, stdout=writing, stderr=writing if both else subprocess.PIPE)
    os.close(writing)
    assert done.returncode == 0 and "Traceback" not in (done.stderr or "")
    assert {path.name for path in out.iterdir()} - {"plots"} == {"results.csv", "manifest.json"}
    assert {row["seed"] for row in csv.DictReader((out / "results.csv").read_text("utf-8").splitlines())} == {"0"}


@pytest.mark.parametrize("words", [["list", "algorithms"], ["--version"], ["verify", "all_reduce/ring", "--json"]])
def test_a_full_disk(words: list[str]):
    """What stdout does not take is a line and exit 1, not a traceback."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        found = python(SCRIPT, words, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (found.returncode, found.stderr) == (1, "stdout: No space left on device\n")


def test_a_locale_without_our_signs():
    """Where stdout is ASCII, a sign that it lacks is `?`, and the rest stands."""
    words = ["predict", "all_reduce", "--on", "hgx-h100", "--size", "1 MiB", "--algorithm", "ring"]
    found = python(f"import sys; sys.stdout.reconfigure(encoding='ascii', errors='strict'); {SCRIPT}", words)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == simcoll(*words).out.encode("ascii", "replace").decode()
    assert "?" in found.stdout


def test_other_results_in_a_folder_are_not_replaced_in_silence(scenario: Path, tmp_path: Path):
    """A run of other points into the same folder, a quiet one too, names the command whose results it replaces; the
    same run does not."""
    for size, said in (("1 MiB", False), ("1 MiB", False), ("2 MiB", True)):
        found = simcoll("run", scenario, "-q", "-o", tmp_path / "o", "--set", f"size={size}", "--set", "plots=[]")
        assert found.status == 0
        assert ("replaces the results of `simcoll run" in found.err) == said
    words = ("predict", "all_reduce", "--on", "hgx-h100", "--algorithm", "ring", "-o", tmp_path / "p")
    for size, replaces in (("1 MiB", False), ("1 MiB", False), ("2 MiB", True)):
        found = simcoll(*words, "--size", size)
        assert found.status == 0
        assert ("replaces the results of `simcoll predict all_reduce" in found.err) == replaces


def test_sizes_are_written_as_short_as_they_are_asked_for():
    """The remark on links has decimal sizes as such; a size beyond all is refused at once, without its digits."""
    words = ("predict", "all_reduce", "--on", "hgx-h100", "--algorithm", "ring", "--size")
    assert "# busiest link at 64 MB, 8 ranks" in simcoll(*words, "64 MB").out
    assert "size: more than can be counted" in simcoll(*words, "1e400 B").err
    assert "'1e9999999 B' is not a size" in simcoll(*words, "1e9999999 B").err


# --- texts, compared with files; `pytest --update-golden` writes them anew ---


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("show-ring", ["show", "all_reduce/ring", "--ranks", 3]),
        ("show-data-all-gather", ["show", "--data", "all_gather/ring", "--ranks", 3]),
        ("show-data-reduce-scatter", ["show", "--data", "reduce_scatter/ring", "--ranks", 3]),
        ("show-diagram", ["show", "--diagram", "all_reduce/ring", "--ranks", 3]),
        ("show-diagram-tree", ["show", "--diagram", "broadcast/binomial", "--ranks", 4]),
        ("show-counts-ring", ["show", "all_reduce/ring", "--ranks", "2,4,8,16,32"]),
        ("show-counts-naive", ["show", "all_reduce/naive", "--ranks", "2,4,8,16,32"]),
        ("show-counts-all-pairs", ["show", "all_reduce/all_pairs", "--ranks", "2,4,8,16,32"]),
        ("show-counts-tree", ["show", "all_reduce/tree", "--ranks", "2,4,8,16,32"]),
        ("list-collectives", ["list", "collectives"]),
        ("list-profiles", ["list", "profiles"]),
    ],
)
def test_text_is_as_agreed(name: str, words: list[object], request: pytest.FixtureRequest):
    """What people read changes only on purpose."""
    found, file = simcoll(*words), GOLDEN / f"{name}.out"
    assert (found.status, found.err) == (0, "")
    if request.config.getoption("--update-golden"):
        file.write_text(found.out, encoding="utf-8")
    assert found.out == file.read_text(encoding="utf-8")


# --- run, predict ---


def test_run_prints_a_table(scenario: Path):
    """A table like nccl-tests': a head that names profile, sharing and what size means; a row a point; what binds."""
    found = simcoll("run", scenario)
    assert found.status == 0
    head = "\n".join(line for line in found.out.splitlines() if line.startswith("#"))
    for word in ("profile one-port", "sharing fair", "size = ", "busiest link at 1 MiB", "host0->switch", "10^9 B"):
        assert word in head
    assert len(re.findall(r"^ +\d+ [KM]?i?B +all_reduce +(?:ring|naive) ", found.out, re.MULTILINE)) == 4


def test_run_prints_json(scenario: Path):
    """`--json`: one document on stdout; rows have the columns of results.csv, numbers are numbers."""
    found = simcoll("run", scenario, "--json").json
    assert set(found) == {"schema", "points", "reused"}
    assert found["reused"] == 0
    assert [list(row) for row in found["points"]] == [list(result_rows.COLUMNS)] * 4
    row = found["points"][0]
    assert (row["algorithm"], row["ranks"], row["size_bytes"], row["status"]) == ("ring", 4, 65536, "ok")
    assert isinstance(row["time_us"], float)


def test_run_quiet(scenario: Path, tmp_path: Path):
    """`--quiet` says nothing and still writes."""
    found = simcoll("run", scenario, "--quiet", "-o", tmp_path / "out")
    assert found == (0, "", "")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"results.csv", "manifest.json", "plots"}


def test_json_says_what_the_file_says(scenario: Path, tmp_path: Path):
    """`--json` and results.csv hold the same numbers; where the files went is told on stderr."""
    found = simcoll("run", scenario, "--json", "-o", tmp_path / "out")
    rows = result_rows.read(tmp_path / "out/results.csv")
    assert [row["time_us"] for row in rows] == [row["time_us"] for row in found.json["points"]]
    assert str(tmp_path / "out/results.csv") in found.err


def test_set_overrides_and_creates(scenario: Path):
    """`--set` takes YAML on the right, makes missing keys, and the last one wins."""
    sets = ["algorithm=ring", "size=1 MiB", "model.sharing=fair", "model.sharing=fifo", "topology.hosts=3"]
    (row,) = simcoll("run", scenario, "--json", *(word for text in sets for word in ("--set", text))).json["points"]
    assert (row["ranks"], row["sharing"], row["size_bytes"]) == (3, "fifo", 2**20)


def test_output_that_is_a_file(scenario: Path, tmp_path: Path):
    """`-o` naming a file, or a folder inside a file, is wrong input and leaves the file alone."""
    file = tmp_path / "results"
    file.write_text("mine", encoding="utf-8")
    for output in (file, file / "inside"):
        found = simcoll("run", scenario, "-o", output)
        assert (found.status, found.out) == (2, "")
        assert str(output) in found.err
    assert file.read_text(encoding="utf-8") == "mine"


def test_nothing_but_refusals_is_no_answer(scenario: Path):
    """When no point has a result the status is 1, and the reason is printed."""
    found = simcoll("run", scenario, "--set", "ranks=9")
    assert found.status == 1
    assert "9 ranks do not fit 4 places" in found.out + found.err
    assert simcoll("run", scenario, "--set", "ranks=[4, 9]").status == 0
    explained = simcoll("explain", scenario, "--set", "ranks=9", "--set", "size=1 MiB", "--quiet")
    assert (explained.status, explained.out, explained.err.count("9 ranks do not fit 4 places")) == (2, "", 2)
    assert len(explained.err.splitlines()) == 2


def test_a_pattern_that_matches_no_link_is_told_once():
    """However many points a sweep has, on however many topologies; of hundreds of links the nearest few are named."""
    sets = [
        "topology={system: hgx-h100, nodes: [2, 3, 4]}",
        'topology.links={"xx->yy": {bandwidth: 1 GB/s}}',
        "ranks=8",
        "size=[1 KiB, 1 MiB]",
    ]
    found = simcoll("run", "quickstart", *(word for text in sets for word in ("--set", text)))
    assert (found.status, found.out) == (2, "")
    assert re.fullmatch(
        r"--set\[1\]:1:10: topology\.links\.xx->yy: matches no link; there are \d{3}, e\.g\. (\S+->\S+,? ?){3}\n",
        found.err,
    )


def test_a_barrier_has_no_size():
    """`predict` asks for the size of all else, as a file does."""
    (row,) = simcoll("predict", "barrier", "--on", "hgx-h100", "--profile", "one-port", "--json").json["points"]
    assert (row["status"], row["size_bytes"]) == ("ok", 0)
    found = simcoll("predict", "[barrier, all_reduce]", "--on", "hgx-h100")
    assert (found.status, found.out) == (2, "")
    assert found.err == "nothing says how large it is; add e.g. --size 64MiB\n"


@pytest.mark.parametrize("command", ["run", "explain", "recommend"])
def test_a_collective_is_asked_for_by_its_name(command: str, tmp_path: Path):
    """As `predict` is: the same options say machine and size, what is missing is named by its option."""
    words = [command, "all_gather", "--on", "hgx-h100", "--nodes", 2]
    asked = simcoll(*words, "--size", "1MiB", "--json")
    keys = "{name: all_gather, topology: {system: hgx-h100, nodes: 2}, collective: all_gather, size: 1 MiB}"
    (tmp_path / "keys.yaml").write_text(keys, encoding="utf-8")
    assert asked.json == simcoll(command, tmp_path / "keys.yaml", "--json").json
    assert simcoll(*words).err == "nothing says how large it is; add e.g. --size 64MiB\n"
    assert simcoll(command, "all_gather", "--size", "1MiB").err.startswith("nothing says which machine; add --on")


@pytest.mark.parametrize("algorithm", ["auto", "all", "ring"])
def test_predict_more_ranks_than_places(algorithm: str):
    """However the algorithm is chosen, what cannot be placed is a refusal with its reason."""
    found = simcoll(
        "predict", "all_reduce", "--on", "hgx-h100", "--size", "1 MiB", "--ranks", 9, "--algorithm", algorithm
    )
    assert found.status == 1
    assert "9 ranks do not fit 8 places" in found.out + found.err


def test_predict_needs_no_file():
    """A point from options is the point that a scenario file describes."""
    words = ["predict", "all_reduce", "--on", "hgx-h100", "--nodes", 2, "--ranks", 8, "--size", "[1 MiB, 2 MiB]"]
    rows = simcoll(*words, "--algorithm", "[ring, tree]", "--json").json["points"]
    assert [(row["algorithm"], row["size_bytes"]) for row in rows] == [
        (algorithm, size << 20) for algorithm in ("ring", "tree") for size in (1, 2)
    ]
    assert {row["topology"] for row in rows} == {"hgx-h100"}
    assert {row["ranks"] for row in rows} == {8}


def test_predict_on_a_file(tmp_path: Path):
    """`--on` takes a topology's YAML file."""
    path = tmp_path / "mine.yaml"
    path.write_text("{fabric: single-switch, hosts: 3, link: {bandwidth: 1 GB/s, latency: 1 us}}", encoding="utf-8")
    (row,) = simcoll("predict", "broadcast", "--on", path, "--size", "1 kB", "--algorithm", "naive", "--json").json[
        "points"
    ]
    assert (row["time_us"], row["topology"]) == (4.0, "mine")  # two messages of 1 us leave the root, and travel 2 us


@pytest.mark.parametrize(
    "key", ["placement: [host0, host9]", "placement: [host0, switch]",
            f"measured: {ROOT / 'pyproject.toml'}", "root: 9", "groups: [[0, 1], [2]]", "subgroups: [[0, 1], [1, 2]]",
            "subgroups: [[0, 1], [2]]", "arrivals: {9: 1 us}", "groups: [[0, x], [2, 3]]",
            f'topology: {STAR[:-1]}, links: {{"h0->x": {{latency: 1 us}}}}}}',
            "measured: nowhere.csv", "profile: nowhere.yaml", "topology: {file: nowhere.yaml}"],
)  # fmt: skip
def test_mistakes_that_show_late(key: str, tmp_path: Path):
    """What only the topology or another file can tell to be wrong is wrong input as well: exit 2, nothing written."""
    text = SCENARIO if not key.startswith("topology") else SCENARIO.replace(f"topology: {STAR}\n", "")
    (tmp_path / "s.yaml").write_text(f"{text.replace('[ring, naive]', 'hierarchical')}{key}\n", encoding="utf-8")
    found = simcoll("run", tmp_path / "s.yaml", "-o", tmp_path / "out")
    assert (found.status, found.out) == (2, "")
    assert found.err
    assert not (tmp_path / "out").exists()


# --- mistakes in a scenario file ---

MISTAKES = [
    ("key", "algorithm: ring", "algoritm: ring", (4, 1), "algoritm", "unknown key", "did you mean 'algorithm'?"),
    ("algorithm", "algorithm: ring", "algorithm: rng", (4, 12), "algorithm", "'rng'", "did you mean 'ring'?"),
    ("collective", "all_reduce", "allreduce", (3, 13), "collective", "'allreduce'", "did you mean 'all_reduce'?"),
    ("system", "hgx-h100", "hgx-h10", (2, 20), "topology.system", "'hgx-h10'", "did you mean 'hgx-h100'?"),
    ("no unit", "size: 1 MiB", "size: 1048576", (5, 7), "size", "no unit", "64 MiB"),
    ("wrong unit", "size: 1 MiB", "size: 1 MB/s", (5, 7), "size", "'MB/s'", "MiB"),
    ("nodes 0", "nodes: 2", "nodes: 0", (2, 37), "topology.nodes", "0", "at least 1"),
    ("nodes yes", "nodes: 2", "nodes: yes", (2, 37), "topology.nodes", "'yes'", "write e.g. 2"),
    ("factor 1", "size: 1 MiB", "size: {from: 1 KiB, to: 1 MiB, factor: 1}", (5, 40), "size.factor", "1", "above 1"),
    ("key twice", "size: 1 MiB", "size: 1 MiB\nsize: 2 MiB", (6, 1), "size", "twice", "keep one"),
]
GOOD = "name: x\ntopology: {system: hgx-h100, nodes: 2}\ncollective: all_reduce\nalgorithm: ring\nsize: 1 MiB\n"


@pytest.mark.parametrize(
    ("what", "good", "bad", "place", "path", "said", "cure"), MISTAKES, ids=[m[0] for m in MISTAKES]
)
def test_mistakes_are_located_and_cured(
    what: str, good: str, bad: str, place: tuple[int, int], path: str, said: str, cure: str, tmp_path: Path
):
    """`FILE:LINE:COLUMN: path: what; what instead` on one line, exit 2, nothing on stdout, nothing written."""
    file = tmp_path / "bad.yaml"
    assert good in GOOD
    file.write_text(GOOD.replace(good, bad), encoding="utf-8")
    found = simcoll("run", file, "-o", tmp_path / "out")
    assert (found.status, found.out) == (2, "")
    (line,) = found.err.splitlines()
    start = f"{file}:{place[0]}:{place[1]}: {path}: "
    assert line.startswith(start)
    told, separator, instead = line.removeprefix(start).partition("; ")
    assert separator
    assert said in told
    assert cure in instead
    assert not (tmp_path / "out").exists()


def test_all_mistakes_at_once(tmp_path: Path):
    """Every mistake of a file has its line, in the order of the file, also where a key stands twice."""
    file = tmp_path / "bad.yaml"
    file.write_text(
        "nam: x\ntopology: {system: hgx-h10, nodes: 0}\ncollective: all_reduce\nalgorithm: rng\n"
        "size: {from: 1 KiB, to: 1 MiB, factor: 1}\nmodel: {sharing: fare, o_send: 1}\nseed: 1\nseed: 2\n",
        encoding="utf-8",
    )
    found = simcoll("run", file)
    places = [line.removeprefix(f"{file}:").split(": ")[0] for line in found.err.splitlines()]
    assert places == ["1:1", "2:20", "2:36", "4:12", "5:40", "6:18", "6:32", "8:1"]


@pytest.mark.parametrize("value", ["placement: {per_node: 0}", "groups: {a: 3}", "version: 2", "arrivals: {1: 1}"])
def test_one_mistake_one_line(value: str, tmp_path: Path):
    """A mistake is told once, with a cure, also where a key may hold different kinds of value."""
    file = tmp_path / "bad.yaml"
    file.write_text(f"{GOOD}{value}\n", encoding="utf-8")
    (line,) = simcoll("run", file).err.splitlines()
    assert re.fullmatch(rf"{re.escape(str(file))}:6:\d+: [a-z]+\S*: [^;]+; .*\w.*(?<!choose from: )", line)


@pytest.mark.parametrize(
    "text",
    ["", "just words", "- 1\n- 2", "{", "a: [1, 2", "\0", "a: !!python/object:os.system x", "a: &a [*a]", "size: 1 B"],
)
def test_files_that_are_no_scenario(text: str, tmp_path: Path):
    """Whatever a file holds, the answer is a located message and exit 2."""
    file = tmp_path / "bad.yaml"
    file.write_text(text, encoding="utf-8")
    found = simcoll("run", file)
    assert (found.status, found.out) == (2, "")
    assert all(line.startswith(f"{file}:") for line in found.err.splitlines())


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


def test_one_rank_has_no_curve(scenario: Path, tmp_path: Path):
    """A run in which nothing is sent takes no time: it has rows and no curve, and is no mistake."""
    found = simcoll("run", scenario, "--set", "ranks=1", "-o", tmp_path / "out", "--quiet")
    assert found == (0, "", "")
    assert not list((tmp_path / "out").glob("plots/*"))


def test_the_manifest_tells_what_was_run(scenario: Path, tmp_path: Path):
    """manifest.json holds the command with its --set, and every key of the scenario with the values that it took."""
    simcoll("run", scenario, "--quiet", "-o", tmp_path / "out", "--set", "seed=3", "--set", "size=[1 KiB, 2 KiB]")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest["command"] == f"simcoll run {scenario} --set seed=3 --set 'size=[1 KiB, 2 KiB]'"
    assert manifest["keys"]["seed"] == [3]
    assert manifest["keys"]["size"] == [1024, 2048]
    assert manifest["keys"]["algorithm"] == ["ring", "naive"]
    assert manifest["keys"]["topology"][0]["hosts"] == 4


def test_a_measured_table_that_matches_nothing(scenario: Path, measured: Path, tmp_path: Path):
    """A table of which nothing belongs to the run is told on stderr; one that is drawn is not."""
    words = ["run", scenario, "--quiet", "-o", tmp_path / "out", "--set", f"measured={measured}"]
    words += ["--set", "plots=[busbw]"]
    assert simcoll(*words).err == ""
    _, line = simcoll(*words, "--set", "dtype=float16").err.splitlines()
    assert str(measured) in line
    assert "float16" in line


# --- schema ---


def test_schema_accepts_what_is_shipped():
    """Every shipped scenario is valid under the printed JSON Schema."""
    validator = _validator()
    assert SCENARIOS
    for file in SCENARIOS:
        validator.validate(yaml.safe_load(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "change",
    [{"algoritm": "ring"}, {"ranks": "eight"}, {"topology": {"sistem": "hgx-h100"}}, {"model": {"sharing": "fare"}},
     {"size": {"from": "1 KiB"}}, {"collective": "allreduce"}, {"collective": "workload"}, {"dtype": "float31"},
     {"op": ["sum", "mean"]}, {"plots": ["busbandwidth"]}, {"topology": {"system": "hgx-h10"}},
     {"topology": {"fabric": "fat_tree"}}, {"topology": {"system": "hgx-h100", "routing": "short"}},
     {"workload": {"template": "ddp", "model": "gpt3", "gpu": "h100"}},
     {"workload": {"template": "ddp", "model": "gpt2", "gpu": "h10"}},
     {"workload": {"operations": [{"name": "a", "collective": "allreduce", "size": "1 B"}]}}, {"size": 8}],
)  # fmt: skip
def test_schema_refuses_what_is_wrong(change: dict[str, Any]):
    """A misspelt key or a value of the wrong kind is marked by an editor that knows the schema."""
    good = {"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "algorithm": "ring", "size": "1 MiB"}
    _validator().validate(good)
    with pytest.raises(jsonschema.ValidationError):
        _validator().validate({**good, **change})


@pytest.mark.parametrize(
    "change",
    [{"collective": "all"}, {"dtype": ["float", "int8"]}, {"collective": ["barrier", "reduce"]}, {"op": "max"},
     {"faults": [{"link": "*", "kind": "slow", "factor": 2, "at": 0}], "model": {"o_send": 0, "gamma": [0, "1 ps/B"]}},
     {"topology": {"fabric": "ring", "hosts": 4, "links": {"*": {"bandwidth": 0, "latency": 0}},
                   "link": {"bandwidth": {"value": "1 GB/s", "spread": 0}, "latency": 0}}}],
)  # fmt: skip
def test_schema_knows_what_is_chosen_from(change: dict[str, Any]):
    """What stands for several names, other spellings, and a quantity of 0 are no mistakes."""
    _validator().validate({"topology": {"system": "hgx-h100"}, "collective": "all_reduce", "size": "1 MiB", **change})


@functools.cache
@functools.cache
def _validator() -> Any:
    schema = simcoll("schema").json
    cls = jsonschema.validators.validator_for(schema)
    cls.check_schema(schema)
    return cls(schema)


# --- list, topology ---


def test_list_names_everything():
    """What is registered or shipped is listed, by the name one writes in a scenario."""
    algorithms = simcoll("list", "algorithms").out
    for collective, entries in registry.ALGORITHMS.items():
        assert f"{collective}: " in algorithms
        assert all(re.search(rf"^  {name} ", algorithms, re.MULTILINE) for name in entries)
    assert _first_words("collectives") == list(collectives.COLLECTIVES)
    assert _first_words("scenarios") == [file.stem for file in SCENARIOS]
    assert _first_words("topologies") == sorted(file.stem for file in shipped("topologies").glob("*.yaml"))
    assert _first_words("profiles") == sorted(file.stem for file in (ROOT / "simcoll/scenario/profiles").glob("*.yaml"))
    assert simcoll("topology", "list") == simcoll("list", "topologies")
    assert simcoll("list") == simcoll("list", "algorithms")


def _first_words(what: str) -> list[str]:
    return [line.split()[0] for line in simcoll("list", what).out.splitlines()]


@pytest.mark.parametrize("name", sorted(file.stem for file in shipped("topologies").glob("*.yaml")))
def test_topology_show(name: str):
    """Devices, links and bisection bandwidth of every shipped system, as text and as JSON."""
    told, found = simcoll("topology", "show", name), simcoll("topology", "show", name, "--json").json
    assert told.status == 0
    assert name in told.out
    assert "bisection bandwidth" in told.out
    assert found["name"] == name
    assert sum(found["devices"].values()) > 0


def test_topology_show_nodes_and_picture(tmp_path: Path):
    """`--nodes` builds the cluster, `--set` changes it, `--png` draws it."""
    png = tmp_path / "cluster.png"
    found = simcoll(
        "topology", "show", "hgx-h100", "--nodes", 4, "--png", png, "--set", "topology.fabric=fat-tree", "--json"
    )
    assert found.json["devices"]["gpu"] == 32
    assert png.read_bytes().startswith(b"\x89PNG")
    assert str(png) in found.err


# --- show, verify ---


@pytest.fixture
def ring() -> dict[str, Any]:
    """The ring on four ranks, as `show --json` prints it."""
    return dict(simcoll("show", "all_reduce/ring", "--ranks", 4, "--json").json)


def test_show_json(ring: dict[str, Any]):
    """`show --json` has the agreed shape and counts."""
    assert {"collective", "algorithm", "ranks", "n_chunks", "counts", "transfers"} <= set(ring)
    assert ring["counts"] == {"steps": 6, "messages": 24, "bytes_per_rank_fraction": 1.5}
    assert ring["transfers"][0] == [0, 0, 3, 1, 3, True]


def test_show_json_of_several_rank_counts():
    """Several rank counts are one JSON document as well."""
    found = simcoll("show", "all_reduce/ring", "--ranks", "2,3", "--json").json
    assert [schedule["ranks"] for schedule in found] == [2, 3]


@pytest.mark.parametrize("pair", every_pair())
def test_show_tells_of_every_algorithm(pair: str):
    """Data and diagram exist for every registered algorithm, on one rank and on five."""
    for flag, n in itertools.product(("--data", "--diagram"), (1, 5)):
        found = simcoll("show", pair, "--ranks", n, flag)
        assert (found.status, found.err) == (0, "")
        assert found.out.strip()


@pytest.mark.parametrize("pair", every_pair())
def test_what_show_prints_verify_reads(pair: str, tmp_path: Path):
    """A schedule survives the way through JSON: it is proved again."""
    file = tmp_path / "schedule.json"
    file.write_text(simcoll("show", pair, "--ranks", 6, "--json").out, encoding="utf-8")
    found = simcoll("verify", "--schedule", file, "--json")
    (row,) = found.json["rows"]
    assert (found.status, f"{row['collective']}/{row['algorithm']}", row["ranks"], row["status"]) == (
        0,
        pair,
        6,
        "proved",
    )


def test_schedules_through_a_pipe(ring: dict[str, Any]):
    """`simcoll show … --json | simcoll verify --schedule -` works."""
    found = process("verify", "--schedule", "-", input=json.dumps(ring))
    assert (found.status, found.out.splitlines()[0]) == (0, "1 of 1 proved")


@pytest.mark.parametrize("index", range(0, 24, 5))
def test_a_missing_transfer_is_found(index: int, ring: dict[str, Any], tmp_path: Path):
    """Without one transfer the proof fails: exit 1, and the reason names step, rank and chunk of what is wrong."""
    chunk = ring["transfers"].pop(index)[4]
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(ring), encoding="utf-8")
    found = simcoll("verify", "--schedule", file, "--json")
    (row,) = found.json["rows"]
    assert (found.status, row["status"]) == (1, "wrong")
    assert re.search(r"\bstep \d+|\bnothing is ever sent there", row["reason"])
    assert re.search(r"\brank \d+", row["reason"])
    assert re.search(rf"\bchunk {chunk}\b", row["reason"])
    text = simcoll("verify", "--schedule", file)
    assert text.status == 1
    assert row["reason"] in text.out


def test_verify_everything():
    """Without a name every registered algorithm is proved, and the last line counts."""
    found = simcoll("verify", "--ranks", 5)
    pairs = len(every_pair())
    assert found.status == 0
    assert found.out.splitlines()[0] == f"{pairs} of {pairs} proved"


@pytest.mark.parametrize(("ranks", "proof"), [(5, "full"), (1025, "fingerprint")])
def test_verify_tells_which_proof(ranks: int, proof: str):
    """A row says whether the proof was the full one, or that of fingerprints for many ranks."""
    (row,) = simcoll("verify", "broadcast/binomial", "--ranks", ranks, "--json").json["rows"]
    assert (row["status"], row["proof"]) == ("proved", proof)


@pytest.mark.parametrize(
    "change",
    [{"collective": "allreduce"}, {"ranks": 0}, {"ranks": 3}, {"ranks": "4"}, {"ranks": True}, {"n_chunks": 0},
     {"n_chunks": 10**12}, {"ranks": 10**20}, {"transfers": [[0, 0, 0, 1, 0]]}, {"transfers": [[0, 0, 0, 9, 0, False]]},
     {"transfers": [[0, 0, 0, 1, 10**12, False]]},
     {"transfers": [[0, 0, 0, 1, -1, False]]}, {"transfers": [[1, 0, 0, 1, 0, False], [0, 0, 0, 1, 0, False]]},
     {"transfers": [[10**12, 0, 0, 1, 0, True]]}, {"transfers": "none"}, {"root": 7}, {"root": -1}, {"agents": 10**12},
     {"transfers": [[0, 0, 0, 1, 0, 2]]}, {"transfers": [[0.5, 0, 0, 1, 0, True]]}],
)  # fmt: skip
def test_schedules_that_are_none(change: dict[str, Any], ring: dict[str, Any], tmp_path: Path):
    """A schedule with impossible numbers is wrong input, located in its file; nothing is computed with it."""
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({**ring, **change}), encoding="utf-8")
    found = simcoll("verify", "--schedule", file)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(f"{file}:")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"x"', "[" * 5000, "{}", "\x00", '{"collective": NaN}'])
def test_text_that_is_no_schedule(text: str, tmp_path: Path):
    """Garbage is wrong input, located in its file."""
    file = tmp_path / "garbage.json"
    file.write_text(text, encoding="utf-8")
    found = simcoll("verify", "--schedule", file)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(f"{file}:")


def _all_reduce_is_right(ranks: int, rows: list[list[int]]) -> bool:
    """Whether rows leave the sum over all ranks everywhere. Rank r adds 64^r to each of its chunks, and chunk c has
    digits of its own: sums say how often each contribution counts."""
    held = {(rank, chunk): 64 ** (ranks * chunk + rank) for rank in range(ranks) for chunk in range(ranks)}
    total = {chunk: sum(held[rank, chunk] for rank in range(ranks)) for chunk in range(ranks)}
    for _, step in itertools.groupby(rows, key=lambda row: row[0]):
        moved = [(held[src, there], (dst, here), reduce) for _, src, there, dst, here, reduce in step]
        for value, place, reduce in moved:
            held[place] = value + reduce * held[place]
    return all(value == total[chunk] for (_, chunk), value in held.items())


def test_verify_says_what_a_changed_schedule_does(tmp_path: Path):
    """Of all schedules that differ from the ring on three by one number, or one row more or less: those are proved that
    leave the sums, the others are wrong, and steps that go back are wrong input."""
    ring = simcoll("show", "all_reduce/ring", "--ranks", 3, "--json").json
    rows, most = ring["transfers"], (4, 2, 2, 2, 2, 1)
    changed = [[*rows[:i], *rows[i + 1 :]] for i in range(12)] + [[*rows[:i], rows[i], *rows[i:]] for i in range(12)]
    for i, column in itertools.product(range(12), range(6)):
        values = (value for value in range(most[column] + 1) if value != rows[i][column])
        changed += [[*rows[:i], [*rows[i][:column], x, *rows[i][column + 1 :]], *rows[i + 1 :]] for x in values]
    file, seen = tmp_path / "changed.json", set()
    for table in changed:
        file.write_text(json.dumps({**ring, "transfers": table}), encoding="utf-8")
        goes_back = any(a[0] > b[0] for a, b in itertools.pairwise(table))
        expected = 2 if goes_back else 1 - _all_reduce_is_right(3, table)
        assert simcoll("verify", "--schedule", file).status == expected, table
        seen.add(expected)
    assert seen == {0, 1, 2}


def test_no_schedule_breaks_verify(tmp_path: Path):
    """Whatever stands in the place of any value of a schedule's JSON, or of a piece of the text: proved, wrong, or
    wrong input located in the file, never a traceback."""
    plain = simcoll("show", "all_reduce/ring", "--ranks", 3, "--json").out
    odd = [None, True, -1, 0, 3, 10**20, 0.5, math.nan, "", "\ud800", [], [[]], {}]
    keys = ("collective", "algorithm", "ranks", "n_chunks", "agents", "root", "pipelined", "counts", "transfers")
    places = [(key,) for key in keys] + [("transfers", 5), *(("transfers", 5, column) for column in range(6))]
    texts = []
    for (*way, last), value in itertools.product(places, odd):
        tree = json.loads(plain)
        functools.reduce(lambda part, key: part[key], way, tree)[last] = value
        texts.append(json.dumps(tree))
    rng = random.Random(0)
    for _ in range(60):
        at = rng.randrange(len(plain))
        texts.append(plain[:at] + rng.choice(["", "[", '"', "-", "9", "\0", "\ud800"]) + plain[at + rng.randrange(9) :])
    file, seen = tmp_path / "mutated.json", set()
    for text in texts:
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        found = simcoll("verify", "--schedule", file)
        assert found.status < 2 or (found.status == 2 and found.err.startswith(f"{file}:")), (text, found)
        assert (found.err == "") == (found.status < 2), text
        seen.add(found.status)
    assert seen == {0, 1, 2}


# --- plot, compare ---


def test_plot_draws_again(scenario: Path, tmp_path: Path):
    """`plot` draws what results.csv holds, into a folder of choice or beside it, and prints the paths."""
    simcoll("run", scenario, "--quiet", "-o", tmp_path / "out", "--set", "plots=[latency]")
    assert [path.name for path in (tmp_path / "out/plots").iterdir()] == ["latency.png"]
    found = simcoll("plot", tmp_path / "out", "-o", tmp_path / "again")
    pictures = [Path(line) for line in found.out.splitlines()]
    assert found.status == 0
    assert {"busbw.png", "latency.png"} <= {path.name for path in pictures}
    assert all(path.parent == tmp_path / "again" and path.stat().st_size > 5000 for path in pictures)
    assert simcoll("plot", tmp_path / "out/results.csv").status == 0


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


def test_compare_takes_a_results_file(scenario: Path, measured: Path, tmp_path: Path):
    """A results.csv compares like the scenario that it came from."""
    simcoll("run", scenario, "--quiet", "-o", tmp_path / "out")
    of_file = simcoll("compare", tmp_path / "out/results.csv", measured, "--json").json
    assert of_file["points"] == simcoll("compare", scenario, measured, "--json").json["points"]


def test_compare_where(scenario: Path, measured: Path):
    """`--where` keeps rows of both tables."""
    words = ["compare", scenario, measured, "--where", "algorithm=ring", "--where", "size_bytes=65536", "--json"]
    (point,) = simcoll(*words).json["points"]
    assert (point["algorithm"], point["size_bytes"], point["measured_us"]) == ("ring", 65536, 10)


def test_compare_ambiguous(scenario: Path, tmp_path: Path):
    """Two predictions for one measured row: exit 2, and the message names --where."""
    table = tmp_path / "t.csv"
    table.write_text("collective,ranks,size_bytes,time_us\nall_reduce,4,65536,10\n", encoding="utf-8")
    found = simcoll("compare", scenario, table)
    assert (found.status, found.out) == (2, "")
    assert "--where algorithm=" in found.err
    assert simcoll("compare", scenario, table, "--where", "algorithm=ring").status == 0


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


def test_compare_a_system():
    """`system=NAME` predicts every row of the table that names a known collective."""
    words = [
        "compare",
        "system=hgx-h100",
        "h100_sxm_nccl-2.27.3.csv",
        "--where",
        "dtype=float16",
        "--where",
        "ranks=2",
        "--json",
    ]
    found = simcoll(*words).json
    assert {point["ranks"] for point in found["points"]} == {2}
    assert {point["dtype"] for point in found["points"]} == {"float16"}
    assert found["unmatched"] == 0


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


MACHINE = ("--on", "dgx-a100", "--nodes", "2", "--profile", "nccl-ampere")
SETS = ("--set", "topology={system: dgx-a100, nodes: 2}", "--set", "profile=nccl-ampere")
SMALL = ("--set", "algorithm=auto", "--set", "size=1 KiB", "--quiet", "--json")


@pytest.mark.parametrize("command", ["run", "explain", "recommend"])
def test_a_machine_and_a_profile_are_options(command: str):
    """`--on`, `--nodes` and `--profile` say what `--set` could, and `--set` has the last word."""
    words = [word for word in SMALL if command != "run" or word != "--quiet"]
    words += ["--among", "ring"] * (command == "recommend")
    asked = simcoll(command, "quickstart", *MACHINE, *words)
    assert asked.status == 0, asked.err
    assert asked.json == simcoll(command, "quickstart", *SETS, *words).json
    last = simcoll(command, "quickstart", *MACHINE, *words, "--set", "topology.nodes=1").json
    assert all(point["nodes"] == 1 for point in next(iter(value for value in last.values() if isinstance(value, list))))


def test_no_scenario_is_needed():
    """The keys of a scenario may all be options: then there is none to name."""
    words = ("--on", "dgx-a100", "--set", "collective=all_gather", "--set", "size=1 KiB", "--quiet", "--json")
    for command, its_own in (("explain", ("--no-what-if",)), ("recommend", ("--among", "ring"))):
        asked = simcoll(command, *words, *its_own)
        assert asked.status == 0 and "dgx-a100" in asked.out, asked.err


def test_a_rehearsal_is_on_the_machine_asked_for():
    """`measure` takes `--on` and `--nodes`: as many ranks as the machine has."""
    asked = simcoll("measure", "quickstart", "--dry-run", "--set", "algorithm=ring", "--on", "dgx-a100", "--nodes", "2")
    assert asked.status == 0 and "all_reduce/ring, 16 ranks" in asked.out, asked.err


def test_predict_takes_several_nodes():
    """A list as in YAML, with and without brackets, makes a point for each."""
    words = ("predict", "all_reduce", "--on", "dgx-a100", "--size", "1 KiB", "--profile", "nccl-ampere", "--json")
    rows = simcoll(*words, "--nodes", "1,2").json["points"]
    assert [(row["nodes"], row["profile"]) for row in rows] == [(1, "nccl-ampere"), (2, "nccl-ampere")]
    assert rows == simcoll(*words, "--nodes", "[1, 2]").json["points"]


def _shell(name: str, folder: Path) -> dict[str, str]:
    """An environment in which a shell finds `simcoll`, and nothing of its own set up."""
    if not shutil.which(name):
        pytest.skip(f"no {name}")
    (folder / "simcoll").write_text(f'#!/bin/sh\nexec {sys.executable} -m simcoll "$@"\n', encoding="utf-8")
    (folder / "simcoll").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {**os.environ, "TERM": "dumb", "HOME": str(folder), "PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("shell", ["bash --norc --noprofile -i", "zsh -f -i"])
def test_a_tab_completes(shell: str, tmp_path: Path):
    """Typed at a terminal."""
    env, (ours, theirs) = _shell(shell.split()[0], tmp_path), os.openpty()
    ends: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    with subprocess.Popen(shell.split(), env=env, **ends) as ran:

        def typed(keys: str, until: str) -> str:
            os.write(ours, keys.encode())
            seen = ""
            while until not in seen and select.select([ours], [], [], 30)[0]:
                seen += os.read(ours, 4096).decode(errors="replace")
            return seen

        try:
            typed(f"eval \"$(simcoll completion {shell.split()[0]})\"; echo re''ady\n", "ready")
            assert "simcoll run quickstart" in typed("simcoll run quicks\t", "quickstart")
        finally:
            ran.kill()
    os.close(ours)
    os.close(theirs)


def test_fish_completes(tmp_path: Path):
    """Fish completes a line without a terminal."""
    line = "simcoll completion fish | source; complete -C 'simcoll run quicks'"
    how: dict[str, Any] = {"env": _shell("fish", tmp_path), "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run(["fish", "--no-config", "-c", line], check=True, **how)
    assert done.stdout.split() == ["quickstart"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete(shell: str, monkeypatch: pytest.MonkeyPatch):
    """The script of each shell asks by a variable, and gets commands, options and shipped names."""
    script = simcoll("completion", shell).out
    assert "_SIMCOLL_COMPLETE" in script and f"{shell}_complete" in script
    for words, found in (
        ("simcoll ru", "run"),
        ("simcoll run quick", "quickstart"),
        ("simcoll run --prof", "--profile"),
        ("simcoll predict all_gather --on hgx-h1", "hgx-h100"),
        ("simcoll predict all_gather --algorithm bru", "bruck"),
        ("simcoll show all_reduce/ri", "all_reduce/ring"),
        ("simcoll compare h100", "h100_sxm_nccl-2.27.3.csv"),
        ("simcoll topology show dgx", "dgx-a100"),
        ("simcoll export all_reduce/ring --to ms", "msccl"),
    ):
        monkeypatch.setenv("_SIMCOLL_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", words.split()[-1] if shell == "fish" else str(len(words.split()) - 1))
        assert found in simcoll().out
        monkeypatch.delenv("_SIMCOLL_COMPLETE")
