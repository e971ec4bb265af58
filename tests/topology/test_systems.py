"""Laws of systems, fabrics and topology files: what is shipped, what is built, what is refused."""

from __future__ import annotations

import fnmatch
from collections import Counter
from pathlib import Path

import pytest

from simcoll.config import yaml_tree
from simcoll.errors import InputError
from simcoll.report.plot.topology import topology_figure
from simcoll.topology.graph import Topology
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import build, describe, load_system
from simcoll.topology.topology_keys import TopologySpec

GB = 10**9

HGX = ("hgx-h20", "hgx-h800", "nd-h100", "nd-h200", "p5", "p5en", "p6-b200", "a4")
ON_SWITCHES = ("h100-pcie", "h100-nvl", "a40-pcie", "rtx-6000-ada", "v100-pcie")
COUNTS = {
    "dgx1-v100": {"gpu": 8, "pcie_switch": 4, "cpu": 2, "nic": 4},
    "dgx-a100": {"gpu": 8, "nvswitch": 1, "pcie_switch": 4, "cpu": 2, "nic": 8},
    "hgx-a100-4": {"gpu": 4, "pcie_switch": 4, "cpu": 1, "nic": 4},
    "hgx-a100-4-slingshot": {"gpu": 4, "cpu": 4, "nic": 2},
    "a3-mega": {"gpu": 8, "nvswitch": 1, "pcie_switch": 8, "cpu": 2, "nic": 8},
    "hgx-h100-efa": {"gpu": 8, "nvswitch": 1, "pcie_switch": 8, "cpu": 2, "nic": 8},
    "gh200-4": {"gpu": 4, "cpu": 4, "nic": 4},
    "hgx-h100": {"gpu": 8, "nvswitch": 1, "pcie_switch": 8, "cpu": 2, "nic": 8},
    "hgx-h200": {"gpu": 8, "nvswitch": 1, "pcie_switch": 8, "cpu": 2, "nic": 8},
    "hgx-b200": {"gpu": 8, "nvswitch": 1, "pcie_switch": 8, "cpu": 2, "nic": 8},
    "hgx-b300": {"gpu": 8, "nvswitch": 1, "pcie_switch": 8, "cpu": 2, "nic": 8},
    "gb200-nvl72": {"gpu": 72, "nvswitch": 1, "cpu": 36, "nic": 72},
    "rtx-pro-6000": {"gpu": 8, "pcie_switch": 4, "cpu": 2, "nic": 4},
    "l40s-pcie": {"gpu": 8, "pcie_switch": 4, "cpu": 2, "nic": 4},
    "a100-pcie": {"gpu": 8, "cpu": 2, "nic": 2},
    "rtx-2080ti": {"gpu": 2, "pcie_switch": 1, "cpu": 1, "nic": 1},
    "rtx-4090": {"gpu": 8, "cpu": 2, "nic": 1},
    "mi300x": {"gpu": 8, "pcie_switch": 8, "cpu": 2, "nic": 8},
    "loopback": {"host": 8, "kernel": 2},
    "dgx-spark": {"gpu": 1, "cpu": 1, "nic": 1},
    "mi250x": {"gpu": 8, "pcie_switch": 4, "cpu": 4, "nic": 4},
    "v100-4": {"gpu": 4, "pcie_switch": 2, "cpu": 2, "nic": 2},
    "a10g-pcie": {"gpu": 8, "cpu": 2, "nic": 1},
    "rtx-3090": {"gpu": 8, "cpu": 2, "nic": 1},
    "p4d": {"gpu": 8, "nvswitch": 1, "pcie_switch": 4, "cpu": 2, "nic": 4},
    "a3-high": {"gpu": 8, "nvswitch": 1, "pcie_switch": 8, "cpu": 2, "nic": 4},
    "gb300-nvl72": {"gpu": 72, "nvswitch": 1, "cpu": 36, "nic": 72},
    "nd-gb200": {"gpu": 72, "nvswitch": 1, "cpu": 36, "nic": 72},
    "mi325x": {"gpu": 8, "pcie_switch": 8, "cpu": 2, "nic": 8},
    "mi355x": {"gpu": 8, "pcie_switch": 8, "cpu": 2, "nic": 8},
    "l4-pcie": {"gpu": 8, "pcie_switch": 4, "cpu": 2, "nic": 1},
    "t4-pcie": {"gpu": 8, "pcie_switch": 4, "cpu": 2, "nic": 1},
    **{name: {"gpu": 8, "nvswitch": 1, "pcie_switch": 8, "cpu": 2, "nic": 8} for name in HGX},
    **{name: {"gpu": 8, "pcie_switch": 4, "cpu": 2, "nic": 4} for name in ON_SWITCHES},
}


