"""The package's modules, each parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from command import ROOT

PACKAGE = ROOT / "simcoll"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "shipped" not in path.relative_to(PACKAGE).parts)


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))
