"""Text for the terminal: comparisons of measured with predicted times, calibrations and diagnoses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcoll import __version__
from simcoll.config import text_table
from simcoll.config.grouping import grouped
from simcoll.report.result_tables import few
from simcoll.report.verdicts import of_calibration, of_comparison, of_diagnosis
from simcoll.units import format_size

SHOWN = 6  # hypotheses in the table
ROWS = 100  # rows of the table: of more, those that are slow or fast are shown
MANY = 9  # regions: up to so many, all are shown
_SURE: Final = {"clear": "clearly", "likely": "likely", "open": "one of several explanations"}
_STEPS: Final = 4  # lines of advice
_FITTED = {  # by confidence: the calls that the profile was fitted to
    "calibrated": "such calls",
    "interpolated": "such calls",
    "extrapolated": "calls of other sizes, ranks or kinds",
    "modelled": "no calls of this kind, which are modelled",
    "uncalibrated": "nothing that judges these calls",
}


_ERRORS: Final = ("points", "mape", "median", "p95", "bias")


def comparison_table(document: Mapping[str, Any]) -> str:
    """Return the text of `compare`: points with errors, coverage of intervals, order of algorithms, and the summary."""
    columns = ["collective", "ranks", "size_bytes", "dtype", "algorithm", "protocol", "measured_us", "predicted_us"]
    held = document["intervals"]
    columns += ["low_us", "high_us"] if held else []
    spare = ("collective", "ranks", "dtype", "algorithm", "protocol", "low_us", "high_us")
    table, shared = text_table.fitted([*columns, "error"], document["points"], spare)
    warnings = [f"# warning: {line}" for line in document["warnings"]]
    parts = [text_table.wrapped(of_comparison(document), "  "), *warnings]
    parts += [*([f"# {shared}"] if shared else []), table, ""]
    if held:
        where = f"{held['coverage']:.1f} % of {held['points']} measured times"
        parts.append(f"# 90 % intervals hold {where}; mean width {held['width']:.1f} % of the prediction")
    parts += [_ranking_line(document["ranking"])] if document["ranking"] else []
    parts += [f"# {document['unmatched']} measured rows have no prediction"] if document.get("unmatched") else []
    if len(document["regions"]) > 1:
        parts += [text_table.render(["region", *_ERRORS], document["regions"]), ""]
    parts.append(text_table.render(["collective", "ranks", *_ERRORS], document["summary"]))
    return text_table.remarks_wrapped("\n".join(parts))


def steps_table(document: Mapping[str, Any]) -> str:
    """Return the text of `simcoll steps`: the verdict, the rows (of many, the worst), and the refused rows' reasons."""
    summary, points = document["summary"], document["points"]
    answered = [point for point in points if point["status"].startswith("ok")]
    ranked = sorted(answered, key=lambda point: -abs(point["error"] or 0))
    table = answered if len(answered) <= ROWS else ranked[:ROWS]
    columns = ["row", "model", "gpu", "gpus", "measured_s", "predicted_s", "low_s", "high_s", "error", "mfu"]
    columns += ["memory_GB", "measured_GB", "fits", "fits_right"]
    shown = [column for column in columns if any(point.get(column) not in (None, "") for point in table)]
    parts = [text_table.wrapped(_of_steps(summary), "  ")]
    parts += [f"# of {len(answered)} rows the {ROWS} with the largest errors"] if len(answered) > ROWS else []
    parts += [text_table.render(shown, table)] if table else []
    reasons: dict[str, list[str]] = {}
    for point in points:
        for reason in point["status"].split("; ")[1:] if point in answered else [point["status"]]:
            reasons.setdefault(reason, []).append(point["row"])
    parts += [f"# {reason}: {few(rows)}" for reason, rows in reasons.items()]
    return text_table.remarks_wrapped("\n".join(parts))


