"""Predict one point, and make its row of results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from simcoll.engine import link_usage
from simcoll.engine.link_usage import Binding
from simcoll.engine.run import Keep
from simcoll.nccl import algorithm_names
from simcoll.prediction.confidence import ModelErrors, PredictedCase, Setting, fingerprint, follows, judge
from simcoll.prediction.placed_topology import rated_topology
from simcoll.prediction.predictions import CallPrediction, Prediction, StepPrediction
from simcoll.prediction.result_rows import ResultRow
from simcoll.prediction.runs import predict_call, predict_plan
from simcoll.prediction.training_step import predict_all_ranks, predict_training
from simcoll.scenario.profile import (
    Calibration,
    CostSetting,
    load_network,
    load_profile,
    shipped_profiles,
    transport_of,
)
from simcoll.scenario.profile_choice import check_gpus
from simcoll.scenario.scenario import SYNTHESIZED, Scenario
from simcoll.scenario.scenario_files import Point
from simcoll.schedule.collectives import collective
from simcoll.topology.graph import Topology
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import described, load_system
from simcoll.workload.training_keys import TrainingStep

__all__ = ["Prediction", "describe", "lent", "place", "predict", "row"]


_OF_WORKLOADS: Final = (
    *("scenario", "collective", "workload", "size_bytes", "op", "root", "in_place", "steps", "algbw_GBps"),
    *("busbw_GBps", "step_us", "compute_us", "waiting_us", "exposed_us"),
)  # columns in which a workload of one call differs from the call


def predict(
    point: Scenario | Point,
    topology: Topology | None = None,
    *,
    costs: CostSetting | None = None,
    related: bool = False,
    keep: Keep = "auto",
) -> Prediction:
    """Simulate one point without random disturbances. `topology` (with rated bandwidths) replaces the scenario's
    topology, and `costs` replaces the profile's costs. With `related` the profile may be of another GPU generation. For
    `keep` see `Policy`; a program or timeline that was not kept is computed when asked for.

    Raises InputError for what the user can mend, RefusedError if an algorithm cannot serve the point. Raises StuckError
    if the run cannot finish, ScheduleError if the schedule cannot be proved.
    """
    if isinstance(point, Point):
        with point.placing():
            return predict(point.scenario, topology, costs=costs, related=related, keep=keep)
    scenario = point
    struck = scenario.striking
    profile = load_profile(scenario.profile)
    if (profile.generations or profile.transport) and costs is None and not related:
        check_gpus(profile, described(scenario.topology))
    lasting = [fault for fault in scenario.striking if fault.lasting]
    if lasting and profile.as_nccl:  # the rates of kernels follow from the machine's links
        from simcoll.scenario.faults import weakened

        topology = weakened(topology or rated_topology(scenario), lasting)
        others = tuple(fault for fault in scenario.faults if not fault.lasting)
        scenario = scenario.model_copy(update={"faults": others})
    # A collective runs as one program, which allows shortcuts; a workload's operations are joined. Both give the same
    # time.
    costed = costs or CostSetting.of(profile)
    if scenario.workload:
        prediction: Prediction = predict_workload(scenario, topology, costed)
    else:
        prediction = predict_call(scenario, topology, costed, keep)
    if costs is None and scenario.protocol == "pull":  # its launch is that of a CUDA graph
        profile.check_pull()
    elif costs is None:
        profile.check_launch(scenario.launch)
    asked = asked_of(scenario)
    if (prediction.asked, prediction.struck) == (asked, struck):
        return prediction
    return replace(prediction, asked=asked, struck=struck)


def predict_workload(scenario: Scenario, topology: Topology | None, costs: CostSetting) -> Prediction:
    """Return the prediction of a workload. Of a training step one rank of each stage is simulated, or, with shortcuts
    off, all ranks."""
    if isinstance(scenario.workload, TrainingStep):
        return (predict_training if scenario.shortcuts == "on" else predict_all_ranks)(scenario, topology, costs)
    return predict_plan(scenario, topology, costs)


def row(prediction: Prediction, elsewhere: ModelErrors | None = None) -> ResultRow:
    """Return the row of results of a predicted point. A workload of a single call gets the row of this call, except for
    the columns of workloads. For `elsewhere` see `judge`."""
    if isinstance(prediction, StepPrediction) and prediction.only:
        own = {name: getattr(_row(prediction, elsewhere), name) for name in _OF_WORKLOADS}
        return replace(row(prediction.only, elsewhere), **{**own, **prediction.facts})
    return _row(prediction, elsewhere)


def _row(prediction: Prediction, elsewhere: ModelErrors | None) -> ResultRow:
    scenario, totals, topology = prediction.scenario, prediction.totals, prediction.topology
    time_ps, compute_ps = prediction.time_ps, prediction.compute_ps
    waiting_ps, exposed_ps = prediction.waiting_ps, prediction.exposed_ps
    binding = busiest_link(prediction)
    busiest = (prediction.links.names[binding.link], binding.busy) if binding else (None, None)
    if prediction.host_ps and prediction.host_ps / time_ps > (busiest[1] or 0):
        busiest = "host", prediction.host_ps / time_ps
    waited = prediction.staged
    known = _described(scenario)
    chosen = prediction.lowered.chosen if isinstance(prediction, CallPrediction) else {}
    columns: dict[str, Any] = known | {
        "settings": {**known["settings"], **chosen},
        "protocol": prediction.protocol,
        "topology": topology.name,
        "asked": prediction.asked,
        "algorithm": _called(prediction) or None,
        "sharing": prediction.sharing,
        "executor": scenario.executed_by if scenario.moe else prediction.executor,
        "ranks": prediction.ranks,
        "nodes": prediction.nodes,
        "time_us": time_ps / 1e6,
        "time_ps": time_ps,
        "algbw_GBps": prediction.algbw,
        "busbw_GBps": prediction.busbw,
        "steps": prediction.steps,
        "messages": totals.messages,
        "wire_bytes": totals.wire_bytes,
        "lower_bound_us": prediction.lower_bound_ps / 1e6,
        "bound_kind": prediction.lower_bound.kind,
        "engine": prediction.engine,
        "shortcut": totals.shortcut,
        "proved": prediction.proved or None,
        "bytes_per_rank": totals.bytes_per_rank,
        "transport": _transport(prediction),
        "never_fitted": never_fitted(prediction),
        "binding_link": busiest[0],
        "binding_busy": busiest[1],
        "staged": waited.count if waited else None,
        "staged_bytes": waited.peak_bytes if waited else None,
        "step_us": None if compute_ps is None else time_ps / 1e6,
        "compute_us": None if compute_ps is None else compute_ps / 1e6,
        "waiting_us": None if waiting_ps is None else waiting_ps / 1e6,
        "exposed_us": None if exposed_ps is None else exposed_ps / 1e6,
    }
    trusted = _trusted(prediction, binding.busy if binding else 0.0, elsewhere)
    return ResultRow(status="ok", **{**columns, **trusted, **prediction.facts})


def _called(prediction: Prediction) -> str:
    """Return the algorithm that ran, by NCCL's name if the user gave that: NCCL's `ring` broadcast is a chain."""
    asked, scenario = prediction.asked, prediction.scenario
    if asked == SYNTHESIZED:
        return asked
    by_name = {} if scenario.workload else algorithm_names.names(scenario.collective)
    same = asked in by_name and algorithm_names.SCHEDULES[by_name[asked], scenario.collective] == prediction.algorithm
    return asked if same else prediction.algorithm


def busiest_link(prediction: Prediction) -> Binding | None:
    """Return the link that is busy for the longest share of the time; None if no link carries data."""
    return link_usage.binding(prediction.totals, prediction.links.capacities, prediction.time_ps)


def _trusted(prediction: Prediction, busy: float, elsewhere: ModelErrors | None) -> dict[str, object]:
    """Return a row's columns on confidence and intervals. Workloads have no measured rows: they are "modelled"."""
    scenario, profile = prediction.scenario, load_profile(prediction.scenario.profile)
    if not isinstance(prediction, CallPrediction):
        return {"confidence": "modelled"} if follows(profile, scenario.model) else {}
    usual = profile.calibration and prediction.lowered.usual
    places = prediction.devices[: prediction.n]
    setting = fingerprint(prediction.topology, scenario.params(), places) if usual else ""
    pulls = scenario.protocol == "pull"  # its launch is that of a CUDA graph, whatever the scenario says
    way = "" if pulls else scenario.launch.way
    ran = prediction.lowered.scenario.collective  # of tokens: the all_to_all that moves them
    where = Setting(ran, prediction.nodes, place(prediction), busy, way, lent(prediction))
    how = prediction.protocol, prediction.lowered.by_itself, scenario.protocol not in ("none", "auto")
    case = PredictedCase(where, prediction.algorithm, prediction.ranks, scenario.nbytes, setting, *how)
    shipped = {scenario.profile.partition("+")[0], transport_of(scenario.profile) or ""} <= {*shipped_profiles(), ""}
    time_us, least_us = prediction.time_ps / 1e6, min(prediction.time_ps, prediction.lower_bound_ps) / 1e6
    judged = prediction.lowered.judged
    if judged is None and scenario.executed_by in ("msccl", "p2p"):
        if not pulls:
            return {"confidence": "modelled"}
        fitted = profile.judged_by(profile.pull)
    else:
        launched = profile.graph if scenario.launch.graph else profile.host if prediction.waited_ps else None
        fitted = profile.judged_by(launched)
    shipped = shipped or (fitted.calibration is not None and _is_shipped(fitted.calibration))
    judged = judged or judge(fitted, case, scenario.model, shipped, elsewhere)
    ends = {f"{name}_us": None if factor is None else max(least_us, time_us * factor)
            for name, factor in judged._asdict().items() if name != "confidence"}  # fmt: skip
    return {"confidence": judged.confidence, **ends}


