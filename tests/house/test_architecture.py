"""Rules of the house that no other tool holds; the order of the rooms is import-linter's (pyproject.toml)."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from command import ROOT

import simcoll
from simcoll import api

PACKAGE = ROOT / "simcoll"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "shipped" not in path.relative_to(PACKAGE).parts)
HOMES = {  # library: where it may be imported
    "simpy": ["engine/event.py"],
    "matplotlib": ["report/plot/", "api/results.py"],
    "yaml": ["config/yaml_tree.py"],
    "torch": ["measurement/torch_backend/", "dry_run/"],
    "networkx": [
        "topology/",
        "synthesis/",
        "report/plot/topology.py",
        "report/exports/topology_graphs.py",
        "formats/topologies/",
        "measurement/network_namespaces.py",
    ],
    "click": ["cli/"],
    "rich": ["cli/"],
    "jinja2": ["report/html/elements.py"],
    "joblib": ["prediction/workers.py"],
    "distributed": ["prediction/workers.py"],
    "cloudpickle": ["prediction/workers.py"],
    "pandas": ["api/results.py"],
    "scipy": ["accuracy/fit/", "engine/link_usage.py", "prediction/replications.py", "synthesis/", "topology/graph.py"],
}


@cache
def _imports(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of everything a module imports, also inside functions and under TYPE_CHECKING."""
    return list(_imported(path))


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.thorough
def test_private_modules_stay_in_their_room():
    """A module named `_x` is imported from its own room only."""
    for path in MODULES:
        for line, name in _imports(path):
            parts = name.split(".")
            private = parts[0] == "simcoll" and any(re.fullmatch(r"_[a-z]\w*", part) for part in parts[2:-1])
            assert not private or PACKAGE / parts[1] in path.parents, f"{path}:{line}: imports {name}"


def test_libraries_have_one_home():
    """Each large library is imported by one module or family only."""
    strays = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}; {library} belongs to {', '.join(HOMES[library])}"
        for path in MODULES
        for line, name in _imports(path)
        if (library := name.split(".")[0]) in HOMES
        and not str(path.relative_to(PACKAGE)).startswith(tuple(HOMES[library]))
    ]
    assert not strays


def test_the_public_names_are_listed_once():
    """`import simcoll` offers what simcoll.api imports, and nothing else."""
    assert {name for name, value in vars(api).items() if not (name[0] == "_" or inspect.ismodule(value))} == {
        *simcoll.__all__, "annotations"
    }  # fmt: skip
    assert all(getattr(simcoll, name) is getattr(api, name) for name in simcoll.__all__)
    assert set(simcoll.__all__) < set(dir(simcoll))
    with pytest.raises(AttributeError, match="no attribute 'simulate'"):
        _ = simcoll.simulate


def test_no_file_knows_one_machine():
    """No file names a path of the machine it was written on, nor the host of a package registry."""
    homes = "|".join(("home", "root", "Users", "work", "tmp"))
    hosts = "|".join(("py" + "pi", "python" + "hosted", "index" + "-url"))
    alien = re.compile(rf"(?<![\w.])/(?:{homes})/\w|\b(?:{hosts})|\b(?:192\.168|10)(?:\.\d{{1,3}}){{2,3}}\b")
    texts = [
        ROOT / name for name in ("README.md", "ARCHITECTURE.md", "pyproject.toml", "Makefile", "constraints-ci.txt")
    ]
    for folder, pattern in (
        ("simcoll", "*.py"),
        ("tests", "*"),
        ("topologies", "*"),
        ("scenarios", "*"),
        ("validation", "*"),
    ):
        texts += [path for path in (ROOT / folder).rglob(pattern) if path.is_file() and "__pycache__" not in path.parts]
    for path in texts:
        text = path.read_text(encoding="utf-8", errors="ignore")
        assert path == Path(__file__) or not alien.search(text), (path, alien.search(text))
