"""Fit the costs of transports (networks between nodes) to clusters: each near the values common to its family.

Logarithms of costs are fitted, as transports differ by factors. A family's costs scatter around common values. These
values and the scatter are estimated from the transports themselves (empirical Bayes; Gelman et al., "Bayesian Data
Analysis", 2013, chapter 5). So a cost that no row of a transport shows takes its family's value; an unmeasured network
has the common values and their scatter. If physics gives a cost (`Profile.derived`), it lies around that value, not its
family's. Costs of a transport's own hosts or software (`Profile.own`) say nothing about others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from simcoll.accuracy.fit import least_squares, parameters, posterior_estimate, prior
from simcoll.accuracy.fit.least_squares import Belief, Bounds, Line
from simcoll.accuracy.fit.parameters import OF_TRANSPORT
from simcoll.accuracy.fit.rows_to_fit import Samples
from simcoll.config.numpy_helpers import Array, Floats
from simcoll.engine.timing_model import Params
from simcoll.measurement.cases_of_points import Tell
from simcoll.nccl.transports_between_nodes import OF_FAMILY
from simcoll.prediction.confidence import NORMAL_90
from simcoll.scenario.profile import CABLE, CostSetting, LinkScale, Profile, load_network, shipped_profiles

SHARE: Final = f"efficiency.{CABLE}"
COSTS: Final = (*OF_TRANSPORT, SHARE)

# By cost: the standard deviation of logarithms over transports before any is known (0.7 is a factor of 2), the least
# cost, which is as good as none, the largest, and where a fit begins for a transport that has none. Times are in ps,
# rates in ps/B. Shares of cables follow from headers, and differ least.
_ABOUT: Final[Mapping[str, tuple[float, float, float, float]]] = {
    "transport.latency": (0.5, 5e4, 1e9, 5e6),
    "transport.connection": (1.0, 1.0, 1e4, 20.0),
    "transport.proxy": (0.5, 1e4, 1e8, 5e5),
    "transport.operation": (0.5, 1e4, 1e8, 1e6),
    "transport.flush": (0.7, 5e4, 1e9, 3e6),
    "transport.staging": (0.7, 10.0, 1e4, 200.0),
    "transport.unexpected": (0.7, 5e4, 1e9, 2e6),
    "transport.congestion": (0.7, 0.01, 4.0, 0.2),
    SHARE: (0.08, 0.5, 5.0, 1.1),
}
# What only some networks have, as their profiles say. A queue pair of InfiniBand or RoCE moves packets as fast as the
# port: messages by themselves are slower where software or a provider's own protocol brings them. Messages before their
# buffers trouble Slingshot's provider only.
OF_SOME: Final = ("transport.connection", "transport.unexpected")
_RARE: Final = np.array([name in OF_SOME for name in COSTS])
# Costs of one cause in one family and of another in another: sockets copy, where proxies of RDMA read flags.
OF_FAMILIES: Final = ("transport.staging",)
_APART: Final = np.array([name in OF_FAMILIES for name in COSTS])
# What is one for all of a family, but for those that have it of their `own`. The family's profile writes it; the record
# of each other has what its rows say of it alone.
_SHARED: Final = np.array([name.partition(".")[2] in OF_FAMILY for name in COSTS])
_FIRST: Final = np.array([_ABOUT[name][0] for name in COSTS])
_BEGIN: Final = np.log([_ABOUT[name][3] for name in COSTS])
AS_MANY: Final = 2.0  # transports for which _FIRST counts beside those that show their spread
OTHER_FAMILY: Final = 2.0  # times as far as members of a family may its common values lie from those of the others
TURNS: Final = 8  # of values and common values in turn, after which they move by less than a percent
CYCLES: Final = 2  # of fits with the model itself, and of what is common to them
SURE: Final = 1e-6  # standard deviation of the logarithm of a cost that stays
ROUNDS: Final = 10  # linearisations of a fit at most: after 3, a cost that no row sees where it begins is still far off


class Known(NamedTuple):
    """What is known of a transport's costs: means and standard deviations of their logarithms, (costs,) as in COSTS."""

    values: Floats
    widths: Floats

    @property
    def costs(self) -> dict[str, float]:
        """The costs by name; 0 for a cost that the transport does not have."""
        return _costs(self.values)

    @property
    def intervals(self) -> dict[str, tuple[str, str]]:
        """The 90 % intervals of the fitted costs, as texts like those in profiles."""
        ends = [np.exp(self.values + sign * NORMAL_90 * self.widths) for sign in (-1, 1)]
        found = {}
        for j, name in enumerate(COSTS):
            low, high = (float(end[j]) for end in (ends if not parameters.falls(name) else ends[::-1]))
            if self.widths[j] and self.costs[name]:
                found[name] = parameters.text(name, low), parameters.text(name, high)
        return found

    def network(self, like: Profile) -> Profile:
        """Return the NIC profile `like` with these costs instead of its own."""
        setting = parameters.with_costs(CostSetting.of(like), self.costs)
        record = like.calibration.model_copy(update={"intervals": self.intervals}) if like.calibration else None
        links = {**like.links, CABLE: setting.links.get(CABLE, LinkScale())}
        return like.model_copy(update={"transport": setting.transport, "links": links, "calibration": record})


