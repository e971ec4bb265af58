"""Scenarios: every shipped one runs, and every key does what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import simcoll as command

import simcoll
from simcoll.config.yaml_tree import shipped
from simcoll.errors import InputError, TopologyError
from simcoll.nccl.algorithm_names import names as nccl_names
from simcoll.prediction.placed_topology import served_by
from simcoll.scenario.profile import LinkScale
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.topology.graph import Link, Topology

SCENARIOS = sorted(shipped("scenarios").glob("*.yaml"))
SHORT = {  # the large ones, cut down for every day; in full under `-m long`
    "llama3-405b-16384": ["topology.nodes=32", "workload.memory=ignore"],
    "llama3-405b-8192": ["topology.nodes=32", "workload.memory=ignore"],
    "scaling": ["topology.nodes=[1, 2]"],
    "when-to-use-what": ["topology.hosts=8", "ranks=[2, 8]", "size=[1 KiB, 1 MiB]"],
    "h100-measured": ["ranks=[2, 8]", "size=[512 B, 1 MiB]"],
    "dgx-a100": ["ranks=[2, 8]", "size=[512 B, 1 MiB]"],
    "all-collectives": ["size=64 KiB"],
    "llama3-step": ["topology.nodes=2", "workload.model=mlp"],
}
GATHER = {"collective": "gather", "size": "1 kB", "ranks": 2}
Row = dict[str, Any]


def star(hosts: int = 4, bandwidth: object = "1 GB/s", latency: str = "1 us", **more: Any) -> dict[str, Any]:
    """A topology of hosts around one switch: every route has two links."""
    link = {"bandwidth": bandwidth, "latency": latency}
    return {"fabric": "single-switch", "hosts": hosts, "link": link, **more}


def rows(*assignments: str, **keys: Any) -> list[Row]:
    """The rows of a scenario given as keys: by default one message of 1000 B from host0 to host1, without costs."""
    plain = {"topology": star(), "collective": "send_recv", "algorithm": "direct", "size": "1 kB"}
    given = {**plain, "profile": "one-port", **keys}
    return list(simcoll.run(simcoll.load(given, list(assignments))))


def row(*assignments: str, **keys: Any) -> Row:
    """The only row of a scenario."""
    (found,) = rows(*assignments, **keys)
    return found


def time_ps(*assignments: str, **keys: Any) -> int:
    """The time of a scenario with one row, which must have a result."""
    found = row(*assignments, **keys)
    assert found["status"] == "ok"
    return int(found["time_ps"])


# --- what is shipped ---


@pytest.mark.thorough
@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_shipped_scenarios_run(file: Path):
    """Every shipped scenario opens with a comment, has its file's name, and every row has a result."""
    assert file.read_text(encoding="utf-8").startswith("# ")
    _runs(file, SHORT.get(file.stem, []))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SHORT))
def test_shipped_scenarios_run_in_full(name: str):
    """The large scenarios as they are shipped."""
    _runs(next(file for file in SCENARIOS if file.stem == name), [])


def _runs(file: Path, assignments: list[str]) -> None:
    found = simcoll.run(simcoll.load(file, assignments))
    assert found
    assert {row["scenario"] for row in found} == {file.stem}
    assert {row["status"] for row in found} == {"ok"}
    assert all(row["time_us"] >= row["lower_bound_us"] > 0 for row in found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "plots"),
    [
        pytest.param("quickstart", {"busbw.png", "timeline-all_reduce-ring.png"}, marks=pytest.mark.long),
        ("sub-groups", {"busbw.png", "utilisation-all_reduce-tree.png"}),
        pytest.param("h100-measured", {"busbw.png", "latency.png"}, marks=pytest.mark.long),  # its rows: just above
    ],
)
def test_shipped_scenarios_draw(name: str, plots: set[str], tmp_path: Path):
    """A run with -o leaves results.csv, manifest.json and the pictures that the scenario asks for."""
    less = ["--set", "size=[64 KiB, 1 MiB]", "--set", f"algorithm={'auto' if 'measured' in name else '[ring, tree]'}"]
    assert command("run", name, "--quiet", "-o", tmp_path, *less).status == 0
    assert {"results.csv", "manifest.json", "plots"} == {path.name for path in tmp_path.iterdir()}
    drawn = {path.name: path.stat().st_size for path in (tmp_path / "plots").iterdir()}
    assert plots <= set(drawn)
    assert min(drawn.values()) > 5000


