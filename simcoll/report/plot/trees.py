"""Draw a synthesised schedule: the network, trees of one root in colours, and the links and devices of the bound."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

from matplotlib.figure import Figure

from simcoll.explanation.narrowest_cut import smaller_side
from simcoll.explanation.synthesis import Synthesized
from simcoll.report import synthesis_text
from simcoll.report.plot.topology import LANES, Ends, Overlay, topology_figure
from simcoll.synthesis.bounds import TURNED
from simcoll.synthesis.synthesize import Move, Plan


def trees_figure(answer: Synthesized) -> Figure:
    """Return a schedule's picture: the trees of one root that carry most, and the links of the cut that gives the
    bound, with the devices on its smaller side. The paths of an all_to_all are not drawn."""
    plan, bound = answer.plan, answer.plan.bound
    root, trees = trees_of(plan)
    cut, total = bound.kind == "cut", trees.total()
    word = "path" if TURNED.get(plan.collective, plan.collective) == "scatter" else "tree"
    _, side = smaller_side(bound, plan.topology)
    title, _, rest = synthesis_text.verdict(answer).partition(", ")
    few = f"{len(LANES)} of {len(trees)} {word}s of {root} are drawn. " if len(trees) > len(LANES) else ""
    overlay = Overlay(
        text=f"{rest} {few}Proof: {synthesis_text.witness(answer)}",
        links={(u, v) for u, _, v in (name.partition("->") for name in bound.links)},
        devices=side if cut else (),
        name=f"links {'of the cut' if cut else 'with a price'}: {len(bound.links)}",
        root=root,
        trees=[
            (f"{word} {number} of {root}: {count}/{total} of its data", tree)
            for number, (tree, count) in enumerate(trees.most_common(len(LANES)), 1)
        ],
    )
    return topology_figure(plan.topology, title=title, overlay=overlay)


def trees_of(plan: Plan) -> tuple[str, Counter[frozenset[Ends]]]:
    """Return the device that is the root of most trees, and how many chunks take each of them: the links
    from the root to all ranks, or back. Trees of a reduction that a broadcast follows are left out."""
    turned, names = plan.collective in TURNED, plan.graph.names
    moves_of, found = defaultdict[int, list[Move]](list), defaultdict[str, Counter[frozenset[Ends]]](Counter)
    for move in plan.moves if plan.collective != "all_to_all" else ():  # whose paths change their slots
        for slot in range(move.src_slot, move.src_slot + move.count) if turned or not move.reduce else ():
            moves_of[slot].append(move)
    for moves in moves_of.values():
        sources, targets = {move.src for move in moves}, {move.dst for move in moves}
        (root,) = targets - sources if turned else sources - targets
        hops = (hop for move in moves for hop in itertools.pairwise(names[vertex] for vertex in move.way))
        found[plan.graph.devices[root]][frozenset((min(hop), max(hop)) for hop in hops)] += 1
    return max(found.items(), key=lambda each: len(each[1]), default=("", Counter()))
