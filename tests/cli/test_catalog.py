"""`list`, `topology`, `show` and `verify`."""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command import ROOT, simcoll

from simcoll.config.yaml_tree import shipped
from simcoll.report.schedule_view import count_rows, every_pair
from simcoll.schedule import collectives, registry

SCENARIOS = sorted(shipped("scenarios").glob("*.yaml"))


def test_list_names_everything():
    """What is registered or shipped is listed, by the name one writes in a scenario."""
    algorithms = simcoll("list", "algorithms").out
    for collective, entries in registry.ALGORITHMS.items():
        assert f"{collective}: " in algorithms
        assert all(re.search(rf"^  {name} ", algorithms, re.MULTILINE) for name in entries)
    assert _first_words("collectives") == list(collectives.COLLECTIVES)
    assert _first_words("scenarios") == [file.stem for file in SCENARIOS]
    assert all(line.endswith((".", "?")) for line in simcoll("list", "scenarios").out.splitlines())  # no cut sentence
    assert _first_words("topologies") == sorted(file.stem for file in shipped("topologies").glob("*.yaml"))
    assert _first_words("profiles") == sorted(file.stem for file in (ROOT / "simcoll/scenario/profiles").glob("*.yaml"))
    assert simcoll("topology", "list") == simcoll("list", "topologies")
    assert simcoll("list") == simcoll("list", "algorithms")


def _first_words(what: str) -> list[str]:
    return [line.split()[0] for line in simcoll("list", what).out.splitlines()]


@pytest.mark.parametrize("name", sorted(file.stem for file in shipped("topologies").glob("*.yaml")))
def test_topology_show(name: str):
    """Devices, links and bisection bandwidth of every shipped system, as text and as JSON."""
    told, found = simcoll("topology", "show", name), simcoll("topology", "show", name, "--json").json
    assert told.status == 0
    assert name in told.out
    assert "bisection bandwidth" in told.out
    assert found["name"] == name
    assert sum(found["devices"].values()) > 0


@pytest.fixture
def ring() -> dict[str, Any]:
    """The ring on four ranks, as `show --json` prints it."""
    return dict(simcoll("show", "all_reduce/ring", "--ranks", 4, "--json").json)


@pytest.mark.parametrize("pair", every_pair())
def test_show_tells_of_every_algorithm(pair: str):
    """Data and diagram exist for every registered algorithm, on one rank and on five."""
    for flag, n in itertools.product(("--data", "--diagram"), (1, 5)):
        found = simcoll("show", pair, "--ranks", n, flag)
        assert (found.status, found.err) == (0, "")
        assert found.out.strip()


@pytest.mark.parametrize("pair", every_pair())
def test_what_show_prints_verify_reads(pair: str, tmp_path: Path):
    """A schedule survives the way through JSON: it is proved again."""
    file = tmp_path / "schedule.json"
    file.write_text(simcoll("show", pair, "--ranks", 6, "--json").out, encoding="utf-8")
    found = simcoll("verify", "--schedule", file, "--json")
    (row,) = found.json["rows"]
    assert (found.status, row["ranks"], row["status"]) == (0, 6, "proved")
    assert f"{row['collective']}/{row['algorithm']}" == pair


@pytest.mark.parametrize(
    "change",
    [{"collective": "allreduce"}, {"ranks": 0}, {"ranks": 3}, {"ranks": "4"}, {"ranks": True}, {"n_chunks": 0},
     {"n_chunks": 10**12}, {"ranks": 10**20}, {"transfers": [[0, 0, 0, 1, 0]]}, {"transfers": [[0, 0, 0, 9, 0, False]]},
     {"transfers": [[0, 0, 0, 1, 10**12, False]]},
     {"transfers": [[0, 0, 0, 1, -1, False]]}, {"transfers": [[1, 0, 0, 1, 0, False], [0, 0, 0, 1, 0, False]]},
     {"transfers": [[10**12, 0, 0, 1, 0, True]]}, {"transfers": "none"}, {"root": 7}, {"root": -1}, {"agents": 10**12},
     {"transfers": [[0, 0, 0, 1, 0, 2]]}, {"transfers": [[0.5, 0, 0, 1, 0, True]]}],
)  # fmt: skip
def test_schedules_that_are_none(change: dict[str, Any], ring: dict[str, Any], tmp_path: Path):
    """A schedule with impossible numbers is wrong input, located in its file; nothing is computed with it."""
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({**ring, **change}), encoding="utf-8")
    found = simcoll("verify", "--schedule", file)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(f"{file}:")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"x"', "[" * 5000, "{}", "\x00", '{"collective": NaN}'])
def test_text_that_is_no_schedule(text: str, tmp_path: Path):
    """Garbage is wrong input, located in its file."""
    file = tmp_path / "garbage.json"
    file.write_text(text, encoding="utf-8")
    found = simcoll("verify", "--schedule", file)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(f"{file}:")


def _all_reduce_is_right(ranks: int, rows: list[list[int]]) -> bool:
    """Whether rows leave the sum over all ranks everywhere. Rank r adds 64^r to each of its chunks, and chunk c has
    digits of its own: sums say how often each contribution counts."""
    held = {(rank, chunk): 64 ** (ranks * chunk + rank) for rank in range(ranks) for chunk in range(ranks)}
    total = {chunk: sum(held[rank, chunk] for rank in range(ranks)) for chunk in range(ranks)}
    for _, step in itertools.groupby(rows, key=lambda row: row[0]):
        moved = [(held[src, there], (dst, here), reduce) for _, src, there, dst, here, reduce in step]
        for value, place, reduce in moved:
            held[place] = value + reduce * held[place]
    return all(value == total[chunk] for (_, chunk), value in held.items())


