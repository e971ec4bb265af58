"""Computing times of GEMMs, attention and memory traffic, from measured tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.errors import InputError
from simcoll.workload import compute
from simcoll.workload.compute import compute_of, frameworks, gpus, tables
from simcoll.workload.models import transformers

GRID = [("a100", "bf16"), ("h100", "bf16"), ("h100", "fp8"), ("b200", "nvfp4")]


@pytest.mark.parametrize("gpu, dtype", GRID)
def test_a_measured_size_has_its_measured_time(gpu: str, dtype: str) -> None:
    """A size of the table has the time of the table."""
    table, slower = tables(gpu)[dtype], gpus()[gpu].gemm
    for sizes in [(4096, 4096, 4096), (128, 256, 256), (32768, 65536, 16384)]:
        assert compute_of(gpu).gemm_s(*sizes, dtype) == pytest.approx(table.times[sizes] * slower[dtype])


@given(st.integers(256, 30_000), st.integers(256, 60_000), st.integers(256, 60_000))
def test_time_per_flop_lies_between_the_nearest_measured_ones(m: int, n: int, k: int) -> None:
    """Between measured sizes, the time per FLOP lies between the measured ones."""
    table = tables("h100")["bf16"]
    near = [
        [size for size in axis if size <= x][-1:] + [size for size in axis if size >= x][:1]
        for axis, x in zip(table.axes, (m, n, k), strict=True)
    ]
    rates = [table.times[a, b, c] / (a * b * c) for a in near[0] for b in near[1] for c in near[2]]
    rate = table.seconds(m, n, k) / (m * n * k)
    assert min(rates) * (1 - 1e-9) <= rate <= max(rates) * (1 + 1e-9)


def test_a_gpu_without_a_table_is_scaled_and_says_so() -> None:
    """A GPU without a table takes the nearest one's times, by peak or by bandwidth."""
    lent, own = compute_of("gb300"), compute_of("b200")
    assert (lent.lent, own.lent) == (True, False)
    assert lent.label == "scaled from b200"
    assert lent.gemm_s(8192, 8192, 8192) == pytest.approx(own.gemm_s(8192, 8192, 8192) * 2250 / 2500)
    slow, fast = compute_of("h100-hbm2e"), compute_of("h100")
    clocks = slow.of.gemm["bf16"] / fast.of.gemm["bf16"]  # of 500 W and 700 W
    bound_by_memory = fast.gemm_s(128, 16384, 16384) * 3350 / 2400
    assert slow.gemm_s(128, 16384, 16384) == pytest.approx(bound_by_memory * clocks)
    assert compute_of("h100").gemm_s(8192, 8192, 8192, "fp32") > 10 * fast.gemm_s(8192, 8192, 8192)


def test_every_gpu_and_framework_computes() -> None:
    """Every GPU computes with every framework, and more work takes longer."""
    for gpu in gpus():
        for name in frameworks():
            times = compute_of(gpu, name)
            one, twice = (times.attention_s(batch, 16, 8, 2048, 2048, 128) for batch in (8, 16))
            assert one < twice
            assert times.attention_s(1, 8, 8, 512, 512, 64, backward=True) > times.attention_s(1, 8, 8, 512, 512, 64)
            assert times.elementwise_s(1e9) > 0 <= times.launch_s
    assert compute_of("h100", "nanotron", cuda_graphs=True).launch_s == 0


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda: compute_of("h10"), "'h10' is unknown"),
        (lambda: compute_of("h100", "megatrom"), "did you mean 'megatron'"),
        (lambda: compute_of("a100").gemm_s(1, 1, 1, "fp8"), "a100 does not compute in fp8"),
    ],
)
def test_unknown_names_are_refused(ask: object, words: str) -> None:
    """The message says what is wrong and what to write."""
    with pytest.raises(InputError, match=words):
        ask()  # type: ignore[operator]


def test_the_tables_are_small() -> None:
    """The shipped tables are below 1 MB, and name their source."""
    folder = Path(compute.__file__).parent / "compute_tables"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1e6
    for path in folder.iterdir():
        assert "ai-dynamo/aiconfigurator@" in path.read_text()[:400]


@pytest.mark.parametrize("name", transformers())
def test_a_named_model_has_as_many_parameters_as_published(name: str) -> None:
    """The shapes add up to the published count, but for small norms: of heads (Qwen3) and sinks (gpt-oss)."""
    known = transformers()[name]
    assert known.shapes.parameters == pytest.approx(known.parameters, rel=5e-7)
    assert known.source
