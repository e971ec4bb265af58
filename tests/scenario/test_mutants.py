"""Scenarios with odd values: whatever stands at a key, `run` ends in good time with rows or with words."""

from __future__ import annotations

import copy
import functools
import json
import random
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import foreign
import pytest
import yaml
from command import simcoll

from simcoll.config import numba_loader
from simcoll.config.yaml_tree import shipped
from simcoll.scenario.profile import shipped_profiles
from simcoll.scenario.scenario import json_schema

SECONDS, MIB = 60.0, 1024  # of a processor that others use as well
STAR = {"fabric": "single-switch", "hosts": 4, "link": {"bandwidth": "50 GB/s", "latency": "1 us"}}
TREE = {**STAR, "fabric": "fat-tree", "levels": 2, "hosts": 8, "hosts_per_leaf": 4, "oversubscription": 2}
COLLECTIVE = {"collective": "all_reduce", "algorithm": "ring", "size": "1 MiB", "plots": []}
VALID: list[dict[str, Any]] = [
    {**COLLECTIVE, "topology": STAR},
    {**COLLECTIVE, "topology": TREE, "algorithm": "hierarchical", "groups": [[0, 1, 2, 3], [4, 5, 6, 7]]},
    {**COLLECTIVE, "topology": {"system": "hgx-h100"}, "algorithm": "auto"},
    {**COLLECTIVE, "topology": {"system": "hgx-h100", "nodes": 2}, "algorithm": "tree", "protocol": "LL128"},
    {**COLLECTIVE, "topology": {"system": "mi300x"}, "executor": "msccl", "algorithm": "two_shot", "ranks": 4},
    {**COLLECTIVE, "topology": {"system": "hgx-h100"}, "library_version": 2.22, "env": {"NCCL_ALGO": "Ring"}},
    {**COLLECTIVE, "topology": STAR, "collective": "gather", "algorithm": "auto", "root": 1, "weights": [1, 2, 3, 1]},
    {**COLLECTIVE, "topology": STAR, "model": {"channels": 2, "chunk": "64 KiB", "sharing": "fifo", "o_send": "1 us"}},
    {**COLLECTIVE, "topology": {**STAR, "fabric": "torus", "dims": [2, 2], "hosts": 4}, "arrivals": {1: "5 us"}},
    {**COLLECTIVE, "topology": STAR, "faults": [{"link": "host1->switch", "at": "3 us", "kind": "slow", "factor": 2}]},
    {
        **COLLECTIVE,
        "topology": STAR,
        "replications": 5,
        "variability": {"launch_skew": {"distribution": "lognormal", "median": "3 us", "sigma": 0.8}},
    },
    {"topology": STAR, "plots": [], "workload": {"template": "ddp", "model": "mlp", "gpu": "h100"}},
    {
        "topology": {"system": "hgx-h100"},
        "plots": [],
        "workload": {
            "template": "training",
            "model": {"layers": 2, "hidden": 256, "ffn": 1024, "heads": 4, "vocab": 512},
            "parallel": {"tp": 4},
            "batch": {"global": 8, "sequence": 512},
        },
    },
]
NUMBERS = (0, 1, -1, 2, 3, 5, 7, 9, 64, 1000, 10**6, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e-300, 1e300,
           float("inf"), float("nan"))  # fmt: skip
OF_KIND = {
    "integer": (0, 1, 2, 3, 4, 7, 64, 1000, 10**5, -1),
    "number": (0, 1, 0.3, 4, 1e6, -1),
    "boolean": (False, True),
}
UNITS = ("B", "KiB", "TiB", "GB/s", "Gb/s", "us", "s", "min", "ps/B", "%", "", " ", "XB")
WORDS = ("", " ", "ring", "auto", "all", "none", "off", "host1", "host*->switch", "*", "=1+1", "ü🙂", "a" * 3000, "1e3",
         "0x10", "../..", "/dev/null", "{}", "ring(", "hierarchical(across=ring)", "2.99", "-", "x.json")  # fmt: skip


def odd(rng: random.Random) -> Any:
    """A value of any kind."""
    return rng.choice([
        lambda: rng.choice(NUMBERS),
        lambda: f"{rng.choice(NUMBERS):.12g} {rng.choice(UNITS)}",
        lambda: f"{rng.choice((0, 1, 3, 8, 1000, 4096))} {rng.choice(UNITS)}",
        lambda: rng.choice(WORDS),
        lambda: rng.choice([None, True, False, [], {}, [[]], [None], {"a": 1}, {1: 2}]),
        lambda: [odd(rng) for _ in range(rng.randint(1, 3))],
        lambda: {"from": odd(rng), "to": odd(rng), rng.choice(["factor", "step"]): odd(rng)},
        lambda: {"from": "1 KiB", "to": "1 MiB", "factor": rng.choice((1.0001, 1.5, 4, 1e9))},
        lambda: {"from": 1, "to": rng.choice((4, 10**9)), "step": rng.choice((1, 3))},
    ])()  # fmt: skip