def spec(text: str) -> TopologySpec:
    """What a scenario says under `topology`, given as YAML."""
    return yaml_tree.validate(TopologySpec, [yaml_tree.parse(text, "t.yaml")])[0]


def make(text: str, seed: int = 0) -> Topology:
    """The topology of a YAML text."""
    return build(spec(text), seed=seed)


@pytest.mark.parametrize("name", shipped_systems())
def test_every_shipped_system(name: str) -> None:
    """Every system opens with its sources, has the devices that it should have, routes between all ranks, and its
    facts for a library; two of it can be joined if it has NICs."""
    text = shipped_systems()[name].read_text()
    comment = text[: text.index(f"name: {name}\n")]
    assert all(line.startswith("#") for line in comment.splitlines())
    assert "Source" in comment and "estimate" in comment
    topology = make(f"system: {name}")
    assert Counter(topology.kinds.values()) == COUNTS[name]
    assert all(topology.route(src, dst) for src in topology.ranks for dst in topology.ranks)
    assert all(link.latency_ps > 0 and link.bandwidth > 0 for *_, link in topology.graph.edges.data("link"))
    facts = load_system(name)
    assert facts.name == name and facts.description
    if name == "loopback":
        return
    assert facts.gpu and facts.cpu and facts.nic
    assert make(f"{{system: {name}, nodes: 2}}").nodes == 2


def test_the_systems_that_users_name() -> None:
    """The list of shipped systems is the one that is promised."""
    assert sorted(COUNTS) == list(shipped_systems())


def test_the_cube_mesh_is_that_of_a_dgx1() -> None:
    """Every V100 has six NVLinks, and the pairs have as many as `nvidia-smi topo -m` shows: 2, 1 or none."""
    topology = make("system: dgx1-v100")
    rows = "X1122000 1X210200 12X20010 212X0001 2000X112 02001X21 001012X2 0001212X".replace("X", "0").split()
    for i, row in enumerate(rows):
        assert sum(map(int, row)) == 6
        for j, links in enumerate(map(int, row)):
            pair = (f"node0.gpu{i}", f"node0.gpu{j}")
            if i != j:
                assert (pair in topology.links) == bool(links)
                assert not links or topology.link(*pair).bandwidth == links * 20 * GB


def test_two_gpus_share_a_pcie_switch_with_two_nics() -> None:
    """On a DGX A100 the GPUs of a pair and their NICs hang on one switch."""
    topology = make("system: dgx-a100")
    for i in range(4):
        around = set(topology.graph[f"node0.pcie_switch{i}"]) - {f"node0.cpu{i // 2}"}
        assert around == {f"node0.{kind}{k}" for kind in ("gpu", "nic") for k in (2 * i, 2 * i + 1)}


def test_loopback_takes_any_number_of_ranks() -> None:
    """`hosts` says how many processes of this machine there are."""
    assert len(make("{system: loopback, hosts: 21}").ranks) == 21


@pytest.mark.parametrize("over", [1, 2, 3, 2.5])
@pytest.mark.parametrize("spines", [1, 2, 4])
def test_trunks_carry_all_cables_less_the_oversubscription(over: float, spines: int) -> None:
    """A leaf's uplinks together have the bandwidth of its cables over the oversubscription, whatever the spines."""
    text = "{fabric: fat-tree, hosts: 16, link: {bandwidth: 60 GB/s, latency: 1 us}"
    topology = make(f"{text}, oversubscription: {over}, spines: {spines}}}")
    up = [topology.link(u, v).bandwidth for u, v in topology.links if u == "leaf0" and v.startswith("spine")]
    down = [topology.link(u, v).bandwidth for u, v in topology.links if v == "leaf0" and u.startswith("spine")]
    assert up == down == [round(4 * 60 * GB / over / spines)] * spines


def test_three_levels_have_no_bottleneck_of_their_own() -> None:
    """Without oversubscription a pod's links to the cores carry what its hosts send."""
    topology = make("{fabric: fat-tree, levels: 3, hosts: 32, spines: 2, link: {bandwidth: 50 GB/s, latency: 1 us}}")
    up = sum(topology.link(u, v).bandwidth for u, v in topology.links if u in ("spine0", "spine1") and "core" in v)
    assert up == 16 * 50 * GB


