"""Every algorithm of the registry does what its collective promises; a new entry is tested by being registered."""

from __future__ import annotations

import itertools
import re
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from numpy_run import run

from simcoll.errors import InputError, RefusedError, ScheduleError
from simcoll.schedule.algorithms import build, stream
from simcoll.schedule.proof import Proof, prove
from simcoll.schedule.registry import ALGORITHMS, Groups
from simcoll.schedule.schedule import Schedule
from simcoll.schedule.side_by_side import joined
from simcoll.schedule.steps import Repeat, join, send

Array = NDArray[Any]

ENTRIES = [(entry.collective, entry.name) for entries in ALGORITHMS.values() for entry in entries.values()]
ROOTED = {"reduce", "broadcast", "gather", "scatter", "send_recv"}
GROUPED = [pair for pair in ENTRIES if ALGORITHMS[pair[0]][pair[1]].uses_groups]
EQUAL: list[Groups] = [
    (0, 1, 2),
    ((0, 1, 2),),
    ((2,), (0,), (1,)),
    ((0, 3), (1, 4), (2, 5)),
    ((5, 4, 3), (2, 0, 1)),
    (((0, 1), (2, 3), (4, 5)), ((6, 7), (8, 9), (10, 11))),
    ((((0, 8), (1, 9)), ((2, 10), (3, 11))), (((4, 12), (5, 13)), ((6, 14), (7, 15)))),
]
UNEQUAL: list[Groups] = [((0, 1, 2), (3, 4)), ((4, 0), (1,), (2, 3)), ((0, 1), ((2, 3), (4,)), (5, 6, 7))]
# These may send what the contract does not need.
MAY_REPEAT = {("send_recv", "ring"), ("barrier", "dissemination"), ("broadcast", "scatter_allgather")}
UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


@cache
def schedule(collective: str, algorithm: str, n: int, root: int = 0, groups: Groups = ()) -> Schedule:
    """A schedule, built once; a switch that reduces is at hand."""
    return build(collective, algorithm, n, root=root, groups=groups, agents=1)


def specs(collective: str, name: str) -> Iterator[str]:
    """The entry with each value of each of its options."""
    yield name
    for option, values in ALGORITHMS[collective][name].options.items():
        yield from (f"{name}({option}={value})" for value in values)


