"""Answers of NCCL's RAS service (`ncclras -f json`) as findings: dead and silent ranks, and ranks that are behind.

Source of the format: NVIDIA/nccl, src/ras/client_support.cc; its documentation, troubleshooting/ras.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from simcoll.accuracy.triage.findings import Case, Evidence, Finding, Where
from simcoll.accuracy.triage.given_files import GivenFile
from simcoll.accuracy.triage.hangs import ranks_text
from simcoll.errors import InputError, visible

_IN_PROGRESS: Final = 7  # ncclInProgress, which is no error
Answers = list[tuple[GivenFile, dict[str, Any]]]


def looks(file: GivenFile) -> bool:
    """Return whether a file is an answer of RAS in JSON, or a line of its monitoring."""
    if not file.data[:64].lstrip().startswith(b"{"):
        return False
    return (b'"communicators"' in file.data and b'"nccl_version"' in file.data) or b'"PEER_DEAD"' in file.data


def read(files: Sequence[GivenFile], case: Case) -> Iterator[Finding]:
    """Yield what RAS says of ranks. Raises InputError for files that are no answers of RAS."""
    answers: Answers = []
    for file in files:
        answers += [(file, document) for document in _documents(file)]
        file.forget()
    try:
        yield from _findings(sorted(answers, key=lambda answer: str(answer[1].get("timestamp", ""))))
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        problem = f"{files[0].name}: no answer of RAS as NCCL gives it: {visible(str(error))[:80]}"
        raise InputError(problem, "give the whole output of ncclras -f json") from None


def _documents(file: GivenFile) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file: one, or one after the other."""
    decoder, text, at = json.JSONDecoder(), file.text(), 0
    while (at := len(text) - len(text[at:].lstrip())) < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file.name}: not JSON: {visible(str(error))[:80]}", "give the whole answer") from None
        if isinstance(document, dict):
            yield document


def _findings(answers: Answers) -> Iterator[Finding]:
    behind = defaultdict[tuple[str, int], list[Finding]](list)
    ranks = calls = 0
    for file, answer in answers:
        if str(answer.get("event", "")).upper() == "PEER_DEAD":
            yield _dead_peer(file, answer)
        for communicator in answer.get("communicators") or ():
            ranks += len(communicator.get("ranks") or ())
            yield from _bad_ranks(file, communicator)
            for finding in _behind(file, communicator):
                behind[str(communicator.get("hash")), finding.where.rank or 0].append(finding)
            calls += sum(map(_calls, communicator.get("ranks") or ()))
    snapshots = sum("communicators" in answer for _, answer in answers)
    for found in behind.values():
        if len(found) > 1 or snapshots == 1:
            said = {"text": found[-1].text, "answers": len(found)}
            shown = tuple(finding.evidence[0] for finding in found)
            key = "rank behind" if len(found) > 1 else "rank behind once"
            yield Finding.of(key, said, where=found[-1].where, evidence=shown)
    if ranks:
        yield _found("RAS", answers[0][0], {"calls": calls, "ranks": ranks})


def _found(key: str, file: GivenFile, said: Mapping[str, object], before: str = "") -> Finding:
    """Return a finding whose place is what is `said` of it, and whose evidence in the file is its text, after
    `before`."""
    shown = {name: str(value) for name, value in said.items()}
    rank = int(shown["rank"]) if "rank" in shown else None
    where = Where(shown.get("host"), rank, shown.get("devices"), group=shown.get("group"))
    found = Finding.of(key, said, where=where)
    return replace(found, evidence=(Evidence.of(file.name, None, before + found.text),))


def _dead_peer(file: GivenFile, answer: dict[str, Any]) -> Finding:
    peer = answer.get("peer") or {}
    devices = ", ".join(map(str, peer.get("cuda_devs") or ()))
    said = {"pid": peer.get("pid"), "host": peer.get("host"), "devices": devices}
    return _found("dead process", file, said, f"{answer.get('timestamp')}: PEER_DEAD ")


def _bad_ranks(file: GivenFile, communicator: dict[str, Any]) -> Iterator[Finding]:
    """Yield ranks that do not answer, and those whose communicator has an error or was aborted."""
    for name in ("missing_ranks", "ranks"):
        for rank in communicator.get(name) or ():
            status = rank.get("status") or {}
            error, dead = status.get("async_error"), status.get("considered_dead") is True
            failed = error not in (None, 0, _IN_PROGRESS) or status.get("abort_flag") is True
            key = (
                ("rank dead" if dead else "silent rank") if name == "missing_ranks" else "rank failed" if failed else ""
            )
            said = {"rank": rank["rank"], "group": communicator.get("hash"), "host": rank.get("host"), "error": error}
            if key:
                yield _found(key, file, said)


def _behind(file: GivenFile, communicator: dict[str, Any]) -> Iterator[Finding]:
    """Yield for each rank that launched fewer collectives than most how far it is behind."""
    counts = {int(rank["rank"]): _calls(rank) for rank in communicator.get("ranks") or ()}
    most = max(counts.values(), default=0)
    late = [rank for rank, count in counts.items() if count < most]
    if 2 * len(late) > len(counts):  # most are behind: who is ahead only launches early
        return
    hosts = {int(rank["rank"]): str(rank.get("host")) for rank in communicator.get("ranks") or ()}
    for rank in late:
        ahead = [other for other in counts if counts[other] == most]
        text = f"{ranks_text([rank])} of communicator {communicator.get('hash')} launched {counts[rank]} "
        text += f"collectives, and {ranks_text(ahead)} {most}"
        where = Where(host=hosts[rank], rank=rank, group=str(communicator.get("hash")))
        yield Finding("rank behind", text, where=where, evidence=(Evidence.of(file.name, None, text),))


def _calls(rank: dict[str, Any]) -> int:
    return sum(int(count) for count in (rank.get("collective_counts") or {}).values())
