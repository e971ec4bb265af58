"""Hypotheses about environment variables of NCCL that someone has set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from simcoll.accuracy.diagnosis._hypothesis import Hypothesis
from simcoll.nccl import environment, tuner
from simcoll.nccl.algorithm_names import COLLECTIVES, SCHEDULES, names
from simcoll.nccl.communicator import communicator
from simcoll.prediction.lowered_call import executor
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.names import PROTOCOLS, Protocol
from simcoll.topology.systems import load_system, nodes_of
from simcoll.units import format_size

P2P: Final[tuple[Protocol, ...]] = ("LL", "Simple")  # NCCL's protocols for point-to-point transfers; no tuner chooses
_NO_NVLS: Final = "^nvls,nvls_tree"
# Bytes that people set; NCCL's own are 4 MiB and 128 KiB.
_BUFFERS: Final = (2 << 20, 1 << 20, 512 << 10, 256 << 10, 8 << 20, 16 << 20)
_MOST_CHANNELS: Final = (1, 2, 4, 8, 16)
_LEAST_CHANNELS: Final = (16, 32)
_CHUNKS: Final = (64 << 10, 32 << 10, 16 << 10, 256 << 10, 512 << 10)


def switched_off(scenarios: Iterable[Scenario]) -> Iterator[Hypothesis]:
    """Yield settings that leave NCCL fewer algorithms or protocols, as NCCL_ALGO and NCCL_PROTO do."""
    settings = [("nvls off", _NO_NVLS, "", "NVLS is not used: NCCL_NVLS_ENABLE=0, NCCL_ALGO, or no fabric manager")]
    settings += [(f"no {name}", "", f"^{name}", f"the protocol {name} is not used: NCCL_PROTO") for name in PROTOCOLS]
    settings += [
        (f"only {name}", name, "", f"the algorithm {name} is used throughout: NCCL_ALGO") for name in ("ring", "tree")
    ]
    settings += [(f"only {name}", "", name, f"no other protocol than {name} is used: NCCL_PROTO") for name in PROTOCOLS]
    points = list(scenarios)
    for family, algo, proto, text in settings:
        changed = functools.partial(_left, algo=algo, proto=proto)
        if any(changed(point) is not point for point in points):
            yield Hypothesis(family, text, assumes=2 if family.startswith("only") else 1, scenario=changed)
    text = "NVLS is used throughout, where NCCL or its provider's settings take rings and trees: NCCL_ALGO"
    yield Hypothesis("nvls on", text, assumes=2, scenario=_by_nvls)


def _by_nvls(scenario: Scenario) -> Scenario:
    """Return the scenario with NVLS for all calls, whatever its variables and those of its NICs' provider say."""
    env = scenario.env.model_copy(update={"NCCL_NVLS_ENABLE": 1, "NCCL_ALGO": "NVLS,NVLSTree"})
    return scenario.model_copy(update={"env": env})


def _left(scenario: Scenario, algo: str, proto: str) -> Scenario:
    """Return the scenario with the algorithm and protocol that NCCL chooses under the filters `algo` and `proto`.

    Returns the same scenario where the filters change nothing, leave nothing, or the scenario names an algorithm.
    """
    if scenario.algorithm != "auto" or scenario.protocol not in ("none", "auto"):
        return scenario
    collective = next((name for name in COLLECTIVES if name == scenario.collective), None)
    if collective is None:  # by point-to-point transfers, which NCCL_ALGO does not reach
        left = [name for name in P2P if environment.selection(None, proto).allows("all_reduce", "ring", name)]
        return scenario.model_copy(update={"protocol": left[0]}) if len(left) == 1 else scenario
    version = executor(scenario).release(scenario)
    spec = scenario.topology
    in_switch = tuner.switch_reduces(scenario.dtype, scenario.op)
    asked = (spec.system or spec.file or "", nodes_of(spec), scenario.ranks, version, in_switch)
    usual, filtered = (
        tuner.choose(_table(*asked, *filters), collective, scenario.nbytes) for filters in (("", ""), (algo, proto))
    )
    if usual is None or filtered is None:
        return scenario
    if (filtered.algorithm, filtered.protocol) == (usual.algorithm, usual.protocol):
        return scenario
    if filtered.algorithm not in names(collective):  # it is not modelled
        return scenario
    return scenario.model_copy(update={"algorithm": filtered.algorithm, "protocol": filtered.protocol})


