"""Keys of scenarios, and their points: a data-parallel step, hosts around a switch, hosts joined each with each."""

from __future__ import annotations

from typing import Any

from simcoll.config import yaml_tree
from simcoll.errors import Place
from simcoll.prediction.predict import Prediction, predict
from simcoll.scenario import scenario_files
from simcoll.scenario.scenario_files import Point

CABLE = {"bandwidth": "10 GB/s", "latency": "1 us"}
STAR = {"fabric": "single-switch", "hosts": 4, "link": CABLE}


def layers(count: int, size: str = "4 MiB", backward: str = "1 ms", forward: str = "0.5 ms") -> list[dict[str, Any]]:
    """Layers that are alike."""
    return [{"parameters": size, "backward": backward, "forward": forward, "times": count}]


def ddp(count: int = 8, **more: Any) -> dict[str, Any]:
    """A data-parallel step."""
    return {"template": "ddp", "algorithm": "ring", "layers": layers(count), "first_bucket": "same", **more}


def mesh(bandwidth: str = "10 GB/s", latency: str = "1 us", hosts: int = 8) -> dict[str, Any]:
    """Hosts joined each with each."""
    return {"fabric": "full-mesh", "hosts": hosts, "link": {"bandwidth": bandwidth, "latency": latency}}


def points(keys: dict[str, Any], *sets: str) -> list[Point]:
    """The points of a scenario given as a mapping; what is None is not there."""
    kept = {key: value for key, value in {"name": "test", **keys}.items() if value is not None}
    return scenario_files.points(yaml_tree.located(kept, Place("test", 1, 1)), sets)


def predicted(keys: dict[str, Any]) -> Prediction:
    """The prediction of the only point of a scenario."""
    (point,) = points(keys)
    return predict(point)
