"""The rules by which NCCL 2.31 chooses, each against those of 2.30."""

from __future__ import annotations

from dataclasses import replace

import pytest
from systems import WITH_GPUS

import simcoll as sc
from simcoll.nccl import call_choice, environment, tuner, tuner_constants
from simcoll.nccl.communicator import Communicator, communicator
from simcoll.nccl.environment import NcclEnv
from simcoll.topology.topology_builder import load_system

SIZES = [2**exponent for exponent in range(3, 34)]
REDUCED = ("all_reduce", "all_gather", "reduce_scatter")


def tables(comm: Communicator) -> tuple[tuner.TunerTable, tuner.TunerTable]:
    """The tables of both releases."""
    return tuner.table(comm, "2.30"), tuner.table(comm, "2.31")


@pytest.mark.parametrize("system", ["hgx-b200", "hgx-b300"])
@pytest.mark.parametrize("cpu", ["intel", "amd"])
def test_two_boxes_of_blackwell_choose_as_before(system: str, cpu: str) -> None:
    """On 2 nodes of 8 GPUs no choice of an all_reduce changes, although the tree has half of its bandwidth. Channels
    have 48 GB/s between nodes, where they have 96 within."""
    old, new = tables(replace(communicator(load_system(system), 2), cpu=cpu))
    for size in SIZES:
        before, after = old.choose("all_reduce", size), new.choose("all_reduce", size)
        assert before and after and before.algorithm == after.algorithm and before.protocol == after.protocol
    tree = ("all_reduce", "tree", "Simple")
    graph = new.communicator.graphs["tree"]
    assert new.entries[tree].bandwidth_GBps <= graph.channels * min(graph.intra, graph.inter) / 2


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("system", WITH_GPUS)
def test_older_gpus_are_reckoned_as_before(system: str, nodes: int) -> None:
    """Below compute capability 10.0 latencies and bandwidths stay."""
    file = load_system(system)
    if file.gpu and (file.gpu.compute_capability or 100) < 100:
        old, new = tables(communicator(file, nodes))
        assert old.entries == new.entries
        for size in SIZES:
            assert old.choose("all_reduce", size) == new.choose("all_reduce", size)


def test_a_ring_of_two_nodes_counts_at_the_speed_between_nodes() -> None:
    """On Blackwell, where they differ; on Hopper it is that within a node, as before."""
    for system, counts in (("hgx-b200", True), ("hgx-h100", False)):
        comm = communicator(load_system(system), 2)
        ring = comm.graphs["ring"].model_copy(update={"intra": 60.0, "inter": 20.0})
        old, new = tables(replace(comm, graphs={**comm.graphs, "ring": ring}))
        pair = ("all_reduce", "ring", "Simple")
        assert (new.entries[pair].bandwidth_GBps < old.entries[pair].bandwidth_GBps) == counts


@pytest.mark.parametrize("collective", REDUCED)
@pytest.mark.parametrize("system", ["hgx-b200", "hgx-h100", "rtx-pro-6000"])
def test_the_plateau_of_one_nvlink_domain(system: str, collective: tuner.TunedCollective) -> None:
    """With Simple a ring's latency grows by 40 % on one node too, on Blackwell's NVLink, but not for all_reduce."""
    old, new = tables(communicator(load_system(system)))
    entry = old.entries[collective, "ring", "Simple"]
    grown = new.time_us(collective, "ring", "Simple", 2**30) - old.time_us(collective, "ring", "Simple", 2**30)
    expected = 0.4 * entry.latency_us if (system, collective != "all_reduce") == ("hgx-b200", True) else 0
    assert grown == pytest.approx(expected, abs=1e-6)
    assert new.time_us(collective, "ring", "Simple", 64) == old.time_us(collective, "ring", "Simple", 64)


@pytest.mark.parametrize(
    ("system", "ranks", "corrected"), [("gb300-nvl72", 8, True), ("gb200-nvl72", 8, False), ("gb300-nvl72", 16, False)]
)
def test_nvls_tree_is_corrected_on_arm(system: str, ranks: int, corrected: bool) -> None:
    """With four ranks a node and NICs of 800 Gb/s; the last entry of the table counts from three nodes on."""
    pair = ("all_reduce", "nvls_tree", "Simple")
    comm = communicator(load_system(system), 2)
    old, new = tables(replace(comm, ranks=ranks))
    assert (new.time_us(*pair, 2**22) > old.time_us(*pair, 2**22)) == corrected
    assert new.time_us(*pair, 64 << 23) == old.time_us(*pair, 64 << 23)
    old, new = tables(replace(comm, ranks=2 * ranks, nodes=4))
    assert (new.time_us(*pair, 64 << 23) > old.time_us(*pair, 64 << 23)) == corrected


def test_pat_is_taken_on_request_only() -> None:
    """With one GPU a node 2.30 takes it by itself, and 2.31 if NCCL_ALGO leaves nothing else."""
    comm = communicator(load_system("hgx-h100"), 16, 16)
    taken = [{t.choose("all_gather", n).algorithm for n in SIZES} for t in tables(comm)]  # type: ignore[union-attr]
    assert "pat" in taken[0] and "pat" not in taken[1]
    only = tuner.table(comm, "2.31", environment.selection("PAT")).choose("all_gather", 2**20)
    assert only and only.algorithm == "pat"


def test_a_slow_ring_has_as_many_threads_as_others() -> None:
    """Up to 2.30 a ring of at most 12 GB/s has half of the threads in Simple."""
    comm = communicator(load_system("rtx-2080ti"))
    shapes = [
        call_choice.launch_shape(comm, tuner_constants.read("nccl", version), "all_reduce", "ring", "Simple", 2**26)
        for version in ("2.30", "2.31")
    ]
    assert [shape.threads for shape in shapes] == [256 + 32, 512 + 32]


@pytest.mark.parametrize(
    ("system", "version", "changes"),
    [("a100-pcie", "2.31", True), ("a100-pcie", "2.30", False), ("l40s-pcie", "2.31", False)],
)
def test_sockets_of_newer_processors(system: str, version: str, changes: bool) -> None:
    """EPYC of the third generation count 24 GB/s between sockets instead of 16: rings over both are faster."""
    file = load_system(system)
    usual, found = (communicator(file, settings=NcclEnv().search(file, v)).graphs["ring"] for v in (None, version))
    assert (found.channels * found.intra > usual.channels * usual.intra) == changes


def test_the_default_is_2_30() -> None:
    """Without a release the rules of 2.30 count; with 2.31 the same call of Blackwell may take another time."""
    keys = {"on": "hgx-b200", "size": "16 MiB", "algorithm": "auto"}
    found = {
        v: sc.predict("all_gather", **keys, **({"library_version": v} if v else {})) for v in (None, "2.30", "2.31")
    }
    assert found[None].time_ps == found["2.30"].time_ps
    assert found["2.31"].protocol in ("LL128", "Simple")