def place(prediction: Prediction) -> str:
    """Return the name of the NICs' profile for a call between nodes, else the kind of links between its GPUs."""
    if prediction.nodes > 1:
        if named := transport_of(prediction.scenario.profile):
            return named
        system = described(prediction.scenario.topology)
        return system.nic.profile if system and system.nic else ""
    kinds = prediction.topology.link_kinds
    return next((kind for kind in ("nvlink", "xgmi", "pcie") if kind in kinds), kinds[0] if kinds else "")


def _is_shipped(record: Calibration) -> bool:
    """Whether the record of a fit (`record`) is that of a shipped profile. Another profile may hold it too: one that
    was fitted only to a machine's host costs keeps the shipped costs of GPUs and their record."""
    profiles = map(load_network, shipped_profiles())
    parts = [part for each in profiles for part in (each, each.host, each.graph, each.pull)]
    known = [part.calibration for part in parts if part and part.calibration]
    return any((record.date, record.files, record.errors) == (each.date, each.files, each.errors) for each in known)


def lent(prediction: Prediction) -> bool:
    """Whether the costs of a call were fitted to another model of GPU than the machine's, or to an unknown model."""
    models = _models(prediction)
    return models is None or len(models) < 2 or models[0] != models[1]


def never_fitted(prediction: Prediction) -> str | None:
    """Return the machine's model of GPU if the costs of a call were fitted to other chips only; else None. Models that
    differ in the size of their memory are one chip; tables of further machines have the chip in their name."""
    models = [re.sub(r" [0-9]+ GB$", "", model) for model in _models(prediction) or ()]
    beside = [table for each in load_profile(prediction.scenario.profile).beside for table in each.tables]
    other = len(models) == 2 and models[0] != models[1]
    return models[0] if other and not any(models[0].lower() in table for table in beside) else None


