"""Environment variables of NCCL: what they leave to the tuner, and how they limit channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simcoll
from simcoll.errors import InputError
from simcoll.nccl import environment
from simcoll.nccl.communicator import communicator
from simcoll.nccl.environment import NcclEnv
from simcoll.nccl.tuner_constants import read
from simcoll.prediction.placed_topology import rated_topology
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.names import ALGORITHMS, PROTOCOLS
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import load_system

SIZES = ["1 KiB", "256 KiB", "16 MiB", "1 GiB"]


def rows(env: dict[str, Any], **keys: Any) -> list[Any]:
    """Rows of all_reduce on a node of A100, at all sizes."""
    plain = {"topology": {"system": "dgx-a100"}, "collective": "all_reduce", "size": SIZES, "profile": "nccl-ampere"}
    return list(simcoll.run(simcoll.load({**plain, "env": env, **keys})))


@pytest.mark.parametrize("how", ["auto", "best"])
@pytest.mark.parametrize(
    ("env", "pairs"),
    [
        ({"NCCL_ALGO": "Tree"}, {("tree", protocol) for protocol in PROTOCOLS}),
        ({"NCCL_PROTO": "^LL128"}, {(name, p) for name in ("ring", "tree") for p in ("LL", "Simple")}),
        ({"NCCL_ALGO": "allreduce:ring", "NCCL_PROTO": "simple"}, {("ring", "Simple")}),
    ],
)
def test_a_choice_is_of_what_is_left(how: str, env: dict[str, str], pairs: set[tuple[str, str]]) -> None:
    """NCCL_ALGO and NCCL_PROTO leave pairs; a choice is one of them, and takes as long as that pair asked for by name.
    Where NCCL's own choice is among them it stays."""
    free, left = rows({}, algorithm=how), rows(env, algorithm=how)
    for before, row in zip(free, left, strict=True):
        pair = row["algorithm"], row["protocol"]
        assert pair in pairs
        (named,) = rows({}, algorithm=pair[0], protocol=pair[1], size=f"{row['size_bytes']} B")
        assert named["time_us"] == row["time_us"]
        if (before["algorithm"], before["protocol"]) in pairs:
            assert before["time_us"] == row["time_us"]


def test_nvls_off() -> None:
    """NCCL_NVLS_ENABLE=0 leaves what NCCL_ALGO=^NVLS,NVLSTree leaves, also where NCCL_ALGO says something itself."""
    off = NcclEnv(NCCL_NVLS_ENABLE=0).selection.algorithms["all_reduce"]
    assert off == environment.selection("^nvls,nvlstree").algorithms["all_reduce"] < frozenset(ALGORITHMS)
    assert NcclEnv(NCCL_ALGO="NVLS,Tree", NCCL_NVLS_ENABLE=0).selection.algorithms["all_reduce"] == {"tree"}


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_limited_channels(algorithm: str) -> None:
    """A limit that NCCL does not reach changes nothing; one that it does reach is kept, and no channel carries more
    than NCCL's graph search gives it."""
    comm = communicator(load_system("dgx-a100"))
    free = rows({}, algorithm=algorithm)
    assert rows({"NCCL_MAX_NCHANNELS": comm.channels, "NCCL_MIN_NCHANNELS": 1}, algorithm=algorithm) == free
    graph = comm.graph("ring" if algorithm == "ring" else "tree")
    assert graph
    times = {}
    for most in (1, 2, 4):
        found = rows({"NCCL_MAX_NCHANNELS": most}, algorithm=algorithm, protocol="Simple")
        assert found[-1]["busbw_GBps"] <= most * graph.intra
        assert found[-1]["confidence"] == "extrapolated"
        times[most] = found[-1]["time_us"]
    assert times[1] > times[2] > times[4] > free[-1]["time_us"]


