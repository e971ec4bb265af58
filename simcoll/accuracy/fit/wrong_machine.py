"""Check whether a table was measured on the machine and the network that the user names.

A fit moves costs only as far as machines of a kind differ. If the table is of another network or library, no such move
helps, and the user should know that first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.fit.fit_rows import Samples
from simcoll.accuracy.scores import Document
from simcoll.config.arrays import Floats
from simcoll.config.groups import grouped
from simcoll.errors import InputError
from simcoll.scenario.profile import CABLE, CostSetting, LinkScale, Profile, load_network, shipped_profiles

# Rows whose median is off by this factor after a fit are of another machine or launch, or in another unit. Without any
# fit the worst published table is off by less than a factor of 2: see validation/accuracy.
UNLIKE: Final = 3.0
FAR: Final = 0.1  # other networks are tried if the fitted rows' mean error is larger; fits mostly leave less
CONSTANT: Final = 0.5  # a constant is reported as the cause if it leaves at most this share of the error
NEARER: Final = 0.75  # another network is reported if its error is below this share; a smaller gain may be luck


def check_believable(points: Sequence[Document], topology: str) -> None:
    """Raise InputError if the fitted rows on one node, or those on several nodes, have a median that is off by a factor
    of UNLIKE or more. They are judged apart, as costs of a network may hide a wrong unit between nodes."""
    of_reach = grouped([point for point in points if point["fitted"]], lambda point: (point["nodes"] or 1) > 1)
    middle = max(map(_middle, of_reach.values()), key=abs)
    if abs(middle) < math.log(UNLIKE):
        return
    factor = math.exp(abs(middle))
    share = f"{factor:.3g} times as long as" if middle > 0 else f"1/{factor:.3g} of"
    raise InputError(
        f"the rows take {share} what the best fit on {topology} takes, in the median",
        "check that the unit of times, the system, the profile and the launch (`launch.gpus_per_process`) are those of "
        "the table",
    )


def _middle(points: Sequence[Document]) -> float:
    """Return the median of log(measured / predicted); of two middle values the one nearer to 0."""
    offs = sorted(math.log(point["measured_us"] / point["predicted_us"]) for point in points)
    return min(offs[(len(offs) - 1) // 2], offs[len(offs) // 2], key=abs)


def launched_otherwise(data: Samples, chosen: NDArray[np.bool_], fitted: Floats) -> list[str]:
    """Return a warning if one constant explains most of the error that a fit leaves on the rows `chosen` (rows,): then
    their calls were launched in another way than the profile says. `fitted` (rows,) are the fit's times in ps."""
    measured, times = data.measured[chosen], fitted[chosen]
    sizes = np.array([row.size_bytes for row in data.rows])[chosen]
    small = sizes <= np.quantile(sizes, 0.5)
    added = float(np.median((measured - times)[small]))
    off, left = (float(np.mean(np.abs(each / measured - 1))) for each in (times, times + added))
    if off < FAR or left > CONSTANT * off:
        return []
    return [
        f"calls take {added / 1e6:+.3g} us against the fit, whatever their size: say how they were launched "
        "(launch.gpus_per_process, launch.graph), or fit that alone (--free launch)"
    ]


def networks() -> dict[str, Profile]:
    """Return the shipped transports that belong to a family, by name."""
    every = {name: load_network(name) for name in shipped_profiles()}
    return {name: profile for name, profile in every.items() if profile.family and profile.transport}


class OtherNetwork(NamedTuple):
    """A shipped transport, its times (rows,) in ps, and the mean errors on fitted rows: with it, and of the fit."""

    name: str
    times: Floats
    error: float
    fitted: float

    def note(self, gpus: str) -> str:
        """Return the remark for a user whose fit began with the profile `gpus`."""
        begin = f"{gpus.partition('+')[0]}+{self.name}"
        return (
            f"the rows are nearer to the shipped transport {self.name}, without a fit, than to this fit "
            f"({100 * self.error:.1f} against {100 * self.fitted:.1f} %): begin with --profile {begin}"
        )


def nearer(data: Samples, chosen: NDArray[np.bool_], start: Profile, fitted: Floats) -> OtherNetwork | None:
    """Return the shipped transport that is clearly nearer to the rows `chosen` (rows,) than the fit. None if there is
    none, for rows on one node, and if the fit is near. The fit began with the profile `start`; `fitted` (rows,) are its
    times in ps."""
    between = np.array([(row.nodes or 1) > 1 for row in data.rows]) & chosen
    own = _error(fitted, data, between) if between.any() and start.transport is not None else 0.0
    if own < FAR:
        return None
    found = [OtherNetwork(name, times, _error(times, data, between), own) for name, times in _by_others(data, start)]
    best = min(found, key=lambda other: other.error, default=None)
    return best if best and best.error < NEARER * own else None


def _by_others(data: Samples, start: Profile) -> list[tuple[str, Floats]]:
    """Return the name and the times (rows,) in ps of each shipped transport other than the profile's."""
    setting, found = CostSetting.of(start), []
    for name, network in networks().items():
        if network.transport != start.transport:
            links = {**setting.links, CABLE: network.links.get(CABLE, LinkScale())}
            found.append((name, data.times(replace(setting, transport=network.transport, links=links))))
    return found


def _error(times: Floats, data: Samples, which: NDArray[np.bool_]) -> float:
    return float(np.mean(np.abs(times[which] / data.measured[which] - 1)))
