"""Make logs of machines with known faults, and count which faults `simcoll diagnose` names.

    python tools/faults.py DIR [--only WORD]... [--seed N]

A log is predicted with its fault in the scenario. It gets 3 % of noise, and one outlier in twenty points. Logs are kept
in DIR, and only missing ones are made. The tool prints a line for each log, and counts. *Right*: only the fault is
named, or also faults with the same effect. *Choice*: the fault is one of several named. *Unseen*: the machine is called
healthy. *None*: nothing explains the log. *Wrong*: another fault is named. `change` is the slowdown by the fault, as a
factor: the median over sizes, and the largest.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import yaml

from simcoll import api
from simcoll.errors import InputError, RefusedError
from simcoll.nccl.kernel_costs import BlockCosts
from simcoll.scenario.profile import find_profile, load_profile
from simcoll.topology.topology_builder import load_system

SIZES: Final = {"from": "1 KiB", "to": "512 MiB", "factor": 2}
NOISE, OUTLIERS = 0.03, 0.05  # spread of |log|; share of points that take up to half as long again
Keys = dict[str, Any]
Times = dict[int, float]  # us by size


class Setup(NamedTuple):
    """The machine and call of a log: a number of nodes of a system, and a collective on all their GPUs."""

    system: str
    nodes: int
    collective: str = "all_reduce"

    def __str__(self) -> str:
        return f"{self.system} x {self.nodes} {self.collective}"


class Fault(NamedTuple):
    """A fault: the families of hypotheses that name it, the scenario keys that cause it, and a change of times."""

    name: str
    families: tuple[str, ...]
    keys: Callable[[Setup], Keys] = lambda setup: {}
    times: Callable[[Times], Times] = lambda times: times


def links(*patterns: str, factor: float) -> Callable[[Setup], Keys]:
    """Return the keys of a fault that slows down all links matching the patterns by `factor` from the start."""
    faults = [{"link": pattern, "kind": "slow", "at": "0 s", "factor": factor} for pattern in patterns]
    return lambda setup: {"faults": faults}


def both(device: str, factor: float, other: str = "*") -> Callable[[Setup], Keys]:
    """Return the keys of a fault that slows down a device's links in both directions."""
    return links(f"{device}->{other}", f"{other}->{device}", factor=factor)


def env(**variables: str | int) -> Callable[[Setup], Keys]:
    """Return the keys of a fault by environment variables."""
    return lambda setup: {"env": variables}


def by(network: str) -> Callable[[Setup], Keys]:
    """Return the keys of a fault by another network between nodes (the name of its profile)."""
    return lambda setup: {"profile": f"{load_system(setup.system).profile}+{network}"}


def through_host(setup: Setup) -> Keys:
    """Return the keys of a fault by the system's network without GPUDirect."""
    nic = load_system(setup.system).nic
    assert nic and nic.profile
    text = find_profile(nic.profile).read_text(encoding="utf-8")
    return by(_written(text.replace("transport: {", "transport: {gpudirect: false, ")))(setup)


def slow_kernels(share: float) -> Callable[[Setup], Keys]:
    """Return the keys of a fault that slows thread blocks: all their costs and rates have a `share` of the speed."""

    def keys(setup: Setup) -> Keys:
        name = load_system(setup.system).profile or ""
        file = yaml.safe_load(find_profile(name).read_text(encoding="utf-8"))
        for kind, block in load_profile(name).kernels or ():
            if isinstance(block, BlockCosts):
                slower = {cost: f"{getattr(block, cost) / share:.0f} ps" for cost in ("start", "hop")}
                rates = {cost: getattr(block, cost) * share for cost in ("first", "rate")}
                slower |= {cost: f"{rate:.0f} B/s" for cost, rate in rates.items() if rate}
                file["kernels"][kind] = file["kernels"].get(kind, {}) | slower
        return {"profile": _written(json.dumps(file))}

    return keys


def _written(text: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False, encoding="utf-8") as file:
        file.write(text)
    return file.name


