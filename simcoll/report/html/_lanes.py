"""A trace as numbers that a script draws as a timeline, and colours for what is in it.

Colours are of Paul Tol's schemes, as in plots.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from simcoll.explanation.explained_run import ALL_CAUSES
from simcoll.explanation.trace import FAULTS, Slice, Trace, Track
from simcoll.explanation.transfer_lanes import LINKS

PATH: Final = "critical path"
LEFT_OUT: Final = "Transfers are left out here: there are too many."
_CHUNKS: Final = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB", "#EE7733")
_KINDS: Final = {
    "kernel": "#555555",
    "compute": "#999933",
    "launch": "#DDCC77",
    "host": "#AA4499",
    "memory": "#BBBBBB",
    "copy": "#BBBBBB",
    "fault": "#AA2222",
}
_CAUSES: Final = (
    "#332288", "#CC6677", "#DDCC77", "#88CCEE", "#44AA99", "#117733", "#999933", "#AA4499", "#BBBBBB", "#228833",
    "#882255", "#EE7733", "#997700", "#33BBEE", "#663333", "#9988DD",
)  # fmt: skip
CAUSE_COLORS: Final[Mapping[str, str]] = dict(zip(ALL_CAUSES, itertools.cycle(_CAUSES), strict=False))


def timeline(trace: Trace, path: Iterable[Slice], most: int) -> tuple[str, str]:
    """The trace as JSON, its critical path above it, and what had to be left out to keep it to `most` slices, in words.

    A track is its process, its name and a flat list of numbers, six a slice: how long after the end of the slice before
    it begins and how long it lasts (ps), name, colour (both numbers of lists), bytes and step, -1 where it has none.
    """
    tracks, note = _few(trace, most)
    tracks.sort(key=lambda track: track.process != FAULTS)  # first, where they are seen
    longest = list(path)
    if len(longest) <= most:
        tracks = [Track(PATH, "", longest), *tracks]
    order = {process: place for place, process in enumerate(dict.fromkeys(track.process for track in tracks))}
    names: dict[str, int] = {}
    colors: dict[str, int] = {}
    lanes = [
        {"p": track.process, "n": track.name, "s": _numbers(track.slices, names, colors)}
        for track in sorted(tracks, key=lambda track: order[track.process])
    ]
    return json.dumps(
        {"end": trace.end_ps, "tracks": lanes, "names": list(names), "colors": list(colors)}, separators=(",", ":")
    ), note


def _few(trace: Trace, most: int) -> tuple[list[Track], str]:
    """Select as many tracks as can be shown: all; or those of ranks; or streams alone; or those of the first ranks."""
    ranks = [track for track in trace.tracks if track.process != LINKS]
    streams = [track for track in ranks if not {"send", "receive", "copy"} & {span.kind for span in track.slices}]
    for tracks, note in (
        (trace.tracks, ""),
        (ranks, "Links are left out here: there are too many transfers."),
        (streams, LEFT_OUT),
    ):
        if _slices(tracks) <= most:
            return list(tracks), note
    for count in range(len(trace.ranks), 0, -1):
        first = [track for track in streams if track.process in (FAULTS, *trace.ranks[:count])]
        if _slices(first) <= most:
            return first, f"Only the streams of the first {count} of {len(trace.ranks)} ranks are shown here."
    return [], "There is too much to show here."


def _slices(tracks: Sequence[Track]) -> int:
    return sum(len(track.slices) for track in tracks)


def _numbers(slices: Sequence[Slice], names: dict[str, int], colors: dict[str, int]) -> list[int]:
    numbers: list[int] = []
    at = 0
    for span in slices:
        color = colors.setdefault(_color(span), len(colors))
        name = names.setdefault(_label(span), len(names))
        args = span.args
        numbers += [span.begin - at, span.end - span.begin, name, color, args.get("bytes", -1), args.get("step", -1)]
        at = span.end
    return numbers


def _label(span: Slice) -> str:
    if span.kind == "kernel":
        return str(span.args.get("operation") or span.name)
    return f"chunk {span.name}" if span.kind in ("send", "receive", "link", "memory") else span.name


def _color(span: Slice) -> str:
    """Transfers have the colour of their chunk, on ranks and on links alike."""
    if span.kind == PATH:
        return CAUSE_COLORS[span.args["cause"]]
    return _KINDS.get(span.kind) or _CHUNKS[span.args["chunk"] % len(_CHUNKS)]


def path_slices(parts: Iterable[Any]) -> Iterable[Slice]:
    """The stretches of a critical path as slices; those in a row that are spent on the same are one."""
    for (cause, where), group in itertools.groupby(parts, lambda part: (part.cause, part.where)):
        first, *others = group
        end = others[-1].end_ps if others else first.end_ps
        yield Slice(first.begin_ps, end, f"{cause}: {where}" if where else cause, PATH, {"cause": cause})
