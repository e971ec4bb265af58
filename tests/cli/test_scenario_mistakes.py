"""Mistakes in a scenario file, each with its place and a cure; and the schema that editors know them by."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import foreign
import jsonschema
import pytest
import yaml
from command import simcoll

from simcoll.config.yaml_tree import shipped

SCENARIOS = sorted(shipped("scenarios").glob("*.yaml"))


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


@pytest.mark.thorough
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
def _validator() -> Any:
    schema = simcoll("schema").json
    cls = jsonschema.validators.validator_for(schema)
    cls.check_schema(schema)
    return cls(schema)


LONG = "9" * 5000
OF_NUMBERS = (
    f"--size={LONG}", f"--size={LONG} B", f"--nodes={LONG}", f"--ranks={LONG}", f"--set=seed={LONG}",
    f"--algorithm=hierarchical(across={LONG})", f"--algorithm=recursive_multiplying(radix={LONG})",
    f"--set=env.NCCL_MAX_NCHANNELS='{LONG}'", f"--set=env.NCCL_BUFFSIZE='0x{LONG}'", f"--set=library_version='{LONG}'",
    f"--set=model.gamma={LONG} ps/B", f"--set={LONG}=1", f"--profile={LONG}", f"--executor={LONG}",
)  # fmt: skip


@pytest.mark.parametrize("word", OF_NUMBERS, ids=[word[:30] for word in OF_NUMBERS])
def test_a_word_without_end_is_said_in_few(word: str) -> None:
    """A number that Python cannot take, and a name of any length, are refused in lines that can be read."""
    done = simcoll("predict", "all_reduce", "--on", "hgx-h100", *([] if "--size" in word else ["--size=1MiB"]), word)
    assert (done.status, done.out) == (2, "")
    assert all(len(line) < 1000 and "Exceeds the limit" not in line for line in done.err.splitlines())


@pytest.mark.parametrize("name", ["nvidia-smi", "rocm-smi", "graphml", "goal", "osu"])
def test_a_text_of_another_program_is_no_scenario(name: str, tmp_path: Path) -> None:
    """A text that `import` takes ends with one line where a scenario is asked for."""
    (tmp_path / "file").write_text(foreign.FILES[name])
    refused = simcoll("run", tmp_path / "file")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "not a scenario; give a scenario's" in refused.err


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["explain", "run", "recommend"])
def test_a_file_of_another_kind_is_called_by_its_kind(
    command: str, scenario: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no scenario is said to be what it is; each command that the message proposes takes the file."""
    monkeypatch.chdir(tmp_path)
    out, program, own = tmp_path / "out", tmp_path / "ring.xml", tmp_path / "own.json"
    assert simcoll("run", scenario, "-o", out, "-q").status == 0
    assert simcoll("export", "all_reduce/ring", "--ranks", 4, "--to", "msccl", "-o", program).status == 0
    assert simcoll("import", program, "-o", own).status == 0
    for file, what in (
        (out, "results of simcoll"),
        (out / "results.csv", "results of simcoll"),
        (measured, "a table of measured times"),
        (program, "a schedule in another program's format"),
        (own, "a schedule"),
    ):
        refused = simcoll(command, file)
        assert refused.status == 2
        assert f": {what}, not a scenario; give a scenario's file or name, or a collective" in refused.err
        for words in re.findall(r"`simcoll ([^`]*)`", refused.err):
            known = {"MEASURED.csv": str(measured), "SYSTEM": "hgx-h100"}
            proposed = [known.get(word, word) for word in words.split()]
            if proposed == ["diagnose"]:
                continue
            assert simcoll(*proposed).status == 0, words


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--ranks", "9"], "--ranks:1:1: ranks: "),
        (["--ranks", "9", "--algorithm", "all"], "--ranks:1:1: ranks: "),
        (["--set", "ranks=[9, 10]"], "--set[1]:1:8: ranks: "),
        (["--nodes", "1000000000"], "--nodes:1:1: topology.nodes: "),
        (["--set", "launch.gpus_per_process=9"], "--set[1]:1:25: launch.gpus_per_process: "),
        (["--set", "topology.nodes=1000000000"], "--set[1]:1:16: topology.nodes: "),
    ],
)
def test_a_number_too_large_is_a_mistake_of_its_option(words: list[str], place: str) -> None:
    """More ranks or nodes than there can be are wrong input, at the place that asks for them, whatever finds it."""
    refused = simcoll("predict", "all_reduce", "--on", "hgx-h100", "--size", "1MiB", *words)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith(place)
