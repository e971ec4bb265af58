"""The command line as such: help, streams, words that make no sense, texts as agreed."""

from __future__ import annotations

import csv
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import PATIENCE_S, ROOT, SCRIPT, command_names, environment, python, simcoll

import simcoll as package
from simcoll.schedule import registry

GOLDEN = ROOT / "tests/golden"


def test_help_imports_nothing_heavy():
    """`simcoll --help` loads none of the libraries that simulate and draw, so it is quick on any machine."""
    heavy = {"numpy", "networkx", "simpy", "matplotlib", "pydantic", "torch", "scipy", "joblib", "yaml"}
    code = f"import sys; from simcoll.cli import main; main(['--help']); print(sorted(sys.modules.keys() & {heavy}))"
    done = python(code)
    assert done.stdout.startswith("Usage: simcoll")
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_small_run_imports_what_it_uses():
    """A run of eight ranks loads nothing that simulates step by step, draws, fits or compiles. Its links are alike, so
    that its bound needs no solver, which scipy has."""
    heavy = {"networkx", "simpy", "matplotlib", "scipy", "pandas", "joblib", "numba", "jinja2", "rich"}
    asked = ["run", "quickstart", "--set", "size=1 MiB", "--set", "algorithm=ring", "--set", "system=dgx-a100"]
    code = f"import sys; from simcoll.cli import main; main({asked}); print(sorted(sys.modules.keys() & {heavy}))"
    assert python(code).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [[], *([name] for name in command_names()), ["topology", "show"]])
def test_every_command_has_help(command: list[str]):
    """`--help` is a good answer: stdout, exit 0."""
    found = simcoll(*command, "--help")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith(f"Usage: {' '.join(['simcoll', *command])} ")


def test_version():
    """`--version` prints the package's version."""
    assert package.__version__ in simcoll("--version").out


