"""`simcoll show --animate`: a schedule in moving pictures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from command import simcoll
from PIL import Image

import simcoll as sc

ASKED = ["show", "all_reduce/ring", "--ranks", "3", "--values", "[[1,2,3],[4,5,6],[7,8,9]]"]


def test_svg_shows_each_text_when_the_step_does(tmp_path: Path) -> None:
    """In each frame of the SVG exactly the texts are visible that `show --values` prints of its state."""
    file = tmp_path / "ring.svg"
    found = simcoll(*ASKED, "--animate", file)
    assert (found.status, found.err) == (0, f"drawn: {file}\n")
    seen = [
        (int(first), int(end), "".join(element.itertext()).strip())
        for element in ET.fromstring(file.read_text("utf-8")).iter("{http://www.w3.org/2000/svg}g")
        for first, end in re.findall(r"^seen-(\d+)-(\d+)-", element.get("id", ""))
    ]
    lines = [line.split() for line in found.out.splitlines()[3:] if not line.startswith("#")]
    for frame in range(6):  # before, four steps, end
        texts = sorted(text for first, end, text in seen if first <= frame < end and re.match(r"▸?\d", text))
        assert texts == sorted(word for line in lines[3 * frame : 3 * frame + 3] for word in line[-3:])
    assert {first for first, _, _ in seen} == set(range(6))


def test_gif_has_a_picture_for_each_state(tmp_path: Path) -> None:
    """A GIF has a frame before all, one after each step, and one of the end, and is repeated for ever."""
    file = tmp_path / "new" / "tree.gif"
    assert simcoll("show", "all_reduce/tree", "--ranks", 4, "--op", "max", "--animate", file).status == 0
    steps = sc.build("all_reduce", "tree", 4).n_steps
    with Image.open(file) as picture:
        assert (picture.n_frames, picture.info["loop"]) == (steps + 2, 0)


@pytest.mark.parametrize(
    ("file", "more", "said"),
    [("x.png", [], ".svg nor .gif"), ("x", [], ".svg nor .gif"), ("x.svg", ["--ranks", "64"], "take fewer ranks")],
)
def test_what_cannot_be_drawn(file: str, more: list[str], said: str, tmp_path: Path) -> None:
    """Another ending, or more than can be read, is one clear error; no file is written."""
    found = simcoll(*ASKED[:4], *more, "--animate", tmp_path / file)
    assert (found.status, found.out, found.err.count("\n")) == (2, "", 1)
    assert said in found.err and not [*tmp_path.iterdir()]
