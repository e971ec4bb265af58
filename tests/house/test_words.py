"""Words of the house: docstrings say what a thing is, and a type name has one meaning."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from command import ROOT
from sources import MODULES, PACKAGE, tree

HEADLESS = re.compile(r"(What|Whose|How|Who|Where|When|Which|Of|As|That|Those|By|To whom|From)\b")
WORDS = re.compile(r"\b(told(?! apart)|tells)\b")


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module of the package, by its path."""
    return {str(path.relative_to(PACKAGE)): tree(path) for path in MODULES}


def _wrong_docstrings(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if HEADLESS.match(text):
                yield f"{name}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"


def test_docstrings_have_a_subject(trees: dict[str, ast.Module]) -> None:
    """No docstring opens with a headless clause (`What …`, `How …`)."""
    assert not [line for name, module in trees.items() for line in _wrong_docstrings(name, module)]


def test_headless_clauses_are_found() -> None:
    """The check above can fail."""
    tree = ast.parse('"""What a module is."""\ndef f():\n    """How a key is."""\ndef g():\n    """The key."""\n')
    assert list(_wrong_docstrings("x.py", tree)) == ["x.py:1: What a module is.", "x.py:2: How a key is."]


def _with_words(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if WORDS.search(line)]


def test_nothing_is_told() -> None:
    """No file of the package and no page has `told` or `tells` as a verb for all purposes, in comments, names and
    messages either; only things that differ may be told apart."""
    files = (path for root in (PACKAGE, ROOT / "docs") for path in root.rglob("*") if "_build" not in path.parts)
    pages = [path for path in (*files, *ROOT.glob("*.md")) if path.suffix in (".py", ".yaml", ".js", ".css", ".md")]
    assert not {path.name: found for path in pages if (found := _with_words(path.read_text(encoding="utf-8")))}
    assert _with_words("a row tells\nand is told apart\nit is told\n") == ["a row tells", "it is told"]


def _types(tree: ast.Module) -> Iterator[str]:
    """Names of classes, and of other names in CapWords that are assigned: aliases of types."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and "TypeVar" not in ast.unparse(node.value):
            names = (target.id for target in node.targets if isinstance(target, ast.Name))
            yield from (name for name in names if re.fullmatch(r"_?[A-Z][a-z]\w*", name))


def test_a_type_name_has_one_meaning(trees: dict[str, ast.Module]) -> None:
    """No two modules define a class or an alias of a type under one name, except for those that are listed."""
    homes: dict[str, list[str]] = {}
    for name, module in trees.items():
        for defined in _types(module):
            homes.setdefault(defined, []).append(name)
    assert not {defined: names for defined, names in homes.items() if len(names) > 1}
