"""Load scenarios: read a YAML file and expand its sweep into points.

Any scalar of the file may be a list or a range. `load` makes a point of each combination, with the last key of the file
varying fastest, and reports all mistakes of the file at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from simcoll.config import input_files, yaml_tree
from simcoll.config.input_files import decoded
from simcoll.config.yaml_tree import Node
from simcoll.errors import Diagnostic, InputError, Place
from simcoll.nccl import algorithm_names
from simcoll.scenario.scenario import NATURAL_LISTS, WITH_COLUMN, Scenario, machine_named
from simcoll.scenario.sweep_expansion import MAX_VARIANTS as MAX_VARIANTS
from simcoll.scenario.sweep_expansion import differences, variants
from simcoll.schedule import registry
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_keys import TopologySpec
from simcoll.workload.expert_routing import TOKENS


@dataclass(frozen=True)
class Point:
    """One point of a sweep: a scenario in which each key has a single value.

    `places` says where each key stands in its file. `varied` holds the values of every swept key; `swept` holds the
    values of swept keys that have no column in the results. `optional` is true if the point came from `algorithm: all`;
    such a point is left out if its algorithm refuses it. `replicas` is the share of the replications to run. Keys are
    dotted paths, such as `topology.nodes`.

    >>> [point.swept for point in load("llama3-step", ["workload.bucket_cap=[4 MiB, 16 MiB]"])]
    [{'workload.bucket_cap': '4 MiB'}, {'workload.bucket_cap': '16 MiB'}]
    """

    scenario: Scenario
    optional: bool = False
    places: Mapping[str, Place] = field(default_factory=dict)
    swept: Mapping[str, object] = field(default_factory=dict)
    varied: Mapping[str, object] = field(default_factory=dict)
    replicas: tuple[int, int] | None = None

    def placed(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return the diagnostic with the place of its key in the scenario file. Without a key it gets the place of the
        topology."""
        if diagnostic.place:
            return diagnostic
        path = diagnostic.path or "topology"
        known = [".".join(path.split(".")[:count]) for count in range(path.count(".") + 1, 0, -1)]
        place = next((self.places[key] for key in known if key in self.places), None)
        return replace(diagnostic, path=path, place=place)

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Return a context in which InputErrors that pass get the places of their keys in the scenario file."""
        try:
            yield
        except InputError as error:
            raise type(error)(map(self.placed, error.diagnostics)) from None


ASKED: Final = "give a scenario's file or name, or a collective with --on SYSTEM"
_RESULTS: Final = (
    "results of simcoll",
    "`simcoll plot {file}` draws them, `simcoll compare {file} MEASURED.csv` holds them against measured times",
)
_KINDS: Final = {  # of files that are no scenarios; any other kind is a machine
    **dict.fromkeys(
        ("msccl", "mscclpp", "goal"),
        ("a schedule in another program's format", "`simcoll import {file} -o own.json`: --algorithm takes that"),
    ),
    "schedule": ("a schedule", "--algorithm {file} takes it, beside a collective and --on SYSTEM"),
    "measured": ("a table of measured times", "`simcoll compare {file} --on SYSTEM` and `simcoll diagnose` take it"),
}
_MACHINE: Final = (
    "a machine in another program's format",
    "`simcoll import {file} -o machine.yaml`: then --on takes it",
)
_OURS: Final = ("lower_bound_us", "status")  # columns that results of simcoll have, and no measured table
_OF_SCENARIOS: Final = frozenset({"collective", "workload", "topology"})  # each scenario has one of these
_OF_MACHINES: Final = frozenset({"devices", "links", "fabric", "system"})  # as topology files have at their top


def find_scenario(name: str) -> Path:
    """Return the path as given, or the file of a shipped scenario, whose name may lack `.yaml`. Raises InputError."""
    path = Path(name)
    known, stem = shipped_scenarios(), path.name.removesuffix(".yaml")
    shipped = stem in known and path.parent in (Path(), Path("scenarios"))
    if path.exists() and not path.is_dir():  # `-o quickstart` leaves a folder of that name
        return path
    if shipped:
        return known[stem]
    if not path.exists() and name in shipped_systems():
        cure = (
            f"name a collective, and the system with --on, e.g. `simcoll predict all_reduce --on {name} --size 64MiB`"
        )
        raise InputError(f"{name} is a system, not a scenario", cure)
    if (path / "results.csv").is_file():
        raise _refused(path / "results.csv", _RESULTS)
    own = {file.stem: str(file) for file in path.parent.glob("*.yaml") if file.is_file()}
    near = difflib.get_close_matches(stem, [*own, *known, *COLLECTIVES], n=1)
    cure = "give a path, or a name that `simcoll list scenarios` prints"
    cure = f"did you mean {own.get(near[0], near[0])!r}?" if near else cure
    raise InputError(f"{name}: {'a folder, and no scenario' if path.is_dir() else 'no such file'}", cure)


def read_scenario(name: str, mistakes: list[Diagnostic] | None = None) -> Node:
    """Read the file of a scenario with `yaml_tree.read`. If the file has no key `name`, add the file's name."""
    path = find_scenario(name)
    try:
        tree = yaml_tree.read(path, str(path), mistakes)
    except InputError:
        _refuse_other(path)
        raise
    if not isinstance(tree.value, dict) or "transfers" in tree.value:  # a list, a word, or a schedule
        _refuse_other(path)
    if not isinstance(tree.value, dict) or "name" in tree.value:
        return tree
    return Node({"name": Node(path.stem, tree.place), **tree.value}, tree.place, tree.keys)


