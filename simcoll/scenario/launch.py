"""The scenario's key `launch`: how calls are launched, and by which processes. Profiles give the costs.

Benchmarks such as nccl-tests make calls back to back and wait once, at the end. The time of a call is then the larger
of two: the GPUs' time, and the host's time to launch. A process launches for its GPUs one after the other, so the
host's time grows with their number. A CUDA graph is launched as a whole: after the first launch, which uploads it to
the GPUs, its calls cost the host nothing.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, PlainValidator, StrictBool, model_validator

from simcoll.config.yaml_tree import Model
from simcoll.errors import RefusedError

_POSTING: Final = (
    "all_to_all",
    "send_recv",
    "gather",
    "scatter",
)  # collectives that NCCL builds of messages from rank to rank


_COUNT = Annotated[int, Field(ge=1)]
LaunchWay = Literal["", "graph", "one process"]


def _gpus(value: object) -> int | Literal["all"] | None:
    if value is None or value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f"{value!r} is no number of GPUs a process; write 1, 2, …, or `all` for all GPUs of a node")


class Launch(Model):
    """How calls are launched, one after the other without a pause. Each process launches for its GPUs in one thread."""

    gpus_per_process: Annotated[Any, PlainValidator(_gpus, json_schema_input_type=_COUNT | Literal["all"])] = None
    """Number of GPUs that one process drives (nccl-tests' `-g`), or `all` for all GPUs of a node. The process launches
    a call on one GPU after the other."""
    graph: StrictBool = False
    """Whether calls are launched from a CUDA graph. A graph holds many calls."""
    replays: _COUNT | None = None
    """How often the graph is launched (nccl-tests' `-G`). The first launch takes longer: it brings the calls to the
    GPUs of each process, one after the other. All launches share this time. Default: so many launches that it does not
    count."""
    calls: _COUNT | None = None
    """Number of calls in a loop before the host waits (nccl-tests' `-n`), if the host launches each call by itself. In
    a loop, a rank begins the next call when its own part is done. So the time until the last rank has its data counts
    once for the whole loop. Default: so many calls that it does not count."""
    registered: StrictBool | None = None
    """Whether all ranks registered their buffers as windows (nccl-tests' `-R 2`). All-reduces on NVLink then copy
    nothing. Default: as NCCL does. From release 2.30 on, NCCL registers the buffers of a CUDA graph if one process
    drives all GPUs."""

    @model_validator(mode="after")
    def _replays_of_a_graph(self) -> Self:
        if self.replays and not self.graph:
            raise ValueError("`replays` counts launches of a CUDA graph; add `graph: true`, or leave out `replays`")
        return self

    @model_validator(mode="after")
    def _calls_of_a_loop(self) -> Self:
        if self.calls and not self.paced:
            cure = "leave `calls` or `graph`" if self.graph else "add `gpus_per_process`, or leave `calls`"
            raise ValueError(f"`calls` counts calls that the host launches one by one in a loop; {cure} out")
        return self

    @property
    def paced(self) -> bool:
        """Whether the host launches each call on its own (not by a CUDA graph), and the number of GPUs per process is
        known."""
        return self.gpus_per_process is not None and not self.graph

    @property
    def way(self) -> LaunchWay:
        """The way of launching: `graph`, `one process` (it drives several GPUs), or empty for one process per GPU."""
        by_one = self.gpus_per_process not in (None, 1)
        return "graph" if self.graph else "one process" if by_one else ""

    @property
    def columns(self) -> dict[str, object]:
        """The columns `launch.…` of results, for the keys that the scenario sets."""
        named = self.model_fields_set  # mostly none
        return {f"launch.{key}": value for key, value in self if value not in (None, False)} if named else {}


class Process(NamedTuple):
    """The work of one CPU process for one call: it `launches` a kernel on each of its GPUs, and posts `messages`
    messages."""

    launches: int
    messages: int


def processes(launch: Launch, collective: str, nodes: Sequence[Hashable], root: int = 0) -> frozenset[Process]:
    """Return the distinct `Process`es of one call; `nodes`: the node of each rank. Empty unless `launch.paced`."""
    if not launch.paced:
        return frozenset()
    return frozenset(
        Process(len(ranks), sum(_posts(collective, len(nodes), rank == root) for rank in ranks))
        for ranks in _driven(launch, nodes)
    )


def uploads(launch: Launch, nodes: Sequence[Hashable]) -> float:
    """Return how often each process uploads a CUDA graph to a GPU, per launch of it; 0 unless `replays` is set."""
    return max(map(len, _driven(launch, nodes))) / launch.replays if launch.replays else 0.0


def _driven(launch: Launch, nodes: Sequence[Hashable]) -> list[list[int]]:
    """Return the ranks that each process drives (default: one). Raises RefusedError if a node has fewer."""
    of_node = defaultdict[Hashable, list[int]](list)
    for rank, node in enumerate(nodes):
        of_node[node].append(rank)
    most = max(map(len, of_node.values()))
    many = most if launch.gpus_per_process == "all" else int(launch.gpus_per_process or 1)
    if many > most:
        problem = f"{many} GPUs a process are more than the ranks of a node, {most}; write `all`, or fewer"
        raise RefusedError(problem, "launch.gpus_per_process")
    return [ranks[at : at + many] for ranks in of_node.values() for at in range(0, len(ranks), many)]


def _posts(collective: str, n: int, root: bool) -> int:
    """Return how many messages one of `n` ranks posts in a call; 0 unless NCCL builds the call from point-to-point
    messages."""
    if collective not in _POSTING:
        return 0
    return 2 * (n - 1) if collective == "all_to_all" else 2 if collective == "send_recv" else n - 1 if root else 1