@pytest.mark.parametrize(("least", "most", "channels"), [(None, 8, 8), (32, None, 32), (16, 4, 16), (None, 64, 24)])
def test_the_least_number_wins(least: int | None, most: int | None, channels: int) -> None:
    """Channels are limited from above, then from below, as NCCL does it."""
    given = {"NCCL_MIN_NCHANNELS": least, "NCCL_MAX_NCHANNELS": most}
    env = NcclEnv.model_validate({name: value for name, value in given.items() if value})
    assert env.applied(communicator(load_system("dgx-a100"))).channels == channels


@pytest.mark.parametrize("written", ["LOC", 0, "0"])
def test_levels(written: object) -> None:
    """A distance is a name or an old number, and NCCL_P2P_DISABLE means none at all."""
    comm = communicator(load_system("l40s-pcie"))
    level = NcclEnv.model_validate({"NCCL_P2P_LEVEL": written})
    assert level.applied(comm) == NcclEnv(NCCL_P2P_LEVEL="SYS").without_p2p().applied(comm)
    assert level.applied(comm).p2p_level == "LOC"
    assert [NcclEnv.model_validate({"NCCL_P2P_LEVEL": n}).NCCL_P2P_LEVEL for n in (1, 4, 9)] == ["PIX", "SYS", "SYS"]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NCCL_FOO": 1, "NCCL_ALGO": "Tree"}, ("'NCCL_FOO': not modelled", "NCCL_PROTO", "NCCL_P2P_LEVEL")),
        ({"NCCL_NET": "Socket"}, ("'NCCL_NET': not modelled; for sockets take `profile: PROFILE+tcp`",)),
        ({"NCCL_ALGO": "Trew"}, ("'Trew' is no algorithm", "did you mean 'tree'?")),
        ({"NCCL_PROTO": "LL;x:LL"}, ("'x' is no collective",)),
        ({"NCCL_P2P_LEVEL": "NODE"}, ("'NODE' is not known", "PHB")),
        ({"NCCL_MAX_NCHANNELS": 0}, ("0 is out of range",)),
        ({"NCCL_MIN_NCHANNELS": 65}, ("65 is out of range",)),
        ({"NCCL_P2P_DISABLE": 7}, ("7 is not known",)),
        ({"NCCL_PXN_DISABLE": -1}, ("-1 is not known; choose from: 0, 1",)),
        ({"NCCL_NET_GDR_LEVEL": "PHB"}, ("'PHB' is not known; choose from: LOC",)),
        ({"NCCL_BUFFSIZE": "1 GiB"}, ("'1 GiB' is not a whole number of bytes; write e.g. 4194304",)),
    ],
)
def test_wrong_values(env: dict[str, Any], words: tuple[str, ...]) -> None:
    """One error that says what is wrong and what is known."""
    with pytest.raises(InputError) as caught:
        simcoll.load({"topology": {"system": "dgx-a100"}, "collective": "all_reduce", "size": 8, "env": env})
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"NCCL_ALGO": "PAT"}, "NCCL runs no all_reduce here under NCCL_ALGO=PAT"),
        ({"NCCL_IB_HCA": "=mlx5"}, "NCCL_IB_HCA==mlx5 matches no NIC of mlx5_0 … mlx5_7"),
    ],
)
def test_what_leaves_nothing_or_is_not_followed_is_refused(env: dict[str, Any], why: str) -> None:
    """A variable is heeded, or the point is refused, on one node and on two; a refusal names the machine's library."""
    for nodes in (1, 2):
        found = rows(env, topology={"system": "dgx-a100", "nodes": nodes})
        assert all(why in row["status"] for row in found)
    (row,) = rows({}, topology={"system": "mi300x"}, profile="rccl-cdna3", algorithm="nvls", size=SIZES[0])
    assert "RCCL runs no all_reduce by nvls here" in row["status"]


