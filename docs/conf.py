"""How the pages are built: `make docs` writes them to docs/_build/html."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import notebook  # noqa: E402
from playground_data import script  # noqa: E402

import simcoll  # noqa: E402
from simcoll.cli import main  # noqa: E402
from simcoll.scenario.scenario import json_schema  # noqa: E402

project = "simcoll"
author = "the simcoll developers"
release = version = simcoll.__version__
extensions = ["myst_parser", "consoles"]
exclude_patterns = ["_build"]
nitpicky = True
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"simcoll {release}"
html_static_path = ["_static"]
html_css_files = ["simcoll.css"]
html_extra_path = ["_build/extra"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

_PAGES = {  # links of files of the repository that are included here, and where they lead in the built pages
    "](docs/": "](",
    "](ARCHITECTURE.md": "](architecture.md",
    "](validation/accuracy/REPORT.md": "](accuracy.md",
    "](validation/REPORT.md": "](validation.md",
}
_INCLUDED = re.compile(r"^\[.*\]\((\.\./[\w/.]+)\) <!-- include:(.*) -->$", re.M)
_CONTENTS = re.compile(r"^\*\*(.*)\*\*: (.*) <!-- contents -->$", re.M)


def _fill(app: Sphinx, docname: str, text: list[str]) -> None:
    """In the built pages a file stands in place of the link to it, and lists of pages also fill the side bar."""
    text[0] = _INCLUDED.sub(_file, text[0])
    text[0] = _CONTENTS.sub(_contents, text[0])


def _file(found: re.Match[str]) -> str:
    if found[1].endswith(".ipynb"):
        return notebook.page(HERE / found[1])
    options = "\n".join(re.findall(r":[\w-]+:(?: \d+)?", found[2]))
    return f"````{{include}} {found[1]}\n{options}\n````"


def _contents(found: re.Match[str]) -> str:
    pages = "\n".join(re.findall(r"\((\w+)\.md\)", found[2]))
    return f"**{found[1]}**: {found[2]}\n\n```{{toctree}}\n:caption: {found[1]}\n:hidden:\n\n{pages}\n```\n"


def _lead_to_pages(app: Sphinx, path: Path, docname: str, text: list[str]) -> None:
    """Links of an included file lead to the pages."""
    for file, page in _PAGES.items():
        text[0] = text[0].replace(file, page)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the files that are served beside the pages: JSON Schema, schedules, a report."""
    extra = HERE / "_build" / "extra"
    extra.mkdir(parents=True, exist_ok=True)
    (extra / "scenario.schema.json").write_text(json.dumps(json_schema(), indent=1), encoding="utf-8")
    (extra / "playground-data.js").write_text(script(), encoding="utf-8")
    main(["run", "quickstart", "--quiet", "--report", str(extra / "report.html"), "-o", str(HERE / "_build/run")])
    app.connect("source-read", _fill)
    app.connect("include-read", _lead_to_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