def recorded(profile: Profile) -> Known:
    """Return what a profile's record says about its costs; without a record, their spread is that of all transports.

    A cost that only some transports have stays absent if this one lacks it.
    """
    least, own, lacked = _bounds().lower, _own(profile), _lacked(profile)
    costs = [cost or _ABOUT[name][3] for name, cost in zip(COSTS, own, strict=True)]
    fixed = lacked | [name == SHARE and not (profile.of_nics and CABLE in profile.links) for name in COSTS]
    values, widths = np.where(lacked, least, np.maximum(np.log(costs), least)), np.where(fixed, 0.0, _FIRST)
    for name, pair in (_intervals(profile) if profile.calibration else {}).items():
        low, high = (parameters.cost_of(name, each) for each in pair)
        at = COSTS.index(name)
        widths[at] = abs(np.log(high / low)) / 2 / NORMAL_90
        if of_family(profile)[at]:
            values[at] = np.log(high * low) / 2
    return Known(values, widths)


def of_family(profile: Profile) -> Array:
    """Whether the profile takes each cost from its family, bool (costs,)."""
    return _SHARED & (profile.family is not None) & ~_owned(profile)


def _own(profile: Profile) -> list[float]:
    return [parameters.cost(name, profile, Params()) for name in COSTS]


def _lacked(profile: Profile) -> Array:
    """Whether each cost is one that only some transports have, and not this one; bool (costs,)."""
    return _RARE & [not cost for cost in _own(profile)]


def _costs(values: Floats) -> dict[str, float]:
    found = zip(COSTS, np.exp(values).tolist(), strict=True)
    return {name: cost if cost > 1.001 * _ABOUT[name][1] else 0.0 for name, cost in found}


def _intervals(profile: Profile) -> Mapping[str, tuple[str, str]]:
    return prior.intervals(profile)


@dataclass(frozen=True, eq=False)
class ClusterSamples:
    """A cluster's rows on several nodes. `profile` is that of its GPUs, `transport` the name of its NICs' profile."""

    name: str
    transport: str
    samples: Samples
    profile: Profile

    @property
    def coarse(self) -> ClusterSamples:
        """The cluster with fewer rows, spread over the sizes of all series."""
        return replace(self, samples=self.samples.of(posterior_estimate.coarse(self.samples.rows)))

    def times(self, values: Floats, like: Profile) -> Floats:
        """Return the rows' predicted times in ps, at these logarithms of costs, else as in the profile `like`."""
        start = replace(CostSetting.of(self.profile), transport=like.transport)
        return self.samples.times(parameters.with_costs(start, _costs(values)))


class Common(NamedTuple):
    """What transports of each family have in common: the mean of each cost's logarithm, and their scatter."""

    families: Mapping[str, Known]

    def of(self, like: Profile) -> Known:
        """Return the costs expected of a transport without rows: those that its profile derives, else its family's."""
        values, widths = (each.copy() for each in self.families[_family(like)])
        for name, text in like.derived.items():
            at = COSTS.index(name)
            values[at], widths[at] = np.log(parameters.cost_of(name, text)), _FIRST[at]
        widths, lacked = np.where(_owned(like), OTHER_FAMILY * _FIRST, widths), _lacked(like)
        # What no other has, but this one, as its profile says: how much it costs is open.
        unlike = _RARE & ~lacked & (values <= _bounds().lower)
        values, widths = np.where(unlike, _BEGIN, values), np.where(unlike, _FIRST, widths)
        return Known(np.where(lacked, _bounds().lower, values), np.where(lacked, 0.0, widths))

    def belief(self, like: Profile, given: Known, share: float, alone: bool = True) -> Belief:
        """Return the belief in a transport's costs before its rows are seen. Costs of width 0 in `given` stay; so do
        its family's costs, unless `alone` asks what the transport's rows say by themselves."""
        values, widths = self.of(like)
        fixed, shared = given.widths == 0, of_family(like)
        widths, kept = np.where(shared, _FIRST, widths), fixed if alone else fixed | shared
        return Belief(np.where(fixed, given.values, values), np.where(kept, SURE, widths), share)


