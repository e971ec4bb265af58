"""Errors that the model itself makes, learnt from measured machines, by where a call runs.

`model_errors.yaml` is written by `tools/model_errors.py` from measured tables of several clusters. A cell has the error
below which nine rows in ten stay, where each cluster counts once, however many rows it has: errors of one cluster are
alike, so what counts is how clusters differ, and a cluster far off widens a cell as soon as it is one in ten. A cell
with few clusters is drawn to the cell around it, in logarithms, as errors differ by factors: a network that is known
well keeps its narrow interval inside networks that are not.

What counts beside the kind of machine is how much of a call's time its busiest link carries data: bandwidths are known
better than latencies and launches, on every machine, whatever the sizes at which it goes from one to the other. On one
node it is, too, whether costs were fitted to GPUs of this model, or are lent by those of another; between nodes the
network errs more than that.

Beyond the most nodes of any cluster an error of each step, or of how much a fabric is shared, adds up with every
doubling, in one direction: so much as a fit errs on numbers of nodes that it has not seen.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Model
from simcoll.prediction.intervals import Noise
from simcoll.scenario.launch import LaunchWay

# Clusters for which the cell around counts beside the clusters of a cell. With 1.5 to 3 what intervals hold of clusters
# that are left out moves by about a point.
AROUND: Final = 2.0
FILE: Final = Path(__file__).with_name("model_errors.yaml")
Kind = Literal["sizes", "ranks", "collectives", "nodes"]
ZONES: Final = ((0.2, "to 20 % busy"), (0.6, "to 60 % busy"), (math.inf, "above"))
BLEND: Final = 0.2  # from an edge to the middle of the zone between both
PAIRS: Final = ("all_to_all", "send_recv", "gather", "scatter")  # messages between pairs
CHAINS: Final = (
    "broadcast",
    "reduce",
)  # from a root or to it; others go by rings and trees

LogError = Annotated[float, Field(ge=0)]


class CellErrors(Model):
    """Standard deviation of normal errors of which as many are as small: logarithms of measured / predicted; and from
    how many clusters."""

    error: Annotated[float, Field(gt=0)]
    clusters: Annotated[int, Field(ge=1)]


class ModelErrors(Model):
    """Errors on measured machines: of cells, see `cells_of`; of kinds of rows that a fit did not see, `left_out`;
    `nodes` are the most that a cluster has."""

    noise: LogError
    outliers: LogError
    left_out: dict[Kind, LogError]
    nodes: Annotated[int, Field(ge=1)]
    cells: dict[str, CellErrors]


class Setting(NamedTuple):
    """A call: `place` is the profile of its NICs, on one node the kind of links between GPUs; `busy` the share of its
    time in which its busiest link carries data; `launch` as `Launch.way`: launches of a graph, or by one process for
    all GPUs, take another time, and small calls little else. `lent`: costs of GPUs were fitted to another model of GPU.
    """

    collective: str
    nodes: int
    place: str
    busy: float
    launch: LaunchWay = ""
    lent: bool = False


def cells_of(setting: Setting) -> Iterator[str]:
    """Yield the names of the cells of a call, the narrowest first: all are of its zone of ZONES. Calls that are
    launched in another way have one of their own, inside those of other calls, until links are busy.

    >>> list(cells_of(Setting("all_reduce", 1, "nvlink", 0.01, launch="graph")))
    ['graph on one node, to 20 % busy', 'one node, nvlink, own costs, rings, to 20 % busy', \
'one node, nvlink, own costs, to 20 % busy', 'one node, nvlink, to 20 % busy', 'one node, own costs, to 20 % busy', \
'one node, to 20 % busy']
    >>> list(cells_of(Setting("all_to_all", 4, "efa", 0.9)))[:3]
    ['more nodes, efa, pairs, above', 'several nodes, efa, above', 'more nodes, pairs, above']
    """
    reach = {1: "one node", 2: "two nodes"}.get(setting.nodes, "more nodes")
    collective, place, zone = setting.collective, setting.place, zone_of(setting.busy)
    family = "pairs" if collective in PAIRS else "chains" if collective in CHAINS else "rings"
    if has_own_cell(setting):
        yield f"{setting.launch} on {reach}, {zone}"
    # what links and costs are of counts more than the family of a collective
    if setting.nodes == 1:
        costs = "lent costs" if setting.lent else "own costs"
        around = (f"{place}, {costs}, {family}", f"{place}, {costs}", place, costs)
        yield from (f"{reach}, {each}, {zone}" for each in around)
        yield f"{reach}, {zone}"
        return
    yield f"{reach}, {place}, {family}, {zone}"
    yield f"several nodes, {place}, {zone}"
    yield f"{reach}, {family}, {zone}"
    yield f"several nodes, {family}, {zone}"
    yield f"several nodes, {zone}"


def has_own_cell(setting: Setting) -> bool:
    """Whether what launches take may be most of a call that is launched in a way of its own."""
    return bool(setting.launch) and zone_of(setting.busy) != ZONES[-1][1]


def zone_of(busy: float) -> str:
    """Return the name of the zone of ZONES that a share of busy time is in."""
    return next(name for most, name in ZONES if busy <= most)


def error_of(setting: Setting, known: ModelErrors | None = None) -> float:
    """Return the standard deviation of the model's own error, in logarithms, on a machine that it was not fitted to;
    `known` replaces what is shipped.

    Around an edge of a zone the variance goes over evenly to that of the next: errors do not jump.
    """
    learnt = known or shipped()
    doublings = math.log2(max(1.0, setting.nodes / learnt.nodes))
    return math.hypot(_of_zones(setting, known), doublings * learnt.left_out["nodes"])


def _of_zones(setting: Setting, known: ModelErrors | None) -> float:
    edge = next((most for most, _ in ZONES[:-1] if abs(setting.busy - most) < BLEND), None)
    if edge is None:
        return _of_zone(setting, known)
    below, above = (_of_zone(setting._replace(busy=edge + beyond), known) for beyond in (-BLEND, BLEND))
    share = (1 + (setting.busy - edge) / BLEND) / 2
    return math.sqrt((1 - share) * below**2 + share * above**2)


def _of_zone(setting: Setting, known: ModelErrors | None) -> float:
    if known is not None:
        return _error(tuple(cells_of(setting)), known)
    return _shipped_error(
        setting._replace(nodes=min(setting.nodes, 3), busy=next(most for most, _ in ZONES if setting.busy <= most))
    )


def _error(cells: Sequence[str], known: ModelErrors) -> float:
    """Draw each cell to the one around it."""
    found: float | None = None
    for name in reversed(cells):
        if cell := known.cells.get(name):
            share = cell.clusters / (cell.clusters + AROUND) if found else 1.0
            found = cell.error**share * (found or 1.0) ** (1 - share)
    return found or max((cell.error for cell in known.cells.values()), default=1.0)


@functools.cache
def _shipped_error(setting: Setting) -> float:
    return _error(tuple(cells_of(setting)), shipped())


def noise_of(known: ModelErrors | None = None) -> Noise:
    """Return the noise of single measurements where no table of a machine shows it."""
    known = known or shipped()
    return Noise(known.noise, known.outliers)


@functools.cache
def shipped() -> ModelErrors:
    """Read what is shipped."""
    return yaml_tree.validate(ModelErrors, [yaml_tree.read(FILE)])[0]
