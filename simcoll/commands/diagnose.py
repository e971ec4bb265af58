"""`simcoll diagnose`: is what was measured what this hardware should give, and if not, why?"""

from __future__ import annotations

import json
from typing import Any

import click

from simcoll.commands.options import JSON, SETS, measured_text

SHOWN = 6  # explanations


@click.command()
@click.argument("measured", metavar="MEASURED|-")
@click.option("--topology", required=True, metavar="T", help="A shipped system, or a topology file.")
@click.option("--where", multiple=True, metavar="COL=VALUE", help="Keep only these rows of the table.")
@SETS
@JSON
def diagnose(measured: str, topology: str, where: tuple[str, ...], sets: tuple[str, ...], as_json: bool) -> int:
    """Say whether measured times are what this hardware should give.

    MEASURED is a measured table or what nccl-tests printed; `-` reads a pipe. Prints of each point whether it lies in
    the 90 % interval of its prediction, which region is off, and what explains it best, by simulating what may be
    wrong. Ends with status 1 unless the machine is healthy.
    """
    from simcoll.accuracy.diagnose import diagnosed

    document = diagnosed(measured_text(measured), measured, topology, where, sets)
    print(json.dumps(document, indent=1) if as_json else _text(document))
    return 0 if document["verdict"] == "healthy" else 1


def _text(document: dict[str, Any]) -> str:
    from simcoll import __version__, tables

    columns = ["collective", "ranks", "nodes", "size_bytes", "algorithm", "protocol", "measured_us", "expected_us"]
    columns += ["low_us", "high_us", "region", "verdict"]
    regions = [{**region, "state": "off" if region["off"] else "as it should be"} for region in document["regions"]]
    hypotheses = document["hypotheses"][:SHOWN]
    why = [f"# {count} rows have no prediction: {reason}" for reason, count in document["refused"].items()]
    bad = sum(point["verdict"] == "bad row" for point in document["points"])
    why += [f"# {bad} bad rows, slower than those of twice the size, are not judged"] if bad else []
    launch = f"{document['launch_us']:+.1f} us"
    ranked = ["hypothesis", "value", "error", "score", "assumes", "inside"]
    return "\n".join([
        f"# simcoll {__version__}: diagnose",
        f"# topology {document['system']}   profile {document['profile']} ({document['confidence']})",
        f"# expected: what is predicted, {launch} for the way of measuring, which the smallest sizes tell",
        tables.render(columns, document["points"]),
        *why,
        "",
        tables.render(["region", "points", "inside", "ratio", "state"], regions),
        "",
        tables.render(ranked, [_percent(h) for h in hypotheses]),
        *(f"# {h['hypothesis']}: {h['text']}" for h in hypotheses[:3]),
        _verdict(document),
    ])  # fmt: skip


def _percent(hypothesis: dict[str, Any]) -> dict[str, Any]:
    shares = {name: f"{100 * hypothesis[name]:.1f} %" for name in ("score", "inside")}
    return {**hypothesis, **shares}


def _verdict(document: dict[str, Any]) -> str:
    """The last line: what it is, and how sure."""
    best, sure = document["hypotheses"][0], document["sure"]
    others = [h["hypothesis"] for h in document["hypotheses"][1:]]
    if document["verdict"] is None:
        share = f"{100 * best['inside']:.0f} % of the points"
        return f"# nothing explains it: with the best, {best['hypothesis']}, {share} are inside"
    next_best = next((name for name in others if name not in document["also"]), None)
    told = f"{best['hypothesis']} {best['value']}".strip()
    told += f" (or {', '.join(document['also'])}, which cannot be told from it here)" if document["also"] else ""
    behind = {"clear": "clearly better than", "likely": "likelier than", "open": "but hardly better than"}[sure]
    return f"# verdict: {told}" + (f", {behind} {next_best}" if next_best else "")
