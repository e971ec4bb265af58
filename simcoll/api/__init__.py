"""The Python API: what `import simcoll` offers.

Every question of the command line is a function here, and takes what is at hand: the name of a scenario, a file, a
mapping, keys as keywords, a `Sweep`, points, a `Topology` or a networkx graph, a `Schedule`, numbers or texts.

>>> import simcoll as sc
>>> results = sc.run("quickstart", size="1 MiB", algorithm="ring")
>>> results[0]["algorithm"], results[0]["confidence"]
('ring', 'interpolated')
"""

from __future__ import annotations

from simcoll.api._asked import Sweep
from simcoll.api.questions import (
    calibrate,
    compare,
    diagnose,
    explain,
    export,
    load,
    measure,
    predict,
    recommend,
    run,
)
from simcoll.api.results import Reply, Results
from simcoll.errors import SimcollError
from simcoll.prediction.predicted import Prediction
from simcoll.scenario.loading import Point
from simcoll.scenario.scenario import Scenario
from simcoll.schedule.algorithms import build
from simcoll.schedule.ir import Schedule, Transfer
from simcoll.schedule.proof import prove
from simcoll.schedule.registry import Request, register
from simcoll.schedule.steps import Step, send
from simcoll.topology.graph import Topology
from simcoll.topology.wiring import Link

__all__ = [
    "Link",
    "Point",
    "Prediction",
    "Reply",
    "Request",
    "Results",
    "Scenario",
    "Schedule",
    "SimcollError",
    "Step",
    "Sweep",
    "Topology",
    "Transfer",
    "build",
    "calibrate",
    "compare",
    "diagnose",
    "explain",
    "export",
    "load",
    "measure",
    "predict",
    "prove",
    "recommend",
    "register",
    "run",
    "send",
]