def load(name: str | None, options: Sequence[str] = ()) -> list[Point]:
    """Return the points of a scenario, by its file's path, a shipped scenario's name, or a collective's name. `options`
    are assignments as for `--set`; without a name they give all keys. Raises InputError with every mistake."""
    if name is None:
        if not options:
            raise InputError("no scenario is given", "name one, or give all keys with --on SYSTEM and --set PATH=VALUE")
        return points(Node({}, Place("--set", 1, 1)), options)
    if names_collective(name):
        start = Place(name, 1, 1)
        named = Node(name, start)
        return points_of_call(Node({"name": named, "collective": named}, start), options)
    mistakes = list[Diagnostic]()
    return points(read_scenario(name, mistakes), options, mistakes)


def points(tree: Node, options: Sequence[str] = (), mistakes: list[Diagnostic] | None = None) -> list[Point]:
    """Return the points of a scenario that is given as a tree with places. Raises InputError with every mistake,
    including the `mistakes` found while the tree was read."""
    tree = _assigned(tree, options)
    if not isinstance(tree.value, dict):
        raise InputError("a scenario is a mapping", "write key: value lines", tree.place)
    if not _OF_SCENARIOS & set(tree.value) and _OF_MACHINES & set(tree.value):
        cure = f"give it with --on {tree.place.source}, or as topology: {{file: {tree.place.source}}} of a scenario"
        raise InputError("this file is a machine, not a scenario", cure, tree.place)
    mistakes = [] if mistakes is None else mistakes
    trees = variants(_all_collectives(tree), NATURAL_LISTS, mistakes)
    scenarios = yaml_tree.validate(Scenario, trees, mistakes)
    _check_tables(scenarios, trees)
    return _expanded(scenarios, trees)


def _check_tables(scenarios: Sequence[Scenario], trees: Sequence[Node]) -> None:
    """Raise InputError if a measured table that a scenario names cannot be read."""
    named = {each.measured: tree.get("measured") for each, tree in zip(scenarios, trees, strict=True) if each.measured}
    for name, node in named.items():
        from simcoll.formats.measured import find_measured, read_measured  # few scenarios name one

        try:
            read_measured(find_measured(name))
        except InputError as error:
            raise InputError([Diagnostic.of(error.diagnostics[0], "measured", node.place if node else None)]) from None


def names_collective(name: str) -> bool:
    """Return whether a name means a collective, and not a file or a shipped scenario."""
    return name in COLLECTIVES and not Path(name).exists() and name not in shipped_scenarios()


def points_of_call(tree: Node, options: Sequence[str]) -> list[Point]:
    """Return the points for a collective that the user named on the command line. Raises InputError with every mistake.
    For a missing key the message names the option, e.g. `--size`."""
    tree = _assigned(tree, options)

    def missing(key: str) -> bool:
        node = tree.get(key)
        return node is None or node.value is None

    name = tree.value["collective"].value
    if isinstance(name, str) and name not in COLLECTIVES:
        return points(tree)  # which says what it may mean
    if missing("topology"):
        raise InputError("the machine is missing", "add --on SYSTEM, e.g. --on hgx-h100")
    if missing("size") and name != "barrier" and name not in TOKENS:
        raise InputError("--size is missing", "add e.g. --size 64MiB")
    return points(tree)


