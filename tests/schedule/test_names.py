"""The table of names: complete, and each spelling of a tool means one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simcoll.schedule import names
from simcoll.schedule.collectives import COLLECTIVES


def test_every_thing_has_one_row() -> None:
    """The rows are the collectives that have contracts, and NCCL's algorithms in NCCL's order."""
    assert {row.name for row in names.COLLECTIVES} == set(COLLECTIVES)
    assert tuple(names.ALGORITHM_SPELLINGS) == names.ALGORITHMS
    for name, spelling in names.ALGORITHM_SPELLINGS.items():
        assert names.squashed(spelling) == names.squashed(name)


@pytest.mark.parametrize(
    ("rows", "tool"),
    [
        (names.COLLECTIVES, lambda row: row.kernel),
        (names.COLLECTIVES, lambda row: row.nccl_tests),
        (names.COLLECTIVES, lambda row: row.tuner),
        (names.COLLECTIVES, lambda row: row.msccl),
        (names.COLLECTIVES, lambda row: row.torch),
        (names.DTYPES, lambda row: row.nccl_tests),
        (names.DTYPES, lambda row: row.kernel),
        (names.DTYPES, lambda row: row.torch),
    ],
)
def test_spellings_lead_back(rows: Any, tool: Callable[[Any], str]) -> None:
    """Our name leads to a tool's spelling, and that back to our name."""
    there, back = names.spellings(rows, tool), names.names_by(rows, lambda row: [tool(row)])
    assert there and {back[spelling]: spelling for spelling in there.values()} == there


@pytest.mark.parametrize("text", ["all_reduce", "AllReduce", "all-reduce", "ALLREDUCE", "all reduce"])
def test_spellings_of_people(text: str) -> None:
    """Case, spaces, `_` and `-` do not count; looser names count in measured tables only."""
    assert names.collective_named(text) == "all_reduce"
    assert names.collective_named(text + "x") is None
    assert [names.collective_named("bcast", in_table=loose) for loose in (False, True)] == [None, "broadcast"]
