"""Build a topology on this machine from network namespaces, veth pairs, bridges and shapers, and remove it. Needs
Linux and root.

Names begin with `simcoll-` and the mark of the process (`own_mark`), so that networks of killed runs are
recognised and removed.

Every device is a namespace. A switch holds a bridge. A host has one address, and routes that follow `Topology.route`,
through other hosts where there is no switch (torus, ring). Every link is one direction of a veth pair. An HTB shaper at
its sending end limits it to the link's bandwidth, headers included.

Five settings make links behave like links of the model, and not like a busy machine's software:

* A shaper may catch up a delay of BURST. Otherwise every late timer would cost bandwidth.
* TCP sends pieces of SEGMENT. Pieces of 64 KiB would occupy a link for 2.6 ms at 200 Mb/s.
* A connection queues little data (QUEUED) before the host's own port, because acknowledgements wait behind them. It has
  WINDOW of data in flight. This is enough to keep every link busy, and so little that a flow with a slow receiver soon
  slows down its sender, as in `fair` sharing.
* Ports never drop packets (ROOM), so nothing is sent twice.
* Congestion control is Reno. Without losses it only opens its window, and it keeps the window when idle.

The settings are durations; times the bandwidth of a host's fastest port they give bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import networkx as nx

from simcoll.errors import InputError, SimcollError
from simcoll.measurement.launcher import PREFIX, handling
from simcoll.topology.graph import MEMORY, Topology

NAMES: Final = Path("/run/netns")
ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # bit numbers, from linux/capability.h
INTERFACE: Final = "port0"  # every host's address is on this interface
MOST_DEVICES: Final = 250  # one byte of the address numbers the hosts
FRAME: Final = 1514  # bytes of a full Ethernet frame
LARGEST: Final = 65536  # most bytes that TCP sends in one piece (GSO)
MOST_AHEAD: Final = 32 << 20  # bytes of the largest window, for any link
ROOM: Final = 1 << 30  # bytes that a port queues before it drops packets: more than all windows together
BURST, SEGMENT, QUEUED, WINDOW = 200e-6, 650e-6, 1300e-6, 10e-3  # seconds; the module's docstring gives the reasons
SETTINGS: Final = (
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv4.ip_forward=1",
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv4.tcp_congestion_control=reno",
    "net.ipv4.tcp_slow_start_after_idle=0",
    "net.ipv4.tcp_no_metrics_save=1",
)


def why_not() -> str | None:
    """Return the reason why this process cannot make namespaces; None if it can."""
    if sys.platform != "linux":
        return f"network namespaces need Linux, this is {sys.platform}"
    if missing := [tool for tool in ("ip", "tc", "sysctl") if shutil.which(tool) is None]:
        return f"{' and '.join(missing)} cannot be found (packages iproute2 and procps)"
    if os.geteuid():
        return "network namespaces need root"
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    held = int(effective[1], 16) if effective else 0
    if lost := [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]:
        return f"network namespaces need {' and '.join(lost)}, which root lacks here (a container?)"
    return None


class BuiltNetwork:
    """A network of namespaces: `with BuiltNetwork(topology) as network:` builds it, and removes it at the end."""

    def __init__(self, topology: Topology):
        if reason := why_not():
            raise InputError(f"the lab cannot be built: {reason}", "run it as root on Linux")
        self.plan = WiringPlan(topology)
        self.hosts = self.plan.hosts

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of the namespace of each device."""
        return {device: f"{PREFIX}{own_mark()}-{device}" for device in self.plan.devices}

    def inside(self, device: str) -> list[str]:
        """Return the words to put before a command so that it runs inside a device's namespace."""
        return ["ip", "netns", "exec", self.names[device]]

    def __enter__(self) -> BuiltNetwork:
        remove_stale()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _build(self) -> None:
        for name in self.names.values():
            run("ip", "netns", "add", name)
        run("ip", "-batch", "-", lines=self.plan.wiring(self.names))
        for device, name in self.names.items():
            run(*self.inside(device), "sysctl", "-qew", *self.plan.settings(device))
            run("ip", "-n", name, "-batch", "-", lines=self.plan.setup(device))
            run("tc", "-n", name, "-batch", "-", lines=self.plan.shapers(device))

    def _remove(self) -> None:
        # Ctrl-C and `kill` are ignored meanwhile, as they would leave half of a network behind.
        with handling(ENDINGS, signal.SIG_IGN), contextlib.ExitStack() as everything:
            for name in self.names.values():
                everything.callback(remove, name)  # runs even if another removal fails


