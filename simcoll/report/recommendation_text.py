"""Recommendations as text: the best choice for each range of sizes, and lines to paste into a shell or program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from simcoll import __version__
from simcoll.config import text_table
from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError
from simcoll.explanation.recommendation import Recommendation
from simcoll.formats.schedules import schedule_json
from simcoll.nccl.symmetric_kernels import SYMMETRIC
from simcoll.nccl.tuner_constants import unknown_first
from simcoll.report.exports import nccl_tables
from simcoll.report.verdicts import of_recommendations
from simcoll.scenario.profile import described_with, titled
from simcoll.scenario.scenario import SYNTHESIZED
from simcoll.schedule import registry
from simcoll.schedule.names import PROTOCOLS
from simcoll.units import short_size

NEAR_OPTIMAL: Final = 0.05  # above the bound, up to which a choice counts as optimal
WINDOWS: Final = (
    "backend = torch.distributed.group.WORLD._get_backend(device)",
    "pool = torch.cuda.MemPool(backend.mem_allocator)",
    "with torch.cuda.use_mem_pool(pool): buffer = torch.empty(count, device=device)",
    "backend.register_mem_pool(pool, True)",
)  # Python


def text(documents: Sequence[Mapping[str, Any]], asked: Sequence[Recommendation]) -> str:
    """Return the text of `simcoll recommend`: a sentence, a table for each question, and lines to paste."""
    tables = text_table.remarks_wrapped(_text(documents))
    return "\n".join([text_table.wrapped(of_recommendations(documents), "  "), tables, *_pasted(documents, asked)])


def _text(documents: Sequence[Mapping[str, Any]]) -> str:
    fitted = described_with((document["profile"], document.get("transport")) for document in documents)
    lines = [f"# simcoll {__version__}: recommend {documents[0]['scenario']}   {fitted}"]
    _, others = unknown_first(note for document in documents for note in document.get("notes", ()))
    lines += [f"# {note}" for note in others]
    for document in documents:
        lines += [*_lines(document), ""]
    return "\n".join(lines[:-1])


def _pasted(documents: Sequence[Mapping[str, Any]], asked: Sequence[Recommendation]) -> Iterator[str]:
    """Yield lines to paste: environment variables that make NCCL run the recommended algorithms, the file for NCCL's
    tuner plugin, and commands that export schedules. No variable selects symmetric kernels; for these the lines
    register buffers in torch.

    Source: torch's ProcessGroupNCCL, from memory: `registerMemPool(pool, symm)` calls ncclCommWindowRegister with
    NCCL_WIN_COLL_SYMMETRIC. Nobody has tried these lines on a GPU yet.
    """
    variables: dict[str, list[str]] = {}
    exports: dict[str, list[str]] = {}

    def add(lines: dict[str, list[str]], line: str, choice: Mapping[str, Any]) -> None:
        if "from_bytes" not in choice:  # of a workload
            lines.setdefault(line, []).append("all calls")
            return
        end = "up" if choice["to_bytes"] is None else f"to {short_size(choice['to_bytes'])}"
        lines.setdefault(line, []).append(f"{short_size(choice['from_bytes'])} {end}")

    for document in documents:
        for choice in document.get("nccl_ranges", document["ranges"]):
            if "NCCL_PROTO" in choice["env"]:
                add(variables, " ".join(f"{name}={value}" for name, value in choice["env"].items()), choice)
        for choice in document["ranges"]:
            if line := _export(document, choice):
                add(exports, line, choice)
    if exports:
        yield text_table.wrapped("# a schedule for MSCCL's executor, which was not measured so: the times are modelled")
        yield from (text_table.command(line, ", ".join(sizes)) for line, sizes in exports.items())
    if any(one.scenario.launch.registered and _symmetric(each) for each, one in zip(documents, asked, strict=True)):
        yield text_table.wrapped(
            "# NCCL takes a symmetric kernel by itself for buffers that all ranks registered as windows, in the same "
            "order (ncclMemAlloc, ncclCommWindowRegister); in torch"
        )
        yield from WINDOWS
    if not variables:
        return
    yield "# NCCL takes such a choice of its own where it is given"
    yield from (text_table.command(line, ", ".join(sizes)) for line, sizes in variables.items())
    if any(one.scenario.workload for one in asked):
        return
    file = "# and each where it is best by the file of its example tuner plugin (NCCL_TUNER_CONFIG_FILE)"
    yield text_table.wrapped(file)
    try:
        names, *lines = nccl_tables.tuner([row for each in asked for row in each.rows()], ImportLog()).splitlines()
        yield "\n".join([text_table.wrapped(names.replace(",", ", ")), *lines])
    except InputError as error:
        yield text_table.wrapped(f"# {error}")


def _modelled(document: Mapping[str, Any]) -> bool:
    return any(choice.get("executor") == "msccl" for choice in document["ranges"])


def _symmetric(document: Mapping[str, Any]) -> bool:
    return any(choice["algorithm"] == SYMMETRIC for choice in document.get("nccl_ranges", document["ranges"]))


def _export(document: Mapping[str, Any], choice: Mapping[str, Any]) -> str | None:
    """Return the command that exports a choice's schedule as an MSCCL program; None if MSCCL cannot run it."""
    name = choice["algorithm"]
    if "workload" in document or choice.get("executor") != "msccl":
        return None
    if name == SYNTHESIZED or schedule_json.is_file(name) or choice["protocol"] not in PROTOCOLS:
        return None
    entry, _ = registry.find(document["collective"], name)
    if entry.needs_agent:
        return None
    groups = f" --groups {document['nodes']}" if entry.uses_groups and document["nodes"] > 1 else ""
    what = f"{document['collective']}/{name}" if "(" not in name else f"'{document['collective']}/{name}'"
    options = f"--ranks {document['ranks']}{groups} --protocol {choice['protocol']}"
    return f"simcoll export {what} {options} --to msccl -o {entry.name}_{choice['protocol']}.xml"


