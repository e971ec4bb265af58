"""No control character of a file reaches the terminal, whatever the file is and wherever in it the character stands."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from pathlib import Path

import pytest
from command import process, simcoll
from foreign import FILES, KINDS, MORE
from hypothesis import given, settings
from hypothesis import strategies as st

COMMANDS = (  # what could be written into a name: colours, clearing, titles, bells, C1, carriage returns, bidi
    *("\x1b[31m", "\x1b[2J", "\x1b]0;title\x07", "\x1bc", "\x9b31m", "\x9d0;t\x9c", "\x07", "\x08\x08", "\r", "\x7f"),
    *("\x85", "\u202e", "\u2066", "\u200f", "\u061c", "\u2028", "\x00", "\x0b", "\x0c"),
)
TURNING = "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # of a line's direction
SCENARIO = """\
name: star
topology: {fabric: single-switch, hosts: 2, link: {bandwidth: 1 GB/s, latency: 1 us}}
collective: all_reduce
algorithm: ring
size: 1 KiB
plots: []
"""
TABLE = "collective,algorithm,ranks,size_bytes,time_us,gpu,env.host\nall_reduce,ring,2,1024,5.1,H100,node7\n"
DEVICES = """\
name: pairs
devices: {gpu: 2, bridge: 1}
links: [{from: "gpu*", to: bridge0, bandwidth: 10 GB/s, latency: 2 us, kind: pcie}]
"""
SHOWN = {  # files of ours, with the commands that read them: `{}` is the file
    "scenario.yaml": (SCENARIO, ("run {}", "explain {} --no-what-if", "predict all_reduce --on {} --size 8")),
    "table.csv": (TABLE, ("import {}", "compare {star} {}", "diagnose {} --topology hgx-h100", "plot {}")),
    "devices.yaml": (DEVICES, ("topology show {}", "export {} --to graphviz", "predict all_reduce --on {} --size 8")),
    "schedule.json": ("", ("verify --schedule {}", "show {}", "export {} --to goal", "import {}")),
}


def commands(text: str) -> list[str]:
    """The control characters of a text but ends of lines and tabs, and the characters that turn its direction."""
    return [
        letter
        for letter in text
        if (unicodedata.category(letter) in ("Cc", "Zl", "Zp") and letter not in "\n\t") or letter in TURNING
    ]


def shown(*argv: object) -> str:
    """All that a command shows."""
    done = simcoll(*argv)
    assert "Traceback" not in done.err
    return done.out + done.err


@functools.cache
def schedule() -> str:
    """A schedule as a file has it."""
    return simcoll("show", "all_reduce/ring", "--ranks", 2, "--json").out


@st.composite
def marred(draw: st.DrawFn, text: str) -> str:
    """The text with commands to a terminal behind some of its words, as they are or as its format escapes them."""
    ends = [match.end() for match in re.finditer(r"[A-Za-z_]\w*", text)]
    raw = draw(st.booleans())
    chosen = draw(st.lists(st.sampled_from(ends), min_size=1, max_size=3, unique=True))
    for at in sorted(chosen, reverse=True):
        command = draw(st.sampled_from(COMMANDS))
        if text.startswith("<") and not raw:
            command = "".join(f"&#{ord(letter)};" for letter in command)
        elif text.startswith(("{", "name:")) and not raw:
            command = json.dumps(command)[1:-1]
        text = text[:at] + command + text[at:]
    return text


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=20)
@given(data=st.data())
def test_files_of_other_programs(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`import` shows what it makes of a file, or refuses it, without a command to the terminal."""
    file = tmp_path_factory.getbasetemp() / "given"
    file.write_text(data.draw(marred(FILES[name])), encoding="utf-8", newline="")
    told = ["--as", KINDS[name]] if data.draw(st.booleans()) else []
    assert not commands(shown("import", file, *MORE.get(name, []), *told))


@pytest.mark.parametrize("name", SHOWN)
@settings(max_examples=20)
@given(data=st.data())
def test_files_of_ours(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands show scenarios, tables, topologies and schedules, or refuse them, without a command to the terminal."""
    text, readers = SHOWN[name]
    folder = tmp_path_factory.getbasetemp()
    (folder / "star.yaml").write_text(SCENARIO)
    (folder / name).write_text(data.draw(marred(text or schedule())), encoding="utf-8", newline="")
    words = data.draw(st.sampled_from(readers)).format(folder / name, star=folder / "star.yaml").split()
    assert not commands(shown(*words))


def test_a_process_of_its_own(tmp_path: Path) -> None:
    """The same on the streams that a process begins with, for what it shows and for what it refuses."""
    (tmp_path / "table.csv").write_text(f"{TABLE}all_reduce,r\x1b[31ming,2,2048,7.5,H\x9b100,node7\n")
    (tmp_path / "star.yaml").write_text(SCENARIO.replace("ring", '"r\\eng"'))
    read, refused = process("import", tmp_path / "table.csv"), process("run", tmp_path / "star.yaml")
    assert (read.status, refused.status) == (0, 2)
    assert r"r\x1b[31ming" in read.out and r"H\x9b100" in read.out and r"r\x1bng" in refused.err
    assert not commands("".join([read.out, read.err, refused.out, refused.err]))
