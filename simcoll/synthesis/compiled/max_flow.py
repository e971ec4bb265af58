"""Maximum flow in integers (Dinic's algorithm), and how much capacity a pair of edges may give up."""

from __future__ import annotations

from typing import Any, NamedTuple

from simcoll.config.numba_loader import jit_for

jit = jit_for(__name__)


class Arcs(NamedTuple):
    """Arcs sorted by tail: vertex v has the arcs `first[v]` to `first[v + 1] − 1`. Each has a `head`, and a `pair`: the
    arc in the other direction, which takes flow back. `left` is the capacity left. `level`, `queue`, `at` (vertices,)
    and `path` (vertices,) are scratch."""

    first: Any
    head: Any
    pair: Any
    left: Any
    level: Any
    queue: Any
    at: Any
    path: Any


@jit
def levelled(arcs: Arcs, source: Any, sink: Any) -> Any:
    """Set the level of each vertex: the fewest arcs with capacity left from the source, −1 if there is no way. Return
    whether the sink can be reached."""
    first, head, left, level, queue = arcs.first, arcs.head, arcs.left, arcs.level, arcs.queue
    for vertex in range(len(level)):
        level[vertex] = -1
    level[source], queue[0] = 0, source
    done, known = 0, 1
    while done < known:
        vertex = queue[done]
        done += 1
        for arc in range(first[vertex], first[vertex + 1]):
            if left[arc] > 0 and level[head[arc]] < 0:
                level[head[arc]] = level[vertex] + 1
                queue[known] = head[arc]
                known += 1
    return level[sink] >= 0


@jit
def flow(arcs: Arcs, source: Any, sink: Any, limit: Any) -> Any:
    """Send as much as possible, at most `limit`, from source to sink; return the amount. If it is less than `limit`,
    the vertices of level ≥ 0 are the source's side of a minimum cut."""
    first, head, pair, left = arcs.first, arcs.head, arcs.pair, arcs.left
    level, at, path = arcs.level, arcs.at, arcs.path
    total = 0
    while total < limit and levelled(arcs, source, sink):
        for vertex in range(len(level)):
            at[vertex] = first[vertex]
        vertex, depth = source, 0
        while True:
            if vertex == sink:
                most = limit - total
                for place in range(depth):
                    most = min(most, left[path[place]])
                total += most
                back = 0
                for place in range(depth - 1, -1, -1):
                    arc = path[place]
                    left[arc] -= most
                    left[pair[arc]] += most
                    if left[arc] == 0:
                        back = place
                if total >= limit:
                    break
                depth, vertex = back, head[pair[path[back]]]
                continue
            arc = at[vertex]
            while arc < first[vertex + 1] and not (left[arc] > 0 and level[head[arc]] == level[vertex] + 1):
                arc += 1
            at[vertex] = arc
            if arc < first[vertex + 1]:
                path[depth] = arc
                depth += 1
                vertex = head[arc]
            elif depth == 0:
                break
            else:
                depth -= 1
                vertex = head[pair[path[depth]]]
                at[vertex] += 1
    return total


@jit
def least_excess(arcs: Arcs, capacity: Any, source: Any, sink: Any, ends: Any, need: Any, most: Any) -> Any:
    """Return by how much the maximum flow from the source exceeds `need`, for the worst of several sinks, and at most
    `most`; negative if a flow is below `need`. The arcs `ends` lead from each of the sinks to the vertex `sink`, and
    get an endless capacity one by one."""
    left = arcs.left
    for end in ends:
        for arc in range(len(left)):
            left[arc] = capacity[arc]
        left[end] = need + most
        most = min(most, flow(arcs, source, sink, need + most) - need)
        if most <= 0:
            break
    return most