# --- results.csv ---


def test_rows_tell_what_was_asked():
    """Echoed columns: what the scenario said, or the default."""
    found = row(name="mine", seed=3, collective="reduce", algorithm="naive", root=2, op="max", dtype="half")
    told = {"scenario": "mine", "seed": 3, "root": 2, "op": "max", "dtype": "float16", "protocol": "none", "nodes": 4}
    told |= {"topology": "single-switch", "profile": "one-port", "sharing": "fair", "in_place": False, "ranks": 4}
    assert {key: found[key] for key in told} == told
    assert (found["engine"], found["proved"], found["confidence"]) == ("fast", "full", "uncalibrated")


def test_counts_and_bandwidths():
    """algbw = size/time; busbw = algbw · 2(n−1)/n for an all-reduce; messages and wire bytes as counted by hand."""
    found = row(collective="all_reduce", algorithm="ring", size="4 kB")
    assert (found["steps"], found["messages"], found["wire_bytes"]) == (6, 24, 24 * 1000 * 2)
    assert found["time_us"] == 6 * (1 + 2)  # six steps of 1000 B at 1 GB/s over two links of 1 us
    assert found["algbw_GBps"] == pytest.approx(4000 / 18e3)
    assert found["busbw_GBps"] == pytest.approx(4000 / 18e3 * 1.5)


# --- sweeps ---


def test_sweeps_are_products_in_file_order():
    """The last key of the file varies fastest, also when a swept key lies deeper."""
    keys = {"collective": ["broadcast", "reduce"], "topology": star([2, 3]), "algorithm": ["naive", "binomial"]}
    found = simcoll.run(simcoll.load({**keys, "size": {"from": "1 kB", "to": "4 kB", "factor": 2}}))
    assert [(r["collective"], r["ranks"], r["algorithm"], r["size_bytes"]) for r in found] == [
        (collective, ranks, algorithm, size)
        for collective in keys["collective"]
        for ranks in (2, 3)
        for algorithm in keys["algorithm"]
        for size in (1000, 2000, 4000)
    ]


@pytest.mark.parametrize("sizes", [["1 KiB", "1 MiB"], {"from": "1 KiB", "to": "1 MiB", "factor": 4}])
def test_what_stands_below_a_list_is_not_swept(sizes: Any):
    """Several values of an operation are refused with what can be swept instead, and that is swept."""
    plans = [{"template": "operations", "operations": [{"name": "x", "collective": "all_gather", "size": size}]}
             for size in (sizes, "1 KiB", "1 MiB")]  # fmt: skip
    with pytest.raises(
        InputError, match=r"values below 'operations' cannot be swept; to compare several, list whole mapp"
    ):
        simcoll.load({"topology": star(), "workload": plans[0]})
    assert len(simcoll.load({"topology": star(), "workload": plans[1:]})) == 2


@pytest.mark.parametrize(
    ("key", "values", "why"),
    [
        ("size", {"from": "1 B", "to": "1 TiB", "factor": 1.0001}, "more than 10000 values; write a larger factor"),
        ("size", {"from": "1 B", "to": "1 TiB", "step": "1 B"}, "more than 10000 values; write a larger step"),
        ("ranks", {"from": 2, "to": float("inf"), "factor": 2}, "inf is infinite or not a number"),
        ("ranks", {"from": 2, "to": float("nan"), "step": 2}, "nan is infinite or not a number"),
    ],
)
def test_ranges_without_an_end(key: str, values: dict[str, Any], why: str):
    """Ranges that do not end, or of too many values, are refused before they fill memory."""
    with pytest.raises(InputError, match=why):
        simcoll.load({"topology": star(), "collective": "all_reduce", "size": "4 kB", key: values})


@pytest.mark.parametrize(
    ("keys", "impossible", "why"),
    [
        ({"ranks": [2, 9]}, 1, ("9 ranks do not fit 4 places", "more nodes")),
        ({"algorithm": ["nvls", "ring"]}, 0, ("switch that reduces", "ring")),
        ({"algorithm": ["hierarchical", "ring"], "groups": [[0, 1, 2], [3]]}, 0, ("equal", "hierarchical_leader")),
        ({"algorithm": ["hierarchical", "ring"], "groups": 3}, 0, ("equal", "hierarchical_leader")),
        ({"algorithm": ["auto", "ring"], "ranks": [9, 4]}, 0, ("9 ranks do not fit 4 places", "more nodes")),
    ],
)
def test_one_impossible_point_ends_nothing(keys: dict[str, Any], impossible: int, why: tuple[str, ...]):
    """A refused point is a row whose status says why and what would serve; the others have results."""
    found = rows(**{"collective": "all_reduce", "algorithm": "ring", "size": "4 kB", **keys})
    refused = found[impossible]
    assert refused["status"].startswith("refused: ")
    assert all(word in refused["status"] for word in why)
    assert refused["time_us"] is None
    assert found[-1 if impossible == 0 else 0]["status"] == "ok"