def own_mark() -> str:
    """Return this process's id and start time as a mark for names of networks, so that they are found after a kill."""
    return f"{os.getpid()}.{_begin(os.getpid())}"


def is_alive(mark: str) -> bool:
    """Return whether the process of a mark still runs; the start time excludes a later process with the same id."""
    process, _, begin = mark.partition(".")
    return process.isdecimal() and _begin(int(process)) == begin


def _begin(process: int) -> str | None:
    """Return a process's start time in clock ticks since boot; None if it has ended or is a zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if status[0] in "ZX" else status[19]


def remove_stale() -> list[str]:
    """Remove the namespaces of runs that have ended; return their names."""
    stale = [
        path.name for path in NAMES.glob(f"{PREFIX}*") if not is_alive(path.name.removeprefix(PREFIX).partition("-")[0])
    ]
    for name in stale:
        remove(name)
    return stale


def remove(name: str) -> None:
    """End the processes in a namespace and remove it with its interfaces; do nothing if it is gone."""
    try:
        if os.path.ismount(NAMES / name):  # else `ip netns add` was killed half way, and nothing runs in it
            for process in run("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        if (NAMES / name).exists():
            run("ip", "netns", "delete", name)
    except SimcollError:
        if (NAMES / name).exists():  # no other process has removed it meanwhile
            raise


def run(*words: str, lines: Sequence[str] = ()) -> str:
    """Run a command with lines on stdin; return its output. Raises SimcollError with its error message.

    The command has a separate session, so Ctrl-C at the terminal stops only this process, which cleans up by commands.
    """
    done = subprocess.run(words, input="\n".join(lines), text=True, capture_output=True, start_new_session=True)
    if done.returncode:
        raise SimcollError(f"`{' '.join(words)}` failed: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


# --- the commands ---


class WiringPlan:
    """The commands that build a topology. Raises InputError for a topology that namespaces and bridges cannot form."""

    def __init__(self, topology: Topology):
        self.topology = topology
        self.hosts = topology.ranks
        _check(topology)
        self.devices = tuple(topology.kinds)
        used: Counter[str] = Counter()
        self.port: dict[tuple[str, str], int] = {}  # of each link, at its sending end
        for u, v in topology.links:
            self.port[u, v] = used[u]
            used[u] += 1

    def address(self, host: str) -> str:
        """Return the IPv4 address of a host, from the block reserved for measuring networks (RFC 2544)."""
        return f"198.18.0.{self.hosts.index(host) + 1}"

    def mac(self, device: str, port: int) -> str:
        """Return the hardware address of a port."""
        return f"02:00:00:00:{self.devices.index(device):02x}:{port:02x}"

    def wiring(self, name: Mapping[str, str]) -> list[str]:
        """Return lines for `ip -batch` that make the veth pairs (links); `name` has each device's namespace."""
        return [
            f"link add port{p} netns {name[u]} address {self.mac(u, p)} type veth"
            f" peer name port{q} netns {name[v]} address {self.mac(v, q)}"
            for (u, v), p in self.port.items()
            if u < v
            for q in [self.port[v, u]]
        ]

    def ports(self, device: str) -> dict[int, int]:
        """Return, for each port of a device by number, the B/s that it sends."""
        return {port: self.topology.link(u, v).bandwidth for (u, v), port in self.port.items() if u == device}

    def setup(self, device: str) -> list[str]:
        """Return lines for `ip -batch` that set up addresses, ports and routes inside a device's namespace."""
        ports = [f"port{port}" for port in self.ports(device)]
        lines = ["link set lo up"]
        if device in self.hosts:
            lines += [f"link set {port} gso_max_size {self.segment(device)} up" for port in ports]
            lines.append(f"address add {self.address(device)}/32 dev {INTERFACE}")
            return lines + [line for host in self.hosts if host != device for line in self._way(device, host)]
        lines.append("link add bridge type bridge stp_state 0")
        lines.append("link set bridge up")
        return lines + [f"link set {port} master bridge up" for port in ports]

    def _way(self, src: str, dst: str) -> list[str]:
        """Return lines for `ip -batch` that route from `src` to `dst`; fixed MAC addresses replace ARP."""
        port, hop, entry = self._hop(src, dst)
        route = f"route add {self.address(dst)}/32 dev port{port} src {self.address(src)}"
        if hop != dst:
            return [f"{route} via {self.address(hop)} onlink"]
        return [f"neighbour replace {self.address(dst)} lladdr {entry} dev port{port} nud permanent", route]

    def _hop(self, src: str, dst: str) -> tuple[int, str, str]:
        """Return the sending port of `src`, the next host on the route to `dst`, and the MAC address of its port."""
        way = [self.topology.links[link] for link in self.topology.route(src, dst)]
        before, hop = next((u, v) for u, v in way if v in self.hosts)
        return self.port[way[0]], hop, self.mac(hop, self.port[hop, before])

    def _fastest(self, host: str) -> int:
        """Return the B/s of a host's fastest port."""
        return max(self.ports(host).values())

    def segment(self, host: str) -> int:
        """Return the bytes that a host's TCP sends in one piece."""
        return min(max(2 * FRAME, round(SEGMENT * self._fastest(host))), LARGEST)

    def settings(self, device: str) -> list[str]:
        """Return the settings for `sysctl` inside a device's namespace."""
        if device not in self.hosts:
            return [*SETTINGS]
        segment, bandwidth = self.segment(device), self._fastest(device)
        window = min(max(4 * segment, round(WINDOW * bandwidth)), MOST_AHEAD)
        queued = max(2 * segment, round(QUEUED * bandwidth))
        sizes = f"net.ipv4.tcp_limit_output_bytes={queued}", f"net.ipv4.tcp_rmem=4096 {window} {window}"
        return [*SETTINGS, *sizes]

    def shapers(self, device: str) -> list[str]:
        """Return lines for `tc -batch` inside a device's namespace: a shaper for each port."""
        return [line for port, bandwidth in self.ports(device).items() for line in shaper(f"port{port}", bandwidth)]


