"""The Python API: what `import simcoll` offers.

Every question of the command line is a function here. Scenarios may be names, files, mappings, a `Sweep`, points, or
keys as keywords. Machines may be a `Topology` or a networkx graph, algorithms a `Schedule`, values numbers or texts.

>>> import simcoll as sc
>>> results = sc.run("quickstart", size="1 MiB", algorithm="ring")
>>> results[0]["algorithm"], results[0]["confidence"]
('ring', 'interpolated')
"""

from __future__ import annotations

from simcoll.api.dry_runs import dryrun as dryrun
from simcoll.api.dry_runs import torch_estimator as torch_estimator
from simcoll.api.questions import calibrate as calibrate
from simcoll.api.questions import compare as compare
from simcoll.api.questions import diagnose as diagnose
from simcoll.api.questions import explain as explain
from simcoll.api.questions import export as export
from simcoll.api.questions import load as load
from simcoll.api.questions import measure as measure
from simcoll.api.questions import predict as predict
from simcoll.api.questions import recommend as recommend
from simcoll.api.questions import run as run
from simcoll.api.questions import show as show
from simcoll.api.questions import states as states
from simcoll.api.questions import synthesize as synthesize
from simcoll.api.results import Reply as Reply
from simcoll.api.results import Results as Results
from simcoll.api.sweeps import Sweep as Sweep
from simcoll.errors import SimcollError as SimcollError
from simcoll.prediction.predictions import Prediction as Prediction
from simcoll.scenario.scenario import Scenario as Scenario
from simcoll.scenario.scenario_files import Point as Point
from simcoll.schedule.algorithms import build as build
from simcoll.schedule.proof import prove as prove
from simcoll.schedule.registry import Request as Request
from simcoll.schedule.registry import register as register
from simcoll.schedule.schedule import Schedule as Schedule
from simcoll.schedule.schedule import Transfer as Transfer
from simcoll.schedule.steps import Step as Step
from simcoll.schedule.steps import send as send
from simcoll.topology.graph import Topology as Topology
from simcoll.topology.wiring import Link as Link
