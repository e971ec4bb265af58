"""Draw a schedule that is worked with numbers as an animation: cells with numbers, and arrows of the transfers."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib import animation
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from simcoll.config.grouping import grouped
from simcoll.errors import InputError
from simcoll.prediction.result_rows import write_atomically
from simcoll.report.plot import drawn
from simcoll.report.plot.style import FAINT, GREY, INK
from simcoll.schedule.collectives import promised
from simcoll.schedule.schedule import Schedule
from simcoll.schedule.values import State, named_slots, slot_text

MOST_CELLS: Final = 300  # of a picture: more cannot be read
MOST_FRAMES: Final = 100
FRAME_S: Final = 2  # how long a frame is shown
_REDUCED, _STORED, _DONE = "#F5C84C", "#88CCEE", "#CDE8C4"
_ROW, _LETTER, _GAP = 0.36, 0.085, 0.34  # inches: height of a row, width of a letter, room for arrows between columns
_HEAD, _LEFT = 0.75, 0.85  # inches above the cells, and left of them


class _Shown(NamedTuple):
    """An artist that is seen from frame `first` to frame `end` − 1."""

    artist: Artist
    first: int
    end: int


def animate(schedule: Schedule, states: Sequence[State], op: str, path: Path) -> None:
    """Write an animation to a file, `.svg` or `.gif`. Raises InputError for another suffix, for an unwritable file, and
    as `picture` does."""
    kind = path.suffix.lower()
    if kind not in (".svg", ".gif"):
        raise InputError(f"--animate: {path} is neither .svg nor .gif", "give the file one of these endings")
    write_atomically(path, picture(schedule, states, op, kind))


def picture(schedule: Schedule, states: Sequence[State], op: str, kind: str = ".svg") -> bytes:
    """Return an animation of the states of `worked`. Raises InputError for a schedule too large to be read."""
    cells, frames = schedule.participants * len(named_slots(schedule)), len(states)
    if cells > MOST_CELLS or frames > MOST_FRAMES:
        problem = f"--animate: {cells} cells in {frames} pictures cannot be read"
        raise InputError(problem, f"take fewer ranks: at most {MOST_CELLS} cells, {MOST_FRAMES} pictures")
    figure, shown = _figure(schedule, states, op)
    return _svg(figure, shown, frames) if kind == ".svg" else _gif(figure, shown, frames)


def _figure(schedule: Schedule, states: Sequence[State], op: str) -> tuple[Figure, list[_Shown]]:
    """Return the figure with the artists of all frames. The last state is the end."""
    rows, names, end = range(schedule.participants), named_slots(schedule), len(states) - 1
    texts = {(p, s): [slot_text(op, state, p, s) for state in states] for p in rows for s in names}
    widths = {s: _LETTER * max(4, *(len(text) for p in rows for text in texts[p, s])) for s in names}
    edges = np.cumsum([_LEFT, *(width + _GAP for width in widths.values())]).tolist()
    lefts = dict(zip(names, edges, strict=False))
    width, height = max(edges[-1], 4.6), _HEAD + _ROW * len(rows) + 0.1
    figure = Figure(figsize=(width, height), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    shown = list[_Shown]()

    def show(artist: Artist, first: int = 0, last: int = end) -> None:
        artist.set_gid(f"seen-{first}-{last + 1}-{len(shown)}")
        artist.set_clip_on(False)
        shown.append(_Shown(artist, first, last + 1))

    def box(p: int, s: int, color: str) -> Artist:
        edge = GREY if s < schedule.n_chunks else FAINT
        at = lefts[s], _HEAD + _ROW * p + 0.04
        return axes.add_patch(Rectangle(at, widths[s], _ROW - 0.08, facecolor=color, edgecolor=edge, linewidth=0.7))

    axes.text(0.12, 0.24, f"{schedule.name} on {schedule.n} ranks", size=11, weight="bold", color=INK, va="center")
    for number in range(end + 1):
        step = f"step {number - 1} (the last is {schedule.n_steps - 1}): orange is reduced, blue is stored"
        title = "before" if number == 0 else "end: green is the result" if number == end else step
        show(axes.text(0.12, 0.47, title, size=8, color=GREY, va="center"), number, number)
    for s, name in names.items():
        short = name if widths[s] > _LETTER * len(name) else name.split()[1]
        axes.text(lefts[s] + widths[s] / 2, _HEAD - 0.06, short, size=7, color=GREY, ha="center")
    for p in rows:
        name = f"rank {p}" if p < schedule.n else "switch"
        axes.text(_LEFT - 0.12, _middle(p), name, size=8, color=INK, ha="right", va="center")
    done = [promised(schedule, rank) for rank in range(schedule.n)]
    for p, s in texts:
        show(box(p, s, "white"))
        writes = [number for number, state in enumerate(states) if (p, s) in state.came]
        for number in writes:
            show(box(p, s, _STORED if len(states[number].came[p, s].terms) == 1 else _REDUCED), number, number)
        if p < schedule.n and s in done[p]:
            show(box(p, s, _DONE), max(writes, default=0) + 1)
        for text, first, last in _runs(texts[p, s]):
            at = lefts[s] + widths[s] / 2
            look: dict[str, Any] = {"size": 8, "color": INK, "ha": "center", "va": "center", "family": "monospace"}
            show(axes.text(at, _middle(p), text, **look), first, last)
    for row in schedule.by_slot():
        if row.src != row.dst:
            out = lefts[row.src_slot] + widths[row.src_slot] + 0.02, _middle(row.src)
            inside = row.dst_slot <= row.src_slot
            into = lefts[row.dst_slot] + (widths[row.dst_slot] + 0.02 if inside else -0.02), _middle(row.dst)
            bend = min(0.35, 0.45 / math.dist(out, into)) * (1 if row.dst < row.src else -1)  # as deep as a gap is wide
            tip: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 8, "color": "#CC3311", "zorder": 0.9}
            arrow = FancyArrowPatch(out, into, connectionstyle=f"arc3,rad={bend}", linewidth=1.1, **tip)
            show(axes.add_patch(arrow), row.step + 1, row.step + 1)
    return figure, shown


def _middle(row: int) -> float:
    return _HEAD + _ROW * (row + 0.5)


def _runs(texts: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield each text that is seen in some frames without a break, with the first and the last frame."""
    for text, frames in itertools.groupby(range(len(texts)), lambda frame: texts[frame]):
        run = list(frames)
        if text:
            yield text, run[0], run[-1]


