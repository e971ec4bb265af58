"""Measured tables as findings: whether times are as the machine should give, and what explains them.

With a log, its settings are tried first: the table that a setting would give is predicted, and compared with the
measured one. What the log denies is no explanation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from simcoll.accuracy.diagnosis.diagnose import diagnosed
from simcoll.accuracy.scores import Document
from simcoll.accuracy.triage import pairs_of_nodes
from simcoll.accuracy.triage.configuration import Setting
from simcoll.accuracy.triage.findings import Case, Confidence, Evidence, Finding
from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.accuracy.triage.machine_of_log import best_machine
from simcoll.errors import InputError, SimcollError, visible
from simcoll.formats import measured
from simcoll.report.verdicts import of_diagnosis, only_faster
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.units import short_size

KIND: Final = "table"
_WHOLE: Final = re.compile(  # a whole line of NCCL's log, with a launcher's label
    r"(?:\S{1,60}[>:] ?)?(?:\[[0-9\-:. ]+\] ?)?[\w.\-]{1,253}:[0-9]+:[0-9]+ \[-?[0-9]*\] (?:\S+ )?NCCL "
)
_OF_TABLES: Final = re.compile(r"\bnranks[ =]+[0-9]+|version.*")  # what says more of a table
HALF: Final = 0.5  # share of the error that may remain, if a setting explains a table
PART: Final = 0.8  # and if it explains a part


def looks(file: GivenFile) -> bool:
    """Return whether a file has rows of measured times; whole lines of NCCL's log are none."""
    if file.is_pickle:
        return False
    return measured.looks("\n".join(line for line in file.text().split("\n") if " NCCL " not in line))


def _text(file: GivenFile) -> str:
    """Return a file's text in which lines of NCCL's log that say nothing new of a table are empty. Of calls, which name
    the collective, the first line after each other line stays."""
    lines, called, said = file.text().split("\n"), False, dict[str, str]()
    for number, line in enumerate(lines):
        if " NCCL " not in line or not _WHOLE.match(line):
            called = called and not line
        elif ": opCount " in line and not called:
            called = True
        elif not (found := _OF_TABLES.search(line)) or said.get(found[0][:7]) == found[0]:
            lines[number] = ""
        else:
            said[found[0][:7]] = found[0]
    return "\n".join(lines)


def alone(file: GivenFile, case: Case) -> tuple[Document, Finding]:
    """Return the diagnosis of a table without a log, and its finding; raises InputError without a machine, and as
    `diagnosed`. A table that is too fast is a finding, too, as nothing else says why."""
    text = _text(file)
    _find_machine(text, file.name, case)
    if case.machine is None:
        cure = "add --on SYSTEM, e.g. --on hgx-h100 (`simcoll list topologies` has all), or --on FILE.yaml"
        raise InputError("the measured machine is missing", cure)
    document = diagnosed(text, file.name, case.machine, case.where, case.sets, case.tell)
    finding = _by_hypothesis(document, file.name, guessed=False)
    if finding.role == "sound" and document["explained_by"] != "healthy":
        finding = replace(finding, role="symptom", cause=document["explained_by"] or "faster than expected")
    return document, finding


def _find_machine(text: str, name: str, case: Case) -> None:
    """Note the machine that a table names, if nothing else does."""
    if case.machine is not None:
        return
    rows = measured.parse_measured(text, name, chosen=True)
    for gpu in measured.gpu_names.named(rows):
        nodes = max((row.nodes or 1 for row in rows), default=1)
        local = max((row.ranks for row in rows), default=0) // nodes or None
        if (found := best_machine([gpu], local, case.notes.get("networks", ()))) is not None:
            at = next((number for number, line in enumerate(text.split("\n"), 1) if gpu in line), None)
            case.machine, case.nodes = found, case.nodes or nodes
            case.said_by = Evidence.of(name, at, gpu)
            return


def read(files: Sequence[GivenFile], case: Case) -> Iterator[Finding]:
    """Yield what tables show: the bad node, cable or NIC that tables of pairs of nodes find; else for each table
    whether times are healthy, and what explains them if not, settings of the log first."""
    settings: Sequence[Setting] = case.notes.get("settings", ())
    texts = {file.name: _text(file) for file in files}
    if compared := list(pairs_of_nodes.found(texts, case)):
        yield from compared
        return
    found: list[Finding] = []
    for name, text in texts.items():
        try:
            _find_machine(text, name, case)
            if case.machine is None:
                raise InputError("the machine is not known", "add --on SYSTEM (`simcoll list topologies` has all)")
            found += judged(text, name, case)
        except InputError as error:
            yield Finding.of("table not judged", {"why": visible(str(error.diagnostics[0]))})
    yield from found
    explained = {finding.cause for finding in found if finding.role == "cause"}
    healthy = bool(found) and all(finding.role == "sound" for finding in found)
    for setting in settings:
        finding = setting.finding
        if finding.cause not in explained:
            acquitted = finding.slows and (healthy or explained)
            sure: Confidence = "likely" if finding.slows and found else finding.confidence
            yield replace(finding, confidence=sure) if setting.blamed and not acquitted else setting.as_remark()


