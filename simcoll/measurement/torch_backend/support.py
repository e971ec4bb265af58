"""Decide which operators and dtypes each harness and backend supports, and give reasons for refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from simcoll.schedule.collectives import BITWISE, EXCHANGES, collective
from simcoll.schedule.names import DTYPES

if TYPE_CHECKING:
    from simcoll.scenario.scenario import Scenario

Harness = Literal["p2p", "library", "nccl-tests", "graph"]
MEANS: Final = frozenset({"nccl-tests", "graph"})  # these harnesses give the mean over calls back to back
Backend = Literal["gloo", "nccl"]

FLOATS: Final = frozenset(row.name for row in DTYPES if row.floating)
ON_ONE_TENSOR: Final = frozenset({"all_reduce", "reduce", "broadcast"})  # these can be cut into buckets
OUT_OF_PLACE: Final = frozenset({"gather", "scatter", *EXCHANGES})  # always, in the library; schedules are in place
EITHER: Final = frozenset({"all_gather", "reduce_scatter"})  # the library runs these in place or out of place
EQUAL_BLOCKS: Final = frozenset({"all_gather", "reduce_scatter", "gather", "scatter", *EXCHANGES})


def refusal(scenario: Scenario, backend: Backend, groups: Sequence[Sequence[int]]) -> str | None:
    """Return the reason why a run is impossible, and the fix, as "problem; fix"; None if it is possible.

    `groups` are the groups of ranks of the scenario's schedule. The harness `p2p` sends every dtype, and reduces with
    torch's kernels by every operator.
    """
    harness, name, buckets = scenario.measure.harness, scenario.collective, scenario.measure.buckets
    op = scenario.op if collective(name).reduces else "sum"
    if scenario.launch.registered:
        return "only nccl-tests registers buffers (-R 2); read its output, or leave out `launch.registered`"
    if scenario.moe and not (scenario.executed_by == "pairwise" and scenario.moe.even):
        return "tokens are measured only as equal blocks; write `executor: pairwise` and `moe.routing: uniform`"
    if harness == "p2p":
        if scenario.params().barrier:
            return "a real run has no barriers between steps; leave out `model.barrier`"
        if buckets > 1:
            return "buckets need the library's collectives; write `measure.harness: library`, or `model.chunk`"
        return None
    if backend != "nccl" and harness == "graph":
        return "a CUDA graph holds calls of NCCL only; add --backend nccl"
    if harness == "graph" and name == "barrier":
        return "a CUDA graph cannot hold a barrier between hosts; write `measure.harness: nccl-tests`"
    if harness in MEANS and buckets > 1:
        return "calls back to back have no buckets; leave out `measure.buckets`, or write `measure.harness: library`"
    if op in BITWISE and backend == "nccl":
        return f"NCCL has no {op}; take --backend gloo or measure.harness: p2p"
    if op == "avg" and backend == "gloo" and scenario.dtype not in FLOATS:
        return f"gloo has no avg of {scenario.dtype}; take a float dtype, op: sum or measure.harness: p2p"
    if scenario.weights is not None:
        if name != "all_to_all":
            return f"the library's {name} has no unequal blocks; leave weights out or take measure.harness: p2p"
    elif name in EQUAL_BLOCKS and scenario.nbytes // scenario.itemsize % len(groups[0]):
        return f"the library's {name} needs equal blocks; take a size of ranks × whole elements"
    if any(list(group) != sorted(group) for group in groups):
        return "the library's groups have their ranks in order; list them so, or take measure.harness: p2p"
    if scenario.in_place and name in OUT_OF_PLACE:
        return f"the library's {name} is not done in place; leave in_place out or take measure.harness: p2p"
    if buckets > 1 and name not in ON_ONE_TENSOR:
        return f"{name} cannot be cut into buckets; only {', '.join(sorted(ON_ONE_TENSOR))} can"
    return None


def done_in_place(harness: Harness, collective: str, asked: bool) -> bool:
    """Return whether a run works in place. The request `asked` matters only for the library's collectives in EITHER."""
    if harness != "p2p" and collective in EITHER:
        return asked
    return harness == "p2p" or collective not in OUT_OF_PLACE


def widths(elements: Sequence[int]) -> list[int]:
    """Return the widths of layers whose weight matrices have these numbers of elements: of the input, then each output.

    The list is empty if the matrices cannot form a chain.

    >>> widths([65536, 131072, 131072])
    [256, 256, 512, 256]
    """
    chain = [1 << (elements[0].bit_length() - 1) // 2]
    for many in elements:
        if many % chain[-1]:
            return []
        chain.append(many // chain[-1])
    return chain