def _models(prediction: Prediction) -> Sequence[str] | None:
    """Return the machine's model of GPU, and the model to which the costs of a call were fitted, as far as they are
    known; None for costs that were not fitted."""
    record, spec = load_profile(prediction.scenario.profile).calibration, prediction.scenario.topology
    if record is None:
        return None
    if record.topology in (spec.system, spec.title):
        return ("", "")
    machine = described(spec)
    fitted = load_system(record.topology) if record.topology in shipped_systems() else None
    return [each.gpu.model for each in (machine, fitted) if each and each.gpu]


def _transport(prediction: Prediction) -> str | None:
    """Return the profile of messages between nodes (its name) if the GPUs' profile lacks them, else None."""
    name = prediction.scenario.profile
    own = load_profile(name)
    apart = own.kernels is not None and (own.transport is None or transport_of(name) is not None)
    return place(prediction) or None if apart and prediction.nodes > 1 else None


def asked_of(scenario: Scenario) -> str:
    """Return the algorithm that a scenario requests, for its collective or for the calls of its workload."""
    return scenario.workload.algorithm if scenario.workload else scenario.algorithm


def describe(scenario: Scenario, status: str, **marks: Any) -> ResultRow:
    """Return a row of results with only the columns known without a run; `status` says e.g. `refused: …`."""
    return ResultRow(status=status, **_described(scenario), **marks)


def _described(scenario: Scenario) -> dict[str, Any]:
    work, contract = scenario.workload, collective(scenario.collective) if not scenario.workload else None
    reduction = None if contract is None else scenario.op if contract.reduces else "none"
    return {
        "scenario": scenario.name,
        "topology": scenario.topology.title,
        "collective": scenario.collective,
        "asked": asked_of(scenario),
        "algorithm": asked_of(scenario),
        "protocol": scenario.protocol,
        "executor": scenario.executed_by,
        "ranks": scenario.ranks,
        "size_bytes": None if work else scenario.nbytes,
        "seed": scenario.seed,
        "dtype": scenario.moe.dtype if scenario.moe else scenario.dtype,
        "op": reduction,
        "root": scenario.root if contract and contract.rooted else None,
        "in_place": None if work else scenario.in_place,
        "profile": scenario.profile,
        "sharing": scenario.params().sharing,
        "workload": work.template if work else None,
        "library_version": scenario.library_version,
        "settings": scenario.launch.columns,
    }
