"""Copies and bytes of tokens, held against all routings one by one."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import InputError, RefusedError
from simcoll.workload.expert_routing import ExpertTokens


@st.composite
def routings(draw: st.DrawFn) -> tuple[ExpertTokens, int, int]:
    """Tokens, ranks, and equal groups of these ranks."""
    groups, size, each = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    experts = groups * size * each
    topk, zipf = draw(st.integers(1, min(4, experts))), draw(st.sampled_from([0, 0.5, 1.2]))
    keys = {"tokens": 10, "hidden": 128, "topk": topk, "experts": experts, "routing": {"zipf": zipf}}
    return ExpertTokens(**keys), groups * size, groups


@settings(deadline=None, max_examples=60)
@given(routings())
def test_copies_are_means_over_all_routings(case: tuple[ExpertTokens, int, int]) -> None:
    """Copies for each expert, rank or node: the mean over all sets of experts that a token may get."""
    moe, ranks, groups = case
    each = moe.experts // ranks
    popular = [local * ranks + rank for rank in range(ranks) for local in range(each)]  # dealt to the ranks in turn
    weights = [(place + 1) ** -moe.routing.zipf for place in popular]
    whole, by_expert, by_rank, by_group = 0.0, np.zeros(ranks), np.zeros(ranks), np.zeros(groups)
    inside = np.array([np.arange(ranks) < ranks // groups, np.arange(ranks) % 2 == 0])
    least = np.zeros((2, 2))  # of tokens that leave and enter these sets of ranks
    for chosen in itertools.combinations(range(moe.experts), moe.topk):
        weight = float(np.prod([weights[expert] for expert in chosen]))
        owners = [expert // each for expert in chosen]
        whole += weight
        least[0] += weight * inside.sum(axis=1) * (~inside[:, owners]).any(axis=1)
        least[1] += weight * (~inside).sum(axis=1) * inside[:, owners].any(axis=1)
        for rank in owners:
            by_expert[rank] += weight
        for rank in set(owners):
            by_rank[rank] += weight
        for group in {rank // (ranks // groups) for rank in owners}:
            by_group[group] += weight
    for found, wanted in (
        (moe.to_experts(ranks), by_expert),
        (moe.to_groups(ranks, ranks), by_rank),
        (moe.to_groups(ranks, groups), by_group),
    ):
        np.testing.assert_allclose(found, np.tile(moe.tokens * wanted / whole, (ranks, 1)), rtol=1e-12)
    for way, wanted in (("moe_dispatch", least), ("moe_combine", least[::-1])):
        nbytes = wanted * moe.tokens / whole * moe.token_bytes(way)
        short = nbytes - moe.least_bytes(way, inside)
        assert (short > -1e-6).all()
        assert (short <= 1 + inside.sum(axis=1) * (~inside).sum(axis=1)).all()


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_counts_of_a_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Copies for experts are the counts; copies for a rank lie between its fullest expert's count and their sum."""
    ranks, each, topk, tokens = 2, 2, data.draw(st.integers(1, 3)), 20
    rows = []
    for _ in range(ranks):
        sets = data.draw(st.lists(st.permutations(range(4)), min_size=tokens, max_size=tokens))
        chosen = [expert for order in sets for expert in order[:topk]]
        rows.append([chosen.count(expert) for expert in range(ranks * each)])
    path = tmp_path_factory.mktemp("counts") / "counts.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    moe = ExpertTokens(tokens=tokens, hidden=8, topk=topk, experts=4, routing={"counts": str(path)})
    counts = np.array(rows).reshape(ranks, ranks, each)
    np.testing.assert_array_equal(moe.to_experts(ranks), counts.sum(axis=2))
    once = moe.to_groups(ranks, ranks)
    assert (once <= np.minimum(counts.sum(axis=2), tokens) + 1e-4).all()
    assert (once >= counts.max(axis=2) - 1e-4).all()


def test_equal_counts_are_uniform(tmp_path: Path) -> None:
    """A file with equal counts says what `uniform` says."""
    path = tmp_path / "counts.csv"
    path.write_text("\n".join([",".join(["8"] * 16)] * 4))
    keys = {"tokens": 32, "hidden": 256, "topk": 4, "experts": 16}
    even, counted = ExpertTokens(**keys), ExpertTokens(**keys, routing={"counts": str(path)})
    np.testing.assert_allclose(counted.to_experts(4), even.to_experts(4), rtol=1e-12)
    np.testing.assert_allclose(counted.to_groups(4, 2), even.to_groups(4, 2), rtol=1e-6)


def test_bytes_of_a_token() -> None:
    """Elements and scales out, bfloat16 back."""
    keys = {"tokens": 3, "hidden": 7168, "topk": 8, "experts": 256}
    out = {"bfloat16": 14336, "fp8": 7168 + 56 * 4, "nvfp4": 3584 + 448}
    for dtype, nbytes in out.items():
        moe = ExpertTokens(**keys, dtype=dtype)
        assert (moe.token_bytes("moe_dispatch"), moe.token_bytes("moe_combine")) == (nbytes, 14336)
        assert moe.nbytes("moe_dispatch") == 24 * nbytes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,1\n2,0\n", "1 rows"),
        ("1,1\n1,1\n1,1", "3 rows of counts for 2 ranks"),
        ("2,0\n1,1,1\n", ":2:1: moe.routing.counts: 3 counts for 2 experts"),
        ("2,0\n1, x\n", ":2:3: moe.routing.counts: ' x' is no number of tokens"),
        ("2,0\n3,-1\n", ":2:1: moe.routing.counts: '3' is no number of tokens; write 0 … 2"),
        ("2,0\n1,0\n", ":2:1: moe.routing.counts: the counts add up to 1; tokens × topk is 2"),
    ],
)
def test_wrong_counts(tmp_path: Path, text: str, said: str) -> None:
    """A file of counts that does not fit names the place."""
    path = tmp_path / "counts.csv"
    path.write_text(text if said != "1 rows" else text.split("\n", maxsplit=1)[0])
    moe = ExpertTokens(tokens=2, hidden=8, topk=1, experts=2, routing={"counts": str(path)})
    with pytest.raises(InputError, match=r"counts") as caught:
        moe.to_groups(2, 2)
    assert said in str(caught.value)


def test_experts_divide() -> None:
    """Each rank owns equally many experts."""
    with pytest.raises(RefusedError, match="6 experts do not divide among 4 ranks; write a multiple of 4"):
        ExpertTokens(tokens=1, hidden=8, topk=1, experts=6).check(4)