def _assigned(tree: Node, options: Sequence[str]) -> Node:
    tree = with_machine(tree)
    for text, source in yaml_tree.sources(options):
        tree = with_machine(yaml_tree.assign(tree, text, source))
    return tree


def with_machine(tree: Node) -> Node:
    """Return the tree with each text at the key `topology` converted into a mapping (see `machine_named`)."""
    named = tree.get("topology")
    if named is None or not isinstance(named.value, str | list):
        return tree

    def whole(node: Node) -> Node:
        return yaml_tree.located(machine_named(node.value), node.place) if isinstance(node.value, str) else node

    made = Node([whole(each) for each in named.value], named.place) if isinstance(named.value, list) else whole(named)
    return Node({**tree.value, "topology": made}, tree.place, tree.keys)


def _all_collectives(tree: Node) -> Node:
    asked = tree.get("collective")
    if asked is None or asked.value != "all":
        return tree
    served = [name for name in COLLECTIVES if (name in TOKENS) == (tree.get("moe") is not None)]
    every = Node([Node(name, asked.place) for name in served], asked.place)
    return Node({**tree.value, "collective": every}, tree.place, tree.keys)


def _expanded(scenarios: Sequence[Scenario], trees: Sequence[Node]) -> list[Point]:
    """Return the points of scenarios. `algorithm: all` gives a point for each algorithm. Equal points count once."""
    expanded: dict[str, Point] = {}
    machines: dict[int, TopologySpec] = {}  # by node of the tree: points with one machine share its keys
    for scenario, tree, varied in zip(scenarios, trees, differences(trees), strict=True):
        swept = {path: value for path, value in varied.items() if path not in WITH_COLUMN}
        for name in _every_algorithm_of(scenario) if scenario.algorithm == "all" else (scenario.algorithm,):
            machine = machines.setdefault(id(tree.get("topology")), scenario.topology)
            changes: dict[str, Any] = {"algorithm": name, "topology": machine}
            chosen = scenario.model_copy(update=changes)
            expanded.setdefault(
                chosen.model_dump_json(), Point(chosen, scenario.algorithm == "all", _places(tree), swept, varied)
            )
    return list(expanded.values())


def _every_algorithm_of(scenario: Scenario) -> Sequence[str]:
    """Return the names that `algorithm: all` stands for: NCCL's if its calls are modelled, else all schedules."""
    called = algorithm_names.names(scenario.collective) if scenario.executed_by == "nccl" else ()
    return tuple(called) or registry.names(scenario.collective)


def _places(tree: Node, above: str = "") -> dict[str, Place]:
    """Return for every key of the tree, as a dotted path, its place in the file."""
    places: dict[str, Place] = {}
    for key, child in tree.value.items():
        places[f"{above}{key}"] = child.place
        places |= _places(child, f"{above}{key}.") if isinstance(child.value, dict) else {}
    return places


def topology_spec(name: str, nodes: int | None = None, options: Sequence[str] = ()) -> TopologySpec:
    """Return the topology for `simcoll topology show`: a system or file, changed by `--set topology.…`. Raises
    InputError."""
    keys: dict[str, Any] = dict(machine_named(name))
    if nodes is not None:
        keys["nodes"] = nodes
    tree = yaml_tree.located({"topology": keys}, Place("topology", 1, 1))
    for text, source in yaml_tree.sources(options):
        tree = yaml_tree.assign(tree, text, source)
    return yaml_tree.validate(TopologySpec, [tree.value["topology"]])[0]


def shipped_scenarios() -> dict[str, Path]:
    """Return the file of every shipped scenario, by name."""
    return {path.stem: path for path in sorted(yaml_tree.shipped("scenarios").glob("*.yaml"))}


def _refuse_other(path: Path) -> None:
    """Raise InputError if a file is of another known kind, e.g. a schedule or a measured table."""
    from simcoll.formats.importers import recognise  # loads all readers of other programs' files

    text = decoded(input_files.bytes_of(path, ASKED))
    kind = recognise(text)
    if kind == "measured" and set(_OURS) <= set(text.partition("\n")[0].strip().split(",")):
        raise _refused(path, _RESULTS)
    if kind is not None:
        raise _refused(path, _KINDS.get(kind, _MACHINE))


def _refused(path: Path, kind: tuple[str, str]) -> InputError:
    what, cure = kind
    return InputError(f"{path}: {what}, not a scenario", f"{ASKED} ({cure.format(file=path)})")