def test_nvls_needs_one_switch():
    """In-switch reduction works inside a node, and is refused where the switch does not reach every rank."""
    keys = {"collective": "all_reduce", "algorithm": "nvls", "topology": {"system": "hgx-h100", "nodes": [1, 2]}}
    one, two = rows(**keys)
    assert one["status"] == "ok"
    assert two["status"].startswith("refused: ")
    assert "ring" in two["status"]


def test_all_algorithms_and_collectives():
    """`all` is every algorithm that serves the point, in the registry's order; `collective: all` every collective."""
    found = rows(collective="all", algorithm="all", size="4 kB")
    pairs = [(r["collective"], r["algorithm"]) for r in found]
    assert len(pairs) == len(set(pairs)) >= 38
    assert ("all_reduce", "ring") in pairs
    assert ("all_reduce", "nvls") not in pairs
    assert {r["status"] for r in found} == {"ok"}
    assert len({r["collective"] for r in found}) == 10


def test_an_algorithm_with_empty_options():
    """`ring()` is `ring`, and spaces between options say nothing: a row names the algorithm as it is registered."""
    found = rows(collective="all_reduce", algorithm=["ring", "ring()", "hierarchical( across = recursive_doubling )"])
    assert [row["algorithm"] for row in found] == ["ring", "hierarchical(across=recursive_doubling)"]


@pytest.mark.parametrize("how", ["auto", "best"])
@pytest.mark.parametrize("profile", ["one-port", "nccl-hopper"])
def test_a_choice_is_a_row_of_its_own(how: str, profile: str):
    """A row for each point that was asked for. That of `auto` says what was asked and what ran, and has the time of
    the algorithm that ran, also where that was asked for by name."""
    keys = {"collective": "all_reduce", "profile": profile, "topology": {"system": "hgx-h100"}}
    found = rows(**keys, algorithm=["ring", "nvls", how], size=["1 KiB", "64 MiB"])
    assert [row["asked"] for row in found] == ["ring", "ring", "nvls", "nvls", how, how]
    named = {(row["algorithm"], row["protocol"], row["size_bytes"]): row["time_us"] for row in found[:4]}
    assert all(row["asked"] == row["algorithm"] for row in found[:4])
    assert all(named[row["algorithm"], row["protocol"], row["size_bytes"]] == row["time_us"] for row in found[4:])
    assert found[4:] == rows(**keys, algorithm=how, size=["1 KiB", "64 MiB"])


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_names_of_nccl_serve_with_any_profile(collective: str):
    """NCCL's name of an algorithm is accepted for every collective that it has. Without kernels it is the schedule of
    that name or, where there is none, the one as which NCCL's is run."""
    for name in nccl_names(collective):
        plain, same = (
            row(topology={"system": "hgx-h100"}, collective=collective, algorithm=how, size="4 kB")
            for how in (name, {"broadcast": "chain", "reduce": "chain"}.get(collective, name))
        )
        assert plain["status"] == "ok" or name.startswith("nvls")  # which needs a switch
        assert (plain["asked"], plain["status"], plain["time_us"]) == (name, same["status"], same["time_us"])


def test_auto_with_nothing_to_choose():
    """Where all are equally fast, `auto` takes one that needs no switch; whatever the collective, there is one."""
    assert (
        row(topology={"system": "hgx-h100"}, collective="all_reduce", algorithm="auto", ranks=1)["algorithm"] == "ring"
    )
    assert {row["status"] for row in rows(collective="all", algorithm="auto", size="4 kB")} == {"ok"}


