"""From the records of ranks to the plan of a step: computations get their time on the GPU, and ranks are merged."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from simcoll.config import yaml_tree
from simcoll.config.input_files import ImportLog
from simcoll.config.numpy_helpers import Numbers
from simcoll.dry_run import kernels
from simcoll.dry_run.devices import Told
from simcoll.dry_run.recorder import Call, GroupKind, Part, RankRecord
from simcoll.errors import InputError, Place, SimcollError
from simcoll.formats.recordings import recorded_plan
from simcoll.formats.recordings.events import Event, Group, Interval, Recording, What
from simcoll.prediction import summary_sentence
from simcoll.prediction.predict import predict
from simcoll.prediction.predictions import LAUNCHING, Prediction, StepPrediction
from simcoll.scenario import scenario_files
from simcoll.scenario.profile_choice import peak_of
from simcoll.scenario.scenario import machine_named
from simcoll.schedule.names import DTYPES
from simcoll.topology.topology_builder import load_system, machine_of
from simcoll.workload.compute import Compute, Kernels, attentions, compute_of

_KINETO: Final = {row.name: row.torch for row in DTYPES}
SCHEMA: Final = "simcoll.dryrun/1"
MOST_IN_GROUPS: Final = 128  # ranks of a job for which the calls of each kind of group are taken out in turn
FRAMEWORK: Final = "torchtitan"  # whose attention and launch PyTorch scripts have


@dataclass(frozen=True)
class Cluster:
    """The machine of a dry run: keys of its topology, with a `system`; `gpus` of each node, and how they compute."""

    keys: Mapping[str, Any]
    gpus: int
    compute: Compute
    told: Told

    @classmethod
    def named(
        cls, system: str, gpu: str | None = None, kernels: Kernels | None = None, attention: str | None = None,
        cuda_graphs: bool = False,
    ) -> Cluster:  # fmt: skip
        """Return a cluster of a system (a name, a file, or keys of a topology in braces). Raises InputError."""
        keys = machine_named(system) if system.startswith("{") else {"system": system}
        if "nodes" in keys or "system" not in keys:
            raise InputError(f"{system}: a dry run takes a `system`, and as many nodes as hold its ranks",
                             "write e.g. {system: hgx-h100, fabric: fat-tree}, and --nodes N")  # fmt: skip
        varied = machine_of(scenario_files.topology_spec(system))[1] if len(keys) > 1 else None
        machine = varied.file if varied else load_system(keys["system"])
        if not (model := gpu or peak_of(machine)):
            raise InputError(f"{system} does not say which GPU computes", "give it, e.g. --gpu h100")
        compute = compute_of(model, FRAMEWORK, kernels, attention, cuda_graphs)
        capability = (machine.gpu.compute_capability if machine.gpu else None) or 90
        told = Told(model, int(compute.memory_bytes), *divmod(capability, 10))
        return cls(keys, machine.counts.get("gpu") or 1, compute, told)

    def ranks_of_node(self, world: int, nodes: int | None) -> int:
        """Return the ranks of each node. Raises InputError if they do not fit, or nodes would have different ones."""
        each = -(-world // nodes) if nodes else min(self.gpus, world)
        if each > self.gpus:
            cure = f"give --nodes {-(-world // self.gpus)}, or leave it out"
            raise InputError(f"--nodes {nodes}: {world} ranks do not fit on {(nodes or 1) * self.gpus} GPUs", cure)
        if world % each:
            cure = f"take a multiple of {each}, or fewer than {each}"
            raise InputError(f"--world {world}: {world} ranks do not fill whole nodes of {each}", cure)
        return each

    @property
    def assumed(self) -> list[str]:
        """What a script does not say, in words, with the option that changes each."""
        way = self.compute
        attention = next(name for name, each in attentions().items() if each is way.kernel)
        return [
            f"the GPU is {way.gpu}; times of matrix products: {way.label} (--gpu)",
            f"{way.kernels} kernels, {'with' if way.cuda_graphs else 'without'} CUDA graphs: a kernel takes at least "
            f"{1e6 * way.launch_s / kernels.KERNELS_OF_PASS:.1f} us, as if launching a layer's pass, "
            f"{1e6 * way.launch_s:.0f} us, launched {kernels.KERNELS_OF_PASS} (--kernels, --cuda-graphs)",
            f"the kernel of attention, if there is one, is {attention} (--attention)",
        ]


@dataclass(frozen=True, eq=False)
class DryRun:
    """What a script does on a job's ranks: the records of those that differ, and the step that they make."""

    name: str
    world: int
    nodes: int | None
    cluster: Cluster
    records: Mapping[int, RankRecord]
    advice: tuple[str, ...] = ()

    def collectives(self, everyone: bool = False) -> list[dict[str, object]]:
        """Return the calls of the first rank, or of all that are recorded, as rows, in order of issue."""
        chosen = self.records if everyone else {0: self.records[min(self.records)]}
        rows = list[dict[str, object]]()
        for rank, each in chosen.items():
            calls = [part.call for part in each.parts if part.call and len(part.call.ranks) > 1]
            rows += [call.row(rank, order) for order, call in enumerate(calls)]
        return rows

    @functools.cached_property
    def steps(self) -> dict[int, tuple[int, int]]:
        """The first part of each rank's last step, and the one behind its last."""
        found = {}
        for rank, each in self.records.items():
            marks = each.marks if len(each.marks) > 1 else [each.begin, len(each.parts)]
            found[rank] = (marks[-2], marks[-1])
        return found

    def step_of(self, rank: int) -> Sequence[Part]:
        """Return the parts of a rank's last step."""
        first, end = self.steps[rank]
        return self.records[rank].parts[first:end]

    @property
    def flop(self) -> float:
        """The FLOPs of a step on a rank, on average over those recorded."""
        return sum(kernels.total_flop(part.kernels) for rank in self.records for part in self.step_of(rank)) / len(
            self.records
        )

    @property
    def memory(self) -> dict[str, int]:
        """The bytes of the rank that needs most at the peak of its last step, by kind."""
        return max((each.memory for each in self.records.values()), key=lambda kinds: sum(kinds.values()))

    @property
    def fits(self) -> str:
        """Whether the GPU has that much memory, in words."""
        return summary_sentence.fits(sum(self.memory.values()) / 1e9, self.cluster.compute.memory_bytes / 1e9)

    @property
    def notes(self) -> list[str]:
        """Remarks about the script, with the places."""
        said = Counter[str]()
        for each in self.records.values():
            said.update(f"{place}: {text}" if place else text for text, place in each.notes.items())
        return [*said]

    def recordings(self) -> list[Recording]:
        """Return the step of each recorded rank."""
        seconds = functools.cache(lambda shapes: kernels.seconds(shapes, self.cluster.compute))
        groups = dict[tuple[str, tuple[int, ...]], Group]()
        return [
            Recording(self.name, rank, world=self.world, intervals=self._intervals(rank, seconds, groups))
            for rank in self.records
        ]

    def _intervals(self, rank: int, seconds: Any, groups: dict[tuple[str, tuple[int, ...]], Group]) -> list[Interval]:
        first, _ = self.steps[rank]
        found, numbers = list[Interval](), dict[int, int]()
        for number, part in enumerate(self.step_of(rank), first):
            if part.call and len(part.call.ranks) == 1:
                continue
            after = tuple(numbers[before] for before in part.after if before in numbers)
            numbers[number] = len(found)
            if part.call:
                found.append(Interval(part.call.collective, part.stream, 0, after, _event(part.call, rank, groups)))
            else:
                took = round(1e9 * seconds(part.kernels))
                found.append(Interval("optimizer" if part.optimizer else "compute", part.stream, took, after))
        return found

    @functools.cached_property
    def scenario(self) -> dict[str, Any]:
        """The step as the keys of a scenario."""
        each = self.cluster.ranks_of_node(self.world, self.nodes)
        made = recorded_plan.document(self.recordings(), self.cluster.keys["system"], each, ImportLog())
        topology = {**made["topology"], **self.cluster.keys}
        first = {"name": Path(self.name).stem, "topology": topology}
        return first | ({"placement": {"per_node": each}} if self.nodes else {}) | {**made, **first}

    @property
    def plan(self) -> str:
        """The step as a scenario (YAML)."""
        remarks = [
            f"Made by simcoll dryrun. Computations have the times of {self.cluster.compute.gpu} on any machine.",
            *(f"assumed: {line}" for line in self.cluster.assumed),
        ]
        return "\n".join([*(f"# {line}" for line in remarks), yaml_tree.dump(self.scenario, inline=True)])

    @functools.cached_property
    def prediction(self) -> Prediction:
        """The simulated step."""
        return predict(scenario_files.points(yaml_tree.located(self.scenario, Place(self.name, 1, 1)))[0])

    @functools.cached_property
    def exposed_ps(self) -> dict[GroupKind, int]:
        """How much shorter the step would be if the calls in groups of a kind took no time, in ps. Each other operation
        lasts as long as in the simulation, once its ranks have met. Empty for large jobs: it needs the timeline of all
        ranks, which takes longer than the step's time."""
        if self.world > MOST_IN_GROUPS:
            return {}
        records = [*self.records.values()][::-1]  # streams that several kinds share are those of the first rank's
        kinds = {part.stream: part.call.kind for each in records for part in each.parts if part.call}
        step, took = self.prediction, list[Numbers]()
        assert isinstance(step, StepPrediction)
        tasks = np.split(step.timeline.done, np.cumsum([*map(len, step.tasks.ranks)]))
        ends = [each for each, kind in zip(tasks, step.tasks.kinds, strict=False) if kind != LAUNCHING]

        def simulated(number: int, met: Numbers) -> Numbers:
            took.append(ends[number] - met)
            return ends[number]

        whole, of = step.plan.time_ps(simulated), [kinds.get(work.stream) for work in step.plan.works]
        return {
            kind: whole - step.plan.time_ps(lambda i, met, kind=kind: met if of[i] == kind else met + took[i])  # type: ignore[misc]
            for kind in dict.fromkeys(filter(None, of))
        }

    @property
    def mfu(self) -> float:
        """The share of the GPU's peak that the step's FLOPs reach."""
        return self.flop / (self.cluster.compute.peak() * self.prediction.time_ps / 1e12)

    def document(self, everyone: bool = False) -> dict[str, object]:
        """Return the answer as JSON has it."""
        found, status = None, "ok"
        try:
            found = self.prediction
        except SimcollError as error:  # what the script does is known all the same
            status = str(error)
        return {
            "schema": SCHEMA,
            "status": status,
            "step_us": found and found.time_ps / 1e6,
            "compute_us": found and (found.compute_ps or 0) / 1e6,
            "exposed_us": found and (found.exposed_ps or 0) / 1e6,
            "exposed_of": found
            and [
                {"group": kind.name, "ranks": len(kind.ranks), "exposed_us": ps / 1e6}
                for kind, ps in self.exposed_ps.items()
            ],
            "mfu": found and self.mfu,
            "memory_GB": {name: nbytes / 1e9 for name, nbytes in self.memory.items()},
            "memory_limit_GB": self.cluster.compute.memory_bytes / 1e9,
            "ranks": self.world,
            "recorded": sorted(self.records),
            "assumed": self.cluster.assumed,
            "advice": [*self.advice],
            "collectives": self.collectives(everyone),
        }


def _event(call: Call, rank: int, groups: dict[tuple[str, tuple[int, ...]], Group]) -> Event:
    group = groups.setdefault((call.group, call.ranks), Group(call.group, ranks=call.ranks))
    pair = None
    if call.peer is not None:
        ends = (rank, call.peer) if call.collective == "send" else (call.peer, rank)
        pair = call.ranks.index(ends[0]), call.ranks.index(ends[1])
    dtypes = (_KINETO.get(call.dtype, ""),)
    root = 0 if call.root is None else call.ranks.index(call.root)
    return Event(group, 0, What(call.collective, (), (), dtypes, pair, call.size, root), call.place, True, 0)
