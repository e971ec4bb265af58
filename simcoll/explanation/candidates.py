"""List the candidates that `recommend` simulates: algorithms, protocols, groups, chunks, channels, bucket sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simcoll.errors import RefusedError, did_you_mean, wrong
from simcoll.formats.schedules import schedule_json
from simcoll.nccl.algorithm_names import name_of, names
from simcoll.nccl.symmetric_kernels import SYMMETRIC
from simcoll.prediction.lowered_call import PlainExecutor, alone, executor
from simcoll.prediction.placed_topology import placed, topology_of
from simcoll.prediction.work_limits import least_rows, ranks_of
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario import CHOSEN, SYNTHESIZED, Scenario
from simcoll.schedule import registry
from simcoll.schedule.names import ALGORITHM_SPELLINGS, PROTOCOLS
from simcoll.synthesis import synthesize
from simcoll.units import format_size
from simcoll.workload.expert_routing import BY_EXPERTS
from simcoll.workload.templates import plan_of
from simcoll.workload.workload_keys import Ddp, with_algorithm

LARGE: Final = 64  # ranks up to which all algorithms are tried; beyond, only NCCL's and those with groups
MOST_ROWS: Final = 1_000_000  # messages of a schedule without repetitions: more take minutes and gigabytes
CHUNKS: Final = (64 << 10, 512 << 10, 4 << 20)  # bytes, for pipelined algorithms if the scenario has no chunk
CHANNELS: Final = (1, 2, 4, 8, 16, 32)  # numbers of channels, if a channel has a cap
BUCKETS: Final = tuple(2**exponent << 20 for exponent in range(9))  # bytes: 1 … 256 MiB, around torch's 25 MiB
_LEFT_TO_NCCL: Final = {"algorithm": "auto", "protocol": "auto"}


@dataclass(frozen=True)
class Candidate:
    """A choice of algorithm and settings to try; None keeps the scenario's setting.

    `groups` is the number of groups. `executor` is set if the scenario names no executor. `nccl` is NCCL's own name of
    the algorithm, if NCCL has it.
    """

    algorithm: str
    protocol: str = "none"
    executor: str | None = None
    groups: int | None = None
    chunk: int | None = None
    copies: int | None = None
    channels: int | None = None
    bucket_cap: int | None = None
    nccl: str | None = None

    @property
    def method(self) -> tuple[str, str, str | None]:
        """Return the algorithm, protocol and executor, without the settings."""
        return self.algorithm, self.protocol, self.executor

    @property
    def settings(self) -> dict[str, int]:
        """Return, by name, the settings that this candidate changes, e.g. {"groups": 4}."""
        names = ("groups", "chunk", "copies", "channels", "bucket_cap")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables that force NCCL to this candidate; empty if no variable can."""
        algorithm = ALGORITHM_SPELLINGS.get(self.nccl or "")
        protocol = {} if self.protocol == "none" else {"NCCL_PROTO": self.protocol}
        return {"NCCL_ALGO": algorithm, **protocol} if algorithm else {}

    @property
    def name(self) -> str:
        """Return the name by which `--among` chooses it: that of the algorithm, or of an executor that moves tokens."""
        return self.executor if self.executor in BY_EXPERTS else self.algorithm

    def __str__(self) -> str:
        if self.name != self.algorithm:
            return self.name
        method = self.algorithm if self.protocol == "none" else f"{self.algorithm} {self.protocol}"
        by = [f"({self.executor})"] if self.executor else []
        return " ".join([method, *(f"{name} {_spelt(name, value)}" for name, value in self.settings.items()), *by])

    def of(self, scenario: Scenario) -> Scenario:
        """Return the scenario changed to use this candidate."""
        own = {name: value for name, value in self.settings.items() if name in ("chunk", "copies", "channels")}
        by_name = {"algorithm": self.algorithm, "protocol": self.protocol}
        changed: dict[str, Any] = _LEFT_TO_NCCL if self.algorithm == SYMMETRIC else by_name
        if scenario.workload:
            changed = dict(changed)
            of_step = {name: value for name, value in self.settings.items() if name == "bucket_cap"}
            spec = with_algorithm(scenario.workload, changed.pop("algorithm"), changed["protocol"])
            changed["workload"] = spec.model_copy(update=of_step)
            if changed["protocol"] == "none":  # keep the scenario's protocol
                del changed["protocol"]
        if self.executor:
            sms = scenario.sms if self.executor == "deepep" else None
            changed = {**changed, "executor": self.executor, "sms": sms}
        if own:
            changed["model"] = scenario.model.model_copy(update=own)
        if self.groups is not None:
            changed["groups"] = self.groups
        return scenario.model_copy(update=changed)