def common(known: Mapping[str, Known], start: Mapping[str, Profile], before: Common) -> Common:
    """Return what the `known` transports have in common, by family; the search begins at `before`.

    The surer a transport's costs are, the more they count. `start` holds the profiles of transports by name.
    """
    found = dict(before.families)
    for name, (middle, spread) in before.families.items():
        members = [each for each in known if _family(start[each]) == name]
        if not members:
            continue
        values, doubts = (np.array([known[each][i] for each in members]) for i in (0, 1))
        counted = (doubts > 0) & ~np.array([_owned(start[each]) for each in members])
        weights = counted / (np.where(_SHARED, 0.0, spread) ** 2 + np.where(counted, doubts, 1.0) ** 2)
        others = np.mean([each.values for each in found.values()], axis=0)
        other = np.where(_APART | _RARE | (len(found) == 1), 0.0, 1 / (OTHER_FAMILY * _FIRST) ** 2)
        total = weights.sum(axis=0) + other
        mean = ((weights * values).sum(axis=0) + other * others) / np.where(total > 0, total, 1.0)
        middle = np.where(total > 0, mean, np.where(_RARE, _bounds().lower, middle))
        squares = (counted * ((values - middle) ** 2 + doubts**2)).sum(axis=0)
        spread = np.sqrt((AS_MANY * _FIRST**2 + squares) / (AS_MANY + counted.sum(axis=0)))
        found[name] = Known(middle, np.where(_SHARED & (total > 0), 1 / np.sqrt(np.maximum(total, 1e-12)), spread))
    return Common(found)


@dataclass(frozen=True, eq=False)
class Together:
    """A joint fit: transports by name, what they have in common, and each cluster's linearised model."""

    clusters: Sequence[ClusterSamples]
    start: Mapping[str, Profile]
    known: Mapping[str, Known]
    common: Common
    lines: Mapping[str, Line]

    def in_use(self, name: str) -> Known:
        """Return the costs to use for a transport: its own, and its family's where the profile takes these."""
        known, shared = self.known[name], self.common.of(self.start[name])
        return known._replace(values=np.where(of_family(self.start[name]), shared.values, known.values))

    @property
    def family(self) -> dict[str, str]:
        """The family of each transport, by its name."""
        return {name: _family(profile) for name, profile in self.start.items()}

    def without(self, cluster: ClusterSamples) -> Known:
        """Return the costs of a cluster's transport, fitted without this cluster: to other clusters with the transport,
        or else from its family alone."""
        name, known, shared = cluster.transport, dict(self.known), self.common
        others = [each for each in self.clusters if each.transport == name and each.name != cluster.name]
        if not others:
            del known[name]
        for _ in range(TURNS):
            shared = common(known, self.start, shared)
            if others:
                known[name] = self._on_lines(others, shared)
        return self._fitted(others, shared) if others else shared.of(self.start[name])

    def _fitted(self, clusters: Sequence[ClusterSamples], shared: Common) -> Known:
        """Fit with the model itself: costs without effect where it was linearised may have one elsewhere."""
        name = clusters[0].transport
        _, share = _measured(clusters)
        given = self.known[name]
        return _found(clusters, self.start[name], shared.belief(self.start[name], given, share, alone=False), given)[1]

    def _on_lines(self, clusters: Sequence[ClusterSamples], shared: Common) -> Known:
        name = clusters[0].transport
        lines = [self.lines[each.name] for each in clusters]
        at = Line(lines[0].values, *(np.concatenate([each[i] for each in map(_parts, lines)]) for i in (0, 1)))
        measured, share = _measured(clusters)
        belief = shared.belief(self.start[name], self.known[name], share)
        values = least_squares.refit(at, measured, _bounds(), least_squares.OWN_ERROR, belief)
        return Known(values, _widths(Line(values, at.at(values), at.slopes), measured, belief, self.known[name]))


def _parts(line: Line) -> tuple[Floats, Floats]:
    return line.times, line.slopes


def lined(clusters: Sequence[ClusterSamples], start: Mapping[str, Profile], tell: Tell) -> Together:
    """Return transports as in their profiles, with linearised models of the clusters that share a transport."""
    coarse = [each.coarse for each in clusters]
    names = [each.transport for each in clusters]
    known = {name: recorded(profile) for name, profile in start.items() if name in names}
    lines: dict[str, Line] = {}
    for each in coarse:
        if names.count(each.transport) > 1:
            tell(f"{each.name}: {len(each.samples)} rows under other costs of {each.transport}")
            model = _model([each], start[each.transport])
            lines[each.name] = least_squares.line(model, known[each.transport].values, _bounds())
    return _shared(Together(coarse, start, known, _first(known, start), lines))


