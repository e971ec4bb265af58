"""What the pages of docs/ show is what happens."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import documents
import pytest
from command import simcoll

from simcoll import registry

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
# Several machines, root, GPUs or an hour: tests/test_measure.py, test_lab.py and test_validate.py run their likes.
ELSEWHERE = ("simcoll measure", "simcoll lab", "simcoll validate")


def names(page: Path) -> str:
    """A page by its name."""
    return page.stem


RUN = [page for page in PAGES if re.search(r"^```(console|python|pycon|yaml)$", page.read_text("utf-8"), re.M)]


@pytest.mark.parametrize("page", RUN, ids=names)
def test_a_page_is_a_session(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, in one folder, every block of a page works, and prints what stands below it.

    A YAML block or a text that opens with `# NAME` is that file. A command ends with 0, unless `echo $?` below it says
    something else. Python blocks are programs, or sessions with what they print."""
    monkeypatch.chdir(tmp_path)
    known = {name: dict(entries) for name, entries in registry.ALGORITHMS.items()}
    world: dict[str, object] = {"__name__": "docs"}
    try:
        for language, text in documents.every_block(page.read_text("utf-8")):
            if language in ("yaml", "text"):
                if name := re.match(r"# ([\w.-]+)\n", text):
                    Path(name[1]).write_text(text, "utf-8")
            elif language == "console":
                check_console(text)
            elif language == "python":
                exec(compile(text, page.name, "exec"), world)
            elif language == "pycon":
                check_session(text, page.name, world)
            else:
                assert language == "sh", f"{language}: say in tests/test_docs.py how such a block is run"
    finally:
        registry.ALGORITHMS.update(known)


def check_console(text: str) -> None:
    """Each command of simcoll ends as told, and prints what stands below it."""
    shown = documents.commands(text)
    for (command, _, sample), (after, _, status) in zip(shown, [*shown[1:], ("", "", "")], strict=True):
        if command == "echo $?" or any(other in command for other in ELSEWHERE):
            continue
        assert command.startswith("simcoll "), f"{command!r} is not run: put what is not simcoll into a block of sh"
        done = simcoll(*shlex.split(command)[1:])
        assert done.status == (int(status) if after == "echo $?" else 0), f"{command}: {done.err}"
        if sample:
            printed = done.out if done.out else done.err
            assert [line.rstrip() for line in printed.strip("\n").splitlines()] == sample.splitlines(), command


def check_session(text: str, name: str, world: dict[str, object]) -> None:
    """A Python session prints what stands in it."""
    found = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    found.globs = world
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(found, out=said.append, clear_globs=False)
    assert not runner.failures, "".join(said)
