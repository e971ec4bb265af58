"""Classes that readers of topologies share: `Sketch` collects a machine and writes its topology file; `LenderSystem` is
the shipped system that supplies missing speeds, latencies and facts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from simcoll import units
from simcoll.config import yaml_tree
from simcoll.config.grouping import grouped
from simcoll.config.input_files import ImportLog
from simcoll.errors import SimcollError
from simcoll.nccl.protocols import nvlink_GBps
from simcoll.topology.machine_files import LinkRule, SystemFile, read_shipped, shipped_systems, template
from simcoll.topology.topology_builder import load_system
from simcoll.topology.wiring import GPU_LINKS

NVLINKS: Final = {60: 4, 70: 6, 75: 2, 80: 12, 86: 4, 90: 18, 100: 18, 103: 18}
"""Number of NVLinks of a GPU by compute capability, by data sheets (P100, V100, RTX 8000, A100, A40, H100, B200)."""
_SYSTEMS: Final = {60: "dgx1-v100", 70: "dgx1-v100", 75: "t4-pcie", 80: "dgx-a100", 86: "a40-pcie", 89: "l40s-pcie",
                   90: "hgx-h100", 100: "hgx-b200", 103: "hgx-b300", 120: "rtx-pro-6000", 121: "dgx-spark"}  # fmt: skip


def system_of(capability: int) -> str:
    """Return the shipped system whose GPUs have this compute capability, or the nearest one below."""
    return _SYSTEMS[max((known for known in _SYSTEMS if known <= capability), default=70)]


def lender(
    source: str,
    assumed: str | None,
    problem: str,
    fits: Callable[[SystemFile], bool],
    contradicted: Callable[[SystemFile], str] = lambda _: "",
) -> LenderSystem:
    """Return the shipped system that supplies facts which a file lacks: the `assumed` one, or the only one that `fits`.

    Raises SimcollError with the choices if several fit or none, or with the text of `contradicted` if the file
    contradicts the assumed system. Raises InputError for an unknown name.
    """
    if assumed:
        check_assumed(source, assumed, contradicted(load_system(assumed)))
        return LenderSystem(assumed)
    files = {name: file for name in shipped_systems() if (file := load_system(name)).gpu and not file.like}
    known = [name for name, file in files.items() if fits(file)]
    if len(known) != 1:
        choices = ", ".join(known or [name for name, file in files.items() if not contradicted(file)] or files)
        raise SimcollError(f"{source}: {problem}; name a similar machine with --assume, one of {choices}")
    return LenderSystem(known[0])


def check_assumed(source: str, assumed: str | None, contradiction: str) -> None:
    """Raise SimcollError with the text `contradiction`, unless it is empty: the file contradicts the assumed system."""
    if assumed and contradiction:
        raise SimcollError(f"{source}: it does not fit --assume {assumed}: {contradiction}; name another, or none")


def nvlinks(system: SystemFile) -> frozenset[int]:
    """Return the numbers of NVLinks that pairs of GPUs have, as `nvidia-smi` counts them; empty without NVLink."""
    each = nvlink_GBps((system.gpu.compute_capability if system.gpu else None) or 0)
    rules = [rule for rule in system.links if rule.kind == "nvlink"]
    return frozenset(round(_number(rule.bandwidth, "GB/s") / each) for rule in rules)


@dataclass(frozen=True)
class LinkText:
    """A link for a topology file: `bandwidth` of one direction in GB/s, `latency` in us."""

    bandwidth: float
    latency: float
    kind: str


class LenderSystem:
    """The shipped system that supplies speeds, latencies and facts that a file lacks."""

    def __init__(self, name: str):
        self.name = name
        self.file: SystemFile = load_system(name)
        self._rules: dict[str, LinkRule] = {}
        for rule in self.file.links:
            self._rules.setdefault(rule.kind, rule)

    @property
    def capability(self) -> int:
        """Compute capability of its GPUs; 0 if it has no GPUs."""
        return (self.file.gpu.compute_capability if self.file.gpu else None) or 0

    @property
    def nvlink(self) -> float:
        """Bandwidth of one NVLink in GB/s."""
        return nvlink_GBps(self.capability)

    def switched(self, count: int, gpus: int) -> bool:
        """Return whether NVSwitches join `gpus` GPUs of which all pairs have `count` NVLinks. By a switch all links of
        a GPU lead to each other GPU; else the pairs share these links."""
        if count in nvlinks(self.file):
            return "nvswitch" in self.file.counts
        return count * (gpus - 1) > NVLINKS.get(self.capability, 0)

    @property
    def cable(self) -> LinkText:
        """The cable of one of its NICs, or a usual one if it has no NICs."""
        nic = self.file.nic
        return LinkText(_number(nic.rate, "GB/s") if nic else 50.0, _number(nic.latency, "us") if nic else 0.5, "cable")

    def has(self, kind: str) -> bool:
        """Return whether the system has links of this kind."""
        return kind in self._rules

    def speed(self, kind: str, bandwidth: float | None = None) -> LinkText:
        """Return a link of a kind, with this `bandwidth` (GB/s) or the system's; PCIe's values if it has no such
        link."""
        rule = self._rules.get(kind) or self._rules.get("pcie") or self.file.links[0]
        own = _number(rule.bandwidth, "GB/s") if bandwidth is None else bandwidth
        return LinkText(own, _number(rule.latency, "us"), kind)

    def between(self, u: str, v: str, kind: str) -> LinkText:
        """Return the system's link of a kind between two devices; if it has none there, its first link of the kind."""
        plan = template(read_shipped(self.name).file)
        own = (link for *pair, link in plan.links if link.kind == kind and {*pair} == {u, v})
        return self.speed(kind, next((link.bandwidth / 1e9 for link in own), None))

    @cached_property
    def ways_up(self) -> dict[str, LinkText]:
        """The link from a GPU or NIC towards the host, by the device's kind: PCIe, or C2C."""
        plan = template(read_shipped(self.name).file)
        kinds = {name: data["kind"] for name, data in plan.devices}
        up = [(kinds[u], link) for u, v, link in plan.links if kinds[v] in ("pcie_switch", "cpu")]
        return {kind: LinkText(link.bandwidth / 1e9, link.latency_ps / 1e6, link.kind) for kind, link in reversed(up)}

    def direct(self, bandwidth: float) -> LinkText:
        """Return an NVLink between two GPUs. If the system has NVSwitches, its latency is that of two NVLinks."""
        speed = self.speed("nvlink", bandwidth)
        switched = "nvswitch" in self.file.counts
        return dataclasses.replace(speed, latency=round(speed.latency * 2, 6)) if switched else speed