@functools.cache
def _keys() -> dict[str, Any]:
    """Definitions of the schema's mappings by name, the scenario's as ``."""
    whole = json_schema()
    return {"": whole, **whole["$defs"]}


def _choices(value: Any) -> Iterator[Any]:
    """Values and mappings that a schema allows at a key."""
    if not isinstance(value, dict):
        return
    yield from value.get("enum", ())
    yield from value.get("examples", ())
    yield from OF_KIND.get(str(value.get("type")), ())
    if "const" in value:
        yield value["const"]
    if "$ref" in value:
        yield value["$ref"]
    for part in ("anyOf", "oneOf", "allOf"):
        for below in value.get(part, ()):
            yield from _choices(below)


def meant(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """A value as the schema has it at a key, or an odd one where the schema says little."""
    choices = list(_choices(value))
    if not choices:
        return odd(rng)
    chosen = rng.choice(choices)
    if isinstance(chosen, str) and re.fullmatch(r"[\d.]+ [A-Za-z/%]+", chosen) and rng.random() < 0.7:
        return f"{rng.choice((0, 1, 3, 8, 0.5, 1000, 4096, 10**6))} {chosen.split()[1]}"
    if not isinstance(chosen, str) or not chosen.startswith("#/"):
        return chosen
    inside = _keys()[chosen.rpartition("/")[2]].get("properties", {})
    keys = rng.sample(sorted(inside), min(len(inside), rng.randint(1, 3)))
    return {key: meant(rng, inside[key], depth + 1) if depth < 3 else odd(rng) for key in keys}


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each mapping or list inside, with each of its keys."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from places(tree[key])


def mutant(number: int) -> dict[str, Any]:
    """A valid scenario with one to three changes, the same for the same number."""
    rng = random.Random(f"mutant {number}")
    scenario = copy.deepcopy(rng.choice(VALID))
    keys = _keys()[""]["properties"]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holder, key = rng.choice(list(places(scenario)))
        how = rng.randrange(8)
        if how == 0:
            del holder[key]
        elif how == 1:
            holder[key] = [holder[key], odd(rng)]
        elif how == 2:
            other, another = rng.choice(list(places(scenario)))
            holder[key] = copy.deepcopy(other[another])
        elif how <= 5:
            added = rng.choice(sorted(keys))
            scenario[added] = meant(rng, keys[added])
        else:
            holder[key] = odd(rng)
        if not scenario:
            scenario = copy.deepcopy(rng.choice(VALID))
    return scenario


def mutated(rng: random.Random, tree: Any) -> Any:
    """A tree with one to three odd changes."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not (spots := list(places(tree))):
            return tree
        (holder, key), (other, another) = rng.choice(spots), rng.choice(spots)
        how = rng.randrange(6)
        if how == 0:
            del holder[key]
        elif how == 1:
            holder[key] = copy.deepcopy(other[another])
        else:
            holder[key] = [holder[key], odd(rng)] if how == 2 else odd(rng)
    return tree


CABLE = {"link": "host1->switch", "at": "3 us"}
FLAP = {**CABLE, "kind": "flap", "down_for": "2 us", "period": "5 us"}
FAULTS: list[dict[str, Any]] = [
    {**CABLE, "kind": "down", "until": "40 us", "on_failure": "reroute", "detection": "5 us"},
    {**CABLE, "kind": "down", "until": "40 us", "timeout": "1 s"},
    {**CABLE, "kind": "slow", "until": "40 us", "factor": 3},
    {**FLAP, "times": 4, "timeout": "1 s"},
    {**FLAP, "until": "30 us", "on_failure": "reroute"},
    {**CABLE, "kind": "background", "share": "30 %", "until": "40 us"},
]
VARIED = {
    "launch_skew": {"distribution": "uniform", "low": "0 us", "high": "3 us"},
    "slow": [{"rank": 1, "factor": 2, "probability": 0.5}],
}
SHAPE = {"model": "mlp", "gpu": "h100"}
WORKLOADS: list[dict[str, Any]] = [
    {"template": "ddp", **SHAPE, "bucket_cap": "1 MiB", "streams": 2, "optimizer": "5 us"},
    *({"template": name, "size": "64 KiB", "local": "3 us"} for name in ("mean", "softmax", "argmax", "scatter")),
    {
        "operations": [
            {"name": "backward", "time": "20 us"},
            {"name": "gradients", "collective": "all_reduce", "size": "1 MiB"},
            {"name": "optimizer", "time": "3 us", "after": ["backward", "gradients"]},
        ]
    },
]


def troubled(number: int) -> dict[str, Any]:
    """A call or a step under a fault, with one to three odd values in a part; the same for the same number."""
    rng = random.Random(f"troubled {number}")
    scenario: dict[str, Any] = {"topology": rng.choice([STAR, STAR, TREE]), "faults": [rng.choice(FAULTS)], "plots": []}
    scenario |= {"workload": rng.choice(WORKLOADS)} if rng.random() < 0.7 else COLLECTIVE
    if rng.random() < 0.4:
        scenario |= {
            "replications": 4,
            "variability": VARIED,
            "faults": [{**scenario["faults"][0], "probability": 0.5}],
        }
    part = rng.choice([key for key in ("faults", "workload", "variability") if key in scenario])
    return {**scenario, part: mutated(rng, scenario[part])}


class TooLongError(Exception):
    """A mutant took more than SECONDS of the processor."""


def _end(*_: object) -> None:
    raise TooLongError


def fault(scenario: dict[str, Any], folder: Path) -> str | None:
    """What is wrong with how `run` ends on a scenario; None if nothing is."""
    path = folder / "mutant.yaml"
    path.write_text(yaml.safe_dump(scenario, allow_unicode=True), encoding="utf-8")
    return fault_of("run", path, "--json")


def fault_of(*words: object) -> str | None:
    """What is wrong with how a command ends; None if nothing is."""
    handler = signal.signal(signal.SIGVTALRM, _end)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        done = simcoll(*words)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
    took, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if took > SECONDS:
        return f"{took:.1f} s"
    if (peak - before) / 1024 > MIB:
        return f"{(peak - before) / 1024:.0f} MiB"
    if done.status not in (0, 1, 2) or "Traceback" in done.err or (done.status == 2 and (done.out or not done.err)):
        return f"status {done.status}: {done.err[:300]}"
    if "a bug of simcoll" in done.err + done.out:
        return done.err[:300]
    return None


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("made", [mutant, troubled])
@pytest.mark.parametrize("numbers", [range(100), pytest.param(range(100, 2000), marks=pytest.mark.long)], ids=len)
def test_mutants(
    made: Callable[[int], dict[str, Any]], numbers: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd values in valid scenarios, in faults of all kinds, in all workloads, and in what varies: rows, or words about
    them; none takes 60 s or 1 GiB."""
    monkeypatch.setattr(numba_loader, "have_numba", lambda: False)  # to compile takes long, once, and is no mutant's
    faults = {number: found for number in numbers if (found := fault(made(number), tmp_path))}
    assert not faults, "\n".join(f"{number}: {found}\n  {made(number)}" for number, found in faults.items())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: f"{each['kind']}-{each.get('on_failure')}")