def test_runs_as_a_module(tmp_path: Path):
    """`python -m simcoll` is the same program, from any folder, and ends with the same status."""
    words = [sys.executable, "-m", "simcoll", "verify", "all_reduce/ring"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
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


@pytest.mark.parametrize("name", ["report", "trace"])
def test_options_that_are_looked_for_as_commands(name: str):
    """What `run` has as an option is no command, and says so; `run` has it."""
    assert f"no such command '{name}'; did you mean `simcoll run SCENARIO --{name} PATH`?" in simcoll(name, "x").err
    assert f"--{name} PATH" in simcoll("run", "--help").out


@pytest.mark.parametrize("number", ["1_0", "１０"])
@pytest.mark.parametrize(
    "words",
    [
        ["predict", "all_reduce", "--on", "hgx-h100", "--size", "{} MiB"],
        ["predict", "all_reduce", "--on", "hgx-h100", "--size", "1 MiB", "--nodes", "{}"],
        ["predict", "all_reduce", "--on", "hgx-h100", "--size", "1 MiB", "--ranks", "{}"],
        ["run", "quickstart", "--jobs", "{}"],
        ["run", "quickstart", "--set", "seed={}"],
        ["run", "quickstart", "--set", "launch.calls={}"],
        ["run", "stragglers", "--set", "replications={}"],
        ["show", "all_reduce/ring", "--ranks", "{}"],
        ["show", "all_reduce/ring", "--root", "{}"],
        ["measure", "quickstart", "--timeout", "{}"],
        ["compare", "h100_sxm_nccl-2.27.3.csv", "--on", "hgx-h100", "--max-mape", "{}"],
        ["compare", "measured.csv", "--on", "hgx-h100"],
        ["run", "hosts.yaml"],
    ],
    ids=lambda words: " ".join(words[::3]),
)
def test_numbers_in_other_digits_are_none(
    number: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`1_0` and full-width digits are refused wherever a number belongs: options, keys of files, cells of tables."""
    monkeypatch.chdir(tmp_path)
    columns = "collective,ranks,size_bytes,dtype,algorithm,time_us"
    Path("measured.csv").write_text(f"{columns}\nall_reduce,{number},65536,float32,ring,10\n", encoding="utf-8")
    Path("hosts.yaml").write_text(f"topology: {{fabric: single-switch, hosts: {number}}}\n", encoding="utf-8")
    found = simcoll(*(word.format(number) for word in words))
    assert (found.status, found.out) == (2, "")
    assert number in found.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "quickstat"], "did you mean 'quickstart'"),
        (["run", "nowhere/near.yaml"], "nowhere/near.yaml"),
        (["run", "quickstart", "--jobs", "0"], "--jobs"),
        (["run", "quickstart", "--jobs", "-5"], "--jobs"),
        (["show", "all_reduce/ring", "--ranks", "65536"], "has too many transfers to show"),
        (["show", "all_gather/ring", "--ranks", "2,4096", "--json"], "has too many transfers to show"),
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
        (["predict", "all_reduce", "--on", "hgx-h100", "--size", "0"], "the size is 0; write at least '4 B'"),
        (["run", "quickstart", "--set", "size=0"], "the size is 0; write at least '4 B'"),
        (["run", "hgx-h100"], "is a system, not a scenario; name a collective, and the system with --on"),
        (["explain", "hgx-h100", "--size", "64 MiB"], "simcoll predict all_reduce --on hgx-h100"),
        (["predict", "all_reduce", "--size", "1 MiB"], "the machine is missing; add --on SYSTEM, e.g. --on hgx-h100"),
        (["plot", "nowhere.csv"], "nowhere.csv"),
        (["compare", "quickstart", "nowhere.csv"], "nowhere.csv"),
        (["compare", "nowhere.csv", "h100_sxm_nccl-2.27.3.csv"], "nowhere.csv"),
        (["compare", "system=hgx-h10", "h100_sxm_nccl-2.27.3.csv"], "did you mean 'hgx-h100'"),
        (["compare", "quickstart", "h100_sxm_nccl-2.27.3.csv", "--where", "ranks"], "COL=VALUE"),
        (["compare", "quickstart", "h100_sxm_nccl-2.27.3.csv", "--where", "rank=8"], "ranks"),
        (
            ["compare", "quickstart", "h100_sxm_nccl-2.27.3.csv", "--where", "ranks=8,collective=broadcast"],
            "names several columns; give each by itself: --where ranks=8 --where collective=broadcast",
        ),
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


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
ONE_SIZE = ("--on", "hgx-h100", "--size", "1 MiB")


@needs_full
@pytest.mark.parametrize("words", [["list", "algorithms"], ["--version"], ["verify", "all_reduce/ring", "--json"]])
def test_a_full_disk_behind_stdout(words: list[str]):
    """What stdout does not take is a line and exit 1, not a traceback."""
    with Path("/dev/full").open("w") as full:
        found = python(SCRIPT, words, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (found.returncode, found.stderr) == (1, "stdout: No space left on device\n")


@needs_full
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("out/results.csv", ["predict", "all_reduce", *ONE_SIZE, "-o", "out"]),
        (
            "trace.json",
            ["run", "small.yaml", "--set", "size=1 MiB", "--set", "algorithm=ring", "--trace", "trace.json"],
        ),
        ("report.html", ["run", "small.yaml", "--report", "report.html"]),
        ("compare.csv", ["compare", "h100_sxm_nccl-2.27.3.csv", "--on", "hgx-h100", "--where", "ranks=8", "-o", "."]),
        ("own.yaml", ["calibrate", "measured.csv", "--on", "hgx-h100", "-o", "own.yaml"]),
        ("best.json", ["recommend", "all_reduce", *ONE_SIZE, "-o", "best.json"]),
        ("dot.svg", ["topology", "show", "hgx-h100", "--png", "dot.svg"]),
        ("ring.xml", ["export", "all_reduce/ring", "--ranks", "4", "--to", "msccl", "-o", "ring.xml"]),
        ("table.csv", ["import", "measured.csv", "--as", "measured", "-o", "table.csv"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_full_disk_is_no_wrong_input(
    file: str, words: list[str], scenario: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever writes a file: exit 1, and one line that names it."""
    monkeypatch.chdir(tmp_path)
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).symlink_to("/dev/full")
    found = simcoll(*words)
    assert (found.status, Path(file).is_symlink()) == (1, True), found
    assert found.err.splitlines()[-1] == (
        f"{file}: cannot be written: No space left on device; make room, or give another folder"
    )


@pytest.mark.thorough
def test_words_with_umlauts_in_every_locale(tmp_path: Path):
    """In a locale of ASCII, names, keys and files with umlauts are what they are in one of UTF-8; what is not UTF-8 is
    refused by name."""
    hosts = "topology: {fabric: single-switch, hosts: 2, link: {bandwidth: 1 GB/s, latency: 1 us}}"
    (tmp_path / "grün.yaml").write_text(f"{hosts}\ncollective: all_reduce\nsize: 1 KiB\n", encoding="utf-8")
    ascii_ = {**environment(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (
        ["run", "grün.yaml", "--set", "name=grün", "--report", "ü.html", "-o", "out"],
        ["predict", "all_reduce", "--on", "hgx-hü", "--size", "1 KiB"],
        ["predict", "all_reduce", "--on", "grün.yaml", "--size", "1 MüB", "--algorithm", "rüng"],
        ["predict", "all_rüduce", "--on", "hgx-h100", "--size", "1 KiB"],
    ):
        run = functools.partial(subprocess.run, cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=False)
        there, here = (run([sys.executable, "-c", SCRIPT, *words], env=env) for env in (ascii_, environment()))
        assert b"Traceback" not in there.stderr
        assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
    assert (tmp_path / "ü.html").exists()
    for word in (b"gr\xfcn.yaml", b"--set=name=gr\xfcn"):
        words = [sys.executable, "-c", SCRIPT, "run", "quickstart", word]
        done = subprocess.run(words, env=environment(), capture_output=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 2
        assert re.match(r"'.*gr\ufffdn.*' is no text in UTF-8; write it in UTF-8", done.stderr.decode())


def test_a_locale_without_our_signs():
    """Where stdout is ASCII, a sign that it lacks is the nearest that it has, and the rest stands."""
    words = ["predict", "all_reduce", "--on", "hgx-h100", "--size", "1 MiB", "--algorithm", "ring"]
    found = python(f"import sys; sys.stdout.reconfigure(encoding='ascii', errors='strict'); {SCRIPT}", words)
    assert (found.returncode, found.stderr) == (0, "")
    assert "×" in simcoll(*words).out
    assert found.stdout == simcoll(*words).out.replace("×", "x")


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
