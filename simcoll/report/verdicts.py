"""The first sentence of a command's output: its answer. For rows of results see `prediction.summary_sentence`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from simcoll.nccl.tuner_constants import unknown_first
from simcoll.prediction.summary_sentence import DEEPEP, FITTED_KERNELS, took, trusted
from simcoll.schedule.names import WORKLOAD
from simcoll.units import short_size

_SHOWN: Final = 4  # ranges of sizes, or points, in a sentence
_SPELLED: Final = {"nvlink": "NVLink", "pcie": "PCIe", "xgmi": "xGMI"}  # kinds of links with a proper name
JsonAnswer = Mapping[str, Any]  # what a command prints with --json, or a part of it


def _opened(documents: Sequence[JsonAnswer], sentence: str) -> str:
    """Return the answer in a sentence after the notes that a release is not known."""
    unknown, _ = unknown_first(note for document in documents for note in document.get("notes", ()))
    return " ".join([*(f"{note}." for note in unknown), sentence])


def of_explanation(document: JsonAnswer) -> str:
    """Return in a sentence what takes most of a point's time, which link binds, and the change that would help most."""
    gains = [each for each in document["what_if"] if each["factor"] >= 1.05]
    best = max(gains, key=lambda each: float(each["factor"]), default=None)
    help_ = f"; if {best['change']}: {took(best['time_us'])}" if best else ""
    said = f"{_what(document)} takes {took(document['time_us'])}: {_most(document, 2)}; {_bound(document)}{help_}."
    return _opened([document], said)


def _bound(document: JsonAnswer) -> str:
    """Return that the host binds, if GPUs wait for it; else the main kind of links on the path and its busiest link."""
    if any(each["cause"] == "host" for each in document["causes"]):
        return "the host's launches bind"
    links = document["binds"]
    if links is None:
        return "no link binds"
    kind = _SPELLED.get(links["kind"], links["kind"])
    busy = f"{links['busy']:.0%} busy"
    return f"{links['link']} binds ({busy})" if kind == "link" else f"{kind} binds ({links['link']} is {busy})"


def of_several(documents: Sequence[JsonAnswer]) -> str:
    """Return in a sentence the shortest and the longest time of several points, with the main cause of each."""
    ends = (min(documents, key=lambda d: float(d["time_us"])), max(documents, key=lambda d: float(d["time_us"])))
    said = [f"{_what(each)} {took(each['time_us'])} ({_most(each, 1)})" for each in ends]
    return _opened(documents, f"{len(documents)} points, from {said[0]} to {said[1]}.")


def _what(document: JsonAnswer) -> str:
    return str(document.get("workload") or document.get("algorithm"))


def _most(document: JsonAnswer, count: int) -> str:
    """Return the `count` causes that take most of the time, with the kind of links of each, if any."""
    shares = Counter[tuple[str, str | None]]()
    for place in document["places"]:
        shares[place["cause"], place["kind"]] += place["share"]
    most = [(f"{cause} on {kind}" if kind else cause, share) for (cause, kind), share in shares.most_common(count)]
    return " and ".join(f"{cause} {share:.0%}" for cause, share in most)


def of_recommendations(documents: Sequence[JsonAnswer]) -> str:
    """Return in a sentence the first question's choices at its smallest and largest size, and the number of more."""
    first = documents[0]
    choices = first["ranges"]
    text = choices[0]["choice"]
    if "workload" in first:
        text += f", {took(choices[0]['time_us'])}"
    elif len(choices) > 1:
        if "to_tokens" in choices[0]:
            first_end, last_begin = choices[0]["to_tokens"], f"{choices[-1]['from_tokens']} tokens"
        else:
            first_end, last_begin = short_size(choices[0]["to_bytes"]), short_size(choices[-1]["from_bytes"])
        between_them = f", {len(choices) - 2} more between" if len(choices) > 2 else ""
        text += f" to {first_end}, {choices[-1]['choice']} from {last_begin} on{between_them}"
    if ties := sum(each["tie"] for each in choices):
        text += ", a tie" if len(choices) == 1 else f", {ties} of {len(choices)} ranges are ties"
    questions = len(documents) - 1
    more = f" ({questions} more question{'s' * (questions > 1)} below)" if questions else ""
    theirs = {each.get("executor") == "msccl" for each in choices}  # fits cover only NCCL's own kernels
    modelled = "" if True not in theirs else ", modelled in part" if False in theirs else ", modelled"
    by = [first["transport"]] if "transport" in first else []
    more += f"; {FITTED_KERNELS}" if any(each.get("executor") in DEEPEP for each in choices) else ""
    return _opened(documents, f"Take {text}{more}; {trusted([first['profile']], beside=by)}{modelled}.")