def test_verify_says_what_a_changed_schedule_does(tmp_path: Path):
    """Of all schedules that differ from the ring on three by one number, or one row more or less: those are proved that
    leave the sums, the others are wrong, and steps that go back are wrong input."""
    ring = simcoll("show", "all_reduce/ring", "--ranks", 3, "--json").json
    rows, most = ring["transfers"], (4, 2, 2, 2, 2, 1)
    changed = [[*rows[:i], *rows[i + 1 :]] for i in range(12)] + [[*rows[:i], rows[i], *rows[i:]] for i in range(12)]
    for i, column in itertools.product(range(12), range(6)):
        values = (value for value in range(most[column] + 1) if value != rows[i][column])
        changed += [[*rows[:i], [*rows[i][:column], x, *rows[i][column + 1 :]], *rows[i + 1 :]] for x in values]
    file, seen = tmp_path / "changed.json", set()
    for table in changed:
        file.write_text(json.dumps({**ring, "transfers": table}), encoding="utf-8")
        goes_back = any(a[0] > b[0] for a, b in itertools.pairwise(table))
        expected = 2 if goes_back else 1 - _all_reduce_is_right(3, table)
        assert simcoll("verify", "--schedule", file).status == expected, table
        seen.add(expected)
    assert seen == {0, 1, 2}


def test_no_schedule_breaks_verify(tmp_path: Path):
    """Whatever stands in the place of any value of a schedule's JSON, or of a piece of the text: proved, wrong, or
    wrong input located in the file, never a traceback."""
    plain = simcoll("show", "all_reduce/ring", "--ranks", 3, "--json").out
    odd = [None, True, -1, 0, 3, 10**20, 0.5, math.nan, "", "\ud800", [], [[]], {}]
    keys = ("collective", "algorithm", "ranks", "n_chunks", "agents", "root", "pipelined", "counts", "transfers")
    places = [(key,) for key in keys] + [("transfers", 5), *(("transfers", 5, column) for column in range(6))]
    texts = []
    for (*way, last), value in itertools.product(places, odd):
        tree = json.loads(plain)
        functools.reduce(lambda part, key: part[key], way, tree)[last] = value
        texts.append(json.dumps(tree))
    rng = random.Random(0)
    for _ in range(60):
        at = rng.randrange(len(plain))
        texts.append(plain[:at] + rng.choice(["", "[", '"', "-", "9", "\0", "\ud800"]) + plain[at + rng.randrange(9) :])
    file, seen = tmp_path / "mutated.json", set()
    for text in texts:
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        found = simcoll("verify", "--schedule", file)
        assert found.status < 2 or (found.status == 2 and found.err.startswith(f"{file}:")), (text, found)
        assert (found.err == "") == (found.status < 2), text
        seen.add(found.status)
    assert seen == {0, 1, 2}


WORLDS = (2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    ("pair", "column", "form"),
    [
        ("all_to_all/direct", "messages", lambda n: n * (n - 1)),  # 2, 12, 56, 240, 992
        ("all_reduce/naive", "messages", lambda n: 2 * (n - 1)),  # a gather, and a broadcast
        ("all_reduce/ring", "of a rank", lambda n: 2 * (n - 1)),
        ("all_reduce/ring", "sent", lambda n: Fraction(2 * (n - 1), n)),
        ("all_reduce/ring", "most received", lambda n: Fraction(2 * (n - 1), n)),
        ("all_reduce/naive", "sent", lambda n: Fraction(2 * (n - 1), n)),  # on average as much as in a ring
        ("all_reduce/naive", "most sent", lambda n: n - 1),
        ("broadcast/naive", "received", lambda n: Fraction(n - 1, n)),
        ("gather/direct", "most received", lambda n: Fraction(n - 1, n)),
    ],
)
def test_table_of_worlds(pair: str, column: str, form: Callable[[int], Fraction | int]) -> None:
    """The table of counts has what textbooks say of messages and volumes, for 2 to 32 ranks."""
    rows = count_rows(pair, WORLDS)
    assert [str(row[column]) for row in rows] == [str(form(n)) for n in WORLDS]
    found = simcoll("show", pair, "--ranks", ",".join(map(str, WORLDS))).out
    assert "not the ratio of messages" in " ".join(found.replace("#", "").split())
    assert all(str(row[column]) in found for row in rows)


@pytest.mark.parametrize("pair", every_pair())
def test_what_is_sent_is_received(pair: str) -> None:
    """Law: without switches ranks receive all that ranks send, so that the means are equal, and no mean exceeds the
    busiest rank's share."""
    found = simcoll("show", pair, "--ranks", 6, "--json").json
    counts = found["counts"]
    assert "agents" in found or counts["sent_mean"] == counts["received_mean"]
    assert counts["sent_mean"] <= counts["sent_most"] == counts["bytes_per_rank_fraction"]
    assert counts["received_mean"] <= counts["received_most"]