@pytest.mark.parametrize(
    ("listed", "used"),
    [
        ("mlx5", None),
        ("mlx5_0,nic3:1", (0, 3)),
        ("^mlx5_1,mlx5_2", (0, 3, 4, 5, 6, 7)),
        ("=mlx5_7:1", (7,)),
        ("^=mlx5_", None),
        ("", None),
    ],
)
def test_nics_by_name(listed: str, used: tuple[int, ...] | None) -> None:
    """Names are beginnings, or whole after `=`; `^` means all but these. All NICs are no setting at all."""
    assert NcclEnv(NCCL_IB_HCA=listed).search(load_system("hgx-h100")).nics == used


def test_fewer_nics_carry_less() -> None:
    """Graphs are searched anew with the NICs that are left: half of them carry half, and on one node none matters.
    Crossing is by itself where it is faster, so to allow it always changes nothing here."""
    keys = {"topology": {"system": "dgx-a100", "nodes": 2}, "algorithm": "ring", "protocol": "Simple", "size": "1 GiB"}
    env = [{}, {"NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_2,mlx5_3"}, {"NCCL_IB_HCA": "mlx5_0"}, {"NCCL_CROSS_NIC": 1}]
    whole, half, one, crossed = (rows(each, **keys)[0]["time_us"] for each in env)
    assert half / whole == pytest.approx(2, rel=0.1)
    assert one / whole == pytest.approx(8, rel=0.1)
    assert crossed == whole
    alone = {**keys, "topology": {"system": "dgx-a100"}}
    assert rows(env[2], **alone) == rows({}, **alone)


SEVERAL = {"topology": {"system": "hgx-h100", "nodes": 2}, "profile": "nccl-hopper"}


def test_a_nic_that_is_left_out_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """For rings, NVLS trees and messages a variable says the same as a file without the NIC. The GPU beside it sends by
    the NIC of another, and no sooner."""
    text = Path(shipped_systems()["hgx-h100"]).read_text(encoding="utf-8")
    path = tmp_path / "seven.yaml"
    path.write_text(text.replace("nic: 8}", "nic: 7}").replace(", [nic7, pcie_switch7]", ""), encoding="utf-8")
    seven = {"file": str(path), "nodes": 2}
    for keys in ({}, {"collective": "all_gather"}, {"collective": "all_to_all"}):
        without = rows({"NCCL_IB_HCA": "^=mlx5_7"}, **{**SEVERAL, **keys})
        as_file = rows({}, **{**SEVERAL, **keys, "topology": seven})
        assert [row["time_us"] for row in without] == [row["time_us"] for row in as_file]
        # of seven NICs NCCL makes 28 channels, of eight 16, whose blocks limit a large ring
        if keys.get("collective") != "all_gather":
            assert without[-1]["time_us"] > rows({}, **{**SEVERAL, **keys})[-1]["time_us"]
    lone = Scenario(**SEVERAL, collective="all_to_all", size="1 KiB", env={"NCCL_IB_HCA": "=mlx5_0"})
    topology = rated_topology(lone)
    way = [topology.link_names[link] for link in topology.route("node0.gpu7", "node1.gpu0")]
    assert way[:2] == ["node0.gpu7->node0.nvswitch0", "node0.nvswitch0->node0.gpu0"]


# NICs that are left, the first of them or some of every PCIe switch's, and in another order
FEWER = ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3], [0, 2, 4, 6], [7, 3], [5])


@pytest.mark.parametrize("turned", [False, True])
def test_nvls_tree_fills_the_nics_that_are_left(turned: bool) -> None:
    """NCCL puts sums together at a GPU beside each NIC, so with fewer NICs a large NVLSTree takes longer by their ratio
    at most, and what leads to those that limit it is busy, whichever they are and however ranks are placed."""
    order = [*range(3, 8), *range(3)] if turned else range(8)
    places = [f"node{node}.gpu{gpu}" for node in (0, 1) for gpu in order]
    keys: dict[str, Any] = {**SEVERAL, "algorithm": "nvls_tree", "size": "1 GiB", "library_version": "2.27"}
    (every,) = rows({}, placement=places, **keys)
    nics, before = 8, every["time_us"]
    for left in FEWER:
        chosen = ",".join(f"mlx5_{nic}" for nic in left)
        (found,) = rows({"NCCL_IB_HCA": f"={chosen}"}, placement=places, **keys)
        assert (1 if len(left) < nics else 0.999) * before <= found["time_us"] <= 1.001 * before * nics / len(left)
        if len(left) <= 4:
            assert "nvswitch" not in found["binding_link"] and found["binding_busy"] > 0.85
        nics, before = len(left), found["time_us"]


