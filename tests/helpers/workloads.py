"""Keys of scenarios, and their points: a data-parallel step, hosts around a switch, hosts joined each with each."""

from __future__ import annotations

from typing import Any

from simcoll.config import yaml_tree
from simcoll.errors import Place
from simcoll.scenario import loading
from simcoll.scenario.loading import Point

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
    """The points of a scenario given as a mapping."""
    return loading.points(yaml_tree.located({"name": "test", **keys}, Place("test", 1, 1)), sets)
