"""A synthesised schedule as text: the bound, the schedule, and the proof in three parts."""

from __future__ import annotations

from collections.abc import Iterator

from simcoll import __version__
from simcoll.config import text_table
from simcoll.explanation.narrowest_cut import cut_text, some
from simcoll.explanation.synthesis import Synthesized
from simcoll.units import format_size


def text(answer: Synthesized) -> str:
    """Return the text of `simcoll synthesize`."""
    return "\n".join([text_table.wrapped(verdict(answer), "  "), *map(text_table.remarks_wrapped, _lines(answer))])


def verdict(answer: Synthesized) -> str:
    """Return the answer as a sentence."""
    plan, nbytes = answer.plan, answer.scenario.nbytes
    (least_ps, latency), time_us = answer.least, answer.prediction.time_ps / 1e6
    lost = f", which gives away {100 * plan.loss:.3g} % of the throughput" if plan.loss > 1e-9 else ""
    lost = ", the latency to the farthest rank" if latency else lost
    return (
        f"{plan.collective} of {format_size(nbytes)} on {answer.schedule.n} ranks takes {time_us:.4g} us, "
        f"{1e6 * time_us / least_ps:.3f} times the bound of {least_ps / 1e6:.4g} us{lost}."
    )


def _lines(answer: Synthesized) -> Iterator[str]:
    plan, bound, schedule = answer.plan, answer.plan.bound, answer.schedule
    fraction = f"{bound.rate / 10**9} = " if bound.exact and bound.rate % 10**9 else ""
    yield f"# simcoll {__version__}: synthesize   topology {plan.topology.name}   profile {answer.scenario.profile}"
    yield f"bound     {fraction}{bound.gbps:.6g} GB/s (algbw), {'a cut' if bound.kind == 'cut' else 'a linear program'}"
    kind = "paths" if plan.collective in ("gather", "scatter", "all_to_all") else "trees"
    pieces = f"{answer.pieces} piece{'s' * (answer.pieces > 1)}"
    counted = f"{schedule.n_steps} step{'s' * (schedule.n_steps > 1)}, {schedule.messages} messages"
    serving = len(plan.graph.agents)
    through = f" through {serving} switch{'es' * (serving > 1)} that add{'s' * (serving == 1)}" if serving else ""
    yield f"schedule  {plan.trees} {kind}{through}, height {plan.height}, {pieces}, {counted}"
    yield f"proof 1   the schedule does {plan.collective}: proved ({answer.proof})"
    name, chunks, _ = answer.busiest[0]
    busy = sum(share > 1 - 1e-9 for *_, share in answer.busiest)
    fits = "links carry" if answer.load_ok else "WRONG: links do not carry"
    yield (
        f"proof 2   {fits} {float(plan.rate / 10**9):.6g} GB/s; {busy} of {len(answer.busiest)} links are busy all "
        f"the time, e.g. {name} ({chunks} of {schedule.n_chunks} chunks)"
    )
    yield f"proof 3   {witness(answer)}"


def witness(answer: Synthesized) -> str:
    """Return what proves the bound as a sentence: the cut, or the prices of links."""
    bound, topology = answer.plan.bound, answer.plan.topology
    if bound.kind == "lp":
        count = len(bound.links)
        prices = f"prices of {count} links prove" if count > 1 else "the price of one link proves"
        return f"{prices} the bound: {some(bound.links)}"
    return cut_text(bound, topology, answer.places)
