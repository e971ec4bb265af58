"""The key `plots` of a scenario: pictures by name, and pictures over any key."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Discriminator, Field, Tag

from simcoll.config.name_field import OneOf
from simcoll.config.yaml_tree import Model

PLOTS: Final = {
    "busbw": "bus bandwidth over size, a curve for each algorithm",
    "latency": "time over size",
    "scaling": "time over ranks",
    "crossover": "map of the fastest algorithm, by size and ranks",
    "timeline": "what each rank sends when, at the largest size; up to 4,000 transfers",
    "utilisation": "the topology, coloured by how busy its links are at the largest size",
    "step": "time of a training step by bucket size, of a workload",
    "overlap": "computation and communication of a rank over time, and their overlap, of a workload",
}


def listed(value: object) -> object:
    """One value as a list of it."""
    return [value] if isinstance(value, str | dict) else value


_Names = Annotated[tuple[str, ...], BeforeValidator(listed)]


class KeyPlot(Model):
    """A quantity over any column or swept key of the results."""

    x: str
    """Column or swept key across, e.g. `size`, `nodes`, `topology.oversubscription`."""
    y: str = "time"
    """Column up, e.g. `time`, `busbw`, `step`."""
    group: _Names | None = None
    """Columns or keys of which each value is a line. Default: the algorithm."""
    facet: _Names = ()
    """Columns or keys of which each value is a panel."""
    filter: dict[str, Any] = Field(default_factory=dict)
    """Values that rows must have, by column or key: `{nodes: 2}`."""

    @property
    def name(self) -> str:
        """The name of the picture's file."""
        parts = [self.y, "over", self.x, *(f"by-{name}" for name in self.facet)]
        parts += [f"{key}-{value}" for key, value in self.filter.items()]
        return "-".join(parts).replace("/", "-").replace(" ", "")

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


_Plot = Annotated[
    Annotated[str, OneOf("plot", lambda: PLOTS), Tag("<name>")] | Annotated[KeyPlot, Tag("<over a key>")],
    Discriminator(lambda value: "<over a key>" if isinstance(value, dict | KeyPlot) else "<name>"),
]
Plots = Annotated[tuple[_Plot, ...], BeforeValidator(listed)]