def _lines(advice: Mapping[str, Any]) -> Iterator[str]:
    subject = advice["workload"] if "workload" in advice else f"{advice['collective']}, {advice['dtype']}"
    nodes = f"{advice['nodes']} node{'s' if advice['nodes'] > 1 else ''} of {advice['topology']}"
    profile = f"{titled(advice['profile'])} ({advice['confidence']})"
    yield f"# {subject}, {advice['ranks']} ranks on {nodes}   profile {profile}   sharing {advice['sharing']}"
    shown = [{**row, "margin": _margin(row), "choice": row["choice"]} for row in advice["ranges"]]
    by = "tokens" if "from_tokens" in shown[0] else "bytes"
    sizes = [] if "workload" in advice else [f"from_{by}", f"to_{by}"]
    yield text_table.render([*sizes, "time_us", "choice", "margin", "runner_up"], shown)
    remark = "time: where a range begins; margin: how much longer the runner-up takes"
    yield f"# of {advice['candidates']} choices; {remark}"
    if by == "tokens" and advice["nodes"] > 1:
        yield "# deepep: an exchange of counts comes before it (column notify_us of `run`), where nothing hides it"
    yield from _attainable(advice)
    if any(row["tie"] for row in advice["ranges"]):
        modelled = ", which is that of NCCL's own calls where times are modelled" if _modelled(advice) else ""
        within = "equal"
        if "workload" not in advice or any(size["high_us"] for size in advice["sizes"]):  # one of one call has it, too
            within = f"one lies within the other's 90 % interval{modelled}, or equal"
        yield f"# a tie: {within}"
    if "choices" in advice:
        yield "# the best choices"
        yield text_table.render(["time_us", "longer", "choice"], [
            {**row, "longer": f"{100 * row['longer']:.1f} %"} for row in advice["choices"][:10]
        ])  # fmt: skip
    lost = _regret(advice["regret"]) if advice.get("regret") else ""
    if lost:
        yield f"# NCCL's own choice takes longer by {lost}"
    if (regret := advice.get("nccl_regret")) and _regret(regret) != lost:
        yield f"# NCCL's own choice takes longer than the best of its own by {_regret(regret)}"


def _regret(regret: Mapping[str, Any]) -> str:
    worst = f"{100 * regret['worst']:.1f} % at {short_size(regret['worst_size_bytes'])}"
    return f"{100 * regret['mean']:.1f} % in the mean, {worst} at worst"


def _margin(row: Mapping[str, Any]) -> str:
    least, most = row["margin_least"], row["margin_most"]
    if least is None:
        return "-"
    text = f"{100 * least:.1f} %" if least == most else f"{100 * least:.1f} to {100 * most:.1f} %"
    return f"{text}, a tie" if row["tie"] else text


def _attainable(advice: Mapping[str, Any]) -> Iterator[str]:
    """Yield how far the best named choice is from what can be had at the largest size."""
    if "attainable" not in advice:
        return
    found = advice["attainable"]
    size, best_us, made_us = short_size(found["size_bytes"]), found["time_us"], found["synthesized_us"]
    above = best_us / found["lower_bound_us"] - 1 if found["lower_bound_us"] else float("inf")
    by = " ".join(f"--set {each}" for each in found["synthesized_by"])
    command = f"simcoll synthesize {advice['collective']} --on {found['topology']}"
    if above <= NEAR_OPTIMAL:
        yield f"# {found['choice']} is within {100 * above:.0f} % of optimal at {size}"
    elif made_us < best_us / (1 + NEAR_OPTIMAL):
        yield f"# a synthesised schedule is {best_us / made_us:.2g} times faster at {size}, with {by}: {command}"
    else:
        more = f"; the lower bound ({found['bound_kind']}) is {1 + above:.2g} times shorter"
        yield f"# no schedule that was synthesised is much faster at {size}{more}"
    if found.get("halves_us", best_us) < best_us / (1 + NEAR_OPTIMAL):
        first, then = found["halves"]
        how = f"reduce_scatter ({first}), then all_gather ({then})"
        yield f"# {how} is {best_us / found['halves_us']:.2g} times faster at {size}"
