from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from command import PATIENCE_S, environment
from extras import needs_root

from simcoll.errors import InputError, SimcollError
from simcoll.measurement import network_lab, network_namespaces
from simcoll.measurement.network_namespaces import BuiltNetwork, WiringPlan
from simcoll.topology import topology_builder
from simcoll.topology.graph import Link, Topology
from simcoll.topology.topology_keys import TopologySpec

CABLE = {"bandwidth": "40 Mb/s", "latency": "50 us"}

# Sends MiB one way and waits for the answer that all has come; prints bytes per second.
TALK = """
import socket, sys, time
role, address, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "listen":
    with socket.create_server((address, 5000)) as server:
        print("listening", flush=True)
        with server.accept()[0] as peer:
            while nbytes > 0:
                nbytes -= len(peer.recv(1 << 16))
            peer.sendall(b"!")
else:
    with socket.create_connection((address, 5000)) as peer:
        began = time.monotonic()
        peer.sendall(bytes(nbytes))
        peer.recv(1)
        print(nbytes / (time.monotonic() - began))
"""


def _topology(**spec: Any) -> Topology:
    return topology_builder.build(TopologySpec.model_validate({"link": CABLE, **spec}))


def _star(hosts: int = 4, **spec: Any) -> Topology:
    return _topology(fabric="single-switch", hosts=hosts, **spec)


def _ours() -> list[str]:
    return [path.name for path in network_namespaces.NAMES.glob(f"{network_namespaces.PREFIX}{os.getpid()}.*")]


def _rate(network: BuiltNetwork, src: str, dst: str, nbytes: int = 1 << 20) -> float:
    """B/s of payload from one host to another."""
    address, prefix = network.plan.address(dst), network_lab.launcher(network).prefix
    here, there = (prefix(network.hosts.index(host)) for host in (src, dst))
    listen = [*there, sys.executable, "-c", TALK, "listen", address, str(nbytes)]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout and server.stdout.readline() == "listening\n"
        talk = [*here, sys.executable, "-c", TALK, "talk", address, str(nbytes)]
        return float(subprocess.run(talk, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _rates(network: BuiltNetwork, src: str, dst: str, wanted: float, nbytes: int = 1 << 20) -> list[float]:
    """Three rates, and up to twenty where none is as wanted: other work on the machine delays the senders."""
    rates = [_rate(network, src, dst, nbytes) for _ in range(3)]
    while max(rates) <= wanted and len(rates) < 20:
        rates.append(_rate(network, src, dst, nbytes))
    return rates


# --- the plan ---


@pytest.mark.parametrize(
    "spec",
    [
        {"fabric": "single-switch", "hosts": 5},
        {"fabric": "fat-tree", "levels": 2, "hosts": 8, "hosts_per_leaf": 3, "oversubscription": 2},
        {"fabric": "ring", "hosts": 6},
        {"fabric": "torus", "dims": [3, 3]},
        {"fabric": "full-mesh", "hosts": 4},
    ],
)
def test_every_link_has_a_shaper(spec: dict[str, Any]):
    """Each link of the topology is one port with the link's bandwidth, and there are no other ports."""
    topology = _topology(**spec)
    plan = WiringPlan(topology)
    built = {link: plan.ports(link[0])[port] for link, port in plan.port.items()}
    assert built == {(u, v): topology.link(u, v).bandwidth for u, v in topology.links}
    shapers = [line for device in plan.devices for line in plan.shapers(device) if line.startswith("class")]
    assert len(shapers) == len(topology.links)


def test_links_overridden_are_built_so():
    """One slow link, one way: the port of that direction is slower, and no other."""
    topology = _star(links={"host2->switch": {"bandwidth": "1 MB/s"}})
    plan = WiringPlan(topology)
    rates = {link: plan.ports(link[0])[port] for link, port in plan.port.items()}
    assert rates.pop(("host2", "switch")) == 10**6
    assert set(rates.values()) == {5 * 10**6}


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"system": "dgx-a100", "link": None}, "has a gpu"),
        ({"fabric": "fat-tree", "levels": 2, "hosts": 8, "spines": 2}, "two routes from"),
        ({"fabric": "single-switch", "hosts": 300}, "has 301 devices"),
        ({"fabric": "single-switch", "hosts": 3, "links": {"host0->*": {"bandwidth": "0 B/s"}}}, "is down"),
    ],
)
def test_what_cannot_be_built_is_refused(spec: dict[str, Any], what: str):
    """Devices that are no hosts or switches, loops of bridges and dead links are refused, and nothing is made."""
    given = {key: value for key, value in {"link": CABLE, **spec}.items() if value is not None}
    with pytest.raises(InputError, match=what):
        WiringPlan(topology_builder.build(TopologySpec.model_validate(given)))


