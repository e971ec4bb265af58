"""Read the JSON that nccl-tests writes with `-J`.

The file also has the whole environment of the process; the reader uses NCCL's own variables only. If single runs were
timed (`-I 1`), the reader takes their median, minimum and maximum.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping
from typing import Any, Final

from simcoll.config import input_files
from simcoll.errors import InputError, Place
from simcoll.formats.measured.measured_row import LocatedCells, alone, unsaid, wrong_cell

KEPT: Final = re.compile(r"(?:NCCL|RCCL|UCX)_[A-Z0-9_]{1,60}")  # variables of the environment
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL", re.IGNORECASE)
CURE: Final = "give what nccl-tests writes with -J"
_PROGRAM: Final = re.compile(r"([a-z_]+)_perf\b")


def looks(text: str) -> bool:
    """Return whether a text is JSON with the keys of nccl-tests."""
    return text.lstrip("\ufeff \t\r\n").startswith("{") and '"results"' in text and '"config"' in text


def cells(text: str, source: str, given: LocatedCells) -> list[LocatedCells]:
    """Return the cells of every row, each with its place in the file. Invalid JSON raises an InputError with place."""
    return list(_nccl(input_files.json_mapping(text.lstrip("\ufeff"), source, CURE), source, given))


def _nccl(document: Mapping[str, Any], source: str, given: LocatedCells) -> Iterator[LocatedCells]:
    place = Place(source, 1, 1)
    config = _mapping(document.get("config"))
    said = _said(document, config, given, place)
    for row in _list(document.get("results")):
        result = _mapping(row)
        out, inside = (_mapping(result.get(key)) for key in ("out_of_place", "in_place"))
        time, runs = _time(out, _mapping(result.get("out_of_place_per_iter")))
        if time is None or not result.get("size"):
            continue
        columns = {"size_bytes": result["size"], "dtype": result.get("type"), "redop": result.get("redop"), **runs}
        columns |= {"root": result.get("root"), "time_us": time}
        columns |= {"runs": runs.get("runs") or result.get("actual_iterations")}
        columns |= {"in_place_time_us": _time(inside, _mapping(result.get("in_place_per_iter")))[0]}
        columns |= {"experiment_name": result.get("experiment_name")}
        wrong = wrong_cell([out.get("nwrong"), inside.get("nwrong")], place)
        yield {**said, **{c: (str(value), place) for c, value in columns.items() if value is not None}, **wrong}


def _time(result: Mapping[str, Any], single: Mapping[str, Any]) -> tuple[object, dict[str, object]]:
    """Return the time in microseconds, and further columns if single runs were timed."""
    times = [t for t in _list(single.get("times_us")) if isinstance(t, int | float) and not isinstance(t, bool)]
    if times:
        columns: dict[str, object] = {"time_us_min": min(times), "time_us_max": max(times), "runs": len(times)}
        return statistics.median(times), columns
    columns = {f"time_us_{which}": single[f"{which}_us"] for which in ("min", "max") if f"{which}_us" in single}
    return single.get("p50_us", result.get("time", result.get("cpu_time"))), columns


def _said(document: Mapping[str, Any], config: Mapping[str, Any], given: LocatedCells, place: Place) -> LocatedCells:
    """Return the cells that all rows share."""
    devices = [_mapping(device) for device in _list(config.get("devices"))]
    groups = {str(device.get("group", 0)) for device in devices}
    members = [device for device in devices if str(device.get("group", 0)) == min(groups)]
    paced = not config.get("graph") and config.get("agg_iters", 1) == 1
    words = [str(word) for word in _list(document.get("args"))]
    programs = _PROGRAM.findall(" ".join(words[:1]))
    said: dict[str, object] = {
        "library": "nccl",
        "library_version": document.get("nccl_version"),
        "collective": programs[0].rpartition("/")[2] if programs else None,
        "ranks": len(members) or None,
        "nodes": len({str(device.get("hostname")) for device in members}) or None,
        "timing": "nccl-tests -J",
        "harness": "graph" if config.get("graph") else "nccl-tests",
        "launch.graph": "true" if config.get("graph") else None,
        "launch.replays": config.get("graph") or None,
        "launch.gpus_per_process": config.get("ngpus"),
        "launch.calls": config.get("iters") if paced and config.get("ngpus") else None,
        "gpu": ", ".join(dict.fromkeys(str(d["device_model"])[:60] for d in members if d.get("device_model"))) or None,
        **dict(_environment(document.get("env"))),
    }
    cells: LocatedCells = {column: (str(value), place) for column, value in said.items() if value is not None}
    for column in ("collective", "ranks"):
        if column not in cells and column not in given:
            raise InputError([unsaid(column, place)])
    if cells.get("ranks", ("", None))[0] == "1":
        raise InputError([alone(place)])
    return cells


def _environment(variables: object) -> Iterator[tuple[str, str]]:
    """Yield (column, value) for NCCL's own variables in the environment; all other variables are ignored."""
    pairs = (
        variables.items()
        if isinstance(variables, dict)
        else (str(v).split("=", 1) for v in _list(variables) if "=" in str(v))
    )
    for name, value in pairs:
        if KEPT.fullmatch(str(name)) and not _SECRET.search(str(name)):
            yield f"env.{str(name).lower()}", str(value)  # names of columns are in small letters


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
