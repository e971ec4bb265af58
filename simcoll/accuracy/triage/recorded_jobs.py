"""What ranks recorded of their calls, as findings: who is missing when a job hangs, who died, who is late."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

from simcoll.accuracy.triage.findings import Case, Evidence, Finding, Where
from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.accuracy.triage.hangs import Job
from simcoll.errors import InputError, visible
from simcoll.formats.recordings import flight_recorder, watchdog_lines
from simcoll.formats.recordings.events import Recording


def looks(file: GivenFile) -> bool:
    """Return whether a file is a dump of the flight recorder (or any pickle), or has lines of a watchdog."""
    return flight_recorder.looks(file.data) or watchdog_lines.looks(file.data)


def read(files: Sequence[GivenFile], case: Case) -> Iterator[Finding]:
    """Yield why the job hangs, or that it does not. Raises InputError if a single dump cannot be read."""
    job, versions = Job(), set[str]()
    dumps = [file for file in files if flight_recorder.looks(file.data)]
    for file in dumps:
        try:
            recording = flight_recorder.read(file.data, file.name)
        except InputError as error:
            if len(files) == 1:
                raise
            recording = Recording(file.name, flight_recorder.rank_of(file.name), whole=False)
            yield _remark("damaged dump", str(error.diagnostics[0]), file)
        file.forget()
        if recording.rank is None:
            recording.rank = 0 if len(files) == 1 else None
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
        yield _remark("versions", f"the ranks' flight recorders have different versions: {named}", dumps[0])
    for file in files:
        if watchdog_lines.looks(file.data):
            yield from _deaths(file)
            for waiting in watchdog_lines.read(file.text(), file.name):
                if waiting.rank in job.seen:
                    job.seen[waiting.rank] = job.seen[waiting.rank]._replace(timed_out=True)
                else:
                    job.add(waiting)
            file.forget()
    if job.seen:
        yield from job.findings()


def _deaths(file: GivenFile) -> Iterator[Finding]:
    """Yield the process that torchrun saw fail first: it died before others timed out."""
    lines = file.text().splitlines()
    for death in watchdog_lines.deaths(file.text()):
        host = visible(death.host)
        how = f"was killed by signal {-death.code}" if death.code < 0 else f"ended with status {death.code}"
        memory = ", as when memory runs out" if death.code == -signal.SIGKILL else ""
        text = f"rank {death.rank} on {host} was the first that failed: its process {how}{memory}."
        cure = f"read the stderr of rank {death.rank}, and the kernel's log on {host} (out of memory, Xid)"
        shown = (Evidence.of(file.name, death.line, lines[death.line - 1]),)
        where = Where(host=host, rank=death.rank)
        yield Finding("dead rank", text, cure=cure, where=where, evidence=shown, when=0)


def _remark(cause: str, text: str, file: GivenFile) -> Finding:
    return Finding(cause, text, "harmless", evidence=(Evidence.of(file.name, None, cause),))