def of_comparison(document: JsonAnswer) -> str:
    """Return in a sentence the mean error of the predictions, and where the error is largest."""
    total = document["summary"][-1]
    worst = max(document["points"], key=lambda point: abs(float(point["error"])))
    size = f", {short_size(worst['size_bytes'])}" if worst.get("size_bytes") else ""
    held = document["intervals"]
    inside = f"; 90 % intervals hold {held['coverage']:.0f} % of the points" if held else ""
    where = f"{worst['collective']} on {worst['ranks']}{size}"
    most = f"{100 * abs(worst['error']):.0f} % ({where})"
    points = f"{total['points']} points" if total["points"] > 1 else "1 point"
    return f"Predictions are off by {total['mape']:.1f} % in the mean over {points}, at worst by {most}{inside}."


def of_diagnosis(document: JsonAnswer) -> str:
    """Return a diagnosis in a sentence: wrong data, another machine, healthy, or what is slow and what explains it."""
    times = _of_times(document)
    first = {"Wrong data": document["wrong"], "Another machine": document["other_gpus"]}
    said = [f"{what}: {why}." for what, why in first.items() if why]
    return " ".join([*said, f"By its times alone: {times}"]) if said else times


def _of_times(document: JsonAnswer) -> str:
    off = [region for region in document["regions"] if region["off"]]
    if document["explained_by"] in ("healthy", "wrong data"):
        points = document["points"]
        inside = sum(point["verdict"] == "inside" for point in points)
        single = sum(point["single"] for point in points)
        some = f"{inside} of " if inside < len(points) else ""
        counted = f"{some}{len(points)} points are" if len(points) > 1 else f"{some}1 point is"
        again = f"; {single} to be measured again" if single else ""
        by = f"as {document['system']} should be by {document['profile']}"
        return f"Healthy: {counted} {by}{_outside(points)}{again}."
    worst = max(off, key=lambda region: float(region["distance"]))
    how = "times scatter" if worst["factor"] is None else f"{worst['factor']:.2f} times as long as expected"
    how += f", but others {worst['contrary_factor']:.2f} times" if worst["contrary_factor"] is not None else ""
    where = f"{worst['collective']} on {worst['ranks']}, {worst['region']}, {how}"
    if document["explained_by"] is None:
        if only_faster(off):
            return f"Faster than expected, which is a finding and no fault: {where}."
        return f"Off, and nothing that was tried explains it: {where}."
    how = "Faster than expected, which is no fault" if only_faster(off) else "Off"
    best = f"{explanation(document)} explains it best"
    return f"{how}: {where}; {best}."


def _listed(names: Sequence[str], word: str) -> str:
    """Return `a, b or c` for the word `or`."""
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def _outside(points: Sequence[JsonAnswer]) -> str:
    """Return single points outside their bands, in regions that are normal as a whole: `; slow: all_reduce 256 MiB`."""
    said = ""
    for verdict in ("slow", "fast"):
        outside = [point for point in points if point["verdict"] == verdict]
        ranks = len({point.get("ranks") for point in points}) > 1
        names = [_point(point, ranks) for point in outside[:_SHOWN]]
        more = f" and {len(outside) - _SHOWN} more" if len(outside) > _SHOWN else ""
        said += f"; {verdict}: {', '.join(names)}{more}" if outside else ""
    return said


def _point(point: JsonAnswer, ranks: bool) -> str:
    """Return a point in words, with `ranks`: `all_reduce 256 MiB on 8`."""
    on = f" on {point['ranks']}" if ranks else ""
    return f"{point['collective']} {short_size(point['size_bytes'])}{on}"


def only_faster(regions: Sequence[JsonAnswer]) -> bool:
    """Return whether all abnormal regions have points that are too fast, and none that are too slow."""
    return all(
        region["factor"] is not None and region["factor"] < 1 and region["contrary_factor"] is None
        for region in regions
    )


def explanation(document: JsonAnswer) -> str:
    """Return in words the best hypothesis, and those that explain the times equally well, with their values."""
    best, *others = document["hypotheses"]
    good = [best, *(each for each in others if each["hypothesis"] in document["also"])]
    names = [each["hypothesis"] + (f" ({each['value']})" if each["value"] else "") for each in good]
    return _listed(names if len(names) <= _SHOWN else [*names[: _SHOWN - 1], f"{len(names) - _SHOWN + 1} more"], "or")


def of_calibration(document: JsonAnswer) -> str:
    """Return in a sentence how many parameters and rows were fitted, and the error on rows that were not fitted."""
    errors = document["errors"]
    fit, scored = errors["fitted"], errors.get("held_out")
    tail = f", {scored['mape']:.1f} % on {scored['rows']} rows that were not fitted" if scored else ""
    count = len(document["parameters"])
    named = "1 parameter" if count == 1 else f"{count} parameters"
    done = f"{named} fitted to {fit['rows']} rows" if count else f"no parameter is moved by {fit['rows']} rows"
    return f"{document['profile']}: {done}, off by {fit['mape']:.1f} %{tail}."


