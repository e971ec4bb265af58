"""How the documentation is built: `make docs` writes it to docs/_build/html."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from playground_data import script  # noqa: E402

import simcoll  # noqa: E402
from simcoll.cli import main  # noqa: E402
from simcoll.scenario.scenario import json_schema  # noqa: E402

project = "simcoll"
author = "the simcoll developers"
release = version = simcoll.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "consoles", "generated"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages; internal references of pages are checked
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
default_role = "literal"  # what stands in single backticks in docstrings
autodoc_typehints = "signature"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"simcoll {release}"
html_static_path = ["_static"]
html_css_files = ["simcoll.css"]
html_extra_path = ["_build/extra"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

_PAGES = {  # how files of the repository that are included here link to others, and where that leads here
    "](docs/": "](",
    "](ARCHITECTURE.md": "](architecture.md",
    "](validation/accuracy/REPORT.md": "](accuracy.md",
    "](validation/REPORT.md": "](validation.md",
}


def _lead_to_pages(app: Sphinx, path: Path, docname: str, text: list[str]) -> None:
    """Links of an included file lead to the pages."""
    for file, page in _PAGES.items():
        text[0] = text[0].replace(file, page)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write what is served beside the pages (JSON Schema, schedules, a report), and listen to includes."""
    extra = HERE / "_build" / "extra"
    extra.mkdir(parents=True, exist_ok=True)
    (extra / "scenario.schema.json").write_text(json.dumps(json_schema(), indent=1), encoding="utf-8")
    (extra / "playground-data.js").write_text(script(), encoding="utf-8")
    main(["run", "quickstart", "--quiet", "--report", str(extra / "report.html"), "-o", str(HERE / "_build/run")])
    app.connect("include-read", _lead_to_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