def roots(collective: str, n: int) -> list[int]:
    """All roots of few ranks; the first, a middle one and the last of many."""
    if collective not in ROOTED:
        return [0]
    return list(range(n)) if n <= 6 else [0, n // 2, n - 1]


def size(groups: Groups) -> int:
    """Ranks in groups of any depth."""
    return sum(1 if isinstance(group, int) else size(group) for group in groups)


def blocks(buffer: Array, n: int, weights: Array | None = None) -> list[Array]:
    """A buffer cut into n blocks, as equal as can be or as the weights say."""
    return np.array_split(buffer, n) if weights is None else np.split(buffer, np.cumsum(weights)[:-1])


def oracle(
    collective: str, inputs: list[Array], op: str = "sum", root: int = 0, weights: Array | None = None
) -> list[Array | None]:
    """What a textbook says every rank ends with, apart from any contract or schedule."""
    n = len(inputs)
    rows = [weights if weights is None or weights.ndim == 1 else weights[r] for r in range(n)]
    parts = [blocks(buffer, n, row) for buffer, row in zip(inputs, rows, strict=True)]
    total = reduce(np.add if op == "avg" else UFUNCS[op], inputs)
    total = total / n if op == "avg" else total
    gathered = np.concatenate([parts[r][r] for r in range(n)])

    def at(rank: int, value: Array) -> list[Array | None]:
        return [value if r == rank else None for r in range(n)]

    results: dict[str, Callable[[], list[Array | None]]] = {
        "all_reduce": lambda: [total] * n,
        "barrier": lambda: [total] * n,
        "reduce": lambda: at(root, total),
        "broadcast": lambda: [inputs[root]] * n,
        "all_gather": lambda: [gathered] * n,
        "gather": lambda: at(root, gathered),
        "reduce_scatter": lambda: list(blocks(total, n, weights)),
        "scatter": lambda: list(parts[root]),
        "all_to_all": lambda: [np.concatenate([parts[r][me] for r in range(n)]) for me in range(n)],
        "moe_dispatch": lambda: [np.concatenate([parts[r][me] for r in range(n)]) for me in range(n)],
        "moe_combine": lambda: [np.concatenate([parts[r][me] for r in range(n)]) for me in range(n)],
        "send_recv": lambda: at((root + 1) % n, inputs[root]),
    }
    return results[collective]()


def same(found: list[Array | None], expected: list[Array | None]) -> None:
    """Every rank has what is expected, to the last bit."""
    for rank, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert (one is None) == (other is None), rank
        if one is not None and other is not None:
            np.testing.assert_array_equal(one, other, err_msg=f"rank {rank}")


def numbers(n: int, length: int, dtype: str = "int64") -> list[Array]:
    """Buffers of small integers, so that sums are exact in any order."""
    draw = np.random.default_rng(n * 1000 + length)
    return [draw.integers(-50, 50, length).astype(dtype) for _ in range(n)]


def sent_by_rank(s: Schedule) -> list[Fraction]:
    """What each rank sends, in buffers."""
    away = s.src != s.dst
    counts = np.bincount(s.src[away], s.count[away], minlength=s.participants)
    return [Fraction(int(count), s.n_chunks) for count in counts[: s.n]]


@pytest.mark.parametrize("counts", [(*range(1, 9), 12), pytest.param((9, 17, 32), marks=pytest.mark.long)], ids=len)
@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_proved(collective: str, name: str, counts: tuple[int, ...]) -> None:
    """Every algorithm keeps its collective's contract for any number of ranks and any root; one rank needs no step."""
    assert ALGORITHMS[collective][name].help
    for spec, n in itertools.product(specs(collective, name), counts):
        for root in roots(collective, n):
            s = schedule(collective, spec, n, root)
            prove(s, "full")
            prove(s, "fingerprint")
            assert n > 1 or not len(s)


@pytest.mark.parametrize(("collective", "name"), GROUPED)
def test_proved_in_groups(collective: str, name: str) -> None:
    """Algorithms with groups serve equal ones of any order and depth; unequal ones too, or they say what does."""
    for spec in specs(collective, name):
        for groups in EQUAL:
            s = schedule(collective, spec, size(groups), groups=groups)
            prove(s)
            same(run(s, numbers(s.n, 29)), oracle(collective, numbers(s.n, 29)))
        for groups in UNEQUAL:
            try:
                s = schedule(collective, spec, size(groups), groups=groups)
            except RefusedError as refusal:
                assert "equal groups" in str(refusal) and "hierarchical_tree" in str(refusal)
                assert name in ("hierarchical", "two_hop", "nvls_tree", "ring_by_dimension", "swing")
            else:
                prove(s)
                same(run(s, numbers(s.n, 29)), oracle(collective, numbers(s.n, 29)))


def test_nvls_tree_with_fewer_heads() -> None:
    """`heads=32` leaves groups of up to 32 as they are. Of larger ones the first 32 take parts across, as many each,
    or the first of another number, and nobody else does; none at all cannot be asked for."""
    small = tuple(tuple(range(i, i + 4)) for i in (0, 4))
    plain, limited = (schedule("all_reduce", f"nvls_tree{option}", 8, groups=small) for option in ("", "(heads=32)"))
    assert list(plain) == list(limited)
    for each, heads in ((40, 32), (4, 1), (4, 3)):
        groups = tuple(tuple(range(i, i + each)) for i in (0, each))
        few = schedule("all_reduce", f"nvls_tree(heads={heads})", 2 * each, groups=groups)
        prove(few)
        across = np.bincount(few.src[(few.src < 2 * each) & (few.dst < 2 * each)], minlength=2 * each)
        assert across.tolist() == [2 * (rank % each < heads) for rank in range(2 * each)]
    with pytest.raises(InputError, match="'0' is no heads of nvls_tree"):
        build("all_reduce", "nvls_tree(heads=0)", 8, groups=small, agents=2)


def test_no_switch_no_nvls() -> None:
    """Reduction in the switch is refused where there is none."""
    with pytest.raises(RefusedError, match="needs a switch"):
        build("all_reduce", "nvls", 4)


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
@pytest.mark.parametrize("counts", [(1, 2, 3, 5, 8), pytest.param((6,), marks=pytest.mark.long)], ids=len)
def test_numbers(collective: str, name: str, counts: tuple[int, ...]) -> None:
    """On numbers, every operator (for 5 ranks; else one) gives what NumPy gives, also where the buffer does not
    divide by the ranks."""
    for n in counts:
        if collective == "barrier":
            ops = ["min", "max", "band", "bor"]  # those that do not mind counting a rank twice
        else:
            reduces = collective in {"all_reduce", "reduce", "reduce_scatter"}
            ops = [*UFUNCS, "avg"] if reduces and n == 5 else ["sum"]
        for op, length, root in itertools.product(ops, (n - 1, 4 * n + 3), roots(collective, n)):
            inputs = numbers(n, length, "float64" if op == "avg" else "int64")
            s = schedule(collective, name, n, root)
            same(run(s, inputs, op), oracle(collective, inputs, op, root))


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_sub_groups(collective: str, name: str) -> None:
    """A schedule works on any members of a larger world, also beside another group, and leaves the rest alone."""
    root = 2 if collective in ROOTED else 0
    own = schedule(collective, name, 4, root)
    members, others = [6, 1, 4, 3], [0, 7, 2, 8]
    parts = [own.on(members, 9)] if own.agents else [own.on(members, 9), own.on(others, 9)]
    s = joined(parts)
    prove(s)
    prove(s, "fingerprint")
    inputs = numbers(9, 22)
    op = "max" if collective == "barrier" else "sum"
    found = run(s, inputs, op)
    assert found[5] is None
    for group in s.groups:
        same([found[rank] for rank in group], oracle(collective, [inputs[rank] for rank in group], op, root))


@st.composite
def shares(draw: st.DrawFn, n: int, length: int) -> list[int]:
    """`length` elements cut into n blocks, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, length), min_size=n - 1, max_size=n - 1)))
    return [b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)]


@given(st.data(), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_uneven_blocks(data: st.DataObject, n: int) -> None:
    """all_to_all_v, gather_v, scatter_v, all_gather_v: blocks of any size, zero included, arrive whole."""
    length = 20
    inputs = numbers(n, length)
    one, table = shares(n, length), st.lists(shares(n, length), min_size=n, max_size=n)
    for collective in ("all_to_all", "gather", "scatter", "all_gather"):
        weights = np.asarray(data.draw(table if collective == "all_to_all" else one))
        root = data.draw(st.integers(0, n - 1)) if collective in ROOTED else 0
        for name in ALGORITHMS[collective]:
            s = schedule(collective, name, n, root)
            same(run(s, inputs, weights=weights), oracle(collective, inputs, root=root, weights=weights))


@pytest.mark.thorough
@given(st.data(), st.sampled_from([pair for pair in ENTRIES if pair not in MAY_REPEAT]), st.integers(2, 12))
@settings(max_examples=120, deadline=None)
def test_every_slot_of_every_transfer_is_needed(data: st.DataObject, pair: tuple[str, str], n: int) -> None:
    """Without any one of the slots that its transfers move a schedule is refused, and the refusal names a rank and a
    chunk."""
    s = schedule(*pair, n).by_slot()
    lost = data.draw(st.integers(0, len(s) - 1))
    names = ("step", "src", "src_slot", "dst", "dst_slot", "reduce", "count")
    alone = np.zeros(len(s) - 1, np.bool_)  # each slot a transfer of its own, as a message may have lost its first one
    torn = s.replace(joins=alone, route=s.route[:-1], **{name: np.delete(getattr(s, name), lost) for name in names})
    proofs: tuple[Proof, ...] = ("full", "fingerprint")
    for how in proofs:
        with pytest.raises(ScheduleError) as refusal:
            prove(torn, how)
        assert re.search(r"rank \d+(, | sends )chunk \d+", str(refusal.value))


@given(st.data(), st.sampled_from([("all_reduce", "halving_doubling"), ("all_gather", "bruck")]))
@settings(max_examples=40, deadline=None)
def test_runs_are_proved_as_their_slots_are(data: st.DataObject, pair: tuple[str, str]) -> None:
    """Run by run or slot by slot: a schedule with another sender, slot, length or sum is right or wrong by both."""
    s = schedule(*pair, data.draw(st.sampled_from([32, 37])))
    prove(s)
    alone = np.flatnonzero(~s.joins & ~np.roll(s.joins, -1)).tolist()
    row, name = data.draw(st.sampled_from(alone)), data.draw(st.sampled_from(["src", "src_slot", "reduce", "count"]))
    column = getattr(s, name).copy()
    column[row] = not column[row] if name == "reduce" else max(1, column[row] - 1)
    refused = []
    for changed in (s.replace(**{name: column}), s.replace(**{name: column}).by_slot()):
        try:
            prove(changed)
        except ScheduleError as error:
            refused.append(str(error))
    assert len(refused) in (0, 2) and len(set(refused)) < 2


@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_counts(n: int) -> None:
    """Steps and messages are those of the textbook: all that a rank sends to another in a step is one message."""
    log, up = n.bit_length() - 1, (n - 1).bit_length()
    fold = 0 if n == 1 << log else 2
    folded = 2 * (n - (1 << log))  # messages of the ranks beyond a power of two
    ways = 2 if n > 2 else 1  # in which one may go round a ring to reach different neighbours
    counts = {
        ("all_reduce", "naive"): (2, 2 * (n - 1)),
        ("all_reduce", "all_pairs"): (1, n * (n - 1)),
        ("all_reduce", "two_shot"): (2, 2 * n * (n - 1)),
        ("all_reduce", "ring"): (2 * (n - 1), 2 * n * (n - 1)),
        ("all_reduce", "ring_unchunked"): (n - 1, n * (n - 1)),
        ("all_reduce", "tree"): (2 * log, 2 * (n - 1)),
        ("all_reduce", "double_binary_tree"): (2 * up, 4 * (n - 1)),
        ("all_reduce", "recursive_doubling"): (log + fold, (log << log) + folded),
        ("all_reduce", "halving_doubling"): (2 * log + fold, (2 * log << log) + folded),
        ("all_reduce", "nvls"): (2, 2 * n),
        ("all_reduce", "bidirectional_ring"): (2 * (n - 1), ways * 2 * n * (n - 1)),
        ("all_gather", "nvls"): (2, n * n),
        ("reduce_scatter", "nvls"): (2, n * n + n),
        ("all_gather", "direct"): (1, n * (n - 1)),
        ("all_gather", "ring"): (n - 1, n * (n - 1)),
        ("all_gather", "bruck"): (up, up * n),
        ("all_gather", "pat"): (up, up * n),
        ("reduce_scatter", "pat"): (up, up * n),
        ("all_gather", "recursive_doubling"): (log + fold, (log << log) + folded),
        ("reduce_scatter", "recursive_halving"): (log + fold, (log << log) + folded),
        ("all_gather", "naive"): (2, 2 * (n - 1)),
        ("reduce_scatter", "ring"): (n - 1, n * (n - 1)),
        ("reduce_scatter", "direct"): (1, n * (n - 1)),
        ("reduce_scatter", "naive"): (2, 2 * (n - 1)),
        ("all_to_all", "direct"): (1, n * (n - 1)),
        ("gather", "direct"): (1, n - 1),
        ("gather", "binomial"): (up, n - 1),
        ("scatter", "direct"): (1, n - 1),
        ("scatter", "binomial"): (up, n - 1),
        ("reduce", "naive"): (1, n - 1),
        ("reduce", "chain"): (n - 1, n - 1),
        ("reduce", "binomial"): (up, n - 1),
        ("broadcast", "naive"): (1, n - 1),
        ("broadcast", "chain"): (n - 1, n - 1),
        ("broadcast", "binomial"): (up, n - 1),
        ("barrier", "dissemination"): (up, up * n),
        ("barrier", "naive"): (2, 2 * (n - 1)),
        ("barrier", "tree"): (2 * log, 2 * (n - 1)),
        ("send_recv", "direct"): (1, 1),
        ("send_recv", "ring"): (1, n),
    }
    found = {pair: (schedule(*pair, n).n_steps, schedule(*pair, n).messages) for pair in counts}
    assert found == counts


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_formula_of_messages(collective: str, name: str) -> None:
    """Law: an algorithm has as many messages as its registered formula says, for any number of ranks."""
    entry = ALGORITHMS[collective][name]
    for n in (1, 2, 3, 5, 8, 12, 32) if entry.messages not in ("", "1", "n") else (2, 5, 8):
        assert entry.messages_of(n) in (None, schedule(collective, name, n).messages), n


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_transfers_by_slot(collective: str, name: str) -> None:
    """Taken slot by slot, a schedule keeps its transfers, its bytes and what every slot holds in the end; and no step
    sends two messages from one rank to another that are reduced alike, unless the algorithm keeps chunks apart."""
    for spec, n in itertools.product(specs(collective, name), (2, 5, 8)):
        s = schedule(collective, spec, n)
        single = s.by_slot()
        moved = [
            (row.step, row.src, row.src_slot + i, row.dst, row.dst_slot + i, row.reduce, 1, row.joins or i > 0)
            for row in s
            for i in range(row.count)
        ]
        assert list(single) == moved and single.by_slot() is single
        assert [single.src[single.heads].tolist(), single.n_slots] == [s.src[s.heads].tolist(), s.n_slots]
        assert (single.transfers, single.messages, sent_by_rank(single)) == (s.transfers, s.messages, sent_by_rank(s))
        prove(single)
        if not ALGORITHMS[collective][name].chunks_apart:
            messages = np.stack([column[s.heads] for column in (s.step, s.src, s.dst, s.reduce)])
            assert np.unique(messages, axis=1).shape == messages.shape


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 2, *[st.integers(0, 6)] * 2, st.booleans()), max_size=30))
def test_messages_have_the_rows_they_are_made_of(rows: list[tuple[int, int, int, int, bool]]) -> None:
    """Law: joined as messages and taken slot by slot again, a step has its rows, those of one message in their order,
    and one transfer for each sender, receiver and `reduce`. A `Repeat` keeps its rows in every step, too."""
    parts = [send(src, dst, slot, to, reduce=reduce) for src, dst, slot, to, reduce in rows]
    step = join(send([], [], []), *parts)
    messages = step.as_messages()
    again = list(zip(*(column.tolist() for column in messages.by_slot()[:5]), strict=True))
    kept = list(zip(*(column.tolist() for column in step[:5]), strict=True))

    def message(row: tuple[int, int, int, int, bool]) -> tuple[int, int, bool]:
        return row[0], row[2], row[4]

    assert again == sorted(kept, key=lambda row: [message(other) for other in kept].index(message(row)))
    assert messages.transfers == len(set(map(message, kept)))
    base = np.minimum(step.src_slot, step.dst_slot) // 4 * 4
    repeat = Repeat(step, 3, base.astype(np.int32), 7, 2)
    for one, other in zip(repeat, repeat.as_messages().by_slot(), strict=True):
        columns = [list(zip(*(column.tolist() for column in each[:5]), strict=True)) for each in (one, other)]
        assert sorted(columns[0]) == sorted(columns[1])


@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_ring_neighbours(n: int) -> None:
    """In a ring every rank sends 2(n−1)/n of the data, to the next rank only."""
    s = schedule("all_reduce", "ring", n)
    assert set(sent_by_rank(s)) == {Fraction(2 * (n - 1), n)}
    assert (s.dst == (s.src + 1) % n).all()


VOLUMES: dict[tuple[str, str], Callable[[int], Fraction]] = {
    ("all_reduce", "ring"): lambda n: Fraction(2 * (n - 1), n),
    ("all_reduce", "halving_doubling"): lambda n: Fraction(2 * (n - 1), n),
    ("all_reduce", "bidirectional_ring"): lambda n: Fraction(2 * (n - 1), n),
    ("all_reduce", "two_shot"): lambda n: Fraction(2 * (n - 1), n),
    ("all_reduce", "swing"): lambda n: Fraction(2 * (n - 1), n),
    ("all_reduce", "swing(ports=one)"): lambda n: Fraction(2 * (n - 1), n),
    ("all_reduce", "ring_by_dimension"): lambda n: Fraction(2 * (n - 1), n),
    ("all_reduce", "recursive_multiplying"): lambda n: Fraction(
        3 * ((n.bit_length() - 1) // 2) + (n.bit_length() - 1) % 2
    ),
    ("all_gather", "ring_by_dimension"): lambda n: Fraction(n - 1, n),
    ("reduce_scatter", "ring_by_dimension"): lambda n: Fraction(n - 1, n),
    ("all_gather", "hierarchical"): lambda n: Fraction(n - 1, n),
    ("reduce_scatter", "hierarchical"): lambda n: Fraction(n - 1, n),
    ("all_reduce", "hierarchical"): lambda n: Fraction(2 * (n - 1), n),
    ("all_reduce", "recursive_doubling"): lambda n: Fraction(n.bit_length() - 1),
    ("all_reduce", "all_pairs"): lambda n: Fraction(n - 1),
    ("all_reduce", "nvls"): lambda n: Fraction(1),
    ("all_gather", "ring"): lambda n: Fraction(n - 1, n),
    ("all_gather", "direct"): lambda n: Fraction(n - 1, n),
    ("all_gather", "bruck"): lambda n: Fraction(n - 1, n),
    ("all_gather", "pat"): lambda n: Fraction(n - 1, n),
    ("reduce_scatter", "pat"): lambda n: Fraction(n - 1, n),
    ("all_gather", "recursive_doubling"): lambda n: Fraction(n - 1, n),
    ("reduce_scatter", "ring"): lambda n: Fraction(n - 1, n),
    ("reduce_scatter", "direct"): lambda n: Fraction(n - 1, n),
    ("reduce_scatter", "recursive_halving"): lambda n: Fraction(n - 1, n),
    ("all_to_all", "direct"): lambda n: Fraction(n - 1, n),
    ("all_to_all", "bruck"): lambda n: Fraction(n.bit_length() - 1, 2),
}


@pytest.mark.parametrize(("collective", "name"), VOLUMES)
def test_volume(collective: str, name: str) -> None:
    """Every rank sends the share of the buffer that the algorithm is known for."""
    for n in (2, 4, 8, 16):
        assert set(sent_by_rank(schedule(collective, name, n))) == {VOLUMES[collective, name](n)}, n


@pytest.mark.parametrize("n", [3, 6, 7, 13])
def test_lean_collectives_move_no_block_twice(n: int) -> None:
    """Whatever the number of ranks, direct, ring, Bruck and PAT gathers bring each rank each foreign block once."""
    for name in ("direct", "ring", "bruck", "bruck(ports=2)", "bruck(ports=7)", "pat", "pat(aggregation=2)"):
        s = schedule("all_gather", name, n)
        moved = [(row.dst, row.dst_slot) for row in s.by_slot()]
        assert len(set(moved)) == len(moved) == n * (n - 1)


@pytest.mark.parametrize(("groups", "size"), [(1, 4), (2, 3), (3, 1), (5, 4)])
def test_groups_in_turn(groups: int, size: int) -> None:
    """By groups, an all-to-all's messages at one place of the lists of all senders go to different ranks, and from the
    ranks of a group to those of one group, the own one first."""
    n = groups * size
    table = np.random.default_rng(n).permutation(n).reshape(groups, size)
    s = schedule("all_to_all", "direct(order=groups)", n, groups=tuple(map(tuple, table.tolist())))
    group = np.argsort(table, axis=None) // size
    sent = [s.dst[s.src == rank] for rank in range(n)]
    for place, to in enumerate(zip(*sent, strict=True)):
        assert sorted(to) == list(range(n))
        assert [(group[dst] - group[rank]) % groups for rank, dst in enumerate(to)] == [(place + 1) // size] * n


@settings(max_examples=25)
@given(st.integers(2, 40), st.integers(0, 5))
def test_pat_aggregates(n: int, exponent: int) -> None:
    """A message of PAT carries the given number of blocks at most; on powers of two it takes log2 of that many steps,
    and one for each further group of as many ranks. Its reduce-scatter is its all-gather run backwards."""
    most = 2**exponent
    there, back = (build(collective, f"pat(aggregation={most})", n) for collective in ("all_gather", "reduce_scatter"))
    prove(there, "full")
    prove(back, "full")
    carried = np.add.reduceat(there.count, there.heads)
    assert carried.max() <= most
    if n == 2 ** (n.bit_length() - 1):
        most = min(most, n // 2)
        assert there.n_steps == most.bit_length() - 1 + n // most - 1
    there, back, last = there.by_slot(), back.by_slot(), there.n_steps - 1
    rows = zip(last - there.step, there.dst, there.src, there.src_slot, strict=True)
    assert sorted(rows) == sorted(zip(back.step, back.src, back.dst, back.src_slot, strict=True))


@pytest.mark.parametrize("ports", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [2, 3, 4, 6, 8, 13, 27, 33])
def test_k_ports(n: int, ports: int) -> None:
    """With k ports a rank talks to k others a step at most. Bruck takes ⌈log n⌉ steps to the base k+1; recursive
    multiplying ⌊log n⌋, one more where f(k+1)^j ≤ n for an f of 2 … k, and two more where n is none of these."""
    radix = ports + 1
    full = next(j for j in range(n) if radix ** (j + 1) > n)
    last = n // radix**full
    core = last * radix**full
    bruck = schedule("all_gather", f"bruck(ports={ports})", n)
    assert bruck.n_steps == next(j for j in range(n) if radix**j >= n)
    multiplied = schedule("all_reduce", f"recursive_multiplying(ports={ports})", n)
    assert multiplied.n_steps == full + (last > 1) + 2 * (core < n)
    assert multiplied.messages == core * (full * ports + last - 1) + 2 * (n - core)
    for s in (bruck, multiplied):
        pairs = np.unique(np.stack([s.step, s.src, s.dst]), axis=1)
        assert np.unique(pairs[:2], axis=1, return_counts=True)[1].max() <= ports
    if ports == 1:
        assert list(multiplied) == list(schedule("all_reduce", "recursive_doubling", n))


DIMS = [(2,), (5,), (8,), (3, 4), (4, 4), (6, 2), (2, 3, 4), (4, 4, 4)]


def gridded(collective: str, algorithm: str, dims: tuple[int, ...]) -> Schedule:
    """A schedule whose groups are the dimensions of a grid."""

    def nested(part: Any) -> Any:
        return tuple(map(nested, part)) if isinstance(part, list) else part

    n = int(np.prod(dims))
    return schedule(collective, algorithm, n, groups=nested(np.arange(n).reshape(1, *dims).tolist()))


@pytest.mark.parametrize("dims", DIMS)
def test_rings_by_dimension(dims: tuple[int, ...]) -> None:
    """Σ (k−1) steps over sides k, twice for an all_reduce. Every rank sends to its neighbours in the grid only, and
    where sides are equal as much to each, with one message a step."""
    n, steps = int(np.prod(dims)), sum(side - 1 for side in dims)
    for collective, halves in (("all_reduce", 2), ("reduce_scatter", 1), ("all_gather", 1)):
        s = gridded(collective, "ring_by_dimension", dims)
        prove(s)
        assert (s.n_steps, s.count.sum()) == (halves * steps, halves * n * (n - 1) * 2 * len(dims))
        assert set(sent_by_rank(s)) == {Fraction(halves * (n - 1), n)}
        apart = np.stack(np.unravel_index(s.dst, dims)) - np.stack(np.unravel_index(s.src, dims))
        assert ((apart != 0).sum(axis=0) == 1).all()
        assert all((np.isin(np.abs(apart[axis]), (0, 1, side - 1))).all() for axis, side in enumerate(dims))
        if len(set(dims)) == 1 and dims[0] > 2:
            assert s.messages == s.n_steps * n * 2 * len(dims)
            slots = s.by_slot()
            _, shares = np.unique(np.stack([slots.src, slots.dst]), axis=1, return_counts=True)
            assert len(shares) == n * 2 * len(dims) and len(set(shares.tolist())) == 1


@pytest.mark.parametrize("ports", ["all", "one"])
@pytest.mark.parametrize("dims", DIMS)
def test_swing(dims: tuple[int, ...], ports: str) -> None:
    """2 Σ ⌈log2 k⌉ steps over sides k, ⌈log2 (k−1)⌉ for odd ones, and no block comes to a rank twice. In the s-th step
    along an even side a rank swaps with that 1, 3, 5, 11, … places on, even and odd ones in opposite directions, with
    one message a port."""
    n, parts = int(np.prod(dims)), 2 * len(dims) if ports == "all" else 1
    s = gridded("all_reduce", f"swing(ports={ports})", dims)
    prove(s)
    steps = sum((side - side % 2 - 1).bit_length() for side in dims)
    assert (s.n_steps, s.count.sum()) == (2 * steps, 2 * n * (n - 1) * parts)
    alike = len(set(dims)) == 1 and dims[0] > 2  # else parts may go to one rank in one step
    if not any(side % 2 for side in dims) and (ports == "one" or alike):
        assert s.messages == s.n_steps * n * parts
    if len(dims) == 1 and n % 2 == 0:
        for t in s.by_slot():
            number = min(t.step, s.n_steps - 1 - t.step)
            way = sum((-2) ** i for i in range(number + 1)) * (-1) ** (t.src + t.src_slot % parts)
            assert t.dst == (t.src + way) % n


@pytest.mark.parametrize("name", ["direct", "binomial"])
def test_gather_and_scatter_mirror(name: str) -> None:
    """Scatter is gather run backwards."""
    for n, root in ((2, 1), (7, 3), (8, 0)):
        up, down = schedule("gather", name, n, root), schedule("scatter", name, n, root)
        there = {(s.src, s.dst, s.src_slot) for s in up.by_slot()}
        assert there == {(s.dst, s.src, s.src_slot) for s in down.by_slot()}


@pytest.mark.parametrize("n", [2, 6, 8, 14, 64])
def test_leaf_in_one_inner_in_the_other(n: int) -> None:
    """In the double binary tree, for even n, every rank is inner in exactly one tree, with at most two children."""
    s = schedule("all_reduce", "double_binary_tree", n)
    inner = [set(s.dst[s.reduce & (s.dst_slot == half)].tolist()) for half in (0, 1)]
    assert not inner[0] & inner[1]
    assert inner[0] | inner[1] == set(range(n))
    assert np.bincount(s.src).max() <= 4  # up once in each tree, down to two children in one


def test_tree_sends_up_by_height() -> None:
    """In the tree of six, the leaves 3, 4, 5 send in step 0, 1 and 2 after them; what goes up comes down."""
    s = schedule("all_reduce", "tree", 6)
    up = [(int(t.step), int(t.src), int(t.dst)) for t in s if t.reduce]
    assert sorted(up) == [(0, 3, 1), (0, 4, 1), (0, 5, 2), (1, 1, 0), (1, 2, 0)]
    assert {(t.dst, t.src) for t in s if not t.reduce} == {(src, dst) for _, src, dst in up}


@given(
    st.one_of(
        st.lists(st.integers(0, 5), max_size=12),  # whoever sends, whenever
        st.builds(np.repeat, st.lists(st.integers(0, 9), unique=True), st.integers(1, 4)),  # all as often, one by one
        st.builds(np.repeat, st.sets(st.integers(0, 9)).map(sorted), st.integers(1, 4)),
    )
)
def test_steps_are_ordered_by_place_and_sender(senders: list[int]) -> None:
    """Law: the first rows of all senders, then the second ones, …, the lowest sender first; what one sender does keeps
    its order."""
    row = np.arange(len(senders), dtype=np.int32)  # which says where it was
    step = send(senders, row + 20, row)
    place = [list(senders[:i]).count(sender) for i, sender in enumerate(senders)]
    expected = sorted(row.tolist(), key=lambda i: (place[i], senders[i]))
    again = Repeat(step, 2, row, 1, 0).in_order()
    for found in (step.in_order(), again.first):
        assert [column.tolist() for column in found] == [column[expected].tolist() for column in step]
    assert again.base.tolist() == expected


@pytest.mark.parametrize(("collective", "name"), [("all_reduce", "all_pairs"), ("all_to_all", "direct")])
def test_next_rank_first(collective: str, name: str) -> None:
    """Who sends to everyone starts with the next rank, so that no receiver is met by all at once."""
    s = schedule(collective, name, 5)
    for rank in range(5):
        assert s.dst[s.src == rank].tolist() == [(rank + d) % 5 for d in range(1, 5)]


def test_hierarchical_keeps_bytes_inside() -> None:
    """Of two groups of four, a rank sends 2·3/4 of the buffer inside its group and 2·1/2·1/4 across."""
    for spec in ("hierarchical", "hierarchical(across=recursive_doubling)"):
        s = schedule("all_reduce", spec, 8, groups=((0, 1, 2, 3), (4, 5, 6, 7)))
        crossing = s.src // 4 != s.dst // 4
        for rows, share in ((~crossing, 1.5), (crossing, 0.25)):
            assert set(np.bincount(s.src[rows], s.count[rows]) / s.n_chunks) == {share}


def test_hierarchical_steps() -> None:
    """Four groups of eight: 2·7 + 2·3 steps by rings, 2·7 + 2 by recursive doubling, 4 by the tree of leaders."""
    groups = tuple(tuple(range(8 * g, 8 * g + 8)) for g in range(4))
    steps = {
        spec: schedule("all_reduce", spec, 32, groups=groups).n_steps for spec in specs("all_reduce", "hierarchical")
    }
    assert steps == {"hierarchical": 20, "hierarchical(across=ring)": 20, "hierarchical(across=recursive_doubling)": 16}
    assert schedule("all_reduce", "hierarchical_tree", 32, groups=groups).n_steps == 4
    assert schedule("all_reduce", "hierarchical_leader", 32, groups=groups).n_steps == 3 + 6 + 3
    assert schedule("all_to_all", "hierarchical", 32, groups=groups).n_steps == 2


@pytest.mark.parametrize("how", ["full", "fingerprint"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter"])
def test_a_contribution_that_counts_twice_is_refused(collective: str, how: Proof) -> None:
    """Sent and reduced a second time, a rank's contribution is there twice: wrong, and named as such."""
    once = build(collective, "naive", 4)
    twice = Schedule.from_rows(
        [once.row(0), *once], collective=collective, algorithm="twice", n=4, n_chunks=once.n_chunks
    )
    prove(once, how)
    with pytest.raises(ScheduleError, match=r"rank \d.*chunk \d.*\(\d more than once\)"):
        prove(twice, how)


@pytest.mark.parametrize("how", ["full", "fingerprint"])
def test_different_chunks_reduced_together_are_refused(how: Proof) -> None:
    """A sum of chunk 0 and chunk 1 is wrong, also where every rank counts once and the right chunk came last."""
    right = [(0, 1, 0, 0, 0, 1), (0, 1, 1, 0, 1, 1), (0, 2, 0, 0, 0, 1), (0, 2, 1, 0, 1, 1)]
    wrong = [(0, 1, 1, 0, 0, 1), (0, 1, 0, 0, 1, 1), *right[2:]]
    for rows in (right, wrong):
        played = Schedule.from_rows(rows, collective="reduce", algorithm="mixed", n=3, n_chunks=2)
        if rows is right:
            prove(played, how)
        else:
            with pytest.raises(ScheduleError, match=r"rank 0, chunk 0.*different chunks reduced together"):
                prove(played, how)


def test_fingerprints_alone_prove_what_is_right() -> None:
    """Symbols, two bits for each pair of ranks, are asked only where something is wrong."""
    n = 2048
    ring = stream("all_reduce", "ring", n)
    tracemalloc.start()
    try:
        prove(ring, "fingerprint")
        assert tracemalloc.get_traced_memory()[1] < n * n // 4
    finally:
        tracemalloc.stop()


def test_sending_what_was_never_put_there_is_refused() -> None:
    """Rank 1 has nothing to send before the root's buffer reaches it, even if nobody keeps what it sends."""
    rows = [(0, 1, 0, 2, 0, 0), (1, 0, 0, 1, 0, 0), (1, 0, 0, 2, 0, 0)]
    played = Schedule.from_rows(rows, collective="broadcast", algorithm="early", n=3, n_chunks=1)
    with pytest.raises(ScheduleError, match=r"step 0: rank 1 sends chunk 0 to rank 2, but nothing was ever put there"):
        prove(played)


@pytest.mark.thorough
def test_a_schedule_beyond_memory_is_refused_in_words() -> None:
    """A table of 2 × 10^14 rows is not begun."""
    with pytest.raises(InputError, match=r"199999980000000 rows of a table take 5199999 GB of memory"):
        build("all_reduce", "ring", 10**7)