def test_what_nccl_takes_by_itself_changes_nothing() -> None:
    """Its own sizes of buffers and chunks; chunks of messages between nodes on one node; NICs of others there."""
    own = {"NCCL_BUFFSIZE": 4 << 20, "NCCL_P2P_NET_CHUNKSIZE": 128 << 10, "NCCL_PXN_DISABLE": 0}
    for collective in ("all_gather", "all_to_all"):
        assert rows(own, collective=collective, **SEVERAL) == rows({}, collective=collective, **SEVERAL)
        alone = rows({"NCCL_P2P_NET_CHUNKSIZE": 4 << 10, "NCCL_PXN_DISABLE": 1}, collective=collective)
        assert alone == rows({}, collective=collective)


def test_a_chunk_fills_a_step_of_the_buffer_at_most() -> None:
    """A step is an eighth of a buffer, so a small buffer makes messages as short as small chunks do; rings of LL have
    another buffer."""
    keys = {"collective": "all_to_all", **SEVERAL}
    by_buffer, by_chunk = rows({"NCCL_BUFFSIZE": 256 << 10}, **keys), rows({"NCCL_P2P_NET_CHUNKSIZE": 32 << 10}, **keys)
    assert [row["time_us"] for row in by_buffer] == [row["time_us"] for row in by_chunk]
    assert by_chunk[2]["time_us"] != rows({}, **keys)[2]["time_us"]
    free, small = (rows(env, algorithm="ring", protocol="LL") for env in ({}, {"NCCL_BUFFSIZE": 64 << 10}))
    assert [row["time_us"] for row in small] == [row["time_us"] for row in free]


@pytest.mark.parametrize(("algorithm", "nodes"), [("nvls", 1), ("nvls_tree", 2)])
def test_chunks_of_nvls_fill_a_step_of_the_buffer_at_most(algorithm: str, nodes: int) -> None:
    """They have 128 KiB at most, a step of 1 MiB, so that such a buffer costs nothing; with one of 128 KiB large calls
    take longer."""
    keys = {**SEVERAL, "topology": {"system": "hgx-h100", "nodes": nodes}, "algorithm": algorithm, "size": "256 MiB"}
    free, same, small = (
        [row["time_us"] for row in rows(env, **keys)]
        for env in ({}, {"NCCL_BUFFSIZE": 1 << 20}, {"NCCL_BUFFSIZE": 128 << 10})
    )
    assert same == free and small[0] > 1.2 * free[0]


def test_without_pxn_ends_have_their_own_nics() -> None:
    """Messages of an all-to-all leave by the sender's NIC and go from rail to rail, and each is received by itself, so
    that small ones take longer. What stays on rails is as it was."""
    topology = rated_topology(Scenario(**SEVERAL, collective="all_to_all", size="1 KiB", env={"NCCL_PXN_DISABLE": 1}))
    way = [topology.link_names[link] for link in topology.route("node0.gpu1", "node1.gpu6")]
    assert way[1:3] == ["node0.pcie_switch1->node0.nic1", "node0.nic1->rail1"]
    assert way[-3] == "rail6->node1.nic6" and len(way) == 8
    free, without = (rows(env, collective="all_to_all", **SEVERAL) for env in ({}, {"NCCL_PXN_DISABLE": 1}))
    assert without[0]["time_us"] > free[0]["time_us"]  # how much longer is the fit's
    free, without = (rows(env, algorithm="nvls_tree", **SEVERAL) for env in ({}, {"NCCL_PXN_DISABLE": 1}))
    assert [row["time_us"] for row in without] == [row["time_us"] for row in free]