def fit_together(
    clusters: Sequence[ClusterSamples], start: Mapping[str, Profile], tell: Tell, keep: Collection[str] = ()
) -> Together:
    """Fit the transports of all clusters, beginning at the NIC profiles `start`, by name; those in `keep` stay."""
    coarse = [each.coarse for each in clusters]
    names = list(dict.fromkeys(each.transport for each in coarse))
    known = {name: recorded(start[name]) for name in names}
    given, together = known, Together(coarse, start, known, _first(known, start), {})
    if all(start[name].calibration for name in names):
        together = _shared(together)
    for cycle in range(CYCLES):
        known, lines = dict(together.known), dict[str, Line]()
        for name in names:
            own = [each for each in coarse if each.transport == name]
            measured, share = _measured(own)
            belief = together.common.belief(start[name], given[name], share, alone=not cycle)
            if name in keep:
                line = least_squares.line(_model(own, start[name]), given[name].values, _bounds())
            else:
                line, found = _found(own, start[name], belief, known[name])
                stays = of_family(start[name]) & bool(cycle)  # what rows say of it alone is known by then
                known[name] = Known(*(np.where(stays, *pair) for pair in zip(known[name], found, strict=True)))
            at = np.cumsum([len(each.samples) for each in own])[:-1]
            rows = zip(own, np.split(line.times, at), np.split(line.slopes, at), strict=True)
            lines |= {each.name: Line(line.values, times, slopes) for each, times, slopes in rows}
            error = np.mean(np.abs(line.times / measured - 1))
            tell(f"cycle {cycle + 1}, {name}: mean error {100 * error:.1f} % of {len(measured)} rows")
        together = _shared(replace(together, known=known, lines=lines))
    return together


def _shared(together: Together) -> Together:
    """Return the state with newly estimated common values."""
    shared = together.common
    for _ in range(TURNS):
        shared = common(together.known, together.start, shared)
    return replace(together, common=shared)


def _first(known: Mapping[str, Known], start: Mapping[str, Profile]) -> Common:
    """Return the median costs of each family, with the scatter that is assumed before transports show it."""
    families = dict.fromkeys(map(_family, start.values()))
    members = {name: [known[each].values for each in known if _family(start[each]) == name] for name in families}
    every = [each.values for each in known.values()]
    return Common({name: Known(np.median(own or every, axis=0), _FIRST) for name, own in members.items()})


def _family(profile: Profile) -> str:
    return profile.family or profile.name


def _owned(profile: Profile) -> Array:
    """Whether each cost belongs to the transport's own hosts or software, bool (costs,)."""
    return np.array([name in profile.own for name in COSTS])


def networks() -> dict[str, Profile]:
    """Return the shipped NIC profiles that belong to a family, by name."""
    every = {name: load_network(name) for name in shipped_profiles()}
    return {name: profile for name, profile in every.items() if profile.family and profile.transport}


def _found(clusters: Sequence[ClusterSamples], like: Profile, belief: Belief, given: Known) -> tuple[Line, Known]:
    """Fit costs with the model itself. The search begins at `given`, except for costs that the belief fixes."""
    measured, _ = _measured(clusters)
    begin = np.clip(np.where(belief.widths <= SURE, belief.values, given.values), *_bounds()[:2])
    line = least_squares.fit(_model(clusters, like), measured, begin, _bounds(), belief, ROUNDS)
    return line, Known(line.values, _widths(line, measured, belief, given))


def _model(clusters: Sequence[ClusterSamples], like: Profile) -> least_squares.ModelFunction:
    return lambda values: np.concatenate([each.times(values, like) for each in clusters])


def _measured(clusters: Sequence[ClusterSamples]) -> tuple[Floats, float]:
    """Return the measured times in ps, and how much each counts as a share of an independent row."""
    rows = sum(len(each.samples) for each in clusters)
    independent = sum(prior.independent(each.samples.rows) for each in clusters)
    return np.concatenate([each.samples.measured for each in clusters]), independent / rows


def _widths(line: Line, measured: Floats, belief: Belief, given: Known) -> Floats:
    widths = np.sqrt(np.diag(least_squares.posterior(line, measured, belief)))
    found: Floats = np.where(given.widths == 0, 0.0, widths)
    return found


def _bounds() -> Bounds:
    lower, upper = (np.log([_ABOUT[name][i] for name in COSTS]) for i in (1, 2))
    return Bounds(lower, upper, np.ones(len(COSTS)))