def _of_steps(summary: Mapping[str, Any]) -> str:
    said = [f"{summary['rows'] - summary['refused']} of {summary['rows']} rows predicted"]
    if summary["mape"] is not None:
        said.append(f"mean error {summary['mape']:.1f} %, median {summary['median']:.1f} %")
    if "held" in summary:
        said.append(f"90 % intervals hold {100 * summary['held']:.0f} %")
    if "fits_right" in summary:
        said.append(f"fits or not is right for {100 * summary['fits_right']:.1f} %")
    if "memory_mape" in summary:
        said.append(f"memory is off by {summary['memory_mape']:.1f} %")
    return "; ".join(said) + "."


def _ranking_line(ranking: Mapping[str, Any]) -> str:
    order = "" if ranking["in_order"] is None else f", {ranking['in_order']:.1f} % of {ranking['pairs']} clear pairs"
    return (
        f"# order of algorithms at {ranking['groups']} points: Kendall's tau {ranking['tau']:.2f}{order} in order; "
        f"regret mean {ranking['regret_mean']:.1f} %, worst {ranking['regret_worst']:.1f} %"
    )


def calibration_table(document: Mapping[str, Any]) -> str:
    """Return the text of `simcoll calibrate`: errors with and without the fit, remarks, parameters with intervals."""
    errors = document["errors"]
    which = "held out" if "held_out" in errors else "fitted, as none is held out"
    count = document["beside"][-1]["points"]
    parts = [text_table.wrapped(of_calibration(document), "  ")]
    parts += [f"# simcoll {__version__}: profile {document['profile']}, harness {document['harness']}; "
             f"fitted: {document['split']}", f"# errors on the {count} rows {which}:"]  # fmt: skip
    parts += [text_table.render(["predicted_by", *_ERRORS], document["beside"])]
    fitted = errors["fitted"]
    parts += [f"# on the {fitted['rows']} rows fitted: mape {fitted['mape']:.1f} %, bias {fitted['bias']:.1f} %"]
    parts += [f"# {note}" for note in document["notes"]]
    shown = [
        {"parameter": p["name"], "value": _quantity(p["value"], p), "from": p["low"], "to": p["high"]}
        for p in document["parameters"]
    ]
    parts += ["", text_table.render(["parameter", "value", "from", "to"], shown), "# from … to: 90 % intervals"]
    reasons = grouped(document["left"].items(), lambda item: item[1])
    parts += [f"# left as is: {few([name for name, _ in left], most=6)}: {why}" for why, left in reasons.items()]
    return "\n".join(parts)


def _quantity(value: float | None, parameter: Mapping[str, Any]) -> str:
    return "none" if value is None else f"{value:.4g} {parameter['unit']}"


# --- diagnoses ---


def diagnosis_text(document: dict[str, Any]) -> str:
    """Return the text of `simcoll diagnose`: its sentence, points, regions, hypotheses, points to measure again."""
    columns = ["collective", "ranks", "nodes", "size_bytes", "algorithm", "protocol", "measured_us", "expected_us"]
    columns += ["low_us", "high_us", "region", "verdict"]
    points = [{**point, "verdict": _state(point)} for point in document["points"]]
    regions = [{**region, "state": _of_region(region)} for region in document["regions"]]
    shown = regions if len(regions) <= MANY else [region for region in regions if region["off"]]
    why = [f"# {count} rows have no prediction: {reason}" for reason, count in document["refused"].items()]
    calm = [f"# {len(regions) - len(shown)} more regions are as they should be"] if len(shown) < len(regions) else []
    launch = f"{document['launch_us']:+.1f}"
    shown_by = f", {launch} us for the way of measuring, which the smallest sizes show"
    added = shown_by if float(launch) else ""
    of_region = ["collective", "ranks", "nodes", "region", "points", "inside", "ratio", "low", "high", "distance"]
    spare = ("nodes", "collective", "ranks", "algorithm", "protocol", "region", "distance")
    few = points if len(points) <= ROWS else [point for point in points if point["verdict"] != "inside"][:ROWS]
    more = [f"# {len(points) - len(few)} more rows: --json has all"] if len(few) < len(points) else []
    table, shared = text_table.fitted(columns, few, spare) if few else ("", "")
    # columns in which regions differ are kept
    alike = [name for name in ("collective", "ranks", "region") if len({each[name] for each in shown}) == 1]
    findings = "\n".join([
        *(f"# warning: {line}" for line in document["warnings"]),
        f"# simcoll {__version__}: diagnose",
        f"# topology {document['system']}   profile {document['profile']}, fitted {_fitted(document['predicted_as'])}",
        f"# expected: what is predicted{added}",
        *([f"# {shared}"] if shared else []),
        *([table] if few else []),
        *more,
        *why,
        *_bad_rows(document),
        "",
        *([text_table.fitted([*of_region, "state"], shown, ("nodes", *alike, "distance"))[0]] if shown else []),
        *calm,
        "",
        *_ranked(document),
        *(f"# measure again: {_single(point)}" for point in document["points"] if point["single"]),
    ])  # fmt: skip
    first = [text_table.wrapped(of_diagnosis(document), "  "), *advice(document)]
    return "\n".join([*first, text_table.remarks_wrapped(findings.rstrip())])