HEALTHY: Final = Fault("healthy", ("healthy",))
ALIKE: Final = ("slow nic",)  # NIC, cable and PCIe link of one GPU: what waits for one waits for the other
ANYWHERE: Final = (
    HEALTHY,
    Fault("launch + 25 us", ("launch",), times=lambda times: {size: us + 25 for size, us in times.items()}),
    Fault("host paces at 80 us", ("host",), times=lambda times: {size: max(us, 80) for size, us in times.items()}),
    Fault("slow gpu 60 %", ("slow gpu",), slow_kernels(0.6)),
    Fault("p2p off", ("p2p off",), env(NCCL_P2P_DISABLE=1)),
    *(Fault(f"channels at most {most}", ("channels",), env(NCCL_MAX_NCHANNELS=most)) for most in (1, 2, 4)),
    Fault("buffers 256 KiB", ("buffer size",), env(NCCL_BUFFSIZE=256 << 10)),
)
REDUCED: Final = (
    Fault("only ring", ("only ring",), env(NCCL_ALGO="Ring")),
    Fault("only tree", ("only tree",), env(NCCL_ALGO="Tree")),
    Fault("no LL128", ("no LL128",), env(NCCL_PROTO="^LL128")),
    Fault("only LL", ("only LL",), env(NCCL_PROTO="LL")),
    Fault("nvls off", ("nvls off",), env(NCCL_NVLS_ENABLE=0)),
)
NVLINK: Final = (
    Fault("nvlink out 50 %", ("slow nvlink",), links("node0.gpu3->*", factor=2)),
    Fault("nvlink in 40 %", ("slow nvlink",), links("node0.nvswitch0->node0.gpu5", factor=2.5)),
    Fault("nvlink one 35 %", ("slow nvlink",), both("node0.gpu3", 1 / 0.35, "node0.nvswitch0")),
    Fault("nvlink all 60 %", ("slow nvlink",), links("*gpu*->*nvswitch*", "*nvswitch*->*gpu*", factor=1 / 0.6)),
)
XGMI: Final = (
    Fault("xgmi one 50 %", ("slow xgmi",), links("node0.gpu3->node0.gpu4", "node0.gpu4->node0.gpu3", factor=2)),
    Fault("xgmi out 50 %", ("slow xgmi",), links("node0.gpu3->node0.gpu*", factor=2)),
)
NETWORK: Final = (
    Fault("nic 50 %", ALIKE, both("node1.nic3", 2)),
    Fault("nic 25 %", ALIKE, both("node1.nic3", 4)),
    Fault("nic 12 %", ALIKE, both("node0.nic5", 8)),
    Fault("pcie 45 %", ALIKE, both("node1.gpu3", 1 / 0.45, "node1.pcie_switch*")),
    Fault("pcie 25 %", ALIKE, both("node1.gpu3", 4, "node1.pcie_switch*")),
    Fault("cables 50 %", ALIKE, links("*nic*->rail*", "rail*->*nic*", factor=2)),
    Fault("one nic", ("one nic",), env(NCCL_IB_HCA="=mlx5_2")),
    Fault("nic missing", ("nic missing",), env(NCCL_IB_HCA="^=mlx5_3")),
    Fault("four nics", ("4 nics",), env(NCCL_IB_HCA="mlx5_0,mlx5_1,mlx5_2,mlx5_3")),
    Fault("tcp", ("tcp",), by("tcp")),
    Fault("gpudirect off", ("gpudirect off",), through_host),
    Fault("tcp, one nic", ("tcp with one nic",), lambda setup: {**by("tcp")(setup), "env": {"NCCL_IB_HCA": "=mlx5_0"}}),
    Fault("pxn off", ("pxn off",), env(NCCL_PXN_DISABLE=1)),
    Fault("chunks 32 KiB", ("chunk size",), env(NCCL_P2P_NET_CHUNKSIZE=32 << 10)),
)
ONE_NODE: Final = ("hgx-h100", "dgx-a100", "hgx-b200", "mi300x")
TWO_NODES: Final = ("hgx-h100", "dgx-a100")


def cases() -> Iterator[tuple[Setup, Fault]]:
    """Yield every set-up with each fault that is possible on it."""
    setups = [Setup(system, 1) for system in ONE_NODE] + [Setup(system, 2) for system in TWO_NODES]
    others = ((1, "all_gather"), (2, "all_gather"), (2, "all_to_all"))
    setups += [Setup("hgx-h100", nodes, collective) for nodes, collective in others]
    for setup in setups:
        amd = setup.system == "mi300x"
        yield from ((setup, fault) for fault in ANYWHERE)
        if setup.collective == "all_reduce" and not amd:
            yield from ((setup, fault) for fault in REDUCED if fault.name != "nvls off" or setup.system != "dgx-a100")
        yield from ((setup, fault) for fault in (NETWORK if setup.nodes > 1 else XGMI if amd else NVLINK))


