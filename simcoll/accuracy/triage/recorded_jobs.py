"""Dumps of PyTorch's flight recorder as findings: who is missing when a job hangs, and what is late or slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcoll.accuracy.triage.findings import Case, Evidence, Finding
from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.accuracy.triage.hangs import Job
from simcoll.errors import InputError
from simcoll.formats.recordings import flight_recorder
from simcoll.formats.recordings.events import Recording


def looks(file: GivenFile) -> bool:
    """Return whether a file is a dump of the flight recorder, or a pickle of anything."""
    return flight_recorder.looks(file.data)


def read(files: Sequence[GivenFile], case: Case) -> Iterator[Finding]:
    """Yield why the job hangs, or that it does not. Raises InputError if no dump can be read."""
    job, versions = Job(), set[str]()
    for number, file in enumerate(files):
        try:
            recording = flight_recorder.read(file.data, file.name)
        except InputError as error:
            if len(files) == 1:
                raise
            recording = Recording(file.name, flight_recorder.rank_of(file.name), whole=False)
            yield _remark("damaged dump", str(error.diagnostics[0]), file)
        file.forget()
        if recording.rank is None:
            recording.rank = number if len(files) == 1 else None
            yield _remark("dump without a rank", f"{file.name}: the name does not end in the number of its rank", file)
        elif recording.rank in job.seen:
            known = job.seen[recording.rank].source
            yield _remark(
                "two dumps of a rank", f"{file.name} is of rank {recording.rank}, as {known} is; left out", file
            )
            continue
        if recording.rank is not None:
            job.add(recording)
            versions.add(recording.version)
    if len(versions) > 1:
        named = ", ".join(sorted(versions))
        yield _remark("versions", f"the ranks' flight recorders have different versions: {named}", files[0])
    if job.seen:
        yield from job.findings()


def _remark(cause: str, text: str, file: GivenFile) -> Finding:
    return Finding(cause, text, "harmless", evidence=(Evidence.of(file.name, None, cause),))
