"""Text for the terminal: what `simcoll diagnose` finds in logs, tables and dumps. The verdict comes first."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from simcoll.config import text_table
from simcoll.config.grouping import grouped
from simcoll.config.text_table import wrapped
from simcoll.report.accuracy_text import advice, diagnosis_text
from simcoll.report.verdicts import of_diagnosis

STATUS: Final = {"healthy": 0, "finding": 1, "unknown": 2}
_OTHERS: Final = 4  # alternatives and remarks of a kind that are listed
_ROWS: Final = 8  # of tables
_CALL: Final = ("collective", "ranks", "size_bytes", "measured_us", "expected_us", "low_us", "high_us", "verdict")
_PLACES: Final = ("host", "rank", "device", "peer", "group", "call")


class Answer(NamedTuple):
    """The verdict in a sentence, and the whole text."""

    sentence: str
    text: str


def answer(document: Mapping[str, Any]) -> Answer:
    """Return the text of what `diagnose` found: of a table alone the judgement of each point, else the triage."""
    of_table = "regions" in document
    said, text = (of_diagnosis, diagnosis_text) if of_table else (sentence, triage_text)
    commands = document.get("commands", ())
    measure = ["", "# measure, and give all outputs to simcoll diagnose:", *commands] if commands else []
    return Answer(said(document if of_table else _shortened(document)), "\n".join([text(dict(document)), *measure]))


def triage_text(document: Mapping[str, Any]) -> str:
    """Return the text of a diagnosis: within twelve lines what, where, how sure, what next; then the evidence."""
    document = _shortened(document)
    lines = [wrapped(sentence(document), "  ")]
    place = [f"{name} {document['where'][name]}" for name in _PLACES if (document["where"] or {}).get(name) is not None]
    lines += [f"where: {', '.join(place)}"] if place and document["verdict"] == "finding" else []
    lines += advice(document)
    lines += ["", *(_quoted(each) for each in document["evidence"])]
    lines += _listed("other findings", [f"{each['cause']}: {each['text']}" for each in document["also"]])
    why = grouped((each for each in document["alternatives"] if each["excluded_by"]), lambda each: each["excluded_by"])
    lines += _listed("excluded", [f"{', '.join(e['cause'] for e in every)}: {why}" for why, every in why.items()])
    lines += [f"# lines that only echo it: {document['echoes']}"] if document["echoes"] else []
    harmless = [f"{_quoted(each['evidence'][0])}: {each['text']}" for each in document["harmless"] if each["evidence"]]
    lines += _listed("harmless", harmless)
    lines += _listed("not read", document["unread"])
    lines += _of_recorded(document["recorded"]) if "recorded" in document else []
    return text_table.remarks_wrapped("\n".join(lines))


def _shortened(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with names of files relative to the folder that they all are in."""
    names = {name for every in document["files"].values() for name in every}
    alike = len({Path(name).is_absolute() for name in names}) == 1
    folder = os.path.commonpath([str(Path(name).parent) for name in names]) if alike else ""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(each) for each in value]
        if isinstance(value, dict):
            return {key: short(each) for key, each in value.items()}
        return os.path.relpath(value, folder) if isinstance(value, str) and value in names else value

    return {key: short(value) for key, value in document.items()} if folder else dict(document)


def _of_recorded(recorded: Mapping[str, Any]) -> list[str]:
    """Return the ranks by lateness, and the recorded calls beside what is expected of them, the farthest off first."""
    calls = sorted(recorded["calls"], key=lambda call: -abs(math.log(call["measured_us"] / call["expected_us"])))
    late = [{**row, "share": f"{row['share']:.1%}"} for row in recorded["ranks"][:_ROWS]]
    tables = [text_table.render(("rank", "late_us", "share", "last", "calls"), late)] if late else []
    tables += [text_table.render(_CALL, calls[:_ROWS])] if calls else []
    return [line for table in tables for line in ("", table)]


def sentence(document: Mapping[str, Any]) -> str:
    """Return the verdict in a sentence, with the machine that files say."""
    nodes = f"{document['nodes']} × " if (document["nodes"] or 1) > 1 else ""
    said = document["machine_said_by"]
    found = f" (by {_place(said)})" if said else ""
    machine = f" on {nodes}{document['machine']}{found}" if document["machine"] else ""
    return f"{document['verdict'].capitalize()}{machine}: {document['text']}"


def _place(evidence: Mapping[str, Any]) -> str:
    return evidence["file"] if evidence["line"] is None else f"{evidence['file']}:{evidence['line']}"


def _quoted(evidence: Mapping[str, Any]) -> str:
    return f"{_place(evidence)}: {evidence['text']}"


def _listed(what: str, lines: Sequence[str]) -> list[str]:
    more = [f"# {what}: {len(lines) - _OTHERS} more; --json has all"] if len(lines) > _OTHERS else []
    return [*(f"# {what}: {line}" for line in lines[:_OTHERS]), *more]
