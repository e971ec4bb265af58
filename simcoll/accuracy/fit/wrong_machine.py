"""Check whether a table was measured on the machine and the network that the user names.

A fit moves costs only as far as machines of a kind differ. If the table is of another network or library, no such move
helps, and the user should know before reading anything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.accuracy.fit.fit_rows import Samples
from simcoll.accuracy.fit.parameters import ParameterSetting
from simcoll.accuracy.scores import Document
from simcoll.config.arrays import Floats
from simcoll.config.groups import grouped
from simcoll.errors import InputError
from simcoll.scenario.profile import CABLE, LinkScale, Profile, load_network, shipped_profiles

# Rows that a fit leaves so far off in the median are of another machine or launch, or in another unit. The farthest of
# the published tables is off by less than twice without any fit: see validation/accuracy.
UNLIKE: Final = 3.0
FAR: Final = 0.1  # mean error of the rows that were fitted from which on others are asked: fits mostly leave less
CONSTANT: Final = 0.5  # share of the error that a constant has to leave at most, to be said to be what is wrong
NEARER: Final = 0.75  # share of that error which another has to stay below: what differs by less may be luck


def check_believable(points: Sequence[Document], topology: str) -> None:
    """Raise InputError where most of the fitted rows on one node, or most of those on several, are off by UNLIKE or
    more, all to one side: costs of a network may hide what a unit does to calls between nodes."""
    of_reach = grouped([point for point in points if point["fitted"]], lambda point: (point["nodes"] or 1) > 1)
    middle = max(map(_middle, of_reach.values()), key=abs)
    if abs(middle) < math.log(UNLIKE):
        return
    factor = math.exp(abs(middle))
    share = f"{factor:.3g} times as long as" if middle > 0 else f"1/{factor:.3g} of"
    raise InputError(
        f"the rows take {share} what the best fit on {topology} takes, in the median",
        "see that the unit of the times, the system, the profile and the launch (launch.gpus_per_process) are those of "
        "the table",
    )


def _middle(points: Sequence[Document]) -> float:
    """The median of log(measured / predicted); of two in the middle the nearer one."""
    offs = sorted(math.log(point["measured_us"] / point["predicted_us"]) for point in points)
    return min(offs[(len(offs) - 1) // 2], offs[len(offs) // 2], key=abs)


def launched_otherwise(data: Samples, chosen: NDArray[np.bool_], fitted: Floats) -> list[str]:
    """Return a warning where one constant explains most of the error that a fit leaves on the rows `chosen` (rows,):
    their calls were launched in another way than the profile says. `fitted` (rows,) are times by the fit, in ps."""
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
    """Return the shipped transports that are of a family, by name."""
    every = {name: load_network(name) for name in shipped_profiles()}
    return {name: profile for name, profile in every.items() if profile.family and profile.transport}


class OtherNetwork(NamedTuple):
    """A shipped transport, the times (rows,) with it in ps, and the mean errors of the rows fitted: with it, and by the
    fit."""

    name: str
    times: Floats
    error: float
    fitted: float

    def note(self, gpus: str) -> str:
        """The line for a user whose fit began with the profile `gpus`."""
        begin = f"{gpus.partition('+')[0]}+{self.name}"
        return (
            f"the rows are nearer to the shipped transport {self.name}, without a fit, than to this fit "
            f"({100 * self.error:.1f} against {100 * self.fitted:.1f} %): begin with --profile {begin}"
        )


def nearer(data: Samples, chosen: NDArray[np.bool_], start: Profile, fitted: Floats) -> OtherNetwork | None:
    """Return the shipped transport that is clearly nearer to the rows `chosen` (rows,) than a fit is; None where there
    is none, for rows on one node, and where the fit is near. The fit began with the profile `start`; `fitted` (rows,)
    are times by it, in ps."""
    between = np.array([(row.nodes or 1) > 1 for row in data.rows]) & chosen
    own = _error(fitted, data, between) if between.any() and start.transport is not None else 0.0
    if own < FAR:
        return None
    found = [OtherNetwork(name, times, _error(times, data, between), own) for name, times in _by_others(data, start)]
    best = min(found, key=lambda other: other.error, default=None)
    return best if best and best.error < NEARER * own else None


def _by_others(data: Samples, start: Profile) -> list[tuple[str, Floats]]:
    """Return the times by each other shipped transport, in ps."""
    setting, found = ParameterSetting.of(start), []
    for name, network in networks().items():
        if network.transport != start.transport:
            links = {**setting.links, CABLE: network.links.get(CABLE, LinkScale())}
            found.append((name, data.times(replace(setting, transport=network.transport, links=links))))
    return found


def _error(times: Floats, data: Samples, which: NDArray[np.bool_]) -> float:
    return float(np.mean(np.abs(times[which] / data.measured[which] - 1)))
