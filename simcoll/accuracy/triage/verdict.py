"""Make one verdict of all findings in the files that a user gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from simcoll.accuracy.triage import pairs_of_nodes, tables
from simcoll.accuracy.triage.findings import Case, Finding
from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.accuracy.triage.kinds import KINDS
from simcoll.accuracy.triage.machine_of_log import system_of
from simcoll.errors import InputError, visible
from simcoll.formats import importers
from simcoll.formats.debug_logs.log_lines import RANK_LIST
from simcoll.formats.recordings import chakra, kineto
from simcoll.scenario import scenario_files
from simcoll.topology.topology_builder import described

SCHEMA: Final = "simcoll.diagnose/3"
SHOWN: Final = 12  # lines of evidence in the document
_RANKED: Final = ("cause", "symptom", "echo", "undecided", "sound")  # the first that is there makes the verdict
_SURE: Final = ("clear", "likely", "open")
_UNKNOWN: Final = "the kind of this file is not recognised"
_LINES: Final = "no line of it is known"
_KNOWN: Final = "tables, NCCL's debug logs (NCCL_DEBUG=INFO), dumps of PyTorch's flight recorder, RAS, Inspector"
_MORE: Final = (
    "give the stderr of all ranks, the output with NCCL_DEBUG=INFO, the kernels' logs (dmesg), or dumps of the flight "
    "recorder"
)


def triaged(files: Sequence[GivenFile], case: Case) -> dict[str, Any]:
    """Return the document that `diagnose --json` prints, from the files that a user gives.

    One table without a log has the keys of `diagnosed`, too, and raises its errors. Raises InputError if nothing that
    is known is among the files.
    """
    by_kind: dict[str, list[GivenFile]] = {kind.name: [] for kind in KINDS}
    unread: list[str] = []
    for file in files:
        try:
            fitting = [kind.name for kind in KINDS if kind.looks(file)]
        except InputError as error:
            if len(files) == 1:
                raise
            fitting, unread = [], [*unread, str(error.diagnostics[0])]
        else:
            unread += [] if fitting else [f"{visible(file.name)}: {_unread(file)}"]
        for name in fitting:
            by_kind[name].append(file)
        file.forget()
    if not any(by_kind.values()):
        raise InputError(unread[0], _MORE if _LINES in unread[0] else f"give {_KNOWN}")
    case.present = frozenset(name for name, given in by_kind.items() if given)
    if case.on:
        described(scenario_files.topology_spec(case.on))  # raises InputError for a name that is none
        case.machine = case.on
    findings = [finding for kind in KINDS if by_kind[kind.name] for finding in kind.read(by_kind[kind.name], case)]
    if case.notes.get("tables are sound"):  # what only costs time does not
        findings = [replace(f, role="harmless") if f.role == "cause" and f.slows else f for f in findings]
    read = {name: [visible(file.name) for file in given] for name, given in by_kind.items() if given}
    said, judged = verdict(findings), case.details.get("tables", ())
    others = dict.fromkeys(cause for table in judged for cause in table["also"])
    said["alternatives"] += [{"cause": cause, "excluded_by": None} for cause in others]
    alone = len(files) == 1 and case.present == {tables.KIND} and judged
    more = (
        {**judged[0], "next": said["next"]}
        if alone
        else {**_machine(case), "files": read, "unread": unread, **case.details}
    )
    return {**said, **more, "schema": SCHEMA, **_commands(files, case)}


def _unread(file: GivenFile) -> str:
    """Return what a file is that tells nothing of a job."""
    if kineto.looks(file.data) or chakra.looks(file.data):
        return "a trace is a workload: `simcoll import` makes a scenario of it"
    if file.is_pickle:
        return _UNKNOWN
    if kind := importers.recognise(file.text()):
        return f"it is no file of a job, but {kind}: `simcoll import` reads it"
    return _UNKNOWN if file.data.lstrip()[:1] in (b"{", b"<") else _LINES


def _commands(files: Sequence[GivenFile], case: Case) -> dict[str, Any]:
    """Return the commands of the measurements that would decide, if the user asks for them."""
    if not case.following:
        return {}
    texts = [file.text() for file in files]
    hosts = dict.fromkeys(match["host"] for text in texts for match in RANK_LIST.finditer(text))
    system = system_of(case.machine)
    counts = system.counts if system else {}
    nics = case.details.get("log", {}).get("nics", {})
    return {"commands": pairs_of_nodes.commands(list(hosts), counts.get("gpu", 8), next(iter(nics.values()), ()))}


def verdict(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the verdict of all findings: the surest cause, of equally sure ones the earliest, else the surest symptom,
    else echoes of a failure elsewhere. Healthy if nothing is wrong and something is sound; else unknown."""
    every = list(findings)
    role = next((role for role in _RANKED if any(finding.role == role for finding in every)), None)
    chosen = sorted((finding for finding in every if finding.role == role), key=lambda f: _order(f, role == "cause"))
    first = chosen[0] if chosen else None
    sound = [finding for finding in every if finding.role == "sound"]
    others = [finding for finding in every if finding.role in _RANKED[:2] and finding is not first]
    wrong = role in _RANKED[:3]
    told = list(dict.fromkeys(finding.text for finding in (*chosen, *sound)))[: 2 if role == "sound" else 1]
    evidence = [asdict(each) for each in (first.evidence if first else ())]
    if role == "sound":
        evidence = [asdict(each) for finding in chosen for each in finding.evidence]
    named = {first.cause} if first else set()
    left = {f.cause: {"cause": f.cause, "excluded_by": None, "text": f.text} for f in others if f.cause not in named}
    ruled_out = [{"cause": f.cause, "excluded_by": f.text} for f in every if f.role == "excluded"]
    return {
        "verdict": "finding" if wrong else "healthy" if role == "sound" else "unknown",
        "cause": first.cause if first and wrong else None,
        "text": " ".join(told) if first else "The files do not show whether anything is wrong.",
        "where": asdict(first.where) if first else None,
        "confidence": "open" if role == "echo" else first.confidence if first else None,
        "evidence": evidence[:SHOWN],
        "alternatives": [*left.values(), *ruled_out],
        "next": list(dict.fromkeys(filter(None, (first.cure, *first.decides)))) if first else [],
        "echoes": sum(finding.count for finding in every if finding.role == "echo"),
        "harmless": [{"cause": f.cause, "text": f.text, "evidence": list(map(asdict, f.evidence))}
                     for f in every if f.role == "harmless"],
        "also": [asdict(finding) for finding in others],
        "sound": [finding.text for finding in sound],
    }  # fmt: skip


def _order(finding: Finding, is_cause: bool) -> tuple[float, ...]:
    sure = _SURE.index(finding.confidence)
    return (finding.slows if is_cause else 0, sure, finding.when)


def _machine(case: Case) -> dict[str, Any]:
    said = asdict(case.said_by) if case.said_by and not case.on else None
    return {"machine": case.machine, "nodes": case.nodes, "machine_said_by": said}
