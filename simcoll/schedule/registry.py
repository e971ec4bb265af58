"""The registry of algorithms: one entry each, with its help text, constraints and closed-form cost.

An algorithm is a pure function from a `Request` to steps. Tests, `simcoll list`, `simcoll verify` and scenarios loop
over `ALGORITHMS`, so they cover each new entry.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simcoll.errors import InputError, RefusedError, ScheduleError, SimcollError, did_you_mean
from simcoll.schedule.collectives import collective as find_collective
from simcoll.schedule.schedule import StreamedSchedule
from simcoll.schedule.steps import Rotation, StepPattern

Groups = tuple["int | Groups", ...]  # ranks, grouped to any depth: ((0, 1), (2, 3))


@dataclass(frozen=True)
class Request:
    """The request that an algorithm answers with steps. It has the number of ranks `n`, the `root`, the `groups` of
    ranks, the number of switches that can reduce (`agents`), and the values of the algorithm's `options`.

    >>> request = Request(n=4, root=1)
    >>> [rank for rank in range(request.n) if rank != request.root]
    [0, 2, 3]
    """

    n: int
    root: int = 0
    groups: Groups = ()
    agents: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    def two_levels(self) -> list[list[int]]:
        """Return the outermost groups, each as a list of ranks."""
        groups = self.groups or default_groups(self.n)
        return [flat(group) for group in groups]

    def equal_groups(self) -> NDArray[np.int64]:
        """Return the groups as an array of ranks with one axis for each level, outermost first. Raises RefusedError if
        groups are of unequal size."""
        try:
            table = np.asarray(self.groups or default_groups(self.n), dtype=np.int64)
        except ValueError:
            raise RefusedError(
                f"needs equal groups at every level, not {_shape(self.groups)}; "
                "for unequal groups take hierarchical_leader or hierarchical_tree"
            ) from None
        return table if table.ndim > 1 else table[None, :]


def flat(group: int | Groups) -> list[int]:
    """Return all ranks of nested groups, in order."""
    return [group] if isinstance(group, int) else [rank for part in group for rank in flat(part)]


def _shape(groups: int | Groups) -> str:
    """Return the sizes of nested groups as text, e.g. `[[2, 3], [2, 2]]`."""
    if isinstance(groups, int) or all(isinstance(part, int) for part in groups):
        return "1" if isinstance(groups, int) else str(len(groups))
    return f"[{', '.join(_shape(part) for part in groups)}]"


def default_groups(n: int) -> Groups:
    """Return g equal groups of consecutive ranks, g the largest divisor of n with g² ≤ n.

    >>> default_groups(6)
    ((0, 1, 2), (3, 4, 5))
    """
    g = max(d for d in range(1, n + 1) if n % d == 0 and d * d <= n)
    return tuple(tuple(range(i * (n // g), (i + 1) * (n // g))) for i in range(g))


Steps = Callable[[Request], Iterator[StepPattern]]


class AnyNumber(tuple[str, ...]):
    """The choices of an option that takes any whole number from 1 on; its items are examples for help and tests."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdecimal() and int(value) > 0


def one_chunk(request: Request) -> int:
    """Return 1: the number of chunks of a buffer that the algorithm does not cut."""
    return 1


