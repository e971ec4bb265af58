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
from simcoll.accuracy.measured_points import RowQuestions
from simcoll.accuracy.scores import Document
from simcoll.accuracy.triage import pairs_of_nodes
from simcoll.accuracy.triage.configuration import Setting
from simcoll.accuracy.triage.findings import Case, Confidence, Evidence, Finding
from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.accuracy.triage.machine_of_log import best_machine, system_of
from simcoll.errors import InputError, SimcollError
from simcoll.formats import measured
from simcoll.prediction.sweep import run_points
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
_FASTER: Final = "fit the profile to it (simcoll calibrate), unless the machine is another one (--on)"
NEARER: Final = 0.9  # share of the error that may remain if a further setting counts


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


def _find_machine(rows: Sequence[measured.MeasuredRow], text: str, name: str, case: Case) -> None:
    """Note the machine that a table names, if nothing else does."""
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
    whether times are healthy, and what explains them if not, settings of the log first. Raises InputError if there is
    no more than one table, and it cannot be judged."""
    settings: Sequence[Setting] = case.notes.get("settings", ())
    texts = {file.name: _text(file) for file in files}
    if compared := list(pairs_of_nodes.found(texts, case)):
        yield from compared
        return
    found: list[Finding] = []
    for name, text in texts.items():
        try:
            if case.machine is None:
                rows = measured.parse_measured(text, name, chosen=True)
                _find_machine(rows, text, name, case)
                if case.machine is None and (wrong := measured.wrong_data(text, rows)):
                    shown = (Evidence.of(name, None, wrong),)
                    found.append(Finding.of("wrong data", {"text": f"Wrong data: {wrong}."}, evidence=shown))
                    continue
            if case.machine is None:
                cure = "add --on SYSTEM, e.g. --on hgx-h100 (`simcoll list topologies` has all), or --on FILE.yaml"
                raise InputError("the measured machine is missing", cure)
            found += judged(text, name, case)
        except InputError as error:
            if len(files) == 1 and case.present == {KIND}:
                raise
            yield Finding.of("table not judged", {"why": str(error.diagnostics[0])})
    yield from found
    case.notes["tables are sound"] = bool(found) and all(finding.role == "sound" for finding in found)
    explained = {finding.cause for finding in found if finding.role in ("cause", "undecided")}
    for setting in settings:
        if setting.finding.cause not in explained:
            acquitted = setting.finding.slows and explained
            sure: Confidence = "likely" if setting.finding.slows and found else setting.finding.confidence
            blamed = setting.blamed and not acquitted
            yield replace(setting.finding, confidence=sure) if blamed else setting.as_remark()


def judged(text: str, name: str, case: Case) -> Iterator[Finding]:
    """Yield whether a table is as it should be on the machine of the case; if it is not, the setting that explains it,
    or the best hypothesis."""
    machine, settings = str(case.machine), case.notes.get("settings", ())
    excluded: Mapping[str, str] = case.notes.get("excluded", {})
    first = None if settings else tuple(excluded)
    base = diagnosed(text, name, machine, case.where, case.sets, case.tell, excluded=first)
    tables = case.details.setdefault("tables", [])
    if base["explained_by"] == "healthy":
        tables.append(base)
        yield Finding("healthy", of_diagnosis(base), "sound", evidence=(Evidence.of(name, None, _rate(base).said),))
        return
    tried = list(_tried(text, name, settings, case))
    best = min(tried, key=lambda pair: (_error(pair[1]), not pair[0].blamed), default=None)
    if best and _error(best[1]) <= (HALF if _is_assumed(case, base) else PART) * _error(base):
        tables.append(best[1])
        yield _by_setting(*best, base, name)
        return
    again = (text, name, machine, case.where, case.sets, case.tell, tuple(excluded))
    document = diagnosed(*again) if settings else base
    tables.append(document)
    finding = _by_hypothesis(document, name, case)
    if case.notes.get("logs calls") and finding.cause in ("launch", "host"):
        text = f"{of_diagnosis(document)} The log has a line for each call; writing them takes this time."
        finding = replace(finding, role="sound", cause="healthy", text=text)
    yield finding
    for setting, under in (pair for pair in tried if pair[0] in settings):
        rate, found = _rate(under), setting.finding
        why = f"{found.text} That alone predicts {rate.expected:.3g} GB/s, you measured {rate.measured:.3g}."
        wrong = setting.blamed and found.role == "cause"  # nobody wants it, whatever else slows the table down
        yield replace(found, text=why, confidence="likely") if wrong else Finding(found.cause, why, "excluded")
    yield from (Finding(cause, why, "excluded") for cause, why in excluded.items())


def _is_assumed(case: Case, document: Mapping[str, Any]) -> bool:
    """Return whether only an assumption says how fast all that is off should be. Names of GPUs tell their NVLink, but
    neither the NICs nor the PCIe of the host."""
    off = [region["nodes"] or 1 for region in document["regions"] if region["off"]]
    by_nics = bool(off) and min(off) > 1 and not case.notes.get("NICs are known")
    system = system_of(case.machine)
    by_host = system is not None and not {rule.kind for rule in system.links} & {"nvlink", "xgmi"}
    return case.on is None and (by_nics or by_host)


def time_us(collective: str, size: int, ranks: int, nodes: int, case: Case, sets: Sequence[str] = ()) -> float | None:
    """Return the time that a call should take on the machine of the case, under settings; None if it has no costs."""
    row = measured.MeasuredRow(collective=collective, ranks=ranks, nodes=nodes, size_bytes=size, time_us=1.0)
    try:
        (point,) = RowQuestions(str(case.machine), (*case.sets, *sets)).points(row)
        (result,) = run_points([point], keep="totals")
    except (SimcollError, ValueError):
        return None
    return float(result["time_us"]) if result["status"] == "ok" else None


def _tried(text: str, name: str, settings: Sequence[Setting], case: Case) -> Iterator[tuple[Setting, Document]]:
    """Yield the settings that can be simulated, each with the diagnosis of the table under it; then those together that
    bring it nearer."""
    alone = [(setting, under) for setting in settings if setting.sets if (under := _under(text, name, setting, case))]
    yield from alone
    both: tuple[Setting, Document] | None = None
    for setting, under in sorted(alone, key=lambda pair: _error(pair[1])) if len(alone) > 1 else ():
        joined = _joined(both[0], setting) if both else setting
        now = _under(text, name, joined, case) if both else under
        if now and (both is None or _error(now) < NEARER * _error(both[1])):
            both = joined, now
    if both and both[0] not in settings:
        yield both


def _joined(one: Setting, other: Setting) -> Setting:
    """Return two settings as one, whose place is that of the first."""
    first, second = one.finding, other.finding
    shown, decides = (*first.evidence[:2], *second.evidence[:2]), (*first.decides, second.cure)
    found = replace(first, text=f"{first.text} {second.text}", evidence=shown, decides=decides)
    return Setting(found, (*other.sets, *one.sets), one.blamed or other.blamed)


def _under(text: str, name: str, setting: Setting, case: Case) -> Document | None:
    try:
        chosen = (*case.sets, *setting.sets)
        return diagnosed(text, name, str(case.machine), case.where, chosen, case.tell, excluded=None)
    except SimcollError:  # such a machine cannot be set so
        return None


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


def _by_setting(setting: Setting, under: Document, base: Document, name: str) -> Finding:
    before, after = _rate(base), _rate(under)
    who = "That alone predicts" if len(setting.sets) == 1 else "Together they predict"
    said = f"{who} {after.expected:.3g} GB/s, you measured {after.measured:.3g}"
    text = f"{setting.finding.text} {said}; without it {before.expected:.3g} are expected."
    shown = (*setting.finding.evidence, Evidence.of(name, None, before.said))
    sure: Confidence = "clear" if under["explained_by"] == "healthy" else "likely"
    return replace(setting.finding, text=text, confidence=sure, evidence=shown)


def _by_hypothesis(document: Mapping[str, Any], name: str, case: Case) -> Finding:
    """Return the finding of a diagnosis. Rows of several nodes alone never tell a slow network from a slow NVLink, and
    nothing if the speed of the NICs is only assumed. Times that are too short are a finding of a table alone."""
    text = of_diagnosis(document)
    shown = (Evidence.of(name, None, _rate(document).said),)
    if document["wrong"]:
        return Finding.of("wrong data", {"text": text}, evidence=shown)
    faster = only_faster([region for region in document["regions"] if region["off"]])
    if document["explained_by"] == "healthy" or (faster and case.present != {KIND}):
        return Finding("healthy", text, "sound", evidence=shown)
    sure: Confidence = "open" if document["also"] or document["sure"] == "open" else "likely"
    if document["sure"] == "clear" and sure == "likely" and any((p["nodes"] or 1) == 1 for p in document["points"]):
        sure = "clear"
    if document["explained_by"] is None:
        sure = "open"
    first = document["hypotheses"][0]
    cause = str(document["explained_by"] or ("faster than expected" if faster else "slow, unexplained"))
    cure = f"look at: {first['text']}" if document["explained_by"] else _FASTER if faster else ""
    decides = tuple(document["next"]) or ("simcoll diagnose --next prints the measurements that decide",)
    if _is_assumed(case, document) and not faster:
        said = (
            f"only the GPUs say that this is like {document['system']}: name the machine (--on), and its nic_bandwidth"
        )
        return Finding(cause, text, "undecided", "open", said, (cure, *decides), evidence=shown)
    return Finding(cause, text, "symptom", sure, cure, decides, evidence=shown)
