"""The rules of ARCHITECTURE.md, read from ARCHITECTURE.md and checked on the source."""

from __future__ import annotations

import ast
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
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]
ONE_FILE = {"simcoll/kernel.py"}  # numba's cache notices changes within a file only
ENTRANCES = {"__init__", "__main__"}  # of the package, and of folders that are no families: outside the layers
HOMES = {  # library: where it may be imported
    "simpy": ["engines/event.py", "servers.py"],
    "matplotlib": ["plot/"],
    "yaml": ["config.py"],
    "torch": ["executors/"],
    "networkx": ["topology.py", "systems.py", "fabrics.py", "plot/topology.py", "formats/outputs/drawings.py"],
    "click": ["cli.py", "commands/"],
    "rich": ["commands/"],
    "joblib": ["workers.py"],
    "distributed": ["workers.py"],
    "cloudpickle": ["workers.py"],
    "pandas": ["api.py"],
    "scipy": ["accuracy/fitting.py"],
}
SHARED = [
    "plot/style.py",
    "plot/panels.py",
    "commands/options.py",
    "commands/progress.py",
]  # by the members of their family
MOST_LINES, HARD_LIMIT = 350, 450


def _layers() -> dict[str, tuple[int, int]]:
    """Module (`schedule`, `real/lab`) or family (`algorithms/`) to its line and place in it, from ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    found: dict[str, tuple[int, int]] = {}
    for number, cell in re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE):
        for name in re.findall(r"`([a-z_]+(?:/[a-z_]*)?)`", cell):
            if (PACKAGE / f"{name}.py").exists() or (name.endswith("/") and (PACKAGE / name).is_dir()):
                found[name] = (int(number), len(found))
    return found


LAYERS = _layers()


def _place(path: Path) -> str:
    """The module, or the family it belongs to."""
    inside = path.relative_to(PACKAGE)
    family = f"{inside.parts[0]}/"
    return family if family in LAYERS else str(inside.with_suffix(""))


def _entrance(path: Path) -> bool:
    return Path(_place(path)).name in ENTRANCES


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


def _target(name: str) -> Path | None:
    """The file of ours that a dotted name is, or lies in; None for other packages and for simcoll itself."""
    parts = name.split(".")
    if parts[0] != "simcoll":
        return None
    for end in range(len(parts), 1, -1):
        stem = ROOT.joinpath(*parts[:end])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.exists():
                return path
    return None


def _ours(path: Path) -> Iterator[tuple[int, Path]]:
    for line, name in _imports(path):
        target = _target(name)
        if target is not None and target != path:
            yield line, target


def test_the_table_names_every_module_once():
    """Every module and family stands in the table of layers, and nothing else does."""
    assert {_place(path) for path in MODULES if not _entrance(path)} == set(LAYERS)
    assert len({layer for layer, _ in LAYERS.values()}) >= 8


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_imports_point_down(path: Path):
    """A module imports only from lines above its own in the table, or from what stands to its left in its line.

    Members of a family do not import each other, but for what the family shares.
    """
    place = _place(path)
    if _entrance(path):
        return
    for line, target in _ours(path):
        where = f"{path}:{line}: imports {target.relative_to(ROOT)}"
        if _place(target) == place:
            shared = "__init__.py" in (path.name, target.name) or str(target.relative_to(PACKAGE)) in SHARED
            assert shared or _nested(path, target), where
        else:
            assert LAYERS[_place(target)] < LAYERS[place], where


def _nested(path: Path, target: Path) -> bool:
    """A sub-folder of a family is one member, and its modules may import each other."""
    return path.parent == target.parent and path.parent.parent != PACKAGE


def test_nothing_imports_in_a_circle():
    """Modules can be ordered such that each imports earlier ones only."""
    waiting = {path: {target for _, target in _ours(path)} for path in MODULES if not _entrance(path)}
    while free := [path for path, needs in waiting.items() if not needs & waiting.keys()]:
        for path in free:
            del waiting[path]
    assert not waiting


@pytest.mark.parametrize("library", sorted(HOMES))
def test_libraries_have_one_home(library: str):
    """Each large library is known to one module or family."""
    users = {str(path.relative_to(PACKAGE)) for path in MODULES for _, name in _imports(path) if _root(name) == library}
    assert not [user for user in sorted(users) if not any(user.startswith(home) for home in HOMES[library])]


def _root(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_modules_say_what_they_are(path: Path):
    """Every module, public class and public function has a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    methods = [node for cls in top if isinstance(cls, ast.ClassDef) for node in cls.body if isinstance(node, kinds)]
    public = [*top, *(node for node in methods if not node.name.startswith("_"))]
    assert ast.get_docstring(tree), "module"
    assert not [node.name for node in public if not ast.get_docstring(node) and not _framework_hook(node)]


def _framework_hook(node: ast.AST) -> bool:
    """A validator or an overload: its documentation is the thing that it validates or overloads."""
    decorators = {ast.unparse(decorator).split("(")[0] for decorator in getattr(node, "decorator_list", ())}
    return bool(decorators & {"overload", "field_validator", "model_validator"})


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_what_mypy_is_told_to_ignore_has_a_reason(path: Path):
    """In the same line, behind the kind of complaint."""
    told = [line for line in path.read_text(encoding="utf-8").splitlines() if "type: ignore" in line]
    assert not [line for line in told if not re.search(r"# type: ignore\[[\w-]+\]  # \w.+", line)]


def test_modules_are_short():
    """No module is over the hard limit; those over the soft one are named."""
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in zip(NAMES, MODULES, strict=True)}
    for name, count in sorted(lines.items()):
        if count > MOST_LINES:
            print(f"{name}: {count} lines, more than {MOST_LINES}")  # shown with -rP: split it when you are there
    assert not {name: count for name, count in lines.items() if count > HARD_LIMIT and name not in ONE_FILE}


def test_the_public_names_are_listed_once():
    """What `import simcoll` offers is what simcoll.api offers, and each name is there."""
    assert list(simcoll._PUBLIC) == api.__all__
    assert all(getattr(simcoll, name) is getattr(api, name) for name in api.__all__)
    assert set(api.__all__) < set(dir(simcoll))
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