@pytest.mark.parametrize(
    ("text", "devices", "links"),
    [
        ("{fabric: single-switch, hosts: 8, link: L}", 9, 16),
        ("{fabric: single-switch, hosts: 1, link: L}", 2, 2),
        ("{fabric: fat-tree, hosts: 12, link: L}", 12 + 3 + 1, 2 * (12 + 3)),
        ("{fabric: fat-tree, hosts: 4, link: L}", 5, 8),
        ("{fabric: fat-tree, levels: 3, hosts: 32, link: L}", 32 + 8 + 2 + 1, 2 * (32 + 8 + 2)),
        ("{fabric: torus, dims: [3, 4], link: L}", 12, 2 * 24),
        ("{fabric: torus, dims: [2, 2], link: L}", 4, 2 * 4),
        ("{fabric: torus, dims: [3, 3, 3], hosts: 27, link: L}", 27, 2 * 81),
        ("{fabric: ring, hosts: 5, link: L}", 5, 10),
        ("{fabric: ring, hosts: 2, link: L}", 2, 2),
        ("{fabric: ring, hosts: 1, link: L}", 1, 0),
        ("{fabric: full-mesh, hosts: 5, link: L}", 5, 20),
        ("{system: hgx-h100, nodes: 1, fabric: rail-optimised}", 27, 74),
        ("{system: hgx-h100, nodes: 2}", 2 * 27 + 8 + 1, 2 * 74 + 2 * (16 + 8)),
        ("{system: hgx-h100, nodes: 2, fabric: single-switch}", 2 * 27 + 1, 2 * 74 + 2 * 16),
        ("{system: hgx-h100, nodes: 33}", 33 * 27 + 16 + 1, 33 * 74 + 2 * (33 * 8 + 16)),
        ("{system: hgx-h100, nodes: 8, fabric: fat-tree}", 8 * 27 + 2 + 1, 8 * 74 + 2 * (64 + 2)),
        ("{system: hgx-h100, nodes: 4, fabric: torus, dims: [2, 2], link: L}", 4 * 28, 4 * 74 + 2 * (32 + 4)),
        ("{system: hgx-h100, nodes: 3, fabric: ring, link: L}", 3 * 28, 3 * 74 + 2 * (24 + 3)),
        ("{system: hgx-h100, nodes: 4, fabric: full-mesh, link: L}", 4 * 28, 4 * 74 + 2 * (32 + 6)),
    ],
)
def test_sizes(text: str, devices: int, links: int) -> None:
    """Fabrics have as many devices and directed links as their definition says."""
    topology = make(text.replace("L}", "{bandwidth: 50 GB/s, latency: 0.5 us}}"))
    assert (len(topology.kinds), len(topology.links)) == (devices, links)


def test_nics_run_at_their_rate() -> None:
    """A NIC's cable has the NIC's line rate; `link` gives a cluster other cables."""
    assert make("{system: dgx-a100, nodes: 2}").link("node0.nic3", "rail3").bandwidth == 25 * GB
    other = make("{system: dgx-a100, nodes: 2, link: {bandwidth: 100 Gb/s, latency: 2 us}}")
    assert other.link("rail3", "node1.nic3").bandwidth == 12_500_000_000