def test_no_row_stands_behind_buffers_of_the_user() -> None:
    """What other buffers change is extrapolated; NCCL's own size is no setting, and LL has another buffer."""
    for size, protocol in ((SIZES[0], "LL"), (SIZES[2], "Simple")):
        keys = {"collective": "all_gather", "size": size}
        free, own, small = (rows(env, **keys)[0] for env in ({}, *({"NCCL_BUFFSIZE": 2**k} for k in (22, 20))))
        assert free["protocol"] == protocol and free["confidence"] == own["confidence"] != "extrapolated"
        assert small["confidence"] == ("extrapolated" if protocol == "Simple" else free["confidence"])
    assert rows({"NCCL_BUFFSIZE": 1 << 20}, collective="all_to_all")[1]["confidence"] == "extrapolated"


def test_a_plugin_asks_for_variables() -> None:
    """What a system's NICs ask for counts on several nodes as if the scenario had it, and what the scenario has counts
    before it. It serves calls as NCCL makes them only."""
    nic = load_system("a3-mega").nic
    mega = {"topology": {"system": "a3-mega", "nodes": 2}, "profile": "nccl-hopper"}
    assert nic is not None and rows({}, **mega) == rows(nic.env, **mega)
    free = rows({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, **mega)
    assert {(row["algorithm"], row["protocol"]) for row in free} == {("ring", "LL")}
    assert rows({}, **{**mega, "topology": {"system": "a3-mega"}})[-1]["algorithm"] == "nvls"
    assert rows({}, **{**mega, "profile": "one-port"}, algorithm="ring")[0]["time_us"] > 0


@pytest.mark.parametrize(
    ("system", "profile", "library"), [("mi300x", "rccl-cdna3", "rccl"), ("hgx-h100", "nccl-hopper", "nccl")]
)
def test_trees_cut_chunks_by_the_release_of_the_tuner(system: str, profile: str, library: Any) -> None:
    """A scenario that names no release has, of each library, the chunks of the one whose constants choose."""
    keys = {"topology": {"system": system, "nodes": 2}, "size": SIZES[2], "algorithm": "tree", "protocol": "Simple"}
    releases = [{"library_version": name} for name in (read(library).release, "2.23", "2.24")]
    default, named, old, new = (rows({}, **keys, profile=profile, **each)[0]["time_us"] for each in ({}, *releases))
    assert default == named == {"rccl": old, "nccl": new}[library] and old != new


def test_a_release_is_taken_as_it_is_written(tmp_path: Any) -> None:
    """`2.20` is no `2.2`, though both are one number; a text says the same."""
    path = tmp_path / "releases.yaml"
    head = "topology: {system: dgx-a100}\ncollective: all_reduce\nsize: 1 KiB\nprofile: nccl-ampere\n"
    path.write_text(f"{head}library_version: [2.20, '2.20', 2.27.3]\n", encoding="utf-8")
    assert [point.scenario.library_version for point in simcoll.load(str(path))] == ["2.20", "2.27.3"]
    path.write_text(f"{head}library_version: 2.2\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"NCCL 2\.2: the constants"):
        simcoll.load(str(path))


def test_pxn_serves_no_gpu_whose_like_pass_a_cpu_too():
    """Where every GPU reaches the NICs over a CPU, each goes there itself: PXN takes GPUs that need not pass one."""
    found = simcoll.predict("all_reduce", on="hgx-a100-4-slingshot", nodes=2, size="1 KiB", algorithm="tree")
    carried = dict(zip(found.topology.link_names, found.totals.carried.tolist(), strict=True))
    assert carried["node0.gpu0->node0.cpu3"] > 0
    assert carried["node0.gpu3->node0.cpu0"] == 0