def times(setup: Setup, keys: Keys) -> Times:
    """Return the predicted times in us, by size in bytes, of a set-up with these scenario keys."""
    where = {"topology": {"system": setup.system, "nodes": setup.nodes}, "collective": setup.collective}
    rows = api.run({**where, "dtype": "float32", "size": SIZES, "algorithm": "auto", **keys})
    return {row["size_bytes"]: row["time_us"] for row in rows if row["status"] == "ok"}


def log(setup: Setup, fault: Fault, seed: int) -> tuple[str, list[float]]:
    """Return a log with noise, and the slowdown by the fault at each size; InputError if a size has no time."""
    sound, took = times(setup, {}), fault.times(times(setup, fault.keys(setup)))
    if set(sound) != set(took):
        raise InputError(f"{setup}, {fault.name}: not all sizes can be predicted")
    draw = np.random.default_rng([seed, *f"{setup} {fault.name}".encode()])
    counts = load_system(setup.system).devices
    assert isinstance(counts, dict)  # shipped systems count their devices
    ranks = setup.nodes * counts["gpu"]
    lines = ["collective,ranks,nodes,dtype,size_bytes,time_us,timing"]
    for size, us in took.items():
        noisy = us * np.exp(draw.normal(0, NOISE)) * (1 + 0.5 * draw.random() * (draw.random() < OUTLIERS))
        lines.append(f"{setup.collective},{ranks},{setup.nodes},float32,{size},{noisy:.3f},nccl-tests")
    return "\n".join([*lines, ""]), [took[size] / sound[size] for size in took]


def judged(families: tuple[str, ...], document: Any) -> str:
    """Return how well a diagnosis names a fault with these families: right, choice, unseen, none or wrong."""
    verdict, also = document["explained_by"], document["also"]
    if verdict in (None, "healthy"):
        return "right" if verdict in families else "none" if verdict is None else "unseen"
    if verdict in families and set(also) <= set(families):
        return "right"
    return "choice" if {verdict, *also} & set(families) else "wrong"


def main() -> int:
    """Make the missing logs, diagnose all logs, and print how each fault is named."""
    parser = argparse.ArgumentParser(description="See which known faults are named.")
    parser.add_argument("logs", type=Path, help="folder of the logs")
    parser.add_argument("--only", action="append", default=[], help="a word of a set-up and a fault")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    asked = parser.parse_args()
    asked.logs.mkdir(parents=True, exist_ok=True)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    spent: list[float] = []
    for setup, fault in cases():
        name = f"{setup}: {fault.name}"
        if not all(word in name for word in asked.only):
            continue
        path = asked.logs / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.{asked.seed}.json"
        if not path.exists():
            try:
                path.write_text(json.dumps(log(setup, fault, asked.seed)), encoding="utf-8")
            except (InputError, RefusedError) as error:
                print(f"-        {name}: {str(error)[:80]}")
                continue
        text, change = json.loads(path.read_text(encoding="utf-8"))
        began = time.process_time()
        found = api.diagnose(text, on=setup.system)
        spent.append(time.process_time() - began)
        how = judged(fault.families, found)
        counts[fault.name][how] += 1
        first = found["hypotheses"][0]
        named = " or ".join([str(found["explained_by"]), *found["also"]])
        value = f"{first['value']}, error {100 * first['error']:.1f} %, {first['off']} off; {found['sure']}"
        far = f"{statistics.median(change):.2f}, {max(change, key=lambda ratio: abs(np.log(ratio))):.2f}"
        print(f"{how:8} {name} ({far}; {spent[-1]:.1f} s): {named} ({value})", flush=True)
    ways = ("right", "choice", "unseen", "none", "wrong")
    print(f"\n{'':22}" + "".join(f"{way:>8}" for way in ways))
    total: Counter[str] = Counter()
    for name, each in counts.items():
        total += each
        print(f"{name:22}" + "".join(f"{each[way] or '':>8}" for way in ways))
    print(f"{'all':22}" + "".join(f"{total[way]:>8}" for way in ways))
    print(f"CPU seconds a log: median {statistics.median(spent):.1f}, most {max(spent):.1f}" if spent else "no log")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