def _number(text: str, unit: str) -> float:
    exact = units.parse_exact(text, "bandwidth" if unit == "GB/s" else "duration")
    return float(exact / 10**9 if unit == "GB/s" else exact / 10**6)


@dataclass
class Sketch:
    """A machine under construction. A shipped system, `pattern`, supplies missing facts. Devices have kind and number
    as names."""

    pattern: LenderSystem
    name: str = ""
    notes: ImportLog = field(default_factory=ImportLog)
    counts: Counter[str] = field(default_factory=Counter)
    links: dict[tuple[str, str], LinkText] = field(default_factory=dict)
    memory: LinkText | None = None
    keys: dict[str, Any] = field(default_factory=dict)  # cpu, gpu, nic, nccl, in_network as a topology file has them

    def add(self, kind: str) -> str:
        """Add a device and return its name."""
        name = f"{kind}{self.counts[kind]}"
        self.counts[kind] += 1
        return name

    def join(self, u: str, v: str, speed: LinkText) -> None:
        """Link two devices in both directions; if they are already linked, add the bandwidth to their link."""
        ends = (u, v) if (v, u) not in self.links else (v, u)
        old = self.links.get(ends)
        bandwidth = round(speed.bandwidth + (old.bandwidth if old else 0.0), 6)
        self.links[ends] = dataclasses.replace(speed, bandwidth=bandwidth)

    def borrow(self) -> None:
        """Copy the pattern's facts about GPUs, processors, NICs and memory, and whether its NVSwitches reduce."""
        pattern, file = self.pattern, self.pattern.file
        if file.gpu:
            self.keys.setdefault("gpu", file.gpu.model_dump(exclude_none=True))
        kinds = {speed.kind for speed in self.links.values()}
        if own := [kind for kind in GPU_LINKS if (kind in kinds) != pattern.has(kind)]:
            lacking = (
                f"GPUs {'are' if own[0] in kinds else 'are not'} joined by {own[0]}, unlike those of {pattern.name}"
            )
            self.notes.assume(f"{lacking}: the profile is the one that was fitted to such GPUs, if there is one")
        elif file.profile:
            self.keys.setdefault("profile", file.profile)
        if file.cpu:
            self.keys.setdefault("cpu", file.cpu.model_dump())
        if file.nic and self.counts["nic"]:
            self.keys.setdefault("nic", file.nic.model_dump(exclude_defaults=True))
        if pattern.has("memory"):
            self.memory = pattern.speed("memory")
        if file.in_network and self.counts["nvswitch"]:
            self.keys.setdefault("in_network", ["nvswitch0"])
        if file.nccl and "nccl" not in self.keys and self._is_pattern():
            self.keys["nccl"] = file.nccl.model_dump(mode="json", exclude_defaults=True)
            self.notes.assume(f"channels of NCCL are as in {pattern.name}: it has the same devices and links")

    def _is_pattern(self) -> bool:
        """Return whether devices and links (but for memory) are those of the pattern, with its speeds."""
        plan = template(read_shipped(self.pattern.name).file)
        theirs = {(u, v): (link.kind, link.bandwidth) for u, v, link in plan.links if u != v}
        ours = {pair: (speed.kind, round(speed.bandwidth * 1e9)) for pair, speed in self.links.items()}
        return (
            self.counts == self.pattern.file.counts and {**ours, **{(v, u): x for (u, v), x in ours.items()}} == theirs
        )

    def rules(self, gpus: Sequence[str]) -> list[dict[str, Any]]:
        """Return the links as rules of a topology file, one rule for each speed; `gpus` get links to their memory."""
        by_speed = grouped(map(list, self.links), lambda pair: self.links[pair[0], pair[1]])
        memory = [{"from": gpu, "to": "self", **_said(self.memory)} for gpu in gpus] if self.memory else []
        return [*memory, *({**_said(speed), "pairs": pairs} for speed, pairs in by_speed.items())]

    def document(self, origin: str) -> str:
        """Return the topology file as YAML; comments at its top give the origin, the data read and the assumptions."""
        remarks = [f"# Made by simcoll import of {origin}.", *(f"# {line}" for line in str(self.notes).splitlines())]
        return "\n".join([*remarks, yaml_tree.dump(self.contents(), inline=True)])

    def contents(self) -> dict[str, Any]:
        """Return the keys of the topology file."""
        name, rules = self.name or f"{self.pattern.name}-imported", self.rules(["gpu*"] if self.counts["gpu"] else [])
        return {"name": name, **self.keys, "devices": dict(self.counts), "links": rules}


def _said(speed: LinkText) -> dict[str, str]:
    return {"bandwidth": f"{speed.bandwidth:.6g} GB/s", "latency": f"{speed.latency:.6g} us", "kind": speed.kind}