def advice(document: Mapping[str, Any]) -> list[str]:
    """Return in lines how sure a finding of `diagnose` is, and what to do next."""
    sure = [f"how sure: {_SURE[document['confidence']]}"] if document["verdict"] == "finding" else []
    return [*sure, *(text_table.wrapped(f"next: {line}", "  ") for line in document["next"][:_STEPS])]


def _fitted(confidence: str) -> str:
    """Return in words to which calls the profile was fitted; `confidence` holds words joined by ", "."""
    first, *others = dict.fromkeys(_FITTED[word] for word in _FITTED if word in confidence.split(", "))
    return f"to {first}{' for some' if others else ''}" + "".join(f", for others to {each}" for each in others)


def _state(point: dict[str, Any]) -> str:
    return f"{point['verdict']}, bad row" if point["bad_row"] else str(point["verdict"])


def _of_region(region: dict[str, Any]) -> str:
    return f"off: {_how(region)}" if region["off"] else "as it should be"


def _how(region: dict[str, Any]) -> str:
    """Return in words by how much a region's times are off, and at which sizes."""
    if region["factor"] is None:
        return "times scatter"
    how = f"{region['factor']:.2f} times as long as expected, {_sizes(region, '')}"
    if region["contrary_factor"] is None:
        return how
    return f"{how}, but {region['contrary_factor']:.2f} times, {_sizes(region, 'contrary_')}"


def _sizes(region: dict[str, Any], side: str) -> str:
    first, last = (format_size(region[f"{side}{end}"]) for end in ("from_bytes", "to_bytes"))
    return first if first == last else f"{first} to {last}"


def _bad_rows(document: dict[str, Any]) -> list[str]:
    """Return a line on rows that took longer than rows of twice their size; it says whether they count as slow."""
    bad = [point for point in document["points"] if point["bad_row"]]
    slow = sum(point["verdict"] == "slow" for point in bad)
    if not bad:
        return []
    if len(bad) == 1:
        return [f"# 1 bad row took longer than a row of twice the size; it is {'slow' if slow else 'not slow'}"]
    are = "1 of them is" if slow == 1 else f"{slow} of them are"
    return [f"# {len(bad)} bad rows took longer than rows of twice the size; {are} slow"]


def _ranked(document: dict[str, Any]) -> list[str]:
    """Return the lines of the table of hypotheses; empty if none was simulated."""
    if len(document["hypotheses"]) == 1:
        return []
    shown = document["hypotheses"][:SHOWN]
    rows = [{**h, "score": f"{100 * h['score']:.1f} %", "explains": "yes" if h["explains"] else "no"} for h in shown]
    ranked = ["hypothesis", "value", "error", "score", "assumes", "off", "explains"]
    columns = "# score: the error, and a penalty for what is assumed; off: regions that are still off"
    return [text_table.render(ranked, rows), columns, *(f"# {h['hypothesis']}: {h['text']}" for h in shown[:3])]


def _single(point: dict[str, Any]) -> str:
    ratio = point["measured_us"] / point["expected_us"]
    size = format_size(point["size_bytes"])
    return f"{point['collective']} on {point['ranks']}, {size} took {ratio:.2f} times as long as expected"
