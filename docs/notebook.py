"""Run a notebook without Jupyter, and write it as a page: its texts, its code, and what the cells show."""

from __future__ import annotations

import ast
import base64
import json
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from simcoll.report.plot import drawn


class Cell(NamedTuple):
    """A cell: `markdown` or `code`, its text, and what it shows as HTML (empty: nothing)."""

    kind: str
    text: str
    shown: str = ""


def ran(path: Path) -> Iterator[Cell]:
    """Run the code of a notebook from top to bottom; yield its cells. Lines for Jupyter (`%`) are left out."""
    world: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield Cell("markdown", text)
            continue
        code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), world)
        value = eval(compile(ast.Expression(last.value), path.name, "eval"), world) if last else None
        yield Cell("code", code.strip(), shown(value))


def shown(value: Any) -> str:
    """What Jupyter shows of a value, as HTML."""
    if isinstance(value, Figure):
        return f'<img alt="" src="data:image/svg+xml;base64,{base64.b64encode(drawn(value, "svg")).decode()}">'
    if hasattr(value, "_repr_html_"):
        return str(value._repr_html_())
    return "" if value is None else f"<pre>{escape(repr(value))}</pre>"


def page(path: Path) -> str:
    """The notebook as Markdown, with what cells show as HTML in it."""
    parts = []
    for cell in ran(path):
        if cell.kind == "markdown":
            parts.append(cell.text)
        elif cell.text:
            parts.append(f"```python\n{cell.text}\n```")
        if cell.shown:
            parts.append(f'````{{raw}} html\n<div class="shown">{cell.shown}</div>\n````')
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(page(Path(sys.argv[1])))