def test_auto_is_the_fastest():
    """`auto` says which algorithm it took, and that is the fastest of its candidates at that size."""
    keys = {"collective": "all_reduce", "topology": {"system": "hgx-h100"}, "size": ["1 KiB", "256 MiB"]}
    chosen = rows(**keys, algorithm="auto")
    candidates = rows(**keys, algorithm=["ring", "double_binary_tree", "nvls"])
    for point in chosen:
        times = {r["algorithm"]: r["time_ps"] for r in candidates if r["size_bytes"] == point["size_bytes"]}
        assert point["time_ps"] == times[point["algorithm"]] == min(times.values())


def test_a_barrier_has_no_size():
    """A barrier needs no size, and a sweep over sizes runs it once."""
    assert row(collective="barrier", algorithm="naive", size=["1 kB", "2 kB"])["size_bytes"] == 0
    points = simcoll.load({"topology": star(), "collective": "barrier", "algorithm": "tree"})
    assert simcoll.run(points)[0]["status"] == "ok"


# --- what is refused before anything runs ---


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"size": "10 B"}, ("10 B", "float32")),
        ({"size": "12 B", "dtype": "double"}, ("12 B", "float64")),
        ({"dtype": "float8"}, ("'float8'", "float")),
        ({"op": "bxor"}, ("'bxor'", "integer")),
        ({"op": "mean"}, ("'mean'", "choose from")),
        ({"size": "1 kB", "ranks": 0}, ("0", "at least 1")),
        ({"model": {"slots": 0}}, ("0", "slots")),
        ({"model": {"channels": 0}}, ("0", "at least 1")),
        ({"model": {"o_send": "1 kB"}}, ("'kB'", "duration")),
        ({"model": {"gamma": "3 us"}}, ("'3 us'", "ps/B")),
        ({"model": {"blocking": "maybe"}}, ("'maybe'", "even-odd")),
        ({"protocol": "LL64"}, ("'LL64'", "LL")),
        ({**GATHER, "weights": [1.5, 2.5]}, ("1.5", "whole")),
        ({**GATHER, "weights": ["a", "b"]}, ("'a'", "whole")),
        ({**GATHER, "weights": [1, [2, 3]]}, ("weights", "one length")),
        ({**GATHER, "collective": "all_to_all", "weights": [[1, 2], [3]]}, ("weights", "one length")),
        ({**GATHER, "weights": [1, -2]}, ("-2", "whole")),
        ({**GATHER, "weights": []}, ("weights", "one length")),
        ({"subgroups": []}, ("subgroups", "[[0, 1], [2, 3]]")),
        ({"subgroups": [[]]}, ("subgroups", "[[0, 1], [2, 3]]")),
        ({"collective": "all_reduce", "algorithm": "hierarchical(across=ring,across=tree)"}, ("'across'", "twice")),
        ({"topology": {"fabric": "single-switch", "hosts": 4}}, ("link",)),
        ({"topology": star(levels=2)}, ("'levels'", "fat-tree")),
    ],
)
def test_values_that_cannot_be(keys: dict[str, Any], words: tuple[str, ...]):
    """Every value that makes no sense is found when the scenario is loaded, and the message says what would."""
    with pytest.raises(InputError) as caught:
        rows(**keys)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(("alias", "name"), [("float", "float32"), ("double", "float64"), ("half", "float16")])
def test_dtype_aliases(alias: str, name: str):
    """The names of C are understood, and results say NumPy's."""
    assert row(dtype=alias)["dtype"] == name


# --- topology, ranks, placement ---


def test_ranks_and_placement():
    """4 of 8 GPUs, 10 nodes of 2 GPUs, and devices one by one."""
    four = row(topology={"system": "hgx-h100"}, ranks=4, collective="all_reduce", algorithm="ring")
    assert (four["ranks"], four["nodes"]) == (4, 1)
    keys = {"collective": "all_reduce", "algorithm": "hierarchical", "placement": {"per_node": 2}}
    twenty = row(topology={"system": "hgx-h100", "nodes": 10}, **keys)
    assert (twenty["ranks"], twenty["nodes"], twenty["status"]) == (20, 10, "ok")
    slow = star(links={"host3->switch": {"bandwidth": "250 MB/s"}})
    assert time_ps(topology=slow, placement=["host3", "host0"]) == 6_000_000
    assert time_ps(topology=slow, placement=["host0", "host3"]) == 3_000_000


