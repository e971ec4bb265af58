"""Calls by a law: points whose profile is written here, and what NCCL's kernels take by it, told once more."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

from simcoll.config import input_files, yaml_tree
from simcoll.engine.timing_model import service_ps
from simcoll.nccl.call_choice import launch_shape
from simcoll.nccl.communicator import Communicator, communicator
from simcoll.nccl.protocols import chunk_bytes
from simcoll.nccl.tuner_constants import read
from simcoll.prediction.nccl_calls import NcclChannel
from simcoll.prediction.predict import Prediction, predict
from simcoll.scenario.scenario_files import Point, load
from simcoll.schedule.names import Protocol
from simcoll.topology.topology_builder import load_system

LAUNCH, GRID, SPREAD, KEPT = 5_000_000, 700_000, 0.125, 0.9
US, GB = 10**6, 10**9
BLOCK: Mapping[str, Mapping[str, Any]] = {  # durations in ps, rates in B/s
    "LL": {"start": 300_000, "hop": 600_000, "store": 410_000, "net": 2 * US, "first": 12 * GB, "rate": 6 * GB,
           "own": 0.5, "host": 1_250_000, "host_rate": 24 * GB},
    "LL128": {"start": 200_000, "hop": 1_900_000, "net": 2_200_000, "own": 0.25,
              "host": 1_300_000, "host_rate": 20 * GB},
    "Simple": {"start": 1_800_000, "hop": 3_400_000, "store": 710_000, "slice": 900_000, "net": 10_600_000, "turn": 0.7,
               "load": 0.25},
    "NVLS": {"start": 2 * US, "hop": 6 * US, "rate": 20 * GB, "reach": 0.8},
    "P2P": {"start": 8_400_000, "hop": US, "each": 50_000, "peer": 150_000, "rate": 6 * GB, "first": 30 * GB,
            "both": 20 * GB, "reach": 0.75, "spread": 0.0625},
}  # fmt: skip
SWITCHED = ("dgx-a100", "hgx-h100", "hgx-b200")  # every pair of GPUs has two links between, of one kind
PLAIN = ("own", "turn", "load", "reach", "saved", "spread")  # shares
ITEM = 4  # bytes of a float32
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
DATA = {"LL": 0.5, "LL128": 120 / 128, "Simple": 1.0}  # of each line, where links are what limits
THREADS_GET = {"LL": 8, "LL128": 8, "Simple": 64}  # bytes at a time


def under(law: str) -> AbstractContextManager[None]:
    """Within, this is the profile law.yaml."""
    return input_files.carrying({"law.yaml": law.encode()})


def point_of(law: str, *sets: str, **keys: Any) -> Point:
    """The one point of these keys, whose profile, unless they say otherwise, is this law."""
    with under(law):
        (found,) = load(
            "quickstart",
            [*(f"{key}={json.dumps(its)}" for key, its in ({"profile": "law.yaml"} | keys).items()), *sets],
        )
    return found


def spelt(key: str, value: float) -> Any:
    """A cost as a profile has it."""
    if key in ("first", "rate", "both", "host_rate"):
        return f"{value} B/s" if value else "none"
    return value if key in PLAIN else f"{value} ps"


def text(
    blocks: Mapping[str, Mapping[str, Any]] = BLOCK,
    launch: int = LAUNCH,
    grid: int = GRID,
    spread: float = SPREAD,
    transport: Mapping[str, Any] | None = MappingProxyType({}),
) -> str:
    """A profile with these costs; `transport`: that of messages between nodes, which cost nothing, or None."""
    told = {kind: {key: spelt(key, value) for key, value in its.items()} for kind, its in blocks.items()}
    links = {kind: {"efficiency": KEPT} for kind in ("nvlink", "pcie")}
    kernels = {"library": "nccl", "grid": f"{grid} ps", "spread": spread, **told}
    apart = {} if transport is None else {"transport": dict(transport)}
    return yaml_tree.dump({"name": "law", "launch": f"{launch} ps", "links": links, "kernels": kernels, **apart})


LAW = text()
EVERYWHERE = [
    ("hgx-h100", 1, 8, "all_reduce", "ring", "LL"),
    ("hgx-h100", 2, 16, "all_gather", "ring", "LL128"),
    ("hgx-h100", 2, 16, "all_reduce", "tree", "Simple"),
    ("hgx-h100", 1, 8, "all_reduce", "nvls", "Simple"),
    ("hgx-h100", 1, 8, "all_to_all", "direct", "LL"),
    ("dgx-a100", 1, 8, "all_to_all", "direct", "Simple"),
    ("l40s-pcie", 1, 2, "broadcast", "ring", "LL"),
    ("l40s-pcie", 1, 8, "all_reduce", "ring", "LL"),
    ("a100-pcie", 1, 8, "all_gather", "ring", "Simple"),
]


def changed(kind: str, **costs: Any) -> str:
    """The law with other costs of a block."""
    return text({**BLOCK, kind: {**BLOCK[kind], **costs}})


def asked(system: str, collective: str, nbytes: int, *, nodes: int = 1, **more: Any) -> Point:
    """A point of the law."""
    keys = {"topology": {"system": system, "nodes": nodes}, "collective": collective, "size": f"{nbytes} B"}
    return point_of(LAW, **{**keys, "algorithm": "auto", "protocol": "auto", **more})


def call(system: str, collective: str, nbytes: int, law: str = LAW, **more: Any) -> Prediction:
    """What a call takes by the law, or by another."""
    point = asked(system, collective, nbytes, **more)
    with under(law):
        return predict(point)


def made_of(system: str, nodes: int, ranks: int) -> Communicator:
    """Ranks of a system."""
    return communicator(load_system(system), nodes, ranks)


def channel(prediction: Prediction) -> NcclChannel:
    """The channel that was run of a call of NCCL."""
    (planned,) = prediction.planned
    assert isinstance(planned.lowered, NcclChannel)
    return planned.lowered


def rated(prediction: Prediction) -> int:
    """B/s of the links between two ranks of a node, as their maker says."""
    topology = channel(prediction).rated
    return int(topology.bandwidths[list(topology.route(*topology.ranks[:2]))].min())


class Law:
    """A ring or a chain on one node, told once more from the profile's numbers."""

    def __init__(self, system: str, collective: str, n: int, nbytes: int, protocol: Protocol, speed: int):
        comm = made_of(system, 1, n)
        self.channels, threads = launch_shape(comm, read("nccl"), collective, "ring", protocol, nbytes)  # type: ignore[arg-type]  # tests name NCCL's
        self.block, self.collective, self.n = BLOCK[protocol], collective, n
        self.own = -(-nbytes // (self.channels * n * ITEM)) * ITEM  # of a channel the block of one rank
        self.blocks = collective in ("all_reduce", "all_gather", "reduce_scatter")  # of ranks, which copy their own
        passed = self.own if self.blocks else n * self.own
        self.chunk = chunk_bytes(collective, "ring", protocol)  # type: ignore[arg-type]  # tests name those of rings only
        self.step, self.loops = min(passed, self.chunk), -(-passed // self.chunk)
        self.whole = passed <= self.chunk or passed % self.chunk == 0
        self.steps = {"all_reduce": 2 * (n - 1)}.get(collective, n - 1)
        self.at_once = threads * THREADS_GET[protocol]
        self.by_links = protocol != "LL"
        shared = speed * (KEPT * (DATA[protocol] / self.channels))
        if not self.by_links:  # blocks set the pace, unless links do not carry that much with its flags
            paced = self.step * 10**12 / max(1, self.block["hop"] + self.handled(self.step))
            shared = speed * KEPT if paced <= shared else shared
        self.speed = round(shared)

    def handled(self, nbytes: int) -> int:
        """How long a block is at so many bytes."""
        if self.by_links:
            return 0
        line = self.at_once  # of all threads, which go on together
        first, others = min(nbytes, line), math.ceil(max(0, nbytes - line) / line) * line
        stored = round(self.block["store"] * self.stored * first / 4096)
        return stored + sum(service_ps(b, self.block[key]) for b, key in ((first, "first"), (others, "rate")) if b)

    @property
    def stored(self) -> float:
        """Of how many steps a block stores what it hands on in its own output as well"""
        return {"all_gather": 1.0, "broadcast": 1.0, "all_reduce": 0.5}.get(self.collective, 0.0)

    @property
    def once(self) -> int:
        """What comes once: launch, grid, start, and the own share."""
        own = service_ps(self.own, self.speed) if self.by_links else self.handled(self.own)
        return LAUNCH + GRID - GRID // self.channels + self.block["start"] + round(self.copied * own) + self.spread

    @property
    def copied(self) -> float:
        """What a rank does with its own block, in steps; in Simple what two ranks do beyond sending"""
        if not self.blocks or "own" in self.block:
            return float(self.block["own"]) if self.blocks else 0.0
        loads, stores, sent = {"all_gather": (2, 3, 1), "reduce_scatter": (3, 2, 1)}.get(self.collective, (4, 4, 2))
        return max(0.0, self.block["turn"] * (loads * self.block["load"] + stores * (1 - self.block["load"])) - sent)

    @property
    def spread(self) -> int:
        """How much later the last of the channels ends: by the root of the MiB that it moves."""
        moved = self.own * (self.steps if self.blocks else self.n)
        return spread(self.channels, moved, self.speed) if self.block is BLOCK["Simple"] else 0

    @property
    def link(self) -> int:
        """What the links take for a step; each of the two has a latency of 1 ps."""
        return service_ps(self.step, self.speed)

    @property
    def hop(self) -> int:
        """Latency of a way: a hop on its first link, 1 ps on the second."""
        stored = round(self.block["store"] * self.stored) if self.block is BLOCK["Simple"] else 0
        return int(self.block["hop"]) + stored + 1

    def ring_ps(self) -> int:
        """All loops of a ring whose ranks do the same at the same time, slice by slice: each is sent when it has come
        and the slice before is gone, and the receiver handles one at a time."""
        slices = 2 if self.block is BLOCK["Simple"] and self.step > 32768 else 1
        moved, handled = service_ps(self.step // slices, self.speed), self.handled(self.step) // slices
        free = handling = 0
        for _ in range(self.loops):
            there = [0] * slices
            for _ in range(self.steps):
                for one in range(slices):
                    free = max(there[one], free) + int(self.block.get("slice", 0)) + moved
                    handling = max(free + self.hop, handling) + handled
                    there[one] = handling
        return handling


def spread(channels: int, moved: float, speed: int, each: float = SPREAD) -> int:
    """How much later the last of so many channels ends, each of which moves so many bytes with so many B/s; `each` is
    the standard deviation of one for 1 MiB."""
    last = NormalDist().inv_cdf((channels - 0.375) / (channels + 0.25)) if channels > 1 else 0.0
    return round(each * last * math.sqrt(moved * 2**20) * 10**12 / speed)