def test_what_is_mutated_is_valid(fault: dict[str, Any], tmp_path: Path) -> None:
    """Each kind of fault, in a call, in replications and in each workload, ends with a row."""
    sound = {"topology": STAR, "faults": [fault], "plots": []}
    for more in (COLLECTIVE, {**COLLECTIVE, "replications": 4, "variability": VARIED}):
        (tmp_path / "valid.yaml").write_text(yaml.safe_dump({**sound, **more}), encoding="utf-8")
        assert simcoll("run", tmp_path / "valid.yaml", "--json").status == 0
    for workload in WORKLOADS:
        (tmp_path / "valid.yaml").write_text(yaml.safe_dump({**sound, "workload": workload}), encoding="utf-8")
        done = simcoll("run", tmp_path / "valid.yaml", "--json")
        assert done.status == 0, done.err


MACHINE = ("predict", "all_reduce", "--size", "1 MiB")
OTHERS: dict[str, tuple[str, tuple[str, ...]]] = {  # shipped files of a kind, and the command that reads one
    "topologies": ("*.yaml", (*MACHINE, "--on")),
    "profiles": ("", (*MACHINE, "--on", "hgx-h100", "--profile")),
    "measured": ("h100*.csv", ("compare", "--on", "hgx-h100")),
    "plans": ("", ("import",)),
}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", OTHERS)
def test_mutants_of_other_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines, profiles, measured tables and plans with odd values end as scenarios do."""
    monkeypatch.setattr(numba_loader, "have_numba", lambda: False)
    pattern, words = OTHERS[kind]
    known = shipped_profiles().values() if kind == "profiles" else shipped(kind).glob(pattern or "none")
    files = [path.read_text() for path in sorted(known)]
    if kind == "measured":
        tables = [[line.split(",") for line in text.splitlines()] for text in files]
        trees: list[Any] = [[table[0], *random.Random(0).sample(table[1:], 12)] for table in tables]
    else:
        plans = [foreign.plan(), foreign.switched_plan()]
        trees = [yaml.safe_load(text) for text in files] if kind != "plans" else plans
    trees += [STAR, TREE] if kind == "topologies" else []
    faults = {}
    for number in range(100):
        rng = random.Random(f"{kind} {number}")
        tree, path = mutated(rng, rng.choice(trees)), tmp_path / ("mutant.csv" if kind == "measured" else "mutant.yaml")
        table = kind == "measured" and all(isinstance(row, list) for row in tree)
        text = "\n".join(",".join(map(str, row)) for row in tree) if table else json.dumps(tree)
        path.write_text(text if kind in ("measured", "plans") else yaml.safe_dump(tree), encoding="utf-8")
        if found := fault_of(*words, path):
            faults[number] = found
    assert not faults
