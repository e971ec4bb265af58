"""Describe in the record of a fit which series it covers, and what it keeps of the fit that it began with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.fit import parameters, prior
from simcoll.accuracy.fit.fit_rows import Samples
from simcoll.accuracy.scores import Document
from simcoll.prediction.confidence import fingerprint
from simcoll.prediction.placed_topology import placed, served_by
from simcoll.scenario.profile import Profile

SERIES: Final = ("collective", "algorithm", "protocol", "ranks", "nodes", "topology", "setting")  # keys of one


def covers(data: Samples, chosen: NDArray[np.bool_], served: Profile) -> list[Document]:
    """List the series of the rows with the sizes that were fitted and those that were only scored."""
    sizes: dict[tuple[object, ...], tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    settings = {}
    for row, which, fitted in zip(data.rows, data.which.tolist(), chosen.tolist(), strict=True):
        scenario, topology = data.scenarios[which], data.questions[which].topology
        if which not in settings:
            model = scenario.model.model_copy(update=served.model.model_dump(exclude_none=True))
            params = scenario.model_copy(update={"model": model}).params()
            settings[which] = fingerprint(served_by(topology, served.links), params, placed(scenario, topology))
        forced = "auto" if scenario.protocol == "none" else scenario.protocol
        key = (row.collective, scenario.algorithm, forced, row.ranks, row.nodes or 1, topology.name, settings[which])
        sizes[key][0 if fitted else 1].add(row.size_bytes)
    return [
        {
            **{name: value for name, value in zip(SERIES, key, strict=True) if (name, value) != ("protocol", "auto")},
            "fitted": sorted(fitted),
            "held_out": sorted(scored - fitted),
        }
        for key, (fitted, scored) in sizes.items()
    ]


def former(profile: Profile, moved: Collection[str]) -> list[Document]:
    """List the series of the fit that this one begins with, as far as no cost that moved is theirs: those of one node
    where the network's costs moved, all where none did, none where others did."""
    if profile.calibration is None or not all(map(prior.of_network, moved)):
        return []
    series = [each for each in profile.calibration.covers if not moved or (each.nodes or 1) == 1]
    return [{**each.model_dump(mode="json", exclude_none=True), "former": True} for each in series]


def still_known(known: Mapping[str, tuple[str, str]], network: bool) -> dict[str, list[str]]:
    """Return the intervals of former fits, for the parameters that this one leaves as they are; those of the `network`
    where the profile has them."""
    return {
        name: list(ends)
        for name, ends in known.items()
        if name not in parameters.BESIDE and (network or not prior.of_network(name))
    }