def _svg(figure: Figure, shown: Sequence[_Shown], frames: int) -> bytes:
    """Return the figure as SVG that style sheets animate; without them a viewer shows the end."""
    rules = []
    for first, end in grouped(shown, lambda each: (each.first, each.end)):
        begin, stop = (f"{100 * number / frames:.4g}%" for number in (first, end))
        after = f" {stop} {{visibility: hidden}}" if end < frames else ""
        before = "0% {visibility: hidden} " if first else ""
        rules.append(f"@keyframes k{first}-{end} {{{before}{begin} {{visibility: visible}}{after}}}")
        still = "visible" if end == frames else "hidden"
        play = f"animation: k{first}-{end} {FRAME_S * frames}s step-end infinite"
        rules.append(f'[id^="seen-{first}-{end}-"] {{visibility: {still}; {play}}}')
    text = drawn(figure, "svg").decode("utf-8")
    return text.replace("<defs>", f"<style>{' '.join(rules)}</style>\n <defs>", 1).encode("utf-8")


def _gif(figure: Figure, shown: Sequence[_Shown], frames: int) -> bytes:
    writer = animation.PillowWriter(fps=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "schedule.gif"
        with writer.saving(figure, str(file), dpi=110):
            for number in range(frames):
                for each in shown:
                    each.artist.set_visible(each.first <= number < each.end)
                for _ in range(FRAME_S):
                    writer.grab_frame()
        return file.read_bytes()
