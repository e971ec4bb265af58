"""What ranks recorded of their calls, as findings: who is missing when a job hangs, who died, who is late."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace

from simcoll.accuracy.triage import tables
from simcoll.accuracy.triage.findings import Case, Evidence, Finding, Where
from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.accuracy.triage.hangs import Job
from simcoll.accuracy.triage.machine_of_log import system_of
from simcoll.accuracy.triage.slow_steps import FEWEST, Late, Timing
from simcoll.errors import InputError
from simcoll.formats import measured
from simcoll.formats.recordings import flight_recorder, inspector, watchdog_lines
from simcoll.formats.recordings.events import Recording


def looks(file: GivenFile) -> bool:
    """Return whether a file is a dump of the flight recorder, or has lines of a watchdog or of Inspector."""
    return any(looks(file.data) for looks in (flight_recorder.looks, watchdog_lines.looks, inspector.looks))


def read(files: Sequence[GivenFile], case: Case) -> Iterator[Finding]:
    """Yield why the job hangs, or that it does not; then which ranks are late and whether calls are slow. Raises
    InputError if a single dump cannot be read."""
    job, timing, others = Job(), Timing(), list[GivenFile]()
    for file in files:
        if not flight_recorder.looks(file.data):
            others.append(file)
            continue
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
            timing.add(recording)
    for file in others:
        for waiting in watchdog_lines.read(file.text(), file.name):
            if waiting.rank in job.seen:
                job.seen[waiting.rank] = job.seen[waiting.rank]._replace(timed_out=True)
            else:
                job.add(waiting)
        if inspector.looks(file.data):
            for recording in inspector.read(file.text(), file.name):
                timing.add(recording)
        file.forget()
    for file in others:
        yield from _deaths(file, job)
        file.forget()
    hangs = list(job.findings()) if job.seen else []
    yield from hangs
    if all(finding.role == "sound" for finding in hangs):
        yield from _slow(timing, case, files[0])


def _slow(timing: Timing, case: Case, file: GivenFile) -> Iterator[Finding]:
    """Yield a rank that is late, and whether calls take as long as the machine needs for them."""
    late = timing.lateness()
    case.details["recorded"] = {"ranks": [each._asdict() for each in late], "calls": []}
    if finding := timing.late_rank(late):
        yield finding
    elif late and late[0].calls >= FEWEST:
        found = Finding.of("no late rank", {"rank": late[0].rank, "share": 100 * late[0].share})
        yield replace(found, evidence=(Evidence.of(file.name, None, found.text),))
    rows = timing.rows(_ranks_of_a_node(case, late))
    if rows and case.machine is None:
        yield _remark("times are not judged", "--on SYSTEM judges the times of the recorded calls", file)
    elif rows and case.machine:
        yield from tables.judged(measured.dump(rows), "recorded calls", case)
        case.details["recorded"]["calls"] = case.details["tables"].pop()["points"]


def _ranks_of_a_node(case: Case, ranks: Sequence[Late]) -> int | None:
    """Return how many ranks share a node: as many as it has GPUs, or as the number of nodes says; None if unknown."""
    if case.nodes and ranks:
        return -(-(max(late.rank for late in ranks) + 1) // case.nodes)
    system = system_of(case.machine)
    return (system.counts.get("gpu") or None) if system else None


def _deaths(file: GivenFile, job: Job) -> Iterator[Finding]:
    """Yield the process that torchrun saw fail first. One that its own watchdog ended (SIGABRT) is an echo."""
    lines = file.text().splitlines()
    for death in watchdog_lines.deaths(file.text()):
        how = f"was killed by signal {-death.code}" if death.code < 0 else f"ended with status {death.code}"
        how += ", as when memory runs out" if death.code == -signal.SIGKILL else ""
        shown = (Evidence.of(file.name, death.line, lines[death.line - 1]),)
        ended = death.code == -signal.SIGABRT and death.rank in job.seen and job.seen[death.rank].timed_out
        said = {"rank": death.rank, "host": death.host, "how": how}
        role = "echo" if ended else "cause"
        yield Finding.of("first death", said, role=role, where=Where(death.host, death.rank), evidence=shown)


def _remark(cause: str, text: str, file: GivenFile) -> Finding:
    return Finding(cause, text, "harmless", evidence=(Evidence.of(file.name, None, cause),))
