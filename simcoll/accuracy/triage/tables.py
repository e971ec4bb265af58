"""Measured tables as findings: whether times are as the machine should give, and what explains them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simcoll.accuracy.diagnosis.diagnose import diagnosed
from simcoll.accuracy.scores import Document
from simcoll.accuracy.triage.findings import Case, Evidence, Finding
from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.errors import InputError
from simcoll.formats import measured
from simcoll.report.verdicts import of_diagnosis

KIND: Final = "table"


def looks(file: GivenFile) -> bool:
    """Return whether a file has rows of measured times."""
    return file.data[:1] != b"\x80" and measured.looks(file.text())  # a pickle is no text, and may be large


def alone(file: GivenFile, case: Case) -> Document:
    """Return the diagnosis of a table; raises InputError without a machine, and as `diagnosed`."""
    if case.machine is None:
        cure = "add --on SYSTEM, e.g. --on hgx-h100 (`simcoll list topologies` has all), or --on FILE.yaml"
        raise InputError("the measured machine is missing", cure)
    return diagnosed(file.text(), file.name, case.machine, case.where, case.sets, case.tell)


def read(files: Sequence[GivenFile], case: Case) -> Iterator[Finding]:
    """Yield one finding for each table: healthy times, or what is off and what explains it."""
    for file in files:
        document = alone(file, case)
        case.details.setdefault("tables", []).append(document)
        yield finding(document, file.name)
        file.forget()


def finding(document: dict[str, object], name: str) -> Finding:
    """Return the finding of a diagnosis of the table `name`."""
    text = of_diagnosis(document)
    shown = (Evidence.of(name, None, text),)
    if document["verdict"] == "healthy":
        return Finding("healthy", text, "sound", evidence=shown)
    sure = {"clear": "clear", "likely": "likely"}.get(str(document["sure"]), "open")
    return Finding(str(document["verdict"]), text, "symptom", sure, evidence=shown)  # type: ignore[arg-type]
