"""Laws of machines that are like others, and of the keys that vary a machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command import simcoll

import simcoll as sc
from simcoll.errors import InputError
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import build, described, load_system
from simcoll.topology.topology_keys import TopologySpec

RELATIVES = [name for name in shipped_systems() if load_system(name).like]


def times(on: str | Mapping[str, Any], collective: str = "all_reduce", **keys: Any) -> list[Any]:
    """The predicted times of a small and a large call."""
    return [
        row["time_us"] for row in sc.run({"collective": collective}, on=on, size=["8 KiB", "64 MiB"], **keys).rows()
    ]


SEARCHED: dict[str, Any] = dict.fromkeys(("gb300-nvl72", "h100-nvl"), pytest.mark.long)  # for seconds, if not cached


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=SEARCHED.get(n, ())) for n in (*RELATIVES, "mi250x", "dgx-spark")]
)
def test_every_machine_answers(name: str) -> None:
    """On one node, if that has several GPUs, and on two, by the profile that its file takes, with an interval."""
    for collective, nodes in (("all_reduce", 2), ("all_to_all", 2), ("all_reduce", 1)):
        if nodes * load_system(name).counts["gpu"] == 1:
            continue
        (row,) = sc.run({"collective": collective}, on=name, nodes=nodes, size="1 MiB").rows()
        assert row["status"] == "ok" and row["profile"] == load_system(name).profile
        assert row["lower_bound_us"] <= row["time_us"] and row["low_us"] < row["time_us"] < row["high_us"]


@pytest.mark.parametrize(
    ("name", "like"), [("nd-h100", "hgx-h100"), ("nd-gb200", "gb200-nvl72"), ("p5", "hgx-h100-efa")]
)
def test_a_machine_that_differs_in_its_name_only(name: str, like: str) -> None:
    """It has all links of the other, and its times, NCCL's channels included."""
    assert load_system(name).links == load_system(like).links
    assert load_system(name).nccl == load_system(like).nccl
    assert times(name, nodes=2) == times(like, nodes=2)