@functools.lru_cache(maxsize=256)
def _table(
    name: str, nodes: int, ranks: int | None, version: str | None, in_switch: bool, algo: str, proto: str
) -> tuner.TunerTable:
    comm = communicator(load_system(name), nodes, ranks)
    return tuner.table(comm, version, environment.selection(algo, proto), in_switch)


def other_sizes(scenarios: Sequence[Scenario], nodes: int) -> Iterator[Hypothesis]:
    """Yield buffers, chunks and numbers of channels other than NCCL's own, and messages that go by the NICs of their
    senders, where the points have what these act on. Times do not grow evenly with a size, so each is tried by
    itself."""
    messages = nodes > 1 and any(("p2p", scenario.collective) in SCHEDULES for scenario in scenarios)
    if messages:
        text = "no GPU sends by the NIC of another: NCCL_PXN_DISABLE"
        yield Hypothesis("pxn off", text, scenario=_set(NCCL_PXN_DISABLE=1))
        text = "chunks of messages between nodes have another size: NCCL_P2P_NET_CHUNKSIZE"
        for size in _CHUNKS:
            yield _sized("chunk size", text, "NCCL_P2P_NET_CHUNKSIZE", size)
    for size in _BUFFERS:
        yield _sized("buffer size", "buffers of Simple have another size: NCCL_BUFFSIZE", "NCCL_BUFFSIZE", size)
    yield from _channels()


def _channels() -> Iterator[Hypothesis]:
    """Yield numbers of channels that someone has set. Choices change with them, so each is tried by itself."""
    for limit, counts in (("MAX", _MOST_CHANNELS), ("MIN", _LEAST_CHANNELS)):
        variable = f"NCCL_{limit}_NCHANNELS"
        text = f"NCCL takes another number of channels: {variable}, NCCL_{limit}_CTAS"
        for count in counts:
            value = f"at {'most' if limit == 'MAX' else 'least'} {count}"
            yield Hypothesis("channels", text, value, 2, scenario=_set(**{variable: count}))


def fewer_nics(nics: int) -> Iterator[Hypothesis]:
    """Yield NICs of a node that are not used, of so many. NCCL takes no more channels than the node with the fewest
    NICs has, so that it does not matter on how many nodes they are missing."""
    if nics > 1:
        text = f"one of {nics} NICs of a node is not used: it is down, or NCCL_IB_HCA leaves it out"
        yield Hypothesis("nic missing", text, scenario=_set(NCCL_IB_HCA=f"^=mlx5_{nics - 1}"))
    some = f"of {nics} NICs of a node are used: NCCL_IB_HCA, NCCL_SOCKET_IFNAME, or what a container sees"
    for used in (nics // 2, nics // 4):
        if used > 1:  # those of a socket, through which GPUs of the other receive, or some of each
            for value, numbers in (("", range(used)), ("spread evenly", range(0, nics, nics // used))):
                listed = "=" + ",".join(f"mlx5_{number}" for number in numbers)
                yield Hypothesis(f"{used} nics", f"only {used} {some}", value, scenario=_set(NCCL_IB_HCA=listed))
    if nics > 2:
        text = f"only one {some.replace('are', 'is')}"
        yield Hypothesis("one nic", text, scenario=_set(NCCL_IB_HCA="=mlx5_0"))


def _sized(family: str, text: str, variable: str, size: int) -> Hypothesis:
    return Hypothesis(family, text, format_size(size), 2, scenario=_set(**{variable: size}))


def _set(**values: int | str) -> Callable[[Scenario], Scenario]:
    """Return a change that sets variables where a scenario has none of them."""

    def changed(scenario: Scenario) -> Scenario:
        if not scenario.env.given.keys().isdisjoint(values):
            return scenario
        return scenario.model_copy(update={"env": scenario.env.model_copy(update=values)})

    return changed