def _spelt(name: str, value: int) -> str:
    if name == "channels" and not value:
        return "per-peer"
    if name not in ("chunk", "bucket_cap"):
        return str(value)
    return format_size(value) if value else "none"


def candidates(scenario: Scenario, named: Sequence[str], among: Sequence[str] | None = None) -> list[Candidate]:
    """List the candidates for a point, NCCL's algorithms first.

    `named` are the algorithms that the scenario names. They are candidates too, including schedule files and names with
    options. `among` allows only these algorithms. Raises InputError for a name in `among` that is no candidate, and
    RefusedError if no algorithm can run.
    """
    if SYNTHESIZED in (among or ()) and scenario.collective in synthesize.COLLECTIVES:
        named = [*named, SYNTHESIZED]
    listed = list(_of_step(scenario) if scenario.workload else _of_call(scenario, named))
    served = list(dict.fromkeys(candidate.name for candidate in listed))
    for name in among or ():
        if name not in served:
            raise wrong("--among", f"{name!r} cannot run this call", did_you_mean(name, served))
    if among is not None:
        return [candidate for candidate in listed if candidate.name in among]
    schedules = {(each.algorithm, each.groups): each for each in listed if each.algorithm not in named}
    long = {schedule for schedule, each in schedules.items() if least_rows(each.of(scenario)) > MOST_ROWS}
    return [each for each in listed if (each.algorithm, each.groups) not in long]


def _of_call(scenario: Scenario, named: Sequence[str]) -> Iterator[Candidate]:
    if scenario.moe:
        yield from (Candidate("auto", executor=name) for name in BY_EXPERTS)
        return
    if not _runs(scenario).tunable:
        yield from _of_kernels(scenario, named)
        return
    collective, runs = scenario.collective, _runs(scenario)
    if scenario.protocol not in ("none", "auto"):
        raise RefusedError(f"protocol {scenario.protocol} needs a profile with NCCL kernels; name one, or omit it")
    nccl_names = names(collective)
    ranks = rank_count(scenario)
    topology = None if ranks > LARGE else topology_of(_any_algorithm(scenario))  # building it takes long
    asked = [scenario.model_copy(update={"algorithm": name}) for name in named if name not in (*CHOSEN, SYNTHESIZED)]
    own = [run.algorithm for one in asked for run in runs.alternatives(one)]
    tried = [*registry.library(collective), *registry.comparable(collective), *own]
    tried += [SYNTHESIZED] if SYNTHESIZED in named else []
    for name in dict.fromkeys(tried):
        if name == SYNTHESIZED or schedule_json.is_file(name):
            yield from _settled(scenario, Candidate(name))
            continue
        entry, options = registry.find(collective, name)
        if topology is None and not (entry.library or entry.uses_groups or name in named):
            continue
        nccl = nccl_names.get(name_of(name, collective))
        splits = _splits(ranks) if entry.uses_groups and not (scenario.groups or options) else [None]
        for spelling in [name] if options else _spellings(entry):
            for groups in splits:
                candidate = Candidate(spelling, groups=groups, nccl=nccl)
                copies = 0 if topology is None or options else runs.copies(candidate.of(scenario), topology)
                yield from _settled(scenario, candidate, pipelined=entry.pipelined, copies=copies)


def _of_kernels(scenario: Scenario, named: Sequence[str]) -> Iterator[Candidate]:
    """Yield NCCL's pairs of algorithm and protocol, then schedules run as one user-written kernel. If the scenario
    names an executor, only its candidates are yielded."""
    nccl_names, refused, found = names(scenario.collective), list[RefusedError](), False
    for by in [scenario.executor] if scenario.executor else ["nccl", "msccl"]:
        own = scenario.model_copy(update={"algorithm": "auto", "executor": by})
        runs = executor(own)
        try:
            pairs = runs.choices(own)
        except RefusedError as error:
            refused.append(error)
            continue
        if by != "nccl":
            protocols = dict.fromkeys(protocol for _, protocol in pairs)
            asked = [_schedule_named(name, scenario.collective) for name in named if name not in (*CHOSEN, *nccl_names)]
            pairs += [(name, protocol) for name in asked for protocol in protocols]
        if by == "nccl" and runs.lower(own).algorithm == SYMMETRIC:
            yield Candidate(SYMMETRIC, executor=by)
        for algorithm, protocol in dict.fromkeys(pairs):
            found = True
            yield Candidate(algorithm, protocol, by, nccl=nccl_names.get(algorithm) if by == "nccl" else None)
    if refused and not found:
        raise refused[0]


def _schedule_named(name: str, collective: str) -> str:
    """Return an algorithm's name with options as it is, or the path of a schedule file."""
    if name == SYNTHESIZED or schedule_json.is_file(name):
        return name
    entry, options = registry.find(collective, name)
    return entry.spelt(options)