def shaper(interface: str, bandwidth: int) -> list[str]:
    """Return lines for `tc -batch` that limit an interface to `bandwidth` B/s."""
    burst = max(FRAME, round(BURST * bandwidth))
    rate = f"rate {bandwidth}bps ceil {bandwidth}bps burst {burst} cburst {burst} quantum {FRAME}"
    return [
        f"qdisc add dev {interface} root handle 1: htb default 10",
        f"class add dev {interface} parent 1: classid 1:10 htb {rate}",
        f"qdisc add dev {interface} parent 1:10 bfifo limit {ROOM}",
    ]


def _check(topology: Topology) -> None:
    alien = next((kind for kind in topology.kinds.values() if kind not in ("host", "switch")), None)
    if alien:
        raise InputError(f"{topology.name} has a {alien}", "the lab builds hosts and switches: take a fabric of hosts")
    odd = next((device for device in topology.kinds if not re.fullmatch(r"[\w.-]{1,64}", device)), None)
    if odd:
        raise InputError(f"a device is called {odd!r}", "name devices by letters, digits, dots and dashes")
    if len(topology.kinds) > MOST_DEVICES:
        raise InputError(f"{topology.name} has {len(topology.kinds)} devices", f"the lab builds up to {MOST_DEVICES}")
    for (u, v), name, bandwidth in zip(topology.links, topology.link_names, topology.bandwidths, strict=True):
        if u == v:
            raise InputError(f"{name} is a {MEMORY} link", "leave it out: the lab has links between devices only")
        if (v, u) not in topology.links:
            raise InputError(f"{name} has no link back", "add it: cables of the lab work both ways")
        if not bandwidth:
            raise InputError(f"{name} is down", "give it a bandwidth")
    switches = topology.of_kind("switch")
    cables = nx.Graph([(u, v) for u, v in topology.links if u in switches and v in switches])
    if loops := nx.cycle_basis(cables):  # a bridge has one route to each host, so switches must form trees
        raise InputError(
            f"{topology.name}: there are two routes from {loops[0][0]} to {loops[0][1]}", "write spines: 1"
        )
    _agreeing(topology)


def _agreeing(topology: Topology) -> None:
    """Raise InputError if a host would need two routes to one destination: Linux routes by destination only.

    Messages that a host forwards must take the same route as messages that start at this host.
    """
    for src, dst in itertools.permutations(topology.ranks, 2):
        route = topology.route(src, dst)
        for place, link in enumerate(route[:-1], 1):
            via = topology.links[link][1]
            if topology.kinds[via] == "host" and topology.route(via, dst) != route[place:]:
                raise InputError(
                    f"{topology.name}: {src}->{dst} takes another route after {via} than {via}->{dst}",
                    f"give both routes the same links from {via} on",
                )
