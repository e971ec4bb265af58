"""Explain why a point takes as long as it does: as a document for scripts, and as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import simcoll
from simcoll.config import text_table
from simcoll.config.grouping import grouped
from simcoll.errors import ScheduleError
from simcoll.explanation.critical_path import LINKED, by_cause
from simcoll.explanation.explained_run import ALL_CAUSES, ExplainedRun, TimeShare
from simcoll.explanation.narrowest_cut import narrowest_cut
from simcoll.explanation.what_if import answers
from simcoll.nccl.tuner_constants import unknown_first
from simcoll.prediction.summary_sentence import DEEPEP, FITTED_KERNELS
from simcoll.scenario import caveats
from simcoll.scenario.profile import described_with, titled
from simcoll.units import format_duration, format_size

Explained = Mapping[str, Any]  # a point of the document, or a part of it
SCHEMA: Final = "simcoll.explain/1"
ENDS: Final = 100  # parts at either end of the path in a document: a whole path may have millions
SHOWN: Final = 10  # links in a document
STRETCHES: Final = 4  # lines of text for either end of the path: a dozen with the gap
GAIN: Final = 1.005  # a smaller gain, below half a percent, is listed as none
_IDENTITY: Final = (
    *("scenario", "topology", "collective", "workload", "algorithm", "protocol", "executor", "ranks", "nodes"),
    *("size_bytes", "dtype", "profile", "transport", "sharing", "confidence", "low_us", "high_us"),
    *("compute_us", "waiting_us", "exposed_us", "binding_link", "binding_busy"),
)


def explanation(run: ExplainedRun, what_if: bool = True) -> dict[str, Any]:
    """Return the document that `explain --json` prints; its shares (0 … 1) are of the point's time."""
    shares, time_ps, kinds, rails = run.shares(), run.time_ps, run.kinds, _rails(run)
    few = len(run.path) <= 2 * ENDS
    broken: list[ScheduleError] = []
    tried = answers(run, broken) if what_if else []
    notes = caveats.notes([run.scenario])
    notes += dict.fromkeys(f"left out of what could be faster: {error}" for error in broken)
    parts = list(run.parts() if few else [*run.parts(slice(None, ENDS)), *run.parts(slice(-ENDS, None))])
    return {
        **{name: run.row[name] for name in _IDENTITY if run.row.get(name) is not None},
        "time_us": time_ps / 1e6,
        "time_ps": time_ps,
        "causes": [{"cause": cause, **_took(ps, time_ps)} for cause, ps in by_cause(shares).items()],
        "places": [
            {
                "cause": cause,
                "where": where,
                "kind": kinds.get(where or ""),
                "alike": len(rails.get(where or "", ("itself",))),
                **_took(ps, time_ps),
            }
            for (cause, where), ps in shares.items()
        ],
        "leads": run.path.leads(),
        "links": _links(run, shares, kinds),
        **({"cut": cut} if not run.row.get("workload") and (cut := narrowest_cut(run.scenario)) else {}),
        "binds": _binds(run, shares, kinds),
        "path": [part._asdict() for part in parts],
        "switches_from": run.ran.program.schedule.n,
        "path_omitted": 0 if few else len(run.path) - 2 * ENDS,
        "what_if": [
            {"change": answer.change, "time_us": answer.time_ps / 1e6, "factor": answer.factor} for answer in tried
        ],
        **({"notes": notes} if notes else {}),
    }


def _took(ps: int, of: int) -> dict[str, Any]:
    return {"time_us": ps / 1e6, "time_ps": ps, "share": ps / of if of else 0.0}