@dataclass(frozen=True)
class Algorithm:
    """A registered algorithm: its function and properties. `register` describes the fields."""

    collective: str
    name: str
    steps: Steps
    chunks: Callable[[Request], int] = one_chunk
    pipelined: bool = False
    cost: str = ""
    cost_for: Callable[[int], bool] = lambda n: True
    needs_agent: bool = False
    agent_a_group: bool = False
    uses_groups: bool = False
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    library: bool = False
    chunks_apart: bool = False
    rotation: Callable[[Request], Rotation] | None = None

    def spelt(self, options: Mapping[str, str]) -> str:
        """Return the canonical spelling of this algorithm with options, e.g. `hierarchical(across=ring)`."""
        return self.name + (f"({','.join(f'{key}={value}' for key, value in options.items())})" if options else "")

    def closed_form(self, n: int) -> tuple[int, Fraction] | None:
        """Return how many times α, and which multiple of β·m, n ranks take by the formula `cost`; None without one."""
        if not self.cost or not self.cost_for(n):
            return None
        alphas, betas = (_value(self.cost, n=n, alpha=alpha, beta=1 - alpha, m=Fraction(1)) for alpha in (1, 0))
        return int(alphas), betas

    @property
    def messages(self) -> str:
        """The number of messages of n ranks without options, as a formula; empty for an algorithm without one."""
        whose = f"{self.collective}/{self.name}"
        return next((form for form, names in _MESSAGES.items() if whose in names.split()), "")

    def messages_of(self, n: int) -> int | None:
        """Return the number of messages of n ranks by the formula `messages`; None without one."""
        return int(_value(self.messages, n=n)) if self.messages else None

    @property
    def help(self) -> str:
        """The first line of the docstring of the algorithm's function."""
        return (inspect.getdoc(self.steps) or "").split("\n", 1)[0]

    def stream(self, request: Request, label: str = "") -> StreamedSchedule:
        """Return the schedule step by step. Raises RefusedError if the algorithm does not support the request, and
        InputError for groups that do not hold each rank once."""
        if request.groups and sorted(flat(request.groups)) != list(range(request.n)):
            raise InputError(f"groups must contain each of the ranks 0 … {request.n - 1} once", "mend the groups")
        if self.needs_agent and not request.agents:
            reach = "in each group a switch that reduces" if self.agent_a_group else "a switch that reduces"
            raise RefusedError(
                f"{self.name} needs {reach} in the network that reaches every rank, and there is none; "
                "take ring, tree or hierarchical"
            )
        with self.named():
            chunks, rotation = self.chunks(request), self.rotation and self.rotation(request)
        return StreamedSchedule(
            collective=self.collective,
            algorithm=label or self.name,
            n=request.n,
            n_chunks=chunks,
            make=lambda: self._messages(request),
            agents=len(request.two_levels()) if self.agent_a_group else int(self.needs_agent),
            pipelined=self.pipelined,
            root=request.root,
            rotation=rotation,
        )

    def _messages(self, request: Request) -> Iterator[StepPattern]:
        """Yield the steps with all that a rank sends to another in one step as one message."""
        steps = (self.steps if self.shipped else self._named_steps)(request)
        return steps if self.chunks_apart else (step.as_messages() for step in steps)

    def _named_steps(self, request: Request) -> Iterator[StepPattern]:
        with self.named():
            for step in self.steps(request):
                if not isinstance(step, StepPattern):
                    raise TypeError(f"a {type(step).__name__} is no step; yield simcoll.send(…) or a Step")
                yield step

    @property
    def shipped(self) -> bool:
        """Whether simcoll ships this algorithm."""
        return self.steps.__module__.startswith(_SHIPPED)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Return a context in which any error of a user's algorithm becomes a ScheduleError. It names the algorithm and
        `file:line`: the line that raised, or the line of the function whose schedule is wrong."""
        if self.shipped:
            yield
            return
        try:
            yield
        except MemoryError:
            raise
        # A user's function may raise any error, and may yield values at which simcoll's own code fails.
        except Exception as error:
            wrong = isinstance(error, ScheduleError)
            if isinstance(error, SimcollError) and (not isinstance(error, ScheduleError) or error.place):
                raise
            code = getattr(inspect.unwrap(self.steps), "__code__", None)
            file, line = (code.co_filename, code.co_firstlineno) if code else (self.steps.__module__, 1)
            raised = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
            said = str(error) if wrong else f"{self.collective}/{self.name}: {type(error).__name__}: {error}"
            raise ScheduleError(said, f"{file}:{line if wrong or not raised else raised[-1]}") from error


_MESSAGES: Final = {  # formulas, and the algorithms of textbooks that have so many messages
    "1": "send_recv/direct",
    "n": "send_recv/ring",
    "n - 1": "gather/direct gather/binomial scatter/direct scatter/binomial reduce/naive reduce/chain reduce/binomial "
    "broadcast/naive broadcast/chain broadcast/binomial",
    "2 * (n - 1)": "all_reduce/naive all_reduce/tree all_reduce/hierarchical_tree barrier/naive barrier/tree "
    "all_gather/naive reduce_scatter/naive",
    "4 * (n - 1)": "all_reduce/double_binary_tree",
    "n * (n - 1)": "all_reduce/all_pairs all_reduce/ring_unchunked all_gather/direct all_gather/ring "
    "reduce_scatter/direct reduce_scatter/ring all_to_all/direct moe_dispatch/direct moe_combine/direct",
    "2 * n * (n - 1)": "all_reduce/ring all_reduce/two_shot",
    "n * log2(2 * n - 1)": "barrier/dissemination all_gather/bruck all_gather/pat reduce_scatter/pat",
}


def _value(form: str, **names: int | Fraction) -> Fraction:
    """Return the value of a registered formula."""
    return Fraction(eval(form, {"__builtins__": {}, "log2": lambda x: x.bit_length() - 1}, names))


ALGORITHMS: Final[dict[str, dict[str, Algorithm]]] = {}


def around(request: Request) -> Rotation:
    """Return the symmetry of schedules with one chunk per rank, e.g. a ring: a shift of all ranks and chunks by one."""
    return Rotation(1, 1, request.n)


def around_by_groups(request: Request) -> Rotation:
    """Return the symmetry of schedules with one chunk per rank and equal groups: a shift of all ranks and chunks by one
    group."""
    size = len(request.two_levels()[0])
    return Rotation(size, size, request.n)


def chunk_per_rank(request: Request) -> int:
    """Return n, the number of chunks of a buffer with one chunk a rank."""
    return request.n


def register(collective: str, name: str, **fields: Any) -> Callable[[Steps], Steps]:
    """Enter a function from a `Request` to steps under `collective/name`.

    `fields` are keywords, none of which is needed. `chunks(request)`: number of chunks of the buffer, by default 1.
    `pipelined`: loops over a large buffer follow one step behind. `cost`: closed-form time of n ranks on a full mesh of
    links with latency α and β time units per byte, for m bytes. It is a Python expression in `n, alpha, beta, m` (and
    `log2`, the floor of the logarithm), valid if `cost_for(n)`. `options`: the user's options and their values.
    `uses_groups`: the request's groups count. `needs_agent`: it needs a switch that reduces, or one in each group
    (`agent_a_group`). `library`: NCCL has it, so `auto` may choose it. `chunks_apart`: chunks that a rank sends to
    another in a step are messages of their own, e.g. as each tree has a channel; by default they are one message.
    `rotation(request)`: a shift of ranks and chunks that leaves the schedule unchanged.

    >>> from simcoll import build, send
    >>> @register("broadcast", "from_the_root")
    ... def from_the_root(request):
    ...     yield send(request.root, range(1, request.n), 0)
    >>> build("broadcast", "from_the_root", 4).messages
    3

    An own algorithm may be entered anew. Raises InputError for an unknown collective, for the name of a shipped
    algorithm, and for one of your own that is said to be NCCL's (`library`).
    """
    _check_collective(collective)
    if (known := ALGORITHMS.get(collective, {}).get(name)) and known.shipped:
        raise InputError(f"{name} is a shipped algorithm of {collective}", f"take another name, e.g. my_{name}")

    def enter(steps: Steps) -> Steps:
        entry = Algorithm(collective, name, steps, **fields)
        if entry.library and not entry.shipped:  # if it failed, NCCL's choice would fail with it
            problem = f"{name} is no algorithm of NCCL, and `auto` chooses only algorithms of NCCL"
            raise InputError(problem, f"leave out `library`, and write `algorithm: [auto, {name}]`")
        ALGORITHMS.setdefault(collective, {})[name] = entry
        return steps

    return enter


def _check_collective(name: str) -> None:
    try:
        find_collective(name)
    except ValueError as error:
        raise InputError(str(error)) from None


_SHIPPED: Final = "simcoll.schedule.algorithms."  # the modules of shipped algorithms
_SPEC: Final = re.compile(r"\s*([a-z_][a-z0-9_]*)\s*(?:\((.*)\))?\s*")


def find(collective: str, spec: str) -> tuple[Algorithm, dict[str, str]]:
    """Return the registered algorithm and its options for a text such as `ring` or `hierarchical(across=tree)`. Raises
    InputError for an unknown collective, algorithm, option or value."""
    _check_collective(collective)
    entries = ALGORITHMS.get(collective, {})
    if spec in entries:
        return entries[spec], {}
    match = _SPEC.fullmatch(spec)
    name = match[1] if match else spec
    if match is None or name not in entries:
        raise InputError(f"{name!r} is no algorithm for {collective}", did_you_mean(name, entries))
    entry = entries[name]
    options: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in (match[2] or "").split(","))):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in entry.options:
            known = did_you_mean(key, entry.options) if entry.options else "it has none"
            raise InputError(f"{name} has no option {key!r}", known)
        if key in options:
            raise InputError(f"option {key!r} of {name} stands twice", "keep one of them")
        if value not in entry.options[key]:
            raise InputError(f"{value!r} is no {key} of {name}", did_you_mean(value, entry.options[key]))
        options[key] = value
    return entry, options


def names(collective: str) -> Sequence[str]:
    """Return the algorithms of a collective, in the order they were registered."""
    return tuple(ALGORITHMS.get(collective, {}))


def comparable(collective: str) -> Sequence[str]:
    """Return the algorithms of a collective that do the same work: of send_recv, `direct` serves only one pair."""
    return library(collective) if collective == "send_recv" else names(collective)


def library(collective: str) -> Sequence[str]:
    """Return the algorithms that NCCL has for a collective, from which `auto` chooses. Algorithms that need a switch
    come last."""
    entries = [entry for entry in ALGORITHMS.get(collective, {}).values() if entry.library]
    return tuple(entry.name for entry in sorted(entries, key=lambda entry: entry.needs_agent))