def test_groups_by_number_and_nested():
    """`groups: 2` cuts consecutive ranks; lists name them; lists in lists are further levels."""
    keys: dict[str, Any] = {
        "collective": "all_reduce",
        "algorithm": "hierarchical",
        "size": "8 kB",
        "topology": star(8),
    }
    assert row(groups=2, **keys)["time_ps"] == row(groups=[[0, 1, 2, 3], [4, 5, 6, 7]], **keys)["time_ps"]
    nested = row(groups=[[[0, 1], [2, 3]], [[4, 5], [6, 7]]], **keys)
    assert nested["status"] == "ok"
    assert nested["steps"] == 1 + 1 + 2 + 1 + 1  # in pairs, across pairs, across halves, and back
    uneven = row(groups=[[0, 1, 2], [3, 4, 5, 6, 7]], **{**keys, "algorithm": "hierarchical_leader"})
    assert uneven["status"] == "ok"


# --- model: two hosts, 1000 B, 1 GB/s, two links of 1 us: 3 us ---


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"o_send": "2 us"}, 5_000_000),
        ({"o_recv": "2 us"}, 5_000_000),
        ({"sharing": "fifo"}, 3_000_000),
        ({"channel_bandwidth": "500 MB/s"}, 4_000_000),
        ({"gamma": "1 ns/B"}, 3_000_000),  # a send reduces nothing
        ({"chunk": "500 B"}, 3_000_000),  # cut in two, one behind the other on the wire
        ({"chunk": "500 B", "g": "1 us"}, 3_500_000),  # the second starts at 1 us
        ({"chunk": "500 B", "o_send": "1 us"}, 5_000_000),  # 1.5 us of channel each, then 2 us of latency
        ({"chunk": "500 B", "slots": 1}, 5_000_000),  # one in flight: 2.5 us each
        ({"chunk": "500 B", "slots": 1, "channels": 2}, 3_000_000),  # a connection each, sharing the link
    ],
)
def test_parameters_by_hand(model: dict[str, Any], expected: int):
    """Every parameter of the model costs what its rule says, on one message between two hosts."""
    assert time_ps(model=model) == expected


@pytest.mark.parametrize(("gamma", "expected"), [("1 ns/B", 4_000_000), ("1 GB/s", 4_000_000), ("0 ps/B", 3_000_000)])
def test_gamma_as_time_or_bandwidth(gamma: str, expected: int):
    """A reduction costs time per byte, said either way round."""
    assert time_ps(collective="reduce", algorithm="naive", ranks=2, model={"gamma": gamma}) == expected


@pytest.mark.parametrize("name", ["ib-ndr", "efa", "slingshot-ofi"])
def test_a_profile_of_nics_is_none_of_calls(name: str):
    """What NICs add tells nothing of a call by itself."""
    for given in (
        ("predict", "all_reduce", "--on", "hgx-h100", "--size", "1 KiB", "--set", f"profile={name}"),
        ("tune", "hgx-h100", "--profile", name),
    ):
        found = command(*given)
        assert found.status == 2 and f"{name!r} has costs of NICs only" in found.err
        assert len(found.err.splitlines()) == 1


# --- the same again ---


@pytest.mark.thorough
def test_results_are_the_same_every_time(tmp_path: Path):
    """Byte-identical results.csv, twice, and for one job or two."""
    words = ["--set", "size=[64 KiB, 1 MiB]", "--set", "plots=[]", "--quiet"]
    for folder, jobs in (("a", 1), ("b", 1), ("c", 2)):
        assert command("run", "quickstart", "-o", tmp_path / folder, "--jobs", jobs, *words).status == 0
    first, *others = ((tmp_path / folder / "results.csv").read_bytes() for folder in "abc")
    assert others == [first, first]


@pytest.mark.parametrize("size", ["999999999 TiB", "1048577 TiB"])
def test_sizes_beyond_counting_are_refused(size: str):
    """A size that 64 bits cannot count with is wrong input, at its place; the largest that can be counted is not."""
    with pytest.raises(simcoll.SimcollError, match="the size is too large"):
        simcoll.load("quickstart", [f"size={size}"])
    assert simcoll.load("quickstart", ["size=1048576 TiB"])


def test_an_unproved_schedule_that_is_wrong_is_the_users(tmp_path: Path):
    """Without a proof a schedule may end before any right one could: the row blames the schedule, not simcoll."""
    empty = {"collective": "all_reduce", "algorithm": "idle", "ranks": 4, "n_chunks": 4, "transfers": []}
    path = tmp_path / "idle.json"
    path.write_text(json.dumps(empty), encoding="utf-8")
    found = row(collective="all_reduce", algorithm=str(path), proof="off")
    assert found["status"].startswith("failed: all_reduce/idle: 0 ps is below the lower bound")
    assert "it does not do all_reduce; set `proof: full` to see where" in found["status"]


