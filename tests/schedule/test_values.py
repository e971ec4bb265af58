"""Schedules worked with numbers: `show --values` and `simcoll.states`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import simcoll

import simcoll as sc
from simcoll.report.schedule_view import every_pair
from simcoll.schedule.collectives import COLLECTIVES, EXCHANGES

OPERATORS = {
    "sum": np.sum, "avg": np.mean, "product": np.prod, "min": np.min, "max": np.max,
    "band": np.bitwise_and.reduce, "bor": np.bitwise_or.reduce, "bxor": np.bitwise_xor.reduce,
}  # fmt: skip


def shown(name: str, ranks: int, rows: Any, *more: str) -> Any:
    """The document of `show --values --json`."""
    values = rows if isinstance(rows, str) else json.dumps(rows)
    return simcoll("show", name, "--ranks", ranks, "--values", values, "--json", *more).json


def answer(collective: str, rows: Any, op: str, root: int) -> list[list[Any]]:
    """What NumPy says that each rank has at the end; None stands where nothing is promised."""
    whole, n = np.asarray(rows), len(rows)
    total, every = OPERATORS[op](whole, axis=0), whole.ravel()
    own = np.arange(len(total)) * n // len(total)  # the rank whose block each number is in
    one = {
        "all_reduce": lambda rank: total,
        "barrier": lambda rank: total,
        "all_gather": lambda rank: every,
        "broadcast": lambda rank: whole[root],
        "reduce": lambda rank: total if rank == root else total.size * [None],
        "gather": lambda rank: every if rank == root else every.size * [None],
        "reduce_scatter": lambda rank: np.where(own == rank, total.astype(object), None),
        "scatter": lambda rank: np.where(own == rank, whole[root].astype(object), None),
        **dict.fromkeys(EXCHANGES, lambda rank: whole[:, own == rank].ravel()),
        "send_recv": lambda rank: whole[root] if rank == (root + 1) % n else total.size * [None],
    }
    return [list(one[collective](rank)) for rank in range(n)]


@pytest.mark.parametrize("pair", every_pair())
def test_the_end_is_what_numpy_says(pair: str) -> None:
    """Law: with every algorithm and operator the last state is NumPy's answer wherever the contract promises one; and
    there is a state before all and one after each step."""
    collective = pair.partition("/")[0]
    contract, draw = COLLECTIVES[collective], np.random.default_rng(len(pair))
    ops = ["min", "max", "band", "bor"] if contract.at_least_once else [*OPERATORS] if contract.reduces else ["sum"]
    for number, op in enumerate(ops):
        ranks, root = (1, 2, 4, 5, 6)[number % 5], number % 2 if contract.rooted and number % 5 else 0
        rows = draw.integers(-9, 9, (ranks, 2 if contract.blocks(3) == 1 else 2 * ranks)).tolist()
        more = ["--op", op] if contract.reduces else []
        found = shown(pair, ranks, rows, "--root", str(root), *more)
        assert len(found["states"]) == found["counts"]["steps"] + 1
        for held, wanted in zip(found["states"][-1], answer(collective, rows, op, root), strict=True):
            assert [one for one, other in zip(held, wanted, strict=True) if other is not None] == pytest.approx(
                [other for other in wanted if other is not None]
            ), (op, ranks, root)


def test_examples_of_texts() -> None:
    """Three ranks of three numbers, and blocks of two ranks, as texts on collectives have them."""
    sums = shown("all_reduce/ring", 3, [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert sums["states"][-1] == [[12, 15, 18]] * 3
    scattered = shown("reduce_scatter/ring", 2, [[[-1, 5], [2, 2]], [[3, -3], [4, 1]]])["states"][-1]
    assert (scattered[0][:2], scattered[1][2:]) == ([2, 2], [6, 3])
    gathered = shown("all_gather/ring", 2, [[1, 2], [3, 4]])["states"]
    assert gathered == [[[1, 2, None, None], [None, None, 3, 4]], [[1, 2, 3, 4]] * 2]
    assert shown("broadcast/naive", 3, [[5, 6]], "--root", "1")["states"][-1] == [[5, 6]] * 3


def test_a_step_is_written_out() -> None:
    """What a step reduces is a formula, what it stores is marked; `--step` shows this step between its two states."""
    asked = ["show", "all_reduce/ring", "--ranks", 3, "--values", "[[1,2,3],[4,5,6],[7,8,9]]"]
    whole = simcoll(*asked).out
    assert all(text in whole for text in ("before", "step 0", "2+8", "1+11", "step 3", "▸18", "end"))
    one = simcoll(*asked, "--step", 1).out
    assert "step 1" in one and "1+11" in one and "step 0" not in one and "2+8" not in one
    found = simcoll(*asked, "--step", 1, "--json").json
    assert found["states"] == simcoll(*asked, "--json").json["states"][1:3]
    assert {row[0] for row in found["transfers"]} == {1}


def test_groups() -> None:
    """With groups, leaders exchange the sums of their groups; sub-groups each have a sum of their own."""
    rows = [[1], [2], [4], [8]]
    led = shown("all_reduce/hierarchical_leader", 4, rows, "--groups", "[[0,2],[1,3]]")["states"]
    assert led[1][0] == [5] and led[1][1] == [10] and led[-1] == [[15]] * 4
    apart = shown("all_reduce/ring", 4, rows, "--subgroups", "[[0,2],[1,3]]")["states"][-1]
    assert apart == [[5], [10], [5], [10]]


def test_python_gives_the_same() -> None:
    """`simcoll.states` has what the command prints; arrays are taken, too."""
    rows = np.arange(8.0).reshape(4, 2)
    assert (
        sc.states(sc.build("all_reduce", "tree", 4), rows, "max")
        == (shown("all_reduce/tree", 4, rows.tolist(), "--op", "max")["states"])
    )
    with pytest.raises(sc.SimcollError, match=r"^values=: rank 1 has 2 numbers"):
        sc.states(sc.build("all_reduce", "tree", 2), [[1], [2, 3]])


BAD = [
    "[[1,2],[3]]", "[[1],[2],[3]]", "[]", "[[],[]]", "[1,2]", '[["a"],[1]]', "[[NaN],[1]]", "[[Infinity],[1]]",
    "[[1e999],[1]]", "[[true],[1]]", "[[null],[1]]", '{"a": 1}', "ring", "[" * 5000, "[[1],null]",
    f"[[{'9' * 5000}],[1]]", f"[{'[' * 800}1{']' * 800},[1]]", "[[[1],[2,3]],[[1,2],[3]]]",
]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        *(["--ranks", "2", "--values", text] for text in BAD),
        ["--ranks", "2", "--values", "random", "--op", "plus"],
        ["--ranks", "2", "--values", "random", "--step", "2"],
        ["--ranks", "2", "--values", "[[1.5],[2]]", "--op", "bor"],
        ["--ranks", "2", "--op", "max"],
        ["--ranks", "2,4", "--values", "random"],
        ["--ranks", "2048", "--values", "random"],
        ["--ranks", "4", "--groups", "[[0,1],[2,3]]"],
        ["--ranks", "4", "--subgroups", "[[0,1],[2]]"],
        ["--ranks", "4", "--subgroups", "2"],
        ["--ranks", "40", "--op", "product", "--values", str(40 * [[10**15]])],
        ["--ranks", "40", "--op", "product", "--values", str(40 * [[1e15]])],
    ],
    ids=lambda words: " ".join(words)[:50],
)
def test_bad_values_are_one_clear_error(words: list[str]) -> None:
    """Whatever is wrong is one line on stderr that names the option, with exit status 2, and nothing is printed."""
    found = simcoll("show", "all_reduce/ring", *words)
    assert (found.status, found.out, found.err.count("\n")) == (2, "", 1)
    assert found.err.startswith("--") and len(found.err) < 300


def test_the_root_must_hand_in_its_numbers(tmp_path: Path) -> None:
    """Without the root's numbers a broadcast would spread what nobody knows; a schedule file brings its own ranks."""
    found = simcoll("show", "broadcast/naive", "--ranks", 2, "--values", "[null,[1]]")
    assert (found.status, found.out) == (2, "") and "rank 0" in found.err
    file = tmp_path / "ring.json"
    file.write_text(simcoll("show", "all_reduce/ring", "--ranks", 3, "--json").out, "utf-8")
    assert simcoll("show", file, "--ranks", 8).status == 2 and simcoll("show", file).status == 0


def test_a_chunk_without_numbers_is_blank() -> None:
    """Three ranks with one number each: two of three chunks are empty, before as at the end."""
    lines = simcoll("show", "all_reduce/ring", "--ranks", 3, "--values", "[[1],[2],[3]]").out.splitlines()
    assert lines[-4].split() == ["end", "0", "6"] and lines[3].split() == ["before", "0", "1"]