def _runs(scenario: Scenario) -> PlainExecutor:
    """Return the executor that the scenario names, else the one that its profile implies."""
    return executor(_any_algorithm(scenario))


def _any_algorithm(scenario: Scenario) -> Scenario:
    """Return the scenario with its algorithm replaced by `auto`."""
    return scenario.model_copy(update={"algorithm": "auto"})


def nccl_choice(scenario: Scenario) -> Candidate | None:
    """Return the algorithm that NCCL itself chooses for a call, with the scenario's protocol if named. None for a
    workload, for tokens, or if NCCL does not run the call."""
    forced = scenario.protocol if scenario.protocol in PROTOCOLS else "auto"
    return None if scenario.workload or scenario.moe or _runs(scenario).tunable else Candidate("auto", forced, "nccl")


def _spellings(entry: registry.Algorithm) -> Iterator[str]:
    yield entry.name
    for option, choices in entry.options.items():
        yield from (entry.spelt({option: choice}) for choice in choices[1:])  # the first choice is the default


def _splits(n: int) -> list[int | None]:
    return [None, *(g for g in range(2, n) if n % g == 0)]


def rank_count(scenario: Scenario) -> int:
    """Return the number of ranks. The topology is built only if the scenario's numbers do not give it."""
    return ranks_of(scenario) or len(placed(scenario, topology_of(_any_algorithm(scenario))))


def distinct(scenario: Scenario, of: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, except those that name the default number of groups: they equal those without groups."""
    if not any(candidate.groups for candidate in of):
        return list(of)
    topology = topology_of(_any_algorithm(scenario))
    places = placed(scenario, topology)
    default = len(topology.default_groups(places) or registry.default_groups(len(places)))
    return [candidate for candidate in of if candidate.groups != default]


def _settled(scenario: Scenario, candidate: Candidate, pipelined: bool = False, copies: int = 0) -> Iterator[Candidate]:
    """Yield a candidate, then variants of it with each chunk size or number of channels worth trying. If `copies` is
    not 0, also yield variants with 1 and with `copies` copies of the schedule, and one channel per peer."""
    params = scenario.params()
    yield candidate
    if load_profile(scenario.profile).bound:  # a bound tries them itself
        return
    if copies:
        apart = replace(candidate, channels=0)
        yield from (replace(apart, copies=count) if count > 1 else apart for count in sorted({1, copies}))
        if pipelined and not params.chunk:
            yield from (replace(apart, copies=copies, chunk=chunk) for chunk in CHUNKS)
    if pipelined and not params.chunk:
        yield from (replace(candidate, chunk=chunk) for chunk in CHUNKS)
    elif params.chunk:
        yield from (replace(candidate, chunk=chunk) for chunk in (params.chunk // 4, 4 * params.chunk))
    if params.channel_bandwidth:
        yield from (replace(candidate, channels=count) for count in CHANNELS if count != params.channels)


def _of_step(scenario: Scenario) -> Iterator[Candidate]:
    """Yield the candidates for a workload: the scenario's own algorithm, NCCL's choice, and algorithms that serve all
    its calls. Each comes with the scenario's settings, then with bucket sizes worth trying."""
    spec: Any = scenario.workload
    forced = scenario.protocol if scenario.protocol in PROTOCOLS else "none"
    own = [spec.algorithm, *([] if _runs(scenario).tunable else ["auto"])]  # auto: NCCL's choice
    methods = dict.fromkeys([*(Candidate(name, forced) for name in own), *_of_all_calls(scenario)])
    settings: list[dict[str, Any]] = [{}]
    if isinstance(spec, Ddp):
        settings = [{"bucket_cap": size} for size in dict.fromkeys((spec.bucket_cap, *BUCKETS))]
    yield from (replace(method, **each) for each in settings for method in methods)


def _of_all_calls(scenario: Scenario) -> list[Candidate]:
    """Return the candidates, without settings, that each call of the workload has if it runs alone."""
    places = placed(scenario, topology_of(scenario))
    plan, _ = plan_of(scenario.workload, len(places), scenario.itemsize)
    calls = {(work.call.collective, len(work.ranks)): alone(scenario, places, work.call, work.ranks)
             for work in plan.works if work.call}  # fmt: skip
    served: list[list[Candidate]] = []
    if any(call.moe for call in calls.values()):  # their executors are keys of operations
        return []
    for call in calls.values():
        try:
            served.append([each for each in _of_call(_any_algorithm(call), ()) if not each.settings])
        except RefusedError:
            return []
    return [each for each in served[0] if all(each in others for others in served)] if served else []
