"""Symmetries of a network: which ranks, switches and links are alike.

A symmetry is a renaming of vertices that maps ranks to ranks and each edge to an edge of equal capacity. Candidates are
found by colour refinement: vertices of one colour have neighbours of the same colours, and two copies of the graph are
coloured together while vertices are singled out at random (seeded). Each candidate is checked, so nothing is assumed: a
linear program may take the average over all symmetries, and loses nothing (Bödi, Herr, Joswig, "Algorithms for highly
symmetric linear and integer programs", 2013).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from simcoll.config.numpy_helpers import distinct
from simcoll.synthesis.flow_graph import FlowGraph, Integers

MOST_FOUND: Final = 24  # symmetries that are looked for; a few random ones join what all join
MOST_FAILED: Final = 3  # candidates in a row that are none, after which the search ends


class Orbits(NamedTuple):
    """Numbers of the sets of vertices, (vertices,), and of edges, (edges,), that symmetries map onto each other."""

    vertices: Integers
    edges: Integers


def orbits_of(graph: FlowGraph, weights: Integers | None = None) -> Orbits:
    """Return the orbits under the symmetries that are found; `weights` (roots,) tell roots apart."""
    size, random = len(graph.names), np.random.default_rng(0)
    kinds = np.zeros(size, np.int64)
    kinds[graph.roots] = 1 if weights is None else 1 + weights
    kinds[graph.agents] += kinds.max() + 1
    found, colours = Orbits(np.arange(size), np.arange(len(graph.tails))), _refined(graph, np.tile(kinds, 2))
    keys, failed = graph.tails * size + graph.heads, 0
    order = np.argsort(keys)
    least = len(np.unique(np.stack([colours[graph.tails], colours[graph.heads], graph.capacity]), axis=1).T)
    for _ in range(MOST_FOUND):
        if failed == MOST_FAILED or len(distinct(found.edges)) == least:
            break
        image = _candidate(graph, np.tile(kinds, 2), random)
        ends = image[graph.tails] * size + image[graph.heads]
        edges = order[np.searchsorted(keys[order], ends).clip(max=len(keys) - 1)]
        mapped = (kinds, kinds[image]), (keys[edges], ends), (graph.capacity, graph.capacity[edges])
        if all(np.array_equal(*each) for each in mapped):
            found, failed = Orbits(_joined(found.vertices, image), _joined(found.edges, edges)), 0
        else:
            failed += 1
    return found


def _refined(graph: FlowGraph, colour: Integers) -> Integers:
    """Return the coarsest colours of the vertices of two copies of a graph, (2 · vertices,), for which vertices of one
    colour have neighbours of the same colours, as far as hashes tell, and had one `colour` before."""
    size, count = len(graph.names), 0
    tails, heads = (np.concatenate([ends, ends + size]) for ends in (graph.tails, graph.heads))
    width = np.tile(graph.capacity, 2).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    while (now := int(colour.max()) + 1) > count:
        count = now
        mixed = (colour + 1).astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
        sums = np.zeros((2, 2 * size), np.uint64)
        for side, (here, there) in zip(sums, ((tails, heads), (heads, tails)), strict=True):
            seen = mixed[there] ^ width
            np.add.at(side, here, (seen ^ (seen >> np.uint64(29))) * np.uint64(0x94D049BB133111EB))
        table = np.stack([colour.astype(np.uint64), *sums], axis=1)
        colour = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return colour


def _candidate(graph: FlowGraph, colour: Integers, random: np.random.Generator) -> Integers:
    """Return for each vertex another one that looks like it, after as many are paired at random as it takes."""
    size = len(graph.names)
    while True:
        colour = _refined(graph, colour)
        one, other = colour[:size], colour[size:]
        counts = np.bincount(one, minlength=int(colour.max()) + 1)
        if not np.array_equal(counts, np.bincount(other, minlength=len(counts))) or counts.max() == 1:
            image = np.zeros(size, np.int64)
            image[np.argsort(one)] = np.argsort(other)
            return image
        several = np.flatnonzero(counts > 1)
        chosen = several[np.argmin(counts[several])]
        here, there = (random.choice(np.flatnonzero(side == chosen)) for side in (one, other))
        colour = colour.copy()
        colour[[here, size + there]] = colour.max() + 1


def _joined(orbit: Integers, image: Integers) -> Integers:
    """Return orbits joined where a symmetry maps one into another."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(orbit.max()) + 1
    ends = np.stack((orbit, orbit[image])).astype(np.int32)  # the only integers of old scipy's csgraph
    links = coo_array((np.ones(len(orbit)), (ends[0], ends[1])), shape=(size, size))
    found: Integers = connected_components(links)[1].astype(np.int64)[orbit]
    return found
