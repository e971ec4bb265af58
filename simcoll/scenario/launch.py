"""How calls are launched, and by whom: the scenario's key `launch`. What that costs is said by profiles.

Whoever measures as nccl-tests does makes calls back to back and waits once, at the end. Then a call takes as long as
the slower of two: the GPUs, or the host that launches. A process launches for its GPUs one after the other, so its time
grows with their number; of a CUDA graph, which is launched as a whole, calls cost the host nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field, PlainValidator, StrictBool

from simcoll.config.yaml_tree import Model
from simcoll.errors import RefusedError

_POSTING: Final = ("all_to_all", "send_recv", "gather", "scatter")  # which NCCL does by messages from rank to rank


_COUNT = Annotated[int, Field(ge=1)]


def _gpus(value: object) -> int | Literal["all"] | None:
    if value is None or value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f"{value!r} is no number of GPUs a process; write 1, 2, …, or all, which are those of a node")


class Launch(Model):
    """How calls are launched, back to back, by processes that each drive some GPUs in one thread."""

    gpus_per_process: Annotated[Any, PlainValidator(_gpus, json_schema_input_type=_COUNT | Literal["all"])] = None
    """GPUs that one process drives (nccl-tests' `-g`), or `all` of a node. It launches for one GPU after the other."""
    graph: StrictBool = False
    """Whether calls are replayed from a CUDA graph."""

    @property
    def paced(self) -> bool:
        """Whether the host has to launch each call by itself, in a known way."""
        return self.gpus_per_process is not None and not self.graph

    @property
    def columns(self) -> dict[str, object]:
        """What results say of it, as far as a scenario does."""
        return {f"launch.{key}": value for key, value in self if value not in (None, False)}


class Process(NamedTuple):
    """What a process does for a call: it launches a kernel for each of its GPUs, and posts so many messages to and from
    other ranks."""

    launches: int
    messages: int


def processes(launch: Launch, collective: str, nodes: Sequence[Hashable], root: int = 0) -> frozenset[Process]:
    """What the processes of ranks on these `nodes` do for a call, each kind once; none where the host is not asked.

    Raises RefusedError for more GPUs a process than a node has ranks.
    """
    if not launch.paced:
        return frozenset()
    of_node = defaultdict[Hashable, list[int]](list)
    for rank, node in enumerate(nodes):
        of_node[node].append(rank)
    most = max(map(len, of_node.values()))
    many = most if launch.gpus_per_process == "all" else int(launch.gpus_per_process)
    if many > most:
        raise RefusedError(f"{many} GPUs a process are more than the ranks of a node, {most}; write all, or fewer")
    groups = [its[at : at + many] for its in of_node.values() for at in range(0, len(its), many)]
    return frozenset(Process(len(its), sum(_posts(collective, len(nodes), r == root) for r in its)) for its in groups)


def _posts(collective: str, n: int, root: bool) -> int:
    """Messages that a rank of `n` sends and receives, each as a call of its own."""
    if collective not in _POSTING:
        return 0
    return 2 * (n - 1) if collective == "all_to_all" else 2 if collective == "send_recv" else n - 1 if root else 1
