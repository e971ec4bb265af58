"""Text of the explanation and of the recommendation of training steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcoll.config import text_table
from simcoll.explanation.explain import GAIN
from simcoll.prediction.summary_sentence import of_training
from simcoll.units import format_duration

Found = Mapping[str, Any]
MEANING: Final = {
    "gemm": "matrix products",
    "attention": "the core of attention",
    "elementwise": "norms, activations, residuals, the loss",
    "launch": "the GPU waits for kernels to be launched",
    "interference": "computing slowed by hidden communication",
    "optimizer": "the optimizer",
    "bubble": "idle by the schedule of the pipeline",
    "wait": "waiting for a slower stage",
    "tp": "exposed: tensor parallelism",
    "pp": "exposed: messages between stages",
    "dp": "exposed: gradients and parameters",
    "ep": "exposed: tokens to experts and back",
    "cp": "exposed: keys and values",
}


def explanation(document: Found) -> str:
    """Return the explanation of a step as text: the verdict, its parts, and what would change its time."""
    lines = [text_table.wrapped(f"{of_training(document)}.", "  ")]
    staged = any(part["part"] == "bubble" for part in document["parts"])
    whose = f"on stage {document['stage']}, which computes most, of" if staged else "on each of"
    lines.append(f"# where the time goes {whose} {document['ranks']} ranks on {document['topology']}")
    rows = [{**part, "share": f"{part['share']:.1%}", "what": MEANING[part["part"]]} for part in document["parts"]]
    lines.append(text_table.render(["time_us", "share", "part", "what"], rows))
    helps = [each for each in document["what_if"] if each["fits"] and each["factor"] >= GAIN]
    if helps:
        lines.append("# what if, each simulated")
        shown = [{**each, "factor": f"{each['factor']:.2f} x", "memory_GB": round(each["memory_GB"])} for each in helps]
        lines.append(text_table.render(["factor", "time_us", "memory_GB", "change"], shown))
    others = [_said(each) for each in document["what_if"] if each not in helps]
    if others:
        lines.append(text_table.wrapped(f"# no gain: {'; '.join(others)}"))
    return "\n".join(lines)


def _said(answer: Found) -> str:
    if not answer["fits"]:
        return f"{answer['change']} does not fit ({answer['memory_GB']:.0f} GB)"
    return f"{answer['change']} {answer['factor']:.2f} x"


def recommendation(document: Found) -> str:
    """Return a recommendation as text: the best choice in a sentence, then a table of the best choices."""
    first = document["choices"][0]
    counts = f"{document['tried']} choices tried, {document['refused']} do not fit, {document['simulated']} simulated"
    lines = [text_table.wrapped(f"Take {_named(first)}: {of_training(first)}.", "  ")]
    where = f"{document['ranks']} ranks on {document['topology']}"
    lines.append(f"# {where}; {counts}")
    rows = []
    for each in document["choices"]:
        parallel, schedule = each["parallel"], each["schedule"]
        degrees = {name: parallel[name] for name in ("tp", "cp", "ep", "pp", "dp")}
        parts = {"sharding": parallel["sharding"], "micro": each["micro"], "v": schedule["stages_per_rank"]}
        numbers = {
            "memory_GB": round(each["memory_GB"], 1),
            "mfu": f"{each['mfu']:.1%}",
            "margin": f"{each['margin']:.1%}",
        }
        rows.append({"step": format_duration(round(each["step_us"] * 1e6)), **degrees, **parts,
                     "recompute": each["recompute"], **numbers})  # fmt: skip
    shown = [name for name in rows[0] if name not in ("cp", "ep", "v") or any(row[name] != 1 for row in rows)]
    lines.append(text_table.render(shown, rows))
    lines.append("# margin: how much longer than the best; v: stages per rank (interleaved)")
    return "\n".join(lines)


def _named(choice: Found) -> str:
    degrees = [f"{name} {value}" for name, value in choice["parallel"].items() if name != "sharding" and value != 1]
    more = [choice["parallel"]["sharding"]] if choice["parallel"]["sharding"] != "none" else []
    more += [f"micro {choice['micro']}"]
    more += [f"interleave {choice['schedule']['stages_per_rank']}"] if choice["schedule"]["kind"] != "1f1b" else []
    more += [f"recompute {choice['recompute']}"] if choice["recompute"] != "none" else []
    return ", ".join([" × ".join(degrees) or "one GPU", *more])