@pytest.mark.parametrize("named", ["profile: nccl-hopper", "profile: slingshot-grace"])
@pytest.mark.parametrize("asked", [[], ["--profile", "nccl-hopper"]])
def test_a_profile_that_a_machine_names_is_missed_in_its_file(tmp_path: Path, named: str, asked: list[str]):
    """Whatever profile is asked for: bounds take the machine's own, and transports that of its NICs."""
    lines = (shipped("topologies") / "gh200-4.yaml").read_text().replace(named, "profile: nope").splitlines()
    path = tmp_path / "own.yaml"
    path.write_text("\n".join(lines))
    place = next(f"{row}:{line.index('nope') + 1}" for row, line in enumerate(lines, 1) if "nope" in line)
    done = command("predict", "all_reduce", "--on", path, "--size", "1 MiB", *asked)
    assert done.status == 2 and done.err.startswith(f"{path}:{place}: profile: 'nope' is neither")


def test_a_scenario_is_named_as_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `name` that is the title; a folder, which is no scenario, suggests the file that is called alike."""
    monkeypatch.chdir(tmp_path)
    text = "topology: {system: hgx-h100}\ncollective: all_reduce\nsize: 1 MiB\n"
    Path("step.yaml").write_text(text, encoding="utf-8")
    Path("own.yaml").write_text(text + "name: title\n", encoding="utf-8")
    Path("step").mkdir()
    points = [*simcoll.load("step.yaml"), *simcoll.load("own.yaml")]
    assert [point.scenario.name for point in points] == ["step", "title"]
    with pytest.raises(InputError, match=r"step: a folder, and no scenario; did you mean 'step.yaml'"):
        simcoll.load("step")


def test_files_beside_a_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario means the same from wherever it is run: the files that it names are those beside it, if there are; in
    the machine's own file, too."""
    folder = tmp_path / "study"
    folder.mkdir()
    machine = (shipped("topologies") / "hgx-h100.yaml").read_text().replace("profile: nccl-hopper", "profile: p.yaml")
    own = (shipped("topologies").parent / "simcoll/scenario/profiles/nccl-hopper.yaml").read_text()
    (folder / "m.yaml").write_text(machine, encoding="utf-8")
    (folder / "p.yaml").write_text(own.replace("name: nccl-hopper", "name: p"), encoding="utf-8")
    program = tmp_path / "ring.xml"
    assert command("export", "all_reduce/ring", "--ranks", 8, "--to", "msccl", "-o", program).status == 0
    assert command("import", program, "-o", folder / "s.json").status == 0
    text = "topology: {file: m.yaml}\ncollective: all_reduce\nsize: 1 MiB\nalgorithm: [auto, s.json]\n"
    (folder / "a.yaml").write_text(text, encoding="utf-8")
    found = []
    for place, name in ((folder, "a.yaml"), (tmp_path, "study/a.yaml"), (Path("/"), folder / "a.yaml")):
        monkeypatch.chdir(place)
        done = command("run", name, "--json")
        assert done.status == 0, done.err + done.out
        found.append([(row["time_us"], Path(row["profile"]).name) for row in done.json["points"]])
    assert found[1:] == found[:-1] and [profile for _, profile in found[0]] == ["p.yaml", "p.yaml"]


def test_a_profile_scales_each_link() -> None:
    """By its kind, rounded by itself, on the routes that were there; what is too large for 64 bits is refused."""
    rated = Topology.load("hgx-h100", nodes=2)
    scales = {"nvlink": LinkScale(efficiency=0.777, latency=1.5), "pcie": LinkScale(latency=0.0)}
    links = [(link, scales.get(link.kind, LinkScale())) for link in rated.every_link]
    found = served_by(rated, scales)
    assert found.every_link == tuple(
        Link(
            round(link.bandwidth * scale.efficiency), latency_ps=round(link.latency_ps * scale.latency), kind=link.kind
        )
        for link, scale in links
    )
    assert found.route("node0.gpu0", "node1.gpu3") == rated.route("node0.gpu0", "node1.gpu3")
    with pytest.raises(TopologyError):
        served_by(rated, {"nvlink": LinkScale(efficiency=1e9)})
