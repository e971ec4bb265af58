"""To which measured tables the costs of a profile were fitted, as it records it."""

from __future__ import annotations

from fnmatch import fnmatch

from simcoll.formats.measured import MeasuredRow
from simcoll.scenario.profile import Profile, load_network


def recorded(profile: Profile) -> set[str]:
    """Return the hashes of the tables of a profile's calibrations."""
    ways = (profile.host, profile.graph, profile.pull)
    records = [profile.calibration, *(way.calibration for way in ways if way)]
    return {source.sha256 for record in records if record for source in record.files}


def beside(profile: Profile, digest: str, row: MeasuredRow) -> bool:
    """Whether costs of a profile, or of that which it is like, were fitted beside its calibration to a row of the table
    with this hash."""
    label = row.others.get("table") or ""
    tables = [each for each in profile.beside if each.sha256 == digest and each.collective in (None, row.collective)]
    if any(fnmatch(label, pattern) for each in tables for pattern in each.tables):
        return True
    return profile.like is not None and beside(load_network(profile.like), digest, row)
