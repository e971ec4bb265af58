"""What the pages of docs/ show is what happens."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import documents
import pytest
from command import ROOT, command_names, simcoll
from extras import needs

from docs import generated
from simcoll.config.yaml_tree import Model, field_texts, models
from simcoll.prediction.result_rows import COLUMNS
from simcoll.scenario.profile import Profile
from simcoll.scenario.scenario import Scenario
from simcoll.schedule import registry

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WITH_TABLES = [page for page in generated.PAGES if "<!-- generated" in page.read_text("utf-8")]
# Several machines, root, GPUs or an hour: tests/measurement/ and tests/accuracy/test_validate.py run their likes.
ELSEWHERE = ("simcoll measure", "simcoll lab", "simcoll validate")
# A fit is not the same to the last digit with every release of scipy: of what it prints, the words count.
FITTED = re.compile(r"simcoll calibrate|profile=mine")


def names(page: Path) -> str:
    """A page by its name."""
    return page.stem


RUN = [page for page in PAGES if re.search(r"^```(console|python|pycon|yaml)$", page.read_text("utf-8"), re.M)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=needs("torch")) if page.stem == "dryrun" else page for page in RUN], ids=names
)
def test_a_page_is_a_session(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """From top to bottom, in one folder, every block of a page works, and prints what stands below it.

    A block of YAML, text or `py` that opens with `# NAME` is that file. A command ends with 0, unless `echo $?` below
    it says something else. Python blocks are programs, or sessions with what they print. With `--update-golden` what
    commands print is written into the page."""
    monkeypatch.chdir(tmp_path)
    known = {name: dict(entries) for name, entries in registry.ALGORITHMS.items()}
    world: dict[str, object] = {"__name__": "docs"}
    whole = page.read_text("utf-8")
    try:
        for language, text in documents.every_block(whole):
            if language in ("yaml", "text", "py"):
                if name := re.match(r"# ([\w.-]+)\n", text):
                    Path(name[1]).write_text(text, "utf-8")
            elif language == "console":
                printed = documents.ran(text, ELSEWHERE)
                cut = [shown for shown in documents.commands(printed) if " | head" in shown.command]
                assert all(shown.sample.rstrip().endswith(".") for shown in cut), "an example ends within a sentence"
                if request.config.getoption("update_golden"):
                    page.write_text(whole := whole.replace(text, printed), "utf-8")
                else:
                    assert compared(printed) == compared(text)
            elif language == "python":
                exec(compile(text, page.name, "exec"), world)
            elif language == "pycon":
                check_session(text, page.name, world)
            else:
                assert language == "sh", f"{language}: say in tests/house/test_docs.py how such a block is run"
    finally:
        registry.ALGORITHMS.update(known)


def test_every_lesson_has_a_command() -> None:
    """The page of lessons, which is run like every page, shows each collective and each operator with numbers, groups
    with leaders, buckets, and tables of messages."""
    text = (DOCS / "lessons.md").read_text("utf-8")
    shown = re.findall(r"^\$ simcoll show (\w+)/.*--values", text, re.M)
    assert {*shown} == {*registry.ALGORITHMS}
    assert {*re.findall(r"--op (\w+)", text)} == {"sum", "prod", "min", "max", "avg"}
    assert all(word in text for word in ("--groups", "--subgroups", "bucket_cap", "--ranks 2,4,8,16,32", "softmax"))


def compared(console: str) -> list[str]:
    """The lines of a console as they are compared."""
    lines = console.splitlines()
    return [*map(read, lines)] if FITTED.search(console) else lines


def read(line: str) -> str:
    """A line without its numbers, and how they are aligned."""
    return " ".join(re.sub(r"[-+]?\d[\d.e+-]*", "0", line).split())


def check_session(text: str, name: str, world: dict[str, object]) -> None:
    """A Python session prints what stands in it."""
    session = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    session.globs = world
    complaints: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(session, out=complaints.append, clear_globs=False)
    assert not runner.failures, "".join(complaints)


RESULTS = (DOCS / "results.md").read_text("utf-8")
SHAPES = re.findall(r"^\| `(simcoll [^`]* --json)` \| (.*) \|$", RESULTS, re.M)


@pytest.mark.parametrize(("command", "keys"), SHAPES)
def test_every_document_has_the_keys_of_the_table(command: str, keys: str) -> None:
    """`--json` prints the keys of the table, at the top and in the first entry of each list.

    Rows of results.csv have a table of their own."""
    lists = {name: re.findall(r"`(\w+)`", inner) for name, inner in re.findall(r"`(\w+)` \(([^)]*)\)", keys)}
    document = simcoll(*shlex.split(command)[1:]).json
    assert list(document) == re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", keys))
    for name, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            assert list(value[0]) == lists.get(name, list(COLUMNS)), name


def test_every_command_with_json_has_a_row() -> None:
    """The table has a row for each command with `--json`, but for those whose file is what counts, and `dryrun`, which
    needs torch."""
    commands = [name for name in command_names() if name not in ("topology", "calibrate", "import", "export", "dryrun")]
    having = [name for name in commands if "--json" in simcoll(name, "--help").out]
    assert {command.split()[1] for command, _ in SHAPES} == {*having, "topology"}


@pytest.mark.parametrize("page", WITH_TABLES, ids=names)
def test_tables_are_those_of_the_code(page: Path) -> None:
    """A table between the two comments is the one that the code gives now."""
    text = page.read_text("utf-8")
    assert generated.filled(text) == text, f"the tables of {page.name} are not those of the code: run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_a_page_has_no_holes(page: Path) -> None:
    """A page is whole in the repository: no directive that only Sphinx fills. No page includes the README."""
    text = page.read_text("utf-8")
    assert not re.search(r"^`{3,}\{|README\.md\) <!-- include", text, re.M)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [Scenario, Profile], ids=lambda model: model.__name__)
def test_every_key_has_a_meaning_and_a_page(model: type[Model]) -> None:
    """Below each field of what files hold stands its text, and a page shows the table of the model."""
    written = " ".join(
        re.findall(r"<!-- generated: keys (.*?) -->", "\n".join(page.read_text("utf-8") for page in PAGES))
    ).split()
    nested, known = model.model_json_schema()["$defs"], models()  # in this order: some are loaded when asked for
    record = {"Calibration", *known["Calibration"].model_json_schema()["$defs"]}  # written and read by `calibrate` only
    for name in {model.__name__, *nested} - record:
        assert name in written, name
        assert set(known[name].model_fields) - {"template"} == set(field_texts(known[name])), name


TOPOLOGIES = documents.blocks((DOCS / "topologies.md").read_text("utf-8"), "yaml")


@pytest.mark.parametrize("line", [line for line in TOPOLOGIES[0].splitlines() if line.startswith("topology: {")])
def test_every_topology_builds(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topology line of the page can be used as it stands."""
    monkeypatch.chdir(tmp_path)
    Path("my-machine.yaml").write_text(TOPOLOGIES[1], "utf-8")
    Path("t.yaml").write_text(f"{line}\ncollective: barrier\nalgorithm: dissemination\n", "utf-8")
    assert simcoll("run", "t.yaml").status == 0