def test_overrides() -> None:
    """Single links, or all that a pattern matches, are changed; the later pattern decides; 0 takes a link down."""
    topology = make("""
        {fabric: single-switch, hosts: 4, link: {bandwidth: 50 GB/s, latency: 0.5 us}, links: {
            "host*->switch": {bandwidth: 40 GB/s}, "host3->switch": {bandwidth: 25 GB/s, latency: 2 us},
            "switch -> host[01]": {bandwidth: 0 GB/s}}}
    """)
    rates = dict(zip(topology.link_names, (topology.bandwidths // GB).tolist(), strict=True))
    assert [rates[f"host{i}->switch"] for i in range(4)] == [40, 40, 40, 25]
    assert [rates[f"switch->host{i}"] for i in range(4)] == [0, 0, 50, 50]
    assert topology.link("host3", "switch").latency_ps == 2_000_000


def test_unequal_links_hang_on_the_seed() -> None:
    """A spread draws every link within its bounds, the same ones for one seed and others for another."""
    text = "{fabric: fat-tree, hosts: 32, link: {bandwidth: {value: 50 GB/s, spread: 20 %}, latency: 1 us}}"
    first, again, other = make(text, 7), make(text, 7), make(text, 8)
    assert first.bandwidths.tolist() == again.bandwidths.tolist() != other.bandwidths.tolist()
    cables = [first.link(u, v).bandwidth for u, v in first.links if "host" in u + v]
    assert min(cables) >= 40 * GB and max(cables) <= 60 * GB and len(set(cables)) == 64


@pytest.mark.parametrize(
    "text",
    [
        "{system: hgx-h100, nodes: 2, oversubscription: 2}",
        "{fabric: torus, dims: [2, 3], link: {bandwidth: {value: 50 GB/s, spread: 20 %}, latency: 0.5 us}}",
        '{fabric: ring, hosts: 3, link: {bandwidth: 5 GB/s, latency: 0 ns}, links: {"*": {latency: 3 us}}}',
    ],
)
def test_a_specification_survives_json(text: str) -> None:
    """What is read, written as JSON and read again is equal, and builds the same links."""
    one = spec(text)
    other = TopologySpec.model_validate_json(one.model_dump_json())
    assert one == other
    assert build(one, seed=3).bandwidths.tolist() == build(other, seed=3).bandwidths.tolist()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{system: hgx-a100}", "did you mean 'dgx-a100'?"),
        ("{system: hgx-h10}", "system: 'hgx-h10' is no shipped system; did you mean 'hgx-h100'?"),
        ("{file: ''}", "file: the path is empty; give the path of a YAML file, or leave out `file`"),
        ("{system: hgx-h100, nodes: 0}", "nodes: 0 is out of range; write a number at least 1"),
        ("{system: hgx-h100, nodes: yes}", "nodes: 'yes' is not a whole number; write e.g. 2"),
        ("{system: hgx-h100, nodes: true}", "nodes: True is not a whole number; write e.g. 2"),
        ("{system: hgx-h100, node: 2}", "node: unknown key 'node'; did you mean 'nodes'?"),
        ("{system: hgx-h100, hosts: 2}", "`hosts` needs a fabric of bare hosts; write `nodes`"),
        ("{fabric: rign, hosts: 2, link: L}", "fabric: 'rign' is no fabric; did you mean 'ring'?"),
        ("{fabric: single-switch, nodes: 2, link: L}", "'nodes' is for a system; write hosts"),
        ("{fabric: rail-optimised, hosts: 2, link: L}", "bare hosts have no rails; choose another fabric"),
        ("{fabric: single-switch, link: L}", "a single-switch needs 'hosts'; add e.g. hosts: 8"),
        ("{fabric: single-switch, hosts: 8}", "of bare hosts needs 'link'; add link:"),
        ("{fabric: ring, hosts: 8, link: {latency: 1 us}}", "link.bandwidth: missing key 'bandwidth'; add it"),
        ("{fabric: ring, hosts: 8, link: {bandwidth: 50, latency: 1 us}}", "50 has no unit; write e.g. '50 GB/s'"),
        ("{fabric: ring, hosts: 8, link: {bandwidth: 5 us, latency: 1 us}}", "'us' is no unit of a bandwidth"),
        ("{fabric: ring, hosts: 8, link: {bandwidth: 5 GB/s, latency: -1 us}}", "'-1 us' is negative"),
        ("{fabric: ring, hosts: 8, link: {bandwidth: 0 GB/s, latency: 1 us}}", "'0 GB/s' is no bandwidth"),
        ("{fabric: ring, hosts: 8, link: {bandwidth: {value: 5 GB/s, spread: 100 %}, latency: 1 us}}", "stay below"),
        ("{fabric: ring, hosts: 8, link: {bandwidth: {value: 5 GB/s}, latency: 1 us}}", "missing key 'spread'"),
        ("{fabric: ring, hosts: 8, link: L, levels: 2}", "'levels' works with the fabric fat-tree, not with ring"),
        ("{fabric: torus, hosts: 8, link: L}", "a torus needs 'dims'; add e.g. dims: [4, 4]"),
        ("{fabric: torus, dims: [2, 2], hosts: 8, link: L}", "dims [2, 2] make 4 hosts, not 8; let them agree"),
        ("{fabric: fat-tree, hosts: 8, link: L, oversubscription: 0.5}", "write a number at least 1"),
        ("{fabric: fat-tree, hosts: 8, link: L, levels: 4}", "levels: 4"),
        ("{fabric: ring, hosts: 8, link: L, routing: ecpm}", "'ecpm' is no routing policy; did you mean 'ecmp'?"),
        ("{fabric: ring, hosts: 8, link: L, links: {host0->hots1: {}}}", "did you mean 'host0->host1'?"),
        ("{system: hgx-h100, nodes: 2, fabric: ring}", "a ring of nodes needs 'link'; add link:"),
        ("{system: hgx-h100, hosts_per_leaf: 2}", "'hosts_per_leaf' works with"),
        ("{system: loopback, nodes: 2}", "loopback has no NICs, so its nodes cannot be joined; write `nodes: 1`"),
        ("{hosts: 8, link: L}", "neither 'system' nor 'fabric'; write e.g. system: hgx-h100"),
        ("{system: hgx-h100, file: x.yaml}", "'file'; keep one of them, on a command line by --set topology=x.yaml"),
        ("{file: no-such.yaml}", "no-such.yaml: cannot be read"),
    ],
)
def test_what_is_refused(text: str, error: str) -> None:
    """Wrong input is named, with its place where it stands in a file, and with a cure."""
    with pytest.raises(InputError) as raised:
        make(text.replace("link: L", "link: {bandwidth: 50 GB/s, latency: 0.5 us}"))
    assert error in str(raised.value)
    assert all(diagnostic.cure for diagnostic in raised.value.diagnostics)


# --- files ---

BOX = """\
name: box
devices: {gpu: 4, pcie_switch: 1, nic: 1}
nic: {rate: 100 Gb/s, latency: 1 us, trunk_latency: 1 us}
links:
  - {from: "gpu*", to: pcie_switch0, bandwidth: 12 GB/s, latency: 0.5 us, kind: pcie}
  - {from: nic0, to: pcie_switch0, bandwidth: 12 GB/s, latency: 0.5 us, kind: pcie}
  - {pairs: [[gpu0, gpu1], [gpu2, gpu3]], bandwidth: 20 GB/s, latency: 0.5 us, kind: nvlink}
"""


def test_own_machine(tmp_path: Path) -> None:
    """A file of devices and links is a machine like the shipped ones, and can be multiplied."""
    (tmp_path / "box.yaml").write_text(BOX)
    topology = make(f"{{file: {tmp_path}/box.yaml, nodes: 3, fabric: single-switch}}")
    assert topology.name == "box/single-switch" and topology.nodes == 3
    assert len(topology.ranks) == 12 and len(topology.links) == 3 * (10 + 4) + 6
    assert topology.link("node2.gpu3", "node2.gpu2").bandwidth == 20 * GB
    assert topology.default_groups(topology.ranks)[2] == (8, 9, 10, 11)


@pytest.mark.thorough
def test_work_on_a_file_grows_with_its_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns of a rule are matched once, however many devices they match; links that no memory holds are refused
    before they are made."""
    asked: list[str] = []
    plain = fnmatch.filter

    def counted(names: list[str], pattern: str) -> list[str]:
        asked.append(pattern)
        return plain(names, pattern)

    monkeypatch.setattr(fnmatch, "filter", counted)
    rule = "{from: 'gpu*', to: nvswitch0, bandwidth: 1 GB/s, latency: 1 us}"
    file, text = tmp_path / "m.yaml", f"name: m\ndevices: {{gpu: 300, nvswitch: 1}}\nlinks: [{rule}]\n"
    file.write_text(text, encoding="utf-8")
    assert len(Topology.load(str(file)).links) == 600 and asked == ["gpu*", "nvswitch0"]
    many = text.replace("300", "300000")
    for made, said in (
        (many.replace("nvswitch0", "'gpu*'"), r"90000000000 links from gpu\* to gpu\* take"),
        (many.replace("nvswitch: 1", "nvswitch: 2000000000"), "2000300000 devices take"),
    ):
        file.write_text(made, encoding="utf-8")
        with pytest.raises(InputError, match=rf"{said} \d+ GB of memory, and this machine has"):
            Topology.load(str(file))


def test_own_devices_by_name(tmp_path: Path) -> None:
    """Devices may be listed by name, with their node and what they can do; such names are kept as they are."""
    (tmp_path / "pair.yaml").write_text("""\
name: pair
devices:
  - {name: left, kind: host}
  - {name: right, kind: host}
  - {name: tor, kind: switch, in_network: true}
links: [{from: "*t", to: tor, bandwidth: 10 GB/s, latency: 1 us}]
routes: {"left->right": [tor]}
""")
    topology = make(f"file: {tmp_path}/pair.yaml")
    assert topology.ranks == ("left", "right") and topology.nodes == 2
    assert topology.agents_for(topology.ranks) == ("tor",)
    assert [topology.link_names[link] for link in topology.route("left", "right")] == ["left->tor", "tor->right"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("to: pcie_switch0, bandwidth", "to: pcie_swich0, bandwidth"), "box.yaml:5:5: links.0: 'pcie_swich0' matches"),
        (("[gpu2, gpu3]", "[gpu2, gpu9]"), "box.yaml:7:5: links.2: there is no device 'gpu9'"),
        (("from: nic0", 'from: "*"'), "box.yaml:6:5: links.1: gpu0->pcie_switch0 has a link already"),
        (("bandwidth: 12 GB/s, ", ""), "box.yaml:5:5: links.0.bandwidth: missing key 'bandwidth'; add it"),
        (("gpu: 4", "gpu: 0"), "box.yaml:2:16: devices.gpu: 0 is out of range"),
        (("gpu: 4", "gpu: yes"), "box.yaml:2:16: devices.gpu: 'yes' is not a whole number"),
        (("12 GB/s", "12 GHz"), "box.yaml:5:49: links.0.bandwidth: 'GHz' is no unit of a bandwidth"),
        (("from: nic0, ", ""), "box.yaml:6:5: links.1: a link is either 'from' and 'to' or 'pairs'"),
        (("kind: nvlink", "kin: nvlink"), "links.2.kin: unknown key 'kin'; did you mean 'kind'?"),
    ],
)
def test_mistakes_in_own_files_are_found_there(tmp_path: Path, change: tuple[str, str], error: str) -> None:
    """A mistake in a topology file is told by line and column of that file."""
    (tmp_path / "box.yaml").write_text(BOX.replace(*change, 1))
    with pytest.raises(InputError) as raised:
        make(f"file: {tmp_path}/box.yaml")
    assert error in str(raised.value)


def test_no_file_names_another(tmp_path: Path) -> None:
    """A topology file that names a topology file is refused: there is no end to that."""
    (tmp_path / "a.yaml").write_text(f"file: {tmp_path}/a.yaml\n")
    with pytest.raises(InputError, match="names another topology file"):
        make(f"file: {tmp_path}/a.yaml")


@pytest.mark.parametrize("text", ["[1, 2]", "3", "a", "- a: 3", "system: {name}", "system: [a]"])
def test_files_that_are_no_topology(text: str, tmp_path: Path):
    """A list, a number, and a file that names itself as its system are located mistakes."""
    path = tmp_path / "own.yaml"
    path.write_text(text.format(name=path), encoding="utf-8")
    for ask in (lambda: build(TopologySpec(file=str(path))), lambda: load_system(str(path))):
        with pytest.raises(InputError, match=r"own\.yaml:1:\d"):
            ask()


def test_description() -> None:
    """The description counts every device and every directed link once."""
    topology = make("{system: hgx-h100, nodes: 2}")
    told = describe(topology)
    assert sum(told["devices"].values()) == len(topology.kinds)
    assert sum(kind["count"] for kind in told["links"]) == len(topology.links)
    assert told["bisection_GBps"] == 400 and told["routing"] == "rails" and len(told["ranks"]) == 16


@pytest.mark.parametrize(
    "text",
    [
        "system: dgx1-v100",
        "{system: hgx-h100, nodes: 9}",
        "{system: mi300x, nodes: 2, fabric: ring, link: {bandwidth: 50 GB/s, latency: 1 us}}",
        "{fabric: torus, dims: [3, 3], link: {bandwidth: 50 GB/s, latency: 1 us}}",
        "{fabric: full-mesh, hosts: 4, link: {bandwidth: {value: 50 GB/s, spread: 9 %}, latency: 1 us}}",
        "{fabric: fat-tree, hosts: 32, spines: 2, link: {bandwidth: 50 GB/s, latency: 1 us}}",
    ],
)
def test_pictures_show_every_link_kind(text: str) -> None:
    """A picture's legend has an entry for each kind of link that is drawn; boxes of a picture do not overlap."""
    topology = make(text)
    figure = topology_figure(topology)
    entries = " ".join(entry.get_text().lower() for legend in figure.legends for entry in legend.get_texts())
    words = {"xgmi": "infinity fabric"}
    kinds = {topology.link(u, v).kind for u, v in topology.links if u != v}
    assert all(words.get(kind, kind) in entries for kind in kinds)
    busy = {ends: i / len(topology.links) for i, ends in enumerate(topology.links)}
    assert len(topology_figure(topology, busy).axes) == 2
