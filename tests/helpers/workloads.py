"""A data-parallel step on four hosts around a switch, as the keys of a scenario."""

from __future__ import annotations

from typing import Any

CABLE = {"bandwidth": "10 GB/s", "latency": "1 us"}
STAR = {"fabric": "single-switch", "hosts": 4, "link": CABLE}


def layers(count: int, size: str = "4 MiB", backward: str = "1 ms", forward: str = "0.5 ms") -> list[dict[str, Any]]:
    """Layers that are alike."""
    return [{"parameters": size, "backward": backward, "forward": forward, "times": count}]


def ddp(count: int = 8, **more: Any) -> dict[str, Any]:
    """A data-parallel step."""
    return {"template": "ddp", "algorithm": "ring", "layers": layers(count), "first_bucket": "same", **more}
