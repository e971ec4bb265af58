"""`run` and `predict`, and the options of machines that other commands share."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command import ROOT, simcoll


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


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_pictures_of_replaced_results_go(scenario: Path, tmp_path: Path, kind: str):
    """A run of other points leaves no picture of the results that it replaces, and those that others drew."""
    sets = ["--set", "size=1 MiB", "--set", "algorithm=ring", "--format", kind, "-q", "-o", tmp_path / "o"]
    plots, before = tmp_path / "o" / "plots", "plots=[busbw, latency]"
    assert simcoll("run", scenario, *sets, "--set", before).status == 0
    assert simcoll("plot", tmp_path / "o", "--x", "size", "--format", kind).status == 0
    drawn = {file.name for file in plots.iterdir()}
    assert len(drawn) == 3 and {f"busbw.{kind}", f"latency.{kind}"} < drawn
    (plots / f"my own.{kind}").write_bytes(b"simcoll, drawn by hand")
    assert simcoll("run", scenario, *sets, "--set", before).status == 0
    assert {file.name for file in plots.iterdir()} == {*drawn, f"my own.{kind}"}
    assert simcoll("run", scenario, *sets, "--set", "plots=[latency]", "--set", "size=2 MiB").status == 0
    assert {file.name for file in plots.iterdir()} == {f"latency.{kind}", f"my own.{kind}"}


def test_every_output_makes_its_folder(scenario: Path, tmp_path: Path):
    """What is written where no folder is makes it, whichever option names it."""
    one, new = ["--set", "size=1 KiB", "--set", "algorithm=ring", "--set", "plots=[]"], tmp_path / "new"
    files = [new / "a/o", new / "b/r.html", new / "c/t.json", new / "d/s.xml", new / "e/l.png"]
    done = [
        simcoll("run", scenario, *one, "-q", "-o", files[0], "--report", files[1], "--trace", files[2]),
        simcoll("export", "all_reduce/ring", "--ranks", 4, "--to", "msccl", "-o", files[3]),
        simcoll("plot", files[0], "--x", "size", "-o", files[4]),
    ]
    assert [each.status for each in done] == [0, 0, 0] and all(file.exists() for file in files)


def test_a_results_csv_of_others_is_not_overwritten(scenario: Path, tmp_path: Path):
    """A results.csv that simcoll did not write is refused before anything runs, and stays; one of ours does not."""
    table = tmp_path / "o" / "results.csv"
    table.parent.mkdir()
    table.write_text("student,grade\nanna,1\n", encoding="utf-8")
    for words in (["run", scenario], ["predict", "all_reduce", "--on", "hgx-h100", "--size", "1 KiB"]):
        found = simcoll(*words, "-o", table.parent)
        assert (found.status, found.out) == (2, "")
        assert f"{table} is no results.csv of simcoll, and this run would overwrite it; move it" in found.err
    assert table.read_text(encoding="utf-8") == "student,grade\nanna,1\n"
    table.unlink()
    words = ["run", scenario, "-q", "-o", table.parent, "--set", "size=1 MiB", "--set", "plots=[]"]
    assert [simcoll(*words).status for _ in range(2)] == [0, 0]


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
    """When no point has a result the status is 1, and the reason is printed; where all ask for too much, that is a
    mistake."""
    found = simcoll("run", scenario, "--set", "algorithm=nvls")
    assert found.status == 1
    assert "nvls" in found.out + found.err
    assert simcoll("run", scenario, "--set", "ranks=[4, 9]").status == 0
    asked = ("--set", "ranks=9", "--set", "size=1 MiB", "--quiet")
    explained, run = simcoll("explain", scenario, *asked), simcoll("run", scenario, *asked)
    assert (explained.status, explained.out, explained.err.count("9 ranks do not fit 4 places")) == (2, "", 2)
    assert len(explained.err.splitlines()) == 2
    assert (run.status, run.out, run.err.count("9 ranks do not fit 4 places")) == (2, "", 1)


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
        r"--set\[2\]:1:27: topology\.links\.xx->yy: matches no link; there are \d{3}, e\.g\. (\S+->\S+,? ?){3}\n",
        found.err,
    )


@pytest.mark.parametrize("command", ["run", "explain", "recommend"])
def test_a_collective_is_asked_for_by_its_name(command: str, tmp_path: Path):
    """As `predict` is: the same options say machine and size, what is missing is named by its option."""
    words = [command, "all_gather", "--on", "hgx-h100", "--nodes", 2]
    asked = simcoll(*words, "--size", "1MiB", "--json")
    keys = "{name: all_gather, topology: {system: hgx-h100, nodes: 2}, collective: all_gather, size: 1 MiB}"
    (tmp_path / "keys.yaml").write_text(keys, encoding="utf-8")
    assert asked.json == simcoll(command, tmp_path / "keys.yaml", "--json").json
    assert simcoll(*words).err == "--size is missing; add e.g. --size 64MiB\n"
    assert simcoll(command, "all_gather", "--size", "1MiB").err.startswith("the machine is missing; add --on")


@pytest.mark.parametrize(
    "key", ["placement=[host0, host9]", "placement=[host0, switch]",
            f"measured={ROOT / 'pyproject.toml'}", "root=9", "groups=[[0, 1], [2]]", "subgroups=[[0, 1], [1, 2]]",
            "subgroups=[[0, 1], [2]]", "arrivals={9: 1 us}", "groups=[[0, x], [2, 3]]",
            'topology.links={"h0->x": {latency: 1 us}}',
            "measured=nowhere.csv", "profile=nowhere.yaml", "topology={file: nowhere.yaml}"],
)  # fmt: skip
def test_mistakes_that_show_late(key: str, scenario: Path, tmp_path: Path):
    """What only the topology or another file can tell to be wrong is wrong input as well: exit 2, nothing written."""
    found = simcoll("run", scenario, "--set", "algorithm=hierarchical", "--set", key, "-o", tmp_path / "out")
    assert (found.status, found.out) == (2, "")
    assert found.err
    assert not (tmp_path / "out").exists()


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


def test_machines_of_a_list_may_be_in_words_and_in_braces() -> None:
    """A comma outside all brackets makes a list, with or without brackets of its own."""
    asked = ("run", "all_reduce", "--size", "1 MiB", "--json")
    bare, bracketed = (
        simcoll(*asked, "--on", on) for on in ("hgx-h100,{system: hgx-h200}", "[hgx-h100,{system: hgx-h200}]")
    )
    assert not bare.err
    assert bare.json == bracketed.json
