"""Releases of NCCL and RCCL that are newer than all whose rules are known."""

from __future__ import annotations

from collections.abc import Iterable

from simcoll.nccl.tuner_constants import newer_than_known
from simcoll.scenario.scenario import Scenario
from simcoll.topology import systems


def notes(scenarios: Iterable[Scenario]) -> list[str]:
    """A sentence for each such release that scenarios ask for: by the rules of which release they are answered."""
    asked = ((s.library_version, systems.described(s.topology)) for s in scenarios if s.library_version)
    vendors = ((version, system.gpu.vendor) for version, system in asked if system and system.gpu)
    found = (newer_than_known(version, "rccl" if vendor == "amd" else "nccl") for version, vendor in vendors)
    return [note for note in dict.fromkeys(found) if note]
