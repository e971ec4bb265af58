"""Why a point takes as long as it does, as a document for scripts and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import simcoll
from simcoll.config import text_table
from simcoll.engine.link_usage import busy
from simcoll.explanation._path_columns import LINKED
from simcoll.explanation.explained_run import ALL_CAUSES, Subject, TimeShare
from simcoll.explanation.what_if import answers
from simcoll.units import format_duration, format_size

Explained = Mapping[str, Any]  # a point of the document, or a part of it
SCHEMA: Final = "simcoll.explain/1"
ENDS: Final = 100  # parts of the path that a document holds from its begin, and from its end
SHOWN: Final = 10  # places and links that are told
STRETCHES: Final = 4  # of the path, from its begin and from its end
GAIN: Final = 1.005  # a change helps that makes a point so many times as fast
_IDENTITY: Final = (
    *("scenario", "topology", "collective", "workload", "algorithm", "protocol", "ranks", "nodes", "size_bytes"),
    *("dtype", "profile", "sharing", "confidence", "low_us", "high_us", "compute_us", "exposed_us"),
)


def explained(subject: Subject, what_if: bool = True) -> dict[str, Any]:
    """All that is known of a point; shares are of its time."""
    shares, time_ps, topology = subject.shares(), subject.time_ps, subject.topology
    links = (link.kind for *_, link in topology.graph.edges.data("link"))
    kinds = dict(zip(topology.link_names, links, strict=True))
    by_cause: dict[str, int] = {}
    for (cause, _), ps in shares.items():
        by_cause[cause] = by_cause.get(cause, 0) + ps
    few = len(subject.path) <= 2 * ENDS
    parts = list(subject.parts() if few else [*subject.parts(slice(None, ENDS)), *subject.parts(slice(-ENDS, None))])
    return {
        **{name: subject.row[name] for name in _IDENTITY if subject.row.get(name) is not None},
        "time_us": time_ps / 1e6,
        "time_ps": time_ps,
        "causes": [
            {"cause": cause, **_took(ps, time_ps)} for cause, ps in sorted(by_cause.items(), key=lambda item: -item[1])
        ],
        "places": [
            {"cause": cause, "where": where, "kind": kinds.get(where or ""), **_took(ps, time_ps)}
            for (cause, where), ps in shares.items()
        ],
        "leads": subject.path.leads(),
        "links": _links(subject, shares, kinds),
        "path": [part._asdict() for part in parts],
        "switches_from": subject.program.schedule.n,
        "path_omitted": 0 if few else len(subject.path) - 2 * ENDS,
        "what_if": [
            {"change": answer.change, "time_us": answer.time_ps / 1e6, "factor": answer.factor}
            for answer in (answers(subject) if what_if else ())
        ],
    }


def _took(ps: int, of: int) -> dict[str, Any]:
    return {"time_us": ps / 1e6, "time_ps": ps, "share": ps / of if of else 0.0}


def _links(
    subject: Subject, shares: Mapping[tuple[str, str | None], int], kinds: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The links that the path waits for most, then the busiest."""
    names, time_ps = subject.topology.link_names, subject.time_ps
    used = busy(subject.totals.carried, subject.capacities, time_ps)
    waited: dict[str, int] = {}
    for (cause, where), ps in shares.items():
        if where and cause in LINKED:
            waited[where] = waited.get(where, 0) + ps
    order = sorted(range(len(names)), key=lambda link: (-waited.get(names[link], 0), -used[link]))
    return [
        {
            "link": names[link],
            "kind": kinds[names[link]],
            "busy": float(used[link]),
            "path_share": waited.get(names[link], 0) / time_ps if time_ps else 0.0,
        }
        for link in order[:SHOWN]
        if used[link]
    ]


# --- text ---


def text(found: Sequence[Explained]) -> str:
    """The explanations of some points."""
    head = f"# simcoll {simcoll.__version__}: explain {found[0]['scenario']}"
    return "\n\n".join(["\n".join([head, *_point(found[0])]), *("\n".join(_point(one)) for one in found[1:])])