def of_tuner(documents: Sequence[JsonAnswer]) -> str:
    """Return in a sentence what NCCL chooses for an all-reduce, by size, on each number of nodes."""
    first, said = documents[0], [_choices(each) for each in documents]
    library, note = str(first["library"]).upper(), first["note"]
    opening = f"{note}. {library} then chooses" if note else f"{library} {first['version']} chooses"
    opening += f" for {said[0][0]}"
    if len(documents) == 1:
        return f"{opening} on {first['ranks']} ranks: {said[0][1]}."
    parts = []
    for each, (collective, by_size) in zip(documents, said, strict=True):
        of = "" if collective == said[0][0] else f"for {collective} "
        parts.append(f"{of}on {each['ranks']} ranks on {_counted(each['nodes'], 'node')}: {by_size}")
    return f"{opening} {'; '.join(parts)}."


def _choices(document: JsonAnswer) -> tuple[str, str]:
    """Return a collective (`all_reduce`, or else the first one), and what NCCL chooses for it by size."""
    chosen = [each for each in document["choice"] if each["collective"] == "all_reduce"] or document["choice"]
    ranges = [(name, list(group)) for name, group in groupby(chosen, lambda c: f"{c['algorithm']} {c['protocol']}")]
    parts = [f"{name} to {short_size(group[-1]['size_bytes'])}" for name, group in ranges[:-1][:_SHOWN]]
    parts += ["…"] * (len(ranges) - 1 > _SHOWN) + [f"{ranges[-1][0]} from {short_size(ranges[-1][1][0]['size_bytes'])}"]
    return chosen[0]["collective"], ", ".join(parts)


def of_proofs(rows: Sequence[JsonAnswer]) -> str:
    """Return in a sentence how many schedules are proved, or one that is wrong."""
    wrong = [row for row in rows if row["status"] == "wrong"]
    proved = sum(row["status"] == "proved" for row in rows)
    first = (wrong or rows)[0]
    name = f"{first['collective']}/{first['algorithm']}"
    if wrong:
        return f"Wrong: {name} does not do what {first['collective']} promises."
    if len(rows) > 1:
        return f"{proved} of {len(rows)} schedules are proved on {first['ranks']} ranks."
    if not proved:
        return f"Not proved: {name} has no schedule for {first['ranks']} ranks."
    return f"Proved: {name} on {first['ranks']} ranks does what {first['collective']} promises."


def of_import(document: JsonAnswer) -> str:
    """Return in a sentence what kind of file was read, and the numbers of assumptions and warnings."""
    counts = [f"{len(document['assumed'])} assumed", _counted(len(document["warnings"]), "warning")]
    where = f", and written to {document['file']}" if document["file"] else ""
    return f"Read as a {document['kind']}{where}: {' and '.join(counts)}."


def of_pictures(names: Sequence[str], rows: int) -> str:
    """Return in a sentence which pictures were drawn."""
    return f"{_counted(len(names), 'picture')} of {_counted(rows, 'row')}: {', '.join(names)}."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def of_measured(rows: Sequence[JsonAnswer]) -> str:
    """Return in a sentence how many points were measured, the range of times, and how far repeated runs differ."""
    short, long = (pick(rows, key=lambda row: float(row["time_us"])) for pick in (min, max))
    widest = f"{max(float(row['spread']) for row in rows):.0%}"
    if len(rows) == 1:
        once = f"{took(short['time_us'])}; the middle half of its runs spans {widest} of that"
        return f"Measured over {short['backend']}: {_measured(short)}: {once}."
    span = " to ".join(f"{took(row['time_us'])} ({_measured(row)})" for row in (short, long))
    apart = f"the middle half of the runs of a point spans {widest} of its median at most"
    return f"Measured over {short['backend']}: {len(rows)} points: {span}; {apart}."


def _measured(row: JsonAnswer) -> str:
    named = row.get("algorithm") or row.get("workload") or row["harness"]  # a workload's row has no algorithm
    what = f"{row['collective']}/{named}" if row["collective"] != WORKLOAD else str(named)
    size = f", {short_size(row['size_bytes'])}" if row["size_bytes"] else ""
    return f"{what} on {row['ranks']}{size}"


def of_studies(carried: int, studies: int, missed: int) -> str:
    """Return in a sentence how many studies were carried out, and how many goals they missed."""
    goals = f"{_counted(missed, 'goal')} missed" if missed else "no goal missed"
    return f"{carried} of {studies} {'study' if studies == 1 else 'studies'} carried out, {goals}."
