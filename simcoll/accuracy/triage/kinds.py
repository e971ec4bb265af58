"""The kinds of content that `diagnose` reads. A new kind is a row here: its name, `looks` and `read`."""

from __future__ import annotations

from typing import Final

from simcoll.accuracy.triage import debug_logs, ras, recorded_jobs, tables
from simcoll.accuracy.triage.findings import Kind

# Readers run in this order, each with all files of its kind; later ones know what earlier ones noted in the `Case`.
KINDS: Final = (
    Kind("debug log", debug_logs.looks, debug_logs.read),
    Kind("RAS", ras.looks, ras.read),
    Kind("flight recorder", recorded_jobs.looks, recorded_jobs.read),
    Kind(tables.KIND, tables.looks, tables.read),
)