def test_what_a_change_of_links_changes(tmp_path: Path) -> None:
    """Links of the kind, and no others. NCCL searches other links anew, but for the memory."""
    text = "like: hgx-h100\nlinks: {{{kind}: {{bandwidth: 164.8 GB/s}}}}\n"
    for kind, kept in (("nvlink", False), ("memory", True)):
        (tmp_path / "m.yaml").write_text(text.format(kind=kind))
        file, base = load_system(str(tmp_path / "m.yaml")), load_system("hgx-h100")
        assert file.name == "m" and file.gpu == base.gpu and file.profile == base.profile
        changed = {rule.kind for rule, other in zip(file.links, base.links, strict=True) if rule != other}
        assert changed == {kind}
        assert file.nccl and bool(file.nccl.graphs) == kept
    (tmp_path / "below.yaml").write_text("like: m.yaml\ndescription: of a file beside\n")
    assert load_system(str(tmp_path / "below.yaml")).links == load_system(str(tmp_path / "m.yaml")).links


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("like: hgx-h101\n", "m.yaml:1:7: like: 'hgx-h101' is no shipped system; did you mean 'hgx-h100'?"),
        ("like: m.yaml\n", "m.yaml:1:7: like: .*m.yaml is like .*m.yaml; give one of them devices and links"),
        (
            "like: hgx-h100\nlinks: {xgmi: {bandwidth: 1 GB/s}}\n",
            "m.yaml:2:9: links.xgmi: the machine has no links of kind",
        ),
        ("like: hgx-h100\nlinks: {nvlink: {bandwidth: 1 GBs}}\n", "m.yaml:2:29: links.0.bandwidth: "),
        ("like: hgx-h100\ngpus: 9\n", "m.yaml:2:1: gpus: hgx-h100 has 8 GPUs and 8 NICs a node; leave the key out"),
        ("like: loopback\nnics: 2\n", "m.yaml:2:1: nics: loopback has 0 GPUs and 0 NICs a node"),
        ("like: hgx-h100\nnics: 0\n", "m.yaml:2:7: nics: 0 is out of range"),
        ("like: hgx-h100\nnick: 3\n", "m.yaml:2:1: nick: unknown key 'nick'; did you mean 'nic'"),
    ],
)
def test_mistakes_are_placed(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message says where, what, and what instead; a circle of files ends."""
    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text(text)
    with pytest.raises(InputError, match=said):
        load_system("m.yaml")


def test_mistakes_of_keys() -> None:
    """More GPUs than there are, and keys of machines for bare hosts."""
    with pytest.raises(InputError, match=r"topology\.gpus: hgx-h100 has 8 GPUs"):
        build(TopologySpec(system="hgx-h100", gpus=16))
    hosts = "{fabric: single-switch, hosts: 4, nics: 2, link: {bandwidth: 1 GB/s, latency: 1 us}}"
    done = simcoll("predict", "all_reduce", "--on", hosts, "--size", "1 MiB")
    assert done.status == 2 and "'nics' is for a system; leave it out" in done.err


def test_every_door_takes_a_variant(tmp_path: Path) -> None:
    """Keys in Python, in braces, in a file of keys, and in a file that is like a machine: one machine."""
    spec = {"system": "hgx-h100", "nodes": 2, "nics": 4, "nic_bandwidth": "25 GB/s", "gpus": 4}
    (tmp_path / "keys.yaml").write_text("{system: hgx-h100, nics: 2, nic_bandwidth: 25 GB/s, gpus: 4}")
    (tmp_path / "like.yaml").write_text("{like: hgx-h100, nics: 4, nic_bandwidth: 25 GB/s, gpus: 4}")
    wanted = times(spec)
    assert wanted == times({"file": str(tmp_path / "keys.yaml"), "nics": 4, "nodes": 2})
    assert wanted == times(str(tmp_path / "like.yaml"), nodes=2)
    on = "{system: hgx-h100, nics: 4, nic_bandwidth: 25 GB/s, gpus: 4}"
    asked = ("predict", "all_reduce", "--on", on, "--nodes", 2, "--size", "[8 KiB, 64 MiB]", "--json")
    assert wanted == [row["time_us"] for row in simcoll(*asked).json["points"]]
    tuned = simcoll("tune", "--on", on, "--nodes", 2, "--json").json
    assert tuned["ranks"] == 8 and tuned["graphs"]["ring"]["inter"] <= 25


def test_the_first_gpus_stay_with_their_nics() -> None:
    """One node with 4 of 8 GPUs is as fast as 4 ranks of 8; NICs go with their GPUs, and spread evenly over them."""
    assert times({"system": "hgx-h100", "gpus": 4}) == times("hgx-h100", ranks=4)
    for keys, counts in (({"gpus": 4}, (4, 4)), ({"nics": 4}, (8, 4)), ({"gpus": 2, "nics": 4}, (2, 4))):
        file = described(TopologySpec.model_validate({"system": "hgx-h100", **keys}))
        assert file and (file.counts["gpu"], file.counts["nic"]) == counts
    links = build(TopologySpec(system="hgx-h100", nics=4)).links
    assert {u for u, v in links if v.startswith("node0.nic")} == {f"node0.pcie_switch{i}" for i in (0, 2, 4, 6)}
    links = build(TopologySpec(system="hgx-h100", nics=16)).links
    assert sum(v == "node0.pcie_switch7" and "nic" in u for u, v in links) == 2


def test_as_much_as_the_machine_has_changes_nothing() -> None:
    """The keys with its own values give its times; half the NICs, or half their rate, at most half the speed."""
    same = {"system": "dgx-a100", "nodes": 2, "nics": 8, "gpus": 8}
    assert times(same, "all_to_all") == times("dgx-a100", "all_to_all", nodes=2)
    for keys in ({"nics": 4}, {"nic_bandwidth": "100 Gb/s"}):
        (row,) = sc.run("all_gather", on={"system": "dgx-a100", "nodes": 2, **keys}, size="1 GiB").rows()
        assert row["busbw_GBps"] < 100
        assert str(row["topology"]).startswith("dgx-a100/nic")


@pytest.mark.parametrize(
    ("on", "chip"),
    [("hgx-h20", "H20"), ("mi355x", "MI355X"), ("h100-pcie", "H100 PCIe"), ("nd-h100", None), ("p4d", None)],
)
def test_a_chip_that_was_never_fitted_is_named(on: str, chip: str | None) -> None:
    """In a column and in the first sentence; a chip with other memory is not another chip. The interval is that of
    machines whose GPUs were not fitted: nowhere narrower than that of the fitted machine."""
    (row,) = sc.run("all_reduce", on=on, size="1 MiB").rows()
    assert row["never_fitted"] == chip
    said = " ".join(simcoll("predict", "all_reduce", "--on", on, "--size", "1 MiB").out.split())
    assert ("never fitted to" in said) == (chip is not None)
    assert chip is None or f"never fitted to {chip}, extrapolated" in said
    if on == "hgx-h20":
        (known,) = sc.run("all_reduce", on="hgx-h100", size="1 MiB").rows()
        assert row["time_us"] == known["time_us"]
        assert row["high_us"] / row["low_us"] > known["high_us"] / known["low_us"]


def test_a_chip_that_no_known_release_serves_is_said_first() -> None:
    """MI355X run with RCCL of ROCm 7 only, of which no rules are known."""
    for words in (("predict", "all_reduce", "--on", "mi355x", "--size", "1 MiB"), ("tune", "mi355x")):
        assert simcoll(*words).out.startswith("RCCL of ROCm 7")
        assert "ROCm 7" not in simcoll(*(word.replace("mi355x", "mi300x") for word in words)).out