def test_names_that_are_no_names_are_refused():
    """A device whose name cannot be that of a namespace is refused."""
    graph = nx.Graph()
    graph.add_nodes_from(["a/b", "c"], kind="host")
    graph.add_edge("a/b", "c", link=Link(10**6, latency_ps=1))
    with pytest.raises(InputError, match="'a/b'"):
        WiringPlan(Topology.from_graph(graph))


# --- the network ---


@needs_root
def test_a_star_carries_what_its_links_carry():
    """Two hosts exchange bytes at the shaped rate, headers included, within 10 %; nothing is left afterwards."""
    payload = 1448 / 1514 * 5 * 10**6
    with BuiltNetwork(_star()) as network:
        assert len(_ours()) == 5
        rates = _rates(network, "host0", "host3", 0.9 * payload)
    assert 0.9 * payload < max(rates) < 1.1 * payload  # an empty link lets a first burst through at once
    assert not _ours()


@needs_root
def test_one_slow_link_is_slow_one_way():
    """A link's bandwidth holds in its own direction."""
    slow = 1448 / 1514 * 10**6
    with BuiltNetwork(_star(2, links={"host1->switch": {"bandwidth": "1 MB/s"}})) as network:
        assert _rate(network, "host1", "host0", 1 << 18) < 1.1 * slow
        assert max(_rates(network, "host0", "host1", 2 * slow, 1 << 18)) > 2 * slow


@needs_root
@pytest.mark.parametrize(
    "spec", [{"fabric": "fat-tree", "hosts": 4, "hosts_per_leaf": 2}, {"fabric": "ring", "hosts": 5}]
)
def test_every_host_reaches_every_host(spec: dict[str, Any]):
    """Over two levels of bridges, and through hosts that forward."""
    with BuiltNetwork(_topology(**spec)) as network:
        for dst in network.hosts[1:]:
            assert _rate(network, "host0", dst, 1000) > 0


@needs_root
def test_routes_are_the_topologys():
    """A host that forwards is on the way exactly where the topology's route goes through it."""
    topology = _topology(fabric="ring", hosts=5)
    with BuiltNetwork(topology) as network:
        for src in network.hosts:
            for dst in set(network.hosts) - {src}:
                first = topology.links[topology.route(src, dst)[0]][1]
                told = network_namespaces.run(*network.inside(src), "ip", "route", "get", network.plan.address(dst))
                assert (f"via {network.plan.address(first)} " in told) == (first != dst)


@needs_root
def test_nothing_is_left_after_a_failure():
    """An error inside takes the network down, with the processes in it."""
    with pytest.raises(SimcollError, match="this failed"), BuiltNetwork(_star()) as network:
        sleeper = subprocess.Popen([*network.inside("host0"), "sleep", "1000"])
        while not network_namespaces.run("ip", "netns", "pids", network.names["host0"]):
            time.sleep(0.01)
        raise SimcollError("this failed")
    assert sleeper.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    assert not _ours()


HOLD = """
import time
from simcoll.measurement.network_namespaces import BuiltNetwork
from simcoll.topology import topology_builder, topology_keys
star = {"fabric": "single-switch", "hosts": 4, "link": {"bandwidth": "40 Mb/s", "latency": "50 us"}}
with BuiltNetwork(topology_builder.build(topology_keys.TopologySpec.model_validate(star))):
    print("built", flush=True)
    time.sleep(1000)
"""


Hold = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Starts processes that hold a network, and ends them in any case."""
    held: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        held.append(subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=environment(),
                                     stderr=subprocess.DEVNULL))  # fmt: skip
        assert held[-1].stdout and held[-1].stdout.readline() == "built\n"
        return held[-1]

    yield start
    for process in held:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    network_namespaces.remove_stale()


def _of(pid: int) -> list[Path]:
    return list(network_namespaces.NAMES.glob(f"{network_namespaces.PREFIX}{pid}.*"))


@needs_root
def test_what_was_killed_while_it_was_made_is_removed():
    """A name without a namespace behind it, as a kill at the wrong moment leaves, is no obstacle."""
    nobody = network_namespaces.NAMES / f"{network_namespaces.PREFIX}4194305.1-host0"  # beyond the largest process id
    nobody.touch()
    with BuiltNetwork(_star(2)):
        assert not nobody.exists()


@pytest.mark.thorough
@needs_root
def test_ctrl_c_leaves_nothing(hold: Hold):
    """An interrupted run takes its network down."""
    holder = hold()
    assert _of(holder.pid)
    holder.send_signal(signal.SIGINT)
    holder.wait(timeout=PATIENCE_S)
    assert not _of(holder.pid)


@pytest.mark.thorough
@needs_root
def test_a_killed_run_is_cleaned_up_by_the_next(hold: Hold):
    """What a killed run left is removed when the next begins, what a living one holds is not."""
    killed, living = hold(), hold()
    killed.kill()
    killed.wait(timeout=PATIENCE_S)
    assert _of(killed.pid)
    with BuiltNetwork(_star(2)):
        assert not _of(killed.pid)
        assert len(_of(living.pid)) == 5
