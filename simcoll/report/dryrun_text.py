"""The text that `simcoll dryrun` prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from simcoll.config import text_table


def text(found: Any) -> str:
    """Return what was assumed, what a step takes, and what moves in it: `found` is a `DryRun`."""
    document = {**found.document(), "step_us": found.prediction.time_ps / 1e6}  # which raises its error
    took = {name: document[f"{name}_us"] / 1e3 for name in ("step", "compute", "exposed")}
    memory = document["memory_GB"]
    kinds = ", ".join(f"{name} {gigabytes:.2f}" for name, gigabytes in memory.items())
    verdict = f"; {found.fits}" if memory else ""
    replicas = "" if len(found.records) == found.world else "; others count as replicas (--all-ranks records them)"
    return "\n".join(
        [
            *(f"assumed: {line}" for line in document["assumed"]),
            f"{found.world} ranks; recorded: {', '.join(map(str, document['recorded']))}{replicas}",
            f"step {took['step']:.3f} ms: compute {took['compute']:.3f} ms, "
            f"communication adds {took['exposed']:.3f} ms; MFU {100 * document['mfu']:.1f} %{verdict}",
            *([f"memory of the rank that needs most, at its peak, in GB: {kinds}"] if memory else []),
            *document["advice"],
            text_table.render(["group", "ranks", "collective", "calls", "MB", "exposed ms"], _moved(found)),
        ]
    )


def _moved(found: Any) -> list[Mapping[str, object]]:
    """Return the calls of a step of the first recorded rank, by kind of group and collective, and what all calls of
    such groups add to the step."""
    rows = defaultdict[tuple[Any, str], list[int]](list)
    alone = defaultdict[Any, str](lambda: "-", {kind: f"{ps / 1e9:.3f}" for kind, ps in found.exposed_ps.items()})
    for part in found.step_of(min(found.records)):
        if part.call and len(part.call.ranks) > 1:
            rows[part.call.kind, part.call.collective].append(part.call.size)
    return [
        {
            "group": kind.name, "ranks": len(kind.ranks), "collective": name, "calls": len(sizes),
            "MB": f"{sum(sizes) / 1e6:.3f}", "exposed ms": alone[kind],
        }
        for (kind, name), sizes in rows.items()
    ]  # fmt: skip