def _point(one: Explained) -> Iterator[str]:
    what = [one.get("workload") or one["collective"], one.get("algorithm"), one.get("protocol")]
    told = " ".join(str(word) for word in what if word and word != "none")
    size = f", {format_size(one['size_bytes'])}" if one.get("size_bytes") else ""
    where = f"{one['ranks']} ranks on {one['topology']}"
    yield f"# {told}{size}, {where}   profile {one['profile']}   sharing {one['sharing']}"
    interval = f", 90 % within {one['low_us']:.4g} to {one['high_us']:.4g} us" if one.get("low_us") else ""
    yield f"# {format_duration(one['time_ps'])} ({one.get('confidence') or 'uncalibrated'}{interval})"
    yield text_table.render(["time_us", "share", "cause", "on", "most at"], list(_places(one)))
    yield "# " + "; ".join(f"{row['cause']}: {ALL_CAUSES[row['cause']]}" for row in one["causes"])
    yield "# the path"
    yield text_table.render(["from_us", "to_us", "what", "spent on", "then"], list(_stretches(one)))
    if one["leads"]:
        yield f"# it goes on {', '.join(f'{count} times over {via}' for via, count in one['leads'].items())}"
    if one["links"]:
        yield "# links: busy in the whole run, and what the path spends on them"
        shown = [{**row, "busy": _percent(row["busy"]), "path": _percent(row["path_share"])} for row in one["links"]]
        yield text_table.render(["link", "kind", "busy", "path"], shown[:5])
    yield from _gains(one["what_if"])


def _gains(answers: Sequence[Explained]) -> Iterator[str]:
    """The changes that help, and in a line those that do not."""
    helps = [{**row, "factor": f"{row['factor']:.2f} x"} for row in answers if row["factor"] >= GAIN]
    if helps:
        yield "# what if, each simulated"
        yield text_table.render(["factor", "time_us", "change"], helps)
    others = [f"{row['change']} {row['factor']:.2f} x" for row in answers if row["factor"] < GAIN]
    if others:
        yield f"# no gain: {'; '.join(others)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _places(one: Explained) -> Iterator[dict[str, object]]:
    """By cause and kind of link, with the place that most of it is spent at."""
    grouped: dict[tuple[str, str | None], list[Explained]] = {}
    for row in one["places"]:
        grouped.setdefault((row["cause"], row["kind"]), []).append(row)
    sums = {key: sum(row["time_ps"] for row in its) for key, its in grouped.items()}
    for (cause, kind), ps in sorted(sums.items(), key=lambda item: -item[1]):
        its = grouped[cause, kind]
        most = f"{its[0]['where']} {its[0]['time_us']:.4g}" if its[0]["where"] else ""
        told = {"cause": cause, "on": kind, "most at": f"{most}, {len(its) - 1} more" if len(its) > 1 else most}
        yield {"time_us": ps / 1e6, "share": _percent(ps / one["time_ps"]), **told}


def _stretches(one: Explained) -> Iterator[dict[str, object]]:
    """The path, a line for what it spends on a transfer or operation in a row; its middle is left out."""
    parts = [TimeShare(**part) for part in one["path"]]
    met = ENDS if one["path_omitted"] else len(parts)
    lead = len(parts) - 2 * ENDS if one["path_omitted"] else 0
    switches = one["switches_from"]
    first = _lines(parts[: met + lead], switches)
    last = _lines(parts[met + lead :], switches)
    whole = [*first, *last]
    if len(whole) <= 2 * STRETCHES + 1 and not one["path_omitted"]:
        yield from whole
        return
    yield from whole[:STRETCHES]
    yield {"what": "…", "spent on": "…", "then": "…"}
    yield from whole[-STRETCHES:]


def _lines(parts: Sequence[TimeShare], switches: int) -> list[dict[str, object]]:
    def whose(part: TimeShare) -> tuple[object, ...]:
        return part.operation, part.rank, part.step, part.src, part.dst, part.cause if part.src is None else None

    found = []
    for _, its in groupby(parts, whose):
        some = list(its)
        causes: dict[str, int] = {}
        for part in some:
            causes[part.cause] = causes.get(part.cause, 0) + part.end_ps - part.begin_ps
        most = sorted(causes, key=lambda cause: -causes[cause])
        found.append({
            "from_us": some[0].begin_ps / 1e6,
            "to_us": some[-1].end_ps / 1e6,
            "what": _told(some[0], switches),
            "spent on": ", ".join(f"{cause} {causes[cause] / 1e6:.4g}" for cause in most[:3]),
            "then": some[-1].then,
        })  # fmt: skip
    return found


def _told(part: TimeShare, switches: int) -> str:
    if part.src is None or part.dst is None:
        told = part.operation or part.where or part.cause
        return f"{told}, rank {part.rank}" if part.operation else told
    src, dst = (str(end) if end < switches else "switch" for end in (part.src, part.dst))
    return f"{part.operation or f'step {part.step}'}, {src}->{dst}"