def judged(text: str, name: str, case: Case) -> Iterator[Finding]:
    """Yield whether a table is as it should be on the machine of the case; if it is not, the setting that explains it,
    or the best hypothesis."""
    machine, settings = str(case.machine), case.notes.get("settings", ())
    base = diagnosed(text, name, machine, case.where, case.sets, case.tell, excluded=None)
    tables = case.details.setdefault("tables", [])
    if base["explained_by"] == "healthy":
        tables.append(base)
        yield Finding("healthy", of_diagnosis(base), "sound", evidence=(Evidence.of(name, None, _rate(base).said),))
        return
    tried = list(_tried(text, name, settings, case))
    best = min(tried, key=lambda pair: (_error(pair[1]), not pair[0].blamed), default=None)
    sets = list(case.sets)
    if best and _error(best[1]) <= PART * _error(base):
        setting, under = best
        yield _by_setting(setting, base, under, name, "clear" if under["explained_by"] == "healthy" else "likely")
        if under["explained_by"] == "healthy" or _error(under) <= HALF * _error(base):
            tables.append(under)
            return
        sets += setting.sets
    excluded: Mapping[str, str] = case.notes.get("excluded", {})
    document = diagnosed(text, name, machine, case.where, sets, case.tell, excluded=tuple(excluded))
    tables.append(document)
    finding = _by_hypothesis(document, name, case.said_by is not None and not case.on)
    if case.notes.get("logs calls") and finding.cause in ("launch", "host"):
        text = f"{of_diagnosis(document)} The log has a line for each call; writing them takes this time."
        finding = replace(finding, role="sound", cause="healthy", text=text)
    if finding.role == "symptom" and case.said_by is not None and not case.on and _of_nodes(document):
        slower = f"if your NICs are slower than those of {machine}, add --on with nic_bandwidth"
        finding = replace(finding, decides=(*finding.decides, slower))
    shared = next((each.finding for each in settings if each.finding.cause == "shared nic"), None)
    if shared and finding.role == "symptom":
        shown = (*finding.evidence, *shared.evidence[:1])
        finding = replace(finding, text=f"{finding.text} {shared.text}", evidence=shown)
    yield finding
    for setting, under in tried[: sum(bool(setting.sets) for setting in settings)]:
        if {*setting.sets} <= {*sets}:
            continue
        rate = _rate(under)
        why = f"{setting.finding.text} That predicts {rate.expected:.3g} GB/s, you measured {rate.measured:.3g}."
        yield Finding(setting.finding.cause, why, "excluded")
    yield from (Finding(cause, why, "excluded") for cause, why in excluded.items())


def _of_nodes(document: Mapping[str, Any]) -> bool:
    return any((point["nodes"] or 1) > 1 for point in document["points"])


def _tried(text: str, name: str, settings: Sequence[Setting], case: Case) -> Iterator[tuple[Setting, Document]]:
    """Yield the settings that can be simulated, each with the diagnosis of the table under it; then all at once."""
    sets = [setting for setting in settings if setting.sets]
    if len(sets) > 1:
        keys = {text.partition("=")[0]: text for setting in reversed(sets) for text in setting.sets}
        sets.append(Setting(sets[0].finding, tuple(keys.values()), sets[0].blamed))
    for setting in sets:
        try:
            chosen = (*case.sets, *setting.sets)
            yield setting, diagnosed(text, name, str(case.machine), case.where, chosen, case.tell, excluded=None)
        except SimcollError:  # such a machine cannot be set so
            continue


class _Rate(NamedTuple):
    """The busbw (GB/s) of the largest call: measured, and expected."""

    measured: float
    expected: float
    said: str


def _rate(document: Mapping[str, Any]) -> _Rate:
    point = max(document["points"], key=lambda point: int(point["size_bytes"]))
    nbytes = point["size_bytes"] * float(COLLECTIVES[point["collective"]].busbw(point["ranks"])) / 1e3
    rates = nbytes / point["measured_us"], nbytes / point["expected_us"]
    call = f"{point['collective']} of {short_size(point['size_bytes'])} on {point['ranks']} ranks"
    return _Rate(*rates, f"{call}: {rates[0]:.3g} GB/s, expected {rates[1]:.3g} GB/s")


def _error(document: Mapping[str, Any]) -> float:
    """Return the mean |log of measured / expected| of a table's points."""
    ratios = [point["measured_us"] / point["expected_us"] for point in document["points"]]
    return sum(abs(math.log(ratio)) for ratio in ratios) / len(ratios)


def _by_setting(setting: Setting, base: Document, under: Document, name: str, sure: Confidence) -> Finding:
    before, after = _rate(base), _rate(under)
    said = f"That alone predicts {after.expected:.3g} GB/s, you measured {after.measured:.3g}"
    text = f"{setting.finding.text} {said}; without it {before.expected:.3g} are expected."
    shown = (*setting.finding.evidence, Evidence.of(name, None, before.said))
    return replace(setting.finding, text=text, confidence=sure, evidence=shown, role="cause")


def _by_hypothesis(document: Mapping[str, Any], name: str, guessed: bool) -> Finding:
    """Return the finding of a diagnosis. Rows of several nodes alone never tell a slow network from a slow NVLink; on a
    machine that was `guessed` from its GPUs, the network may be another one."""
    text = of_diagnosis(document)
    shown = (Evidence.of(name, None, _rate(document).said),)
    if document["wrong"]:
        return Finding.of("wrong data", {"text": text}, evidence=shown)
    if document["explained_by"] == "healthy" or only_faster(
        [region for region in document["regions"] if region["off"]]
    ):
        return Finding("healthy", text, "sound", evidence=shown)
    sure: Confidence = "open" if document["also"] or document["sure"] == "open" else "likely"
    if document["sure"] == "clear" and sure == "likely" and any((p["nodes"] or 1) == 1 for p in document["points"]):
        sure = "clear"
    if document["explained_by"] is None or (guessed and sure != "clear"):
        sure = "open"
    first = document["hypotheses"][0]
    cause = str(document["explained_by"] or "slow, unexplained")
    cure = f"look at: {first['text']}" if document["explained_by"] else ""
    decides = tuple(document["next"]) or ("simcoll diagnose --next prints the measurements that decide",)
    return Finding(cause, text, "symptom", sure, cure, decides, evidence=shown)
