"""simcoll: a discrete-event network simulator of collective algorithms.

The public names live in `simcoll.api` and are imported when first used, so that `simcoll --help` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# The names of `simcoll.api`, in their one place.
__all__ = [
    "Link", "Point", "Prediction", "Reply", "Request", "Results", "Scenario", "Schedule", "SimcollError", "Step",
    "Sweep", "Topology", "Transfer", "build", "calibrate", "compare", "diagnose", "dryrun", "explain", "export", "load",
    "measure", "predict", "prove", "recommend", "register", "run", "send", "show", "states", "synthesize",
    "torch_estimator",
]  # fmt: skip

if TYPE_CHECKING:  # what type checkers know of these names
    from simcoll.api import *
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'simcoll' has no attribute {name!r}")
        return getattr(importlib.import_module("simcoll.api"), name)

    def __dir__() -> list[str]:
        return ["__version__", *__all__]
