"""Compare NCCL's choice with the best: simulate the pair that NCCL takes and every other pair of its table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from simcoll.config import input_files, yaml_tree
from simcoll.errors import Place, RefusedError
from simcoll.nccl import tuner
from simcoll.nccl.algorithm_names import COLLECTIVES, TunedCollective, names
from simcoll.prediction.predict import predict
from simcoll.scenario import scenario_files
from simcoll.scenario.profile import load_profile
from simcoll.scenario.scenario_files import Point

Pair = tuple[str, str]
DTYPE: Final = "float16"


def regrets(
    system: str, table: tuner.TunerTable, profile: str, sizes: Iterable[int], env: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Simulate NCCL's choice and its rivals under the variables `env`; return a row for each collective and size.

    A row has the pair (algorithm and protocol) that NCCL takes from the table, the pair with the shortest simulated
    time, both times in us, and `regret`: how much longer NCCL's pair takes, as a share. Rows cover the collectives that
    the profile was fitted to; points whose choice is not modelled are left out. Raises InputError for a system or
    profile that is not known.
    """
    rows = []
    fitted = load_profile(profile).calibration
    covered = {series.collective for series in fitted.covers} if fitted else set(COLLECTIVES)
    for collective in COLLECTIVES:
        for size in sizes if collective in covered else ():
            choice = table.choose(collective, size)
            took = _times(system, table, profile, env, collective, size)
            if choice is None or (choice.algorithm, choice.protocol) not in took:
                continue
            own, best = took[choice.algorithm, choice.protocol], min(took, key=lambda pair: took[pair])
            rows.append({
                "collective": collective,
                "size_bytes": size,
                "algorithm": choice.algorithm,
                "protocol": choice.protocol,
                "time_us": own,
                "best_algorithm": best[0],
                "best_protocol": best[1],
                "best_us": took[best],
                "regret": own / took[best] - 1,
            })  # fmt: skip
    return rows


def _times(
    system: str,
    table: tuner.TunerTable,
    profile: str,
    env: Mapping[str, Any],
    collective: TunedCollective,
    size: int,
) -> dict[Pair, float]:
    """Simulate every pair of the table that is modelled; return times in us."""
    times: dict[Pair, float] = {}
    for served, algorithm, protocol in table.entries:
        if served == collective and algorithm in names(collective):
            try:
                point = _point(system, table, profile, env, collective, size, algorithm, protocol)
                times[algorithm, protocol] = predict(point).time_ps / 1e6
            except RefusedError:
                continue
    return times


def _point(
    system: str,
    table: tuner.TunerTable,
    profile: str,
    env: Mapping[str, Any],
    collective: str,
    size: int,
    *pair: str,
) -> Point:
    comm = table.communicator
    topology = {"file": system} if input_files.names_yaml(system) else {"system": system}
    release = {"library_version": table.constants.release} if comm.library == "nccl" else {}
    keys = {
        "name": "tune",
        "topology": {**topology, "nodes": comm.nodes},
        "placement": {"per_node": comm.gpus},
        "ranks": comm.ranks,
        "collective": collective,
        "algorithm": pair[0],
        "protocol": pair[1],
        "size": f"{size} B",
        "dtype": DTYPE,
        "profile": profile,
        "env": dict(env),
        **release,
    }
    return scenario_files.points(yaml_tree.located(keys, Place("tune", 1, 1)), [])[0]
