"""What is measured: scenarios as plain dicts, and how large each form of the benchmarks is."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

Keys = dict[str, Any]

SIZE: Final = 64 << 20
LATENCY: Final = 500_000  # ps of a link
BANDWIDTH: Final = 50_000_000_000  # B/s of a link
LINK: Final = {"bandwidth": "50 GB/s", "latency": "0.5 us"}
UNEQUAL: Final = {"bandwidth": {"value": "50 GB/s", "spread": "20 %"}, "latency": "0.5 us"}
SKEW: Final = {"distribution": "lognormal", "median": "3 us", "sigma": 0.8}  # of launches
LINKS: Final = {"equal": LINK, "different": UNEQUAL}
TEN: Final = [
    *("naive", "ring", "bidirectional_ring", "tree", "double_binary_tree", "recursive_doubling", "halving_doubling"),
    *("hierarchical", "hierarchical_leader", "hierarchical_tree"),
]


@dataclass(frozen=True)
class Form:
    """How many runs of each point, and how large the points are: numbers of ranks unless they are named otherwise."""

    runs: int = 3
    naive: tuple[int, ...] = (64, 256)
    event: tuple[int, ...] = (64, 256)
    simgrid: tuple[int, ...] = (64, 256, 1024)
    heap: tuple[int, ...] = (64, 256, 1024)
    heap_once: tuple[int, ...] = (4096,)  # with equal links only
    auto: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    phases: int = 1024
    loops: tuple[int, ...] = (1, 2, 4, 8, 16)  # times that the schedule is repeated
    routed: int = 1024
    contended: tuple[int, ...] = (1024,)
    flows: int = 100  # in a component
    nodes: int = 2048  # of 8 GPUs, in a fat tree of three levels
    unequal: int = 16384
    grouped: int = 131072
    sizes: int = 10  # of the sweep
    points: int = 1000  # sizes of each sweep of one schedule
    log: int = 30  # the binary logarithm of the largest size of a log
    tables: tuple[tuple[str, int, int], ...] = (("hgx-h100", 128, 8), ("hgx-h100", 270, 8), ("gh200-4", 540, 4))
    small_table: tuple[str, int, int] = ("hgx-h100", 16, 8)  # system, nodes, and GPUs of each
    lean: int = 256  # ranks of the ring in lean SimPy, to which others are compared
    step: str = "llama3-8b"  # the model of the training step
    step_nodes: int = 8  # of 8 GPUs
    replications: int = 200
    steps: int = 20  # replications of a data-parallel step, which count the step itself
    ddp: tuple[int, ...] = (8, 32, 128, 2048)  # nodes of 8 GPUs of a training step
    exchanged: tuple[int, ...] = (256, 1024)  # ranks that send to all others
    exchanged_fairly: tuple[int, ...] = (64, 128)
    limit: int = 120  # cpu s of a point of a large run
    held: bool = True  # the points are those of which something is asked


FORMS: Final = {
    "full": Form(),
    "long": Form(contended=(1024, 4096), exchanged=(256, 1024, 4096)),
    "quick": Form(
        runs=1,
        naive=(64,),
        event=(64,),
        simgrid=(64, 256),
        heap_once=(),
        auto=(64, 1024, 16384),
        loops=(1, 16),
        routed=256,
        contended=(256,),
        nodes=256,
        points=200,
        tables=(("hgx-h100", 32, 8),),
        replications=20,
        steps=4,
        ddp=(2, 8),
        exchanged=(64, 256),
        exchanged_fairly=(32, 64),
        held=False,
    ),
    "smoke": Form(
        runs=1,
        naive=(8,),
        event=(8,),
        simgrid=(8,),
        heap=(16,),
        heap_once=(),
        auto=(16,),
        phases=16,
        loops=(1, 2),
        routed=16,
        contended=(16,),
        flows=4,
        nodes=4,
        unequal=16,
        grouped=16,
        sizes=1,
        points=4,
        tables=(("hgx-h100", 2, 8),),
        small_table=("hgx-h100", 2, 8),
        log=12,
        lean=8,
        step="mlp",
        step_nodes=2,
        replications=2,
        steps=1,
        ddp=(2,),
        exchanged=(16,),
        exchanged_fairly=(8, 16),
        held=False,
    ),
}


def point(topology: Keys, sharing: str = "fifo", algorithm: str = "ring", chunk: str = "whole", **keys: Any) -> Keys:
    """A scenario of 64 MiB without the proof, which is measured apart."""
    asked = {"topology": topology, "collective": "all_reduce", "algorithm": algorithm, "size": f"{SIZE} B"}
    return {**asked, "proof": "off", "model": {"sharing": sharing, "chunk": chunk}, **keys}


def star(hosts: int, links: str = "equal") -> Keys:
    """Hosts on one switch: two links a route."""
    return {"fabric": "single-switch", "hosts": hosts, "link": LINKS[links]}


def routed(hosts: int, sharing: str) -> dict[int, Keys]:
    """Rings by heap, by the number of links from a rank to the next: on a ring of cables, a star, and fat trees of two
    and of three levels in which no rank is in the leaf, or the pod, of the next."""
    per_leaf, pods = max(2, hosts // 64), 8
    tree = {"fabric": "fat-tree", "hosts": hosts, "hosts_per_leaf": per_leaf, "link": LINK}
    deep = {**tree, "levels": 3, "leaves_per_pod": hosts // pods // per_leaf}
    ring = functools.partial(point, sharing=sharing, shortcuts="off")
    return {
        1: ring({"fabric": "ring", "hosts": hosts, "link": LINK}),
        2: ring(star(hosts)),
        4: ring(tree, placement=_in_turn(hosts, per_leaf)),
        6: ring(deep, placement=_in_turn(hosts, hosts // pods)),
    }


def _in_turn(hosts: int, block: int) -> list[str]:
    """The first host of every block, then the second, and so on."""
    return [f"host{i}" for first in range(block) for i in range(first, hosts, block)]


def ddp(model: str, nodes: int) -> Keys:
    """A data-parallel step on nodes of 8 H100 GPUs, with calls as NCCL makes them."""
    workload = {"template": "ddp", "model": model, "gpu": "h100"}
    return {"topology": {"system": "hgx-h100", "nodes": nodes}, "dtype": "bfloat16", "workload": workload}


def oversubscribed(hosts: int, ratio: int = 4) -> Keys:
    """A fat tree of two levels, 32 hosts a leaf, whose trunks carry one part in `ratio` of what the hosts send."""
    return {
        "fabric": "fat-tree",
        "hosts": hosts,
        "hosts_per_leaf": min(32, hosts // 2),
        "oversubscription": ratio,
        "link": LINK,
    }


def crowd(flows: int, loops: int = 256) -> Keys:
    """`flows` pairs that swap over one trunk: as many flows in a component each way. No two come at the same time, so
    that each start and each end is an instant of its own, in which all rates are solved again."""
    pairs = [[i, i + flows] for i in range(flows)]
    topology = {"fabric": "fat-tree", "hosts": 2 * flows, "hosts_per_leaf": flows, "oversubscription": 4, "link": LINK}
    late = {rank: f"{7 * i + rank // flows} us" for i, pair in enumerate(pairs) for rank in pair}
    chunk = f"{SIZE // 2 // loops} B"
    return point(topology, "fair", chunk=chunk, subgroups=pairs, arrivals=late, shortcuts="off")


def sweep(sizes: int) -> Keys:
    """Ten algorithms, each with as many sizes, on 64 GPUs."""
    keys = point({"system": "hgx-h100", "nodes": 8}, "fair")
    return {
        **keys,
        "algorithm": TEN,
        "proof": "full",
        "size": {"from": "4 KiB", "to": f"{4 << sizes - 1} KiB", "factor": 2},
    }


def sizes_of(topology: Keys, count: int, **keys: Any) -> Keys:
    """An all-reduce of so many sizes from 1 KiB on."""
    size = {"from": "1 KiB", "to": f"{count} KiB", "step": "1 KiB"}
    return {"topology": topology, "collective": "all_reduce", "size": size, **keys}


def measured(last: int, slow: bool = False) -> Keys:
    """An all-reduce of 2 x 8 GPUs from 8 B to 2^`last` B; `slow`: all cables at half their rate."""
    topology: Keys = {"system": "hgx-h100", "nodes": 2}
    if slow:
        half = {"bandwidth": "25 GB/s"}
        topology |= {"links": {"*nic*->rail*": half, "rail*->*nic*": half}}
    size = {"from": "8 B", "to": f"{2**last} B", "factor": 2}
    return {"topology": topology, "collective": "all_reduce", "size": size, "proof": "off"}


def replicated(count: int) -> Keys:
    """An all-reduce of 32 ranks, each of which launches it a little late, so many times."""
    ring = {"topology": star(32), "collective": "all_reduce", "algorithm": "ring", "size": f"{SIZE} B"}
    return {**ring, "replications": count, "variability": {"launch_skew": SKEW}}


def replicated_step(model: str, nodes: int, count: int, **causes: Any) -> Keys:
    """A data-parallel training step that differs by `causes`, so many times."""
    return {**ddp(model, nodes), "replications": count, "variability": causes}