def _links(
    run: ExplainedRun, shares: Mapping[tuple[str, str | None], int], kinds: Mapping[str, str]
) -> list[dict[str, Any]]:
    """List the links on which the critical path spends most time, then the busiest links."""
    names, time_ps = run.ran.links.names, run.time_ps
    used = run.ran.busy
    on_path: Counter[str] = Counter()
    for (cause, where), ps in shares.items():
        if where and cause in LINKED:
            on_path[where] += ps
    waited: Counter[str] = Counter()  # other channels wait for their rails as the simulated channel for its own
    for alike in _rails(run).values():
        for name in alike:
            waited[name] = max(waited[name], on_path[alike[0]])
    order = sorted(range(len(names)), key=lambda link: (-waited[names[link]], -used[link]))
    return [
        {
            "link": names[link],
            "kind": kinds[names[link]],
            "busy": float(used[link]),
            "path_share": waited[names[link]] / time_ps if time_ps else 0.0,
        }
        for link in order[:SHOWN]
        if used[link]
    ]


def _binds(
    run: ExplainedRun, shares: Mapping[tuple[str, str | None], int], kinds: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the kind of links that takes at least half of the critical path, with its busiest link, or None."""
    on_kind: Counter[str] = Counter()
    for (cause, where), ps in shares.items():
        if where and cause in LINKED:
            on_kind[kinds[where]] += ps
    kind, ps = max(on_kind.items(), key=lambda each: each[1], default=("", 0))
    if not kind or 2 * ps < run.time_ps:
        return None
    names, used = run.ran.links.names, run.ran.busy
    busiest = max((link for link, name in enumerate(names) if kinds[name] == kind), key=lambda link: float(used[link]))
    return {"kind": kind, "link": names[busiest], "busy": float(used[busiest]), "path_share": ps / run.time_ps}


def _rails(run: ExplainedRun) -> dict[str, tuple[str, ...]]:
    """Return, for each used link by name, the names of all links that are equally busy with equal traffic, its own
    first."""
    names, busy = run.ran.links.names, run.ran.busy
    return {
        names[link]: tuple(names[each] for each in alike if math.isclose(busy[each], busy[link]))
        for link, alike in run.ran.rails.items()
    }


# --- text ---


def text(documents: Sequence[Explained]) -> str:
    """Return the explanations of several points as text."""
    others = [document for document in documents if document.get("executor") not in DEEPEP]
    fitted = described_with((document["profile"], document.get("transport")) for document in others) or FITTED_KERNELS
    head = f"# simcoll {simcoll.__version__}: explain {documents[0]['scenario']}   {fitted}"
    _, notes = unknown_first(note for document in documents for note in document.get("notes", ()))
    return (
        head
        + "\n"
        + "".join(f"# {note}\n" for note in notes)
        + "\n\n".join("\n".join(_point(document)) for document in documents)
    )


def _point(document: Explained) -> Iterator[str]:
    words = [document.get("workload") or document["collective"], document.get("algorithm"), document.get("protocol")]
    title = " ".join(str(word) for word in words if word and word != "none")
    size = f", {format_size(document['size_bytes'])}" if document.get("size_bytes") else ""
    where = f"{document['ranks']} ranks on {document['topology']}"
    costs = FITTED_KERNELS if document.get("executor") in DEEPEP else f"profile {titled(document['profile'])}"
    yield f"# {title}{size}, {where}   {costs}   sharing {document['sharing']}"
    interval = (
        f", 90 % within {document['low_us']:.4g} to {document['high_us']:.4g} us" if document.get("low_us") else ""
    )
    yield f"# {format_duration(document['time_ps'])} ({document.get('confidence') or 'uncalibrated'}{interval})"
    yield text_table.render(["time_us", "share", "cause", "on", "most at"], list(_places(document)))
    yield "# " + "; ".join(f"{row['cause']}: {ALL_CAUSES[row['cause']]}" for row in document["causes"])
    yield "# the path"
    yield text_table.render(["from_us", "to_us", "what", "spent on", "then"], list(_stretches(document)))
    if document["leads"]:
        yield f"# it goes on {', '.join(f'{count} times over {via}' for via, count in document['leads'].items())}"
    if document["links"]:
        yield "# links: busy in the whole run, and what the path spends on them"
        shown = [
            {**row, "busy": _percent(row["busy"]), "path": _percent(row["path_share"])} for row in document["links"]
        ]
        yield text_table.render(["link", "kind", "busy", "path"], shown[:5])
    if cut := document.get("cut"):
        half = f", of {cut['of']}" if cut["of"] != document["collective"] else ""
        yield text_table.remarks_wrapped(f"# narrowest cut{half}: {cut['text']}")
    yield from _gains(document["what_if"])


def _gains(answers: Sequence[Explained]) -> Iterator[str]:
    """Yield the changes that make the point faster, one per line, then all other changes in one line."""
    helps = [{**row, "factor": f"{row['factor']:.2f} x"} for row in answers if row["factor"] >= GAIN]
    if helps:
        yield "# what if, each simulated"
        yield text_table.render(["factor", "time_us", "change"], helps)
    others = [f"{row['change']} {_factor(row['factor'])} x" for row in answers if row["factor"] < GAIN]
    if others:
        yield f"# no gain: {'; '.join(others)}"


def _factor(factor: float) -> str:
    """Return a factor as text with two decimals, or with two digits if two decimals would be 0.00."""
    return f"{factor:.2f}" if factor >= 0.005 else f"{factor:.2g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _places(document: Explained) -> Iterator[dict[str, object]]:
    """Yield the critical path's time by cause and kind of link, with the link on which most of this time is spent."""
    groups = grouped(document["places"], lambda row: (row["cause"], row["kind"]))
    sums = Counter({key: sum(row["time_ps"] for row in rows) for key, rows in groups.items()})
    for (cause, kind), ps in sums.most_common():
        rows = groups[cause, kind]
        beside = f" and {rows[0]['alike'] - 1} alike" if rows[0]["alike"] > 1 else ""
        most = f"{rows[0]['where']}{beside} {rows[0]['time_us']:.4g}" if rows[0]["where"] else ""
        place = {"cause": cause, "on": kind, "most at": f"{most}, {len(rows) - 1} more" if len(rows) > 1 else most}
        yield {"time_us": ps / 1e6, "share": _percent(ps / document["time_ps"]), **place}


def _stretches(document: Explained) -> Iterator[dict[str, object]]:
    """Yield the critical path as rows, one for each transfer or operation; the middle of a long path is left out."""
    parts = [TimeShare(**part) for part in document["path"]]
    met = ENDS if document["path_omitted"] else len(parts)
    lead = len(parts) - 2 * ENDS if document["path_omitted"] else 0
    switches = document["switches_from"]
    whole = [*_lines(parts[: met + lead], switches), *_lines(parts[met + lead :], switches)]
    if len(whole) <= 2 * STRETCHES + 1 and not document["path_omitted"]:
        yield from whole
        return
    yield from whole[:STRETCHES]
    yield {"what": "…", "spent on": "…", "then": "…"}
    yield from whole[-STRETCHES:]


def _lines(parts: Sequence[TimeShare], switches: int) -> list[dict[str, object]]:
    def owner(part: TimeShare) -> tuple[object, ...]:
        return part.operation, part.rank, part.step, part.src, part.dst, part.cause if part.src is None else None

    lines: list[dict[str, object]] = []
    for _, group in groupby(parts, owner):
        run = list(group)
        causes: dict[str, int] = {}
        for part in run:
            causes[part.cause] = causes.get(part.cause, 0) + part.end_ps - part.begin_ps
        most = sorted(causes, key=lambda cause: -causes[cause])
        lines.append({
            "from_us": run[0].begin_ps / 1e6,
            "to_us": run[-1].end_ps / 1e6,
            "what": _owner(run[0], switches),
            "spent on": ", ".join(f"{cause} {causes[cause] / 1e6:.4g}" for cause in most[:3]),
            "then": run[-1].then,
        })  # fmt: skip
    return lines


def _owner(part: TimeShare, switches: int) -> str:
    """Name the transfer or operation of a part of the path. Devices from number `switches` on are switches."""
    if part.src is None or part.dst is None:
        name = part.operation or part.where or part.cause
        return f"{name}, rank {part.rank}" if part.operation else name
    src, dst = (str(end) if end < switches else "switch" for end in (part.src, part.dst))
    return f"{part.operation or f'step {part.step}'}, {src}->{dst}"
