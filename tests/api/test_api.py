"""The Python API: what `import simcoll` offers."""

from __future__ import annotations

import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mypy.api
import pytest
from command import ROOT, python

import simcoll
from simcoll.prediction import result_rows
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.schedule.registry import ALGORITHMS

STAR = {"fabric": "single-switch", "hosts": 4, "link": {"bandwidth": "1 GB/s", "latency": "1 us"}}
KEYS: dict[str, Any] = {"topology": STAR, "collective": "all_reduce", "algorithm": ["ring", "naive"], "size": "4 kB"}


PACKAGE = Path(simcoll.__file__).parent
WITH_EXAMPLES = [
    ".".join(("simcoll", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Algorithms that examples register are gone after them."""
    before = {collective: dict(entries) for collective, entries in ALGORITHMS.items()}
    yield
    for collective, entries in before.items():
        ALGORITHMS[collective].clear()
        ALGORITHMS[collective].update(entries)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_in_docstrings(module: str):
    """The examples in the docstrings say what the code does."""
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("name", simcoll.__all__)
def test_every_name_has_an_example(name: str) -> None:
    """The docstring of each public name has an example, which runs with the public names alone."""
    public = {public: getattr(simcoll, public) for public in simcoll.__all__}
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(simcoll, name), name, globs=public)
    assert found.examples and not re.search(r"(from|import) simcoll\.", found.docstring)
    assert not doctest.DocTestRunner().run(found).failed


@pytest.mark.long
def test_the_example_of_a_real_run() -> None:
    """The example of `measure`, which starts processes and is skipped in docstrings, says what it does."""
    pytest.importorskip("torch")
    (example,) = doctest.DocTestFinder(recurse=False).find(simcoll.measure, globs={"measure": simcoll.measure})
    for line in example.examples:
        line.options.clear()
    assert not doctest.DocTestRunner().run(example).failed


def test_load_takes_a_path_a_name_and_a_mapping(tmp_path: Path):
    """A file, a shipped scenario's name, and the keys themselves give the same points."""
    text = (ROOT / "scenarios/quickstart.yaml").read_text(encoding="utf-8")
    (tmp_path / "quickstart.yaml").write_text(text, encoding="utf-8")
    sets = ["size=1 MiB", "algorithm=ring"]
    keys = {"name": "quickstart", "topology": {"system": "hgx-h100"}, "collective": "all_reduce", "algorithm": "ring"}
    plots = ["latency", "busbw", "timeline", "utilisation"]
    times = [
        simcoll.run(simcoll.load(source, sets))
        for source in ("quickstart", "quickstart.yaml", tmp_path / "quickstart.yaml", str(tmp_path / "quickstart.yaml"))
    ]
    times.append(simcoll.run(simcoll.load({**keys, "size": "1 MiB", "plots": plots})))
    assert all(rows == times[0] for rows in times)


def test_registered_algorithms_in_parallel():
    """An algorithm of one's own runs in worker processes as it does in this one."""

    @simcoll.register("all_reduce", "own")
    def own(request: simcoll.Request) -> Iterator[simcoll.Step]:
        """To the last rank one by one, then to everyone."""
        last = request.n - 1
        yield simcoll.send(range(last), last, 0, reduce=True)
        yield simcoll.send(last, range(last), 0)

    try:
        points = simcoll.load({**KEYS, "algorithm": ["own", "auto", "ring"]})
        rows = simcoll.run(points)
        assert [row["status"] for row in rows] == ["ok", "ok", "ok"]
        assert simcoll.run(points, jobs=2) == rows
    finally:
        del ALGORITHMS["all_reduce"]["own"]


def test_results_are_written_as_by_the_command_line(tmp_path: Path):
    """`to_csv` writes what `simcoll run -o` writes, and it is read back."""
    rows = simcoll.run(simcoll.load(KEYS))
    rows.to_csv(tmp_path / "new" / "r.csv")
    back = result_rows.read(tmp_path / "new/r.csv")
    assert [row["time_us"] for row in back] == [18.0, 28.0]
    assert [row["busbw_GBps"] for row in back] == [row["busbw_GBps"] for row in rows]


@pytest.mark.thorough
def test_a_type_checker_knows_the_public_names(tmp_path: Path):
    """Who imports simcoll has its types, strictly, and no name beside the public ones."""
    lines = ["import simcoll as sc", 'reveal_type(sc.run("quickstart"))', 'reveal_type(sc.Link("1 GB/s", 0))', "sc.no"]
    (tmp_path / "script.py").write_text("\n".join(lines), encoding="utf-8")
    options = [
        f"--config-file={ROOT / 'pyproject.toml'}",
        f"--cache-dir={ROOT / '.mypy_cache'}",
    ]  # as `make lint` has it
    out, err, status = mypy.api.run([*options, str(tmp_path / "script.py")])
    told = [line.partition("script.py:")[2] for line in out.splitlines()]
    assert (status, err, told[:3]) == (
        1, "", ['2: note: Revealed type is "simcoll.api.results.Results"',
                '3: note: Revealed type is "simcoll.topology.wiring.Link"',
                '4: error: Module has no attribute "no"  [attr-defined]'],
    )  # fmt: skip


def test_the_star_gives_the_public_names():
    """`from simcoll import *` gives these and no others; `import simcoll` imports none of them."""
    given: dict[str, Any] = {}
    exec("from simcoll import *", given)
    assert set(given) - {"__builtins__"} == set(simcoll.__all__)
    begun = python("import sys, simcoll; print([name for name in sys.modules if name.startswith('simcoll.')])")
    assert begun.stdout == "[]\n"


def test_every_public_name_is_documented():
    """What a user meets in `help(simcoll)` says what it is."""
    for name in simcoll.__all__:
        assert getattr(simcoll, name).__doc__, name
    assert len(COLLECTIVES) == 12
