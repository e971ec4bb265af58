"""What the pages of docs/ show is what happens."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import documents
import pytest
from command import ROOT, simcoll

from simcoll import api
from simcoll.cli._group import COMMANDS
from simcoll.measurement.real_run import OWN
from simcoll.prediction.result_rows import COLUMNS
from simcoll.schedule import registry

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
# Several machines, root, GPUs or an hour: tests/measurement/ and tests/accuracy/test_validate.py run their likes.
ELSEWHERE = ("simcoll measure", "simcoll lab", "simcoll validate")
# A fit is not the same to the last digit with every release of scipy: of what it prints, the words count.
FITTED = re.compile(r"simcoll calibrate|profile=mine")


def names(page: Path) -> str:
    """A page by its name."""
    return page.stem


RUN = [page for page in PAGES if re.search(r"^```(console|python|pycon|yaml)$", page.read_text("utf-8"), re.M)]


@pytest.mark.parametrize("page", RUN, ids=names)
def test_a_page_is_a_session(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """From top to bottom, in one folder, every block of a page works, and prints what stands below it.

    A YAML block or a text that opens with `# NAME` is that file. A command ends with 0, unless `echo $?` below it says
    something else. Python blocks are programs, or sessions with what they print. With `--update-golden` what commands
    print is written into the page."""
    monkeypatch.chdir(tmp_path)
    known = {name: dict(entries) for name, entries in registry.ALGORITHMS.items()}
    world: dict[str, object] = {"__name__": "docs"}
    whole = page.read_text("utf-8")
    try:
        for language, text in documents.every_block(whole):
            if language in ("yaml", "text"):
                if name := re.match(r"# ([\w.-]+)\n", text):
                    Path(name[1]).write_text(text, "utf-8")
            elif language == "console":
                printed = ran(text)
                if request.config.getoption("update_golden"):
                    page.write_text(whole := whole.replace(text, printed), "utf-8")
                else:
                    assert told(printed) == told(text)
            elif language == "python":
                exec(compile(text, page.name, "exec"), world)
            elif language == "pycon":
                check_session(text, page.name, world)
            else:
                assert language == "sh", f"{language}: say in tests/house/test_docs.py how such a block is run"
    finally:
        registry.ALGORITHMS.update(known)


def ran(console: str) -> str:
    """A console as it is when its commands are run: below those that show something stands what they print now."""
    text, shown = "", documents.lines(console)
    for (line, sample), (after, status) in zip(shown, [*shown[1:], ("", "")], strict=True):
        command = documents.commands(line)[0].command
        if command != "echo $?" and not any(other in command for other in ELSEWHERE):
            assert command.startswith("simcoll "), f"{command!r} is not run: put what is not simcoll into a block of sh"
            done = simcoll(*shlex.split(command)[1:])
            assert done.status == (int(status) if "echo $?" in after else 0), f"{command}: {done.err}"
            printed = (done.out or done.err).strip("\n").splitlines()
            sample = "".join(f"{row.rstrip()}\n" for row in printed) if sample else ""
        text += line + sample
    return text


def told(console: str) -> list[str]:
    """The lines of a console that count."""
    lines = console.splitlines()
    return [*map(read, lines)] if FITTED.search(console) else lines


def read(line: str) -> str:
    """A line without its numbers, and how they are aligned."""
    return " ".join(re.sub(r"[-+]?\d[\d.e+-]*", "0", line).split())


def check_session(text: str, name: str, world: dict[str, object]) -> None:
    """A Python session prints what stands in it."""
    found = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    found.globs = world
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(found, out=said.append, clear_globs=False)
    assert not runner.failures, "".join(said)


RESULTS = (DOCS / "results.md").read_text("utf-8")
SHAPES = re.findall(r"^\| `(simcoll [^`]* --json)` \| (.*) \|$", RESULTS, re.M)


@pytest.mark.parametrize(("command", "told"), SHAPES)
def test_every_document_has_the_keys_that_are_told(command: str, told: str) -> None:
    """`--json` prints the keys of the table, at the top and in the first entry of each list.

    Those of rows of results.csv are told where its columns are."""
    lists = {name: re.findall(r"`(\w+)`", keys) for name, keys in re.findall(r"`(\w+)` \(([^)]*)\)", told)}
    found = simcoll(*shlex.split(command)[1:]).json
    assert list(found) == re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", told))
    for name, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            assert list(value[0]) == lists.get(name, list(COLUMNS)), name


def test_the_documents_of_every_command_are_told() -> None:
    """The table has a row for each command with `--json`, but for those whose file is what counts."""
    commands = [name for name in COMMANDS if name not in ("topology", "calibrate", "import", "export")]
    having = [name for name in commands if "--json" in simcoll(name, "--help").out]
    assert {command.split()[1] for command, _ in SHAPES} == {*having, "topology"}


def test_every_column_of_a_real_run_is_told() -> None:
    """The columns that `measure` and `lab` add to those of every measured table stand on the page."""
    assert not [column for column in OWN if f"`{column}`" not in RESULTS]


def test_every_name_of_the_api_is_told() -> None:
    """The page of Python has an entry for each name that `import simcoll` offers."""
    page = (DOCS / "api.md").read_text("utf-8")
    assert set(re.findall(r"^\.\. auto\w+:: simcoll\.(\w+)$", page, re.M)) - {"errors"} == set(api.__all__)
