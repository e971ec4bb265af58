"""Intervals of predictions: noise is told from errors of the model, and both cover what they say."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from clusters.lessons import HELD, learnt
from clusters.rows import ClusterRow
from hypothesis import given
from hypothesis import strategies as st
from nccl_law import point_of

from simcoll.formats.measured import MeasuredRow
from simcoll.prediction.confidence import (
    AROUND,
    LEAST_NOISE,
    NORMAL_90,
    CellErrors,
    ModelErrors,
    Noise,
    Parts,
    Setting,
    cells_of,
    error_of,
    noise,
    of_another_machine,
    shipped,
    shrunk,
)
from simcoll.prediction.predict import predict, row
from simcoll.scenario.profile import find_profile
from simcoll.scenario.scenario import Scenario

SIZES = [1 << k for k in range(10, 30)]
LEFT_OUT = {"sizes": 0.1, "ranks": 0.1, "collectives": 0.1, "nodes": 0.1}


@given(st.floats(0.01, 0.08), st.integers(0, 99))
def test_a_slow_drift_is_no_noise(spread: float, seed: int) -> None:
    """Errors that grow steadily from size to size are the model's. Noise comes back within a factor, outliers apart."""
    chance = np.random.default_rng(seed)
    series = [(number,) for number in range(12) for _ in SIZES]
    drift = np.tile(np.linspace(-0.3, 0.3, len(SIZES)), 12)
    late = chance.random(len(series)) < 0.05
    residuals = drift + chance.normal(0, spread, len(series)) + late * chance.uniform(1, 2, len(series))
    found, odd = noise(residuals, series, SIZES * 12)
    assert 0.7 * spread < found.spread < 1.6 * spread + 0.03
    assert np.count_nonzero(odd & ~late) <= 0.02 * len(series)
    assert np.count_nonzero(late & ~odd) <= 0.4 * np.count_nonzero(late)


@given(st.floats(0, 0.2), st.floats(0, 0.1), st.floats(0, 0.3), st.integers(1, 40), st.floats(0, 0.5))
def test_a_single_measurement_is_less_sure_than_the_median(
    spread: float, parameters: float, model: float, groups: int, outliers: float
) -> None:
    """It has noise besides; fewer groups and more outliers make wider intervals, within bounds."""
    parts = Parts(Noise(spread, outliers), parameters, model, groups)
    assert parts.median <= parts.single < math.inf
    assert parts.median >= 1.6 * math.hypot(parameters, model)
    assert parts._replace(groups=groups + 1).median <= parts.median
    assert parts._replace(noise=Noise(spread, 0)).single <= parts.single


@given(st.floats(0, 1), st.integers(0, 9), st.floats(0.01, 1))
def test_few_groups_are_drawn_to_what_is_known(own: float, groups: int, known: float) -> None:
    """Between what the groups show and what other machines showed; that alone where there is no group."""
    found = shrunk(own, groups, known)
    assert min(own, known) - 1e-9 <= found <= max(own, known) + 1e-9
    assert shrunk(own, 0, known) == pytest.approx(known)


def test_cells_widen() -> None:
    """A cell with many clusters is its own; an unknown one has the error of what is around it. NICs have no cells."""
    call = Setting("all_gather", 2, "efa", 0.4)
    narrow, *_, wide = cells_of(call)
    cells = {wide: CellErrors(error=0.4, clusters=5), narrow: CellErrors(error=0.1, clusters=1000)}
    known = ModelErrors(noise=0.02, outliers=0, left_out=LEFT_OUT, nodes=16, cells=cells)
    assert error_of(call, known) == pytest.approx(0.1, abs=0.01)
    other = error_of(call._replace(collective="all_to_all"), known)
    assert other == pytest.approx(0.4, abs=0.05)
    assert error_of(call._replace(place="carrier pigeons"), known) == error_of(call, known)
    assert next(cells_of(call._replace(launch="graph"))).startswith("graph on ")


def test_costs_of_another_gpu_have_an_error_of_their_own() -> None:
    """On one node lent costs are not judged by own ones while there are clusters of both; between nodes they are."""
    call = Setting("all_reduce", 1, "pcie", 0.4)
    own, lent = next(cells_of(call)), next(cells_of(call._replace(lent=True)))
    cells = {own: CellErrors(error=0.1, clusters=1000), lent: CellErrors(error=0.4, clusters=1000)}
    known = ModelErrors(noise=0.02, outliers=0, left_out=LEFT_OUT, nodes=16, cells=cells)
    found = [error_of(call._replace(lent=each), known) for each in (False, True)]
    assert found == pytest.approx([0.1, 0.4], rel=0.01)
    between = call._replace(nodes=2, place="efa")
    assert [*cells_of(between)] == [*cells_of(between._replace(lent=True))]


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.integers(1, 40))
def test_few_clusters_are_drawn_by_factors(own: float, around: float, clusters: int) -> None:
    """As many clusters as the cell around counts for: half-way in logarithms. More are nearer to their own, always
    between both."""
    call = Setting("all_gather", 2, "efa", 0.4)
    narrow, *_, wide = cells_of(call)

    def found(count: int) -> float:
        cells = {wide: CellErrors(error=around, clusters=9), narrow: CellErrors(error=own, clusters=count)}
        return error_of(call, ModelErrors(noise=0.02, outliers=0, left_out=LEFT_OUT, nodes=16, cells=cells))

    assert found(round(AROUND)) == pytest.approx(math.sqrt(own * around))
    less, more = (abs(math.log(found(count) / own)) for count in (clusters, clusters + 1))
    assert more <= less + 1e-12
    assert min(own, around) * (1 - 1e-12) <= found(clusters) <= max(own, around) * (1 + 1e-12)


@given(st.integers(3, 4000), st.integers(1, 8), st.floats(0, 1))
def test_more_nodes_than_any_cluster_has_are_less_sure(nodes: int, times: int, busy: float) -> None:
    """Up to the most nodes that were measured the count tells nothing beyond its cell; each doubling after that adds
    as much as the one before."""
    most = shipped().nodes
    calls = [Setting("all_reduce", each, "ib-ndr", busy) for each in (3, min(nodes, most), nodes, nodes * times)]
    known, measured, some, more = (error_of(call) ** 2 for call in calls)
    assert known == measured <= some <= more
    beyond = [math.log2(max(1, call.nodes / most)) for call in calls[2:]]
    added = [math.sqrt(max(0, variance - known)) for variance in (some, more)]
    assert added == pytest.approx([shipped().left_out["nodes"] * each for each in beyond], abs=1e-6)


@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["nvlink", "ib-ndr", "tcp"]),
    st.sampled_from(["all_reduce", "send_recv"]),
)
def test_errors_do_not_jump(nodes: int, place: str, collective: str) -> None:
    """As links are busier by a tenth the variance moves by a quarter of what lies between two zones, at most."""
    call = Setting(collective, nodes, place, 0.0)
    variances = [error_of(call._replace(busy=tenth / 10)) ** 2 for tenth in range(11)]
    zones = [error_of(call._replace(busy=busy)) ** 2 for busy in (0.0, 0.4, 1.0)]
    assert np.abs(np.diff(variances)).max() <= np.abs(np.diff(zones)).max() / 4 + 1e-12
    assert len(set(zones)) == 3


POINT = {"topology": "hgx-h100", "collective": "all_reduce", "ranks": 8, "algorithm": "ring", "size": "1 KiB"}


def rows_of(errors: Mapping[tuple[str, str], float]) -> list[ClusterRow]:
    """Return rows of machines: four at each (machine, kind of links), all with this error."""
    return [row for key, error in errors.items() for row in alike(*key, [error] * 4)]


def alike(cluster: str, place: str, errors: Sequence[float]) -> list[ClusterRow]:
    """Return rows of a machine with these errors."""
    point = point_of("name: law\n", **POINT)
    rows = [MeasuredRow(collective="all_reduce", ranks=8, size_bytes=1024, time_us=math.exp(error)) for error in errors]
    return [ClusterRow(cluster, row, point, place, 0.0, 1.0, seen=False) for row in rows]


@pytest.mark.thorough
@given(st.floats(0.02, 0.3), st.floats(0.02, 9))
def test_a_machine_that_is_far_off_decides_little(usual: float, off: float) -> None:
    """Of ten machines alike and one that is not, a cell has the error of the ten, or less."""
    errors = {(str(number), "nvlink"): error for number, error in enumerate([usual] * 10 + [off])}
    cells = learnt(rows_of(errors), {}).cells
    assert {cell.error for cell in cells.values()} == {round(usual / NORMAL_90, 4)}


@pytest.mark.thorough
@given(st.integers(1, 40))
def test_each_cluster_counts_once(times: int) -> None:
    """A machine with many more rows than others moves no cell."""
    rows = {
        name: alike(name, "nvlink", [0.01 * (k + 1) * step for step in range(1, 11)]) for k, name in enumerate("abc")
    }
    once = learnt([row for own in rows.values() for row in own], {})
    more = learnt([*rows["a"], *rows["b"], *rows["c"] * times], {})
    assert once.cells == more.cells


@pytest.mark.thorough
@pytest.mark.parametrize(("machines", "least"), [(3, 0.8), (30, 0.88)])
def test_rows_of_the_next_machine_are_within_a_cell(machines: int, least: float, seed: int = 7) -> None:
    """Machines differ by factors; of the rows of further ones nine in ten are within the cell of many machines, and not
    many fewer within that of three."""
    chance, kinds = np.random.default_rng(seed), 240 // machines
    spreads = np.exp(chance.normal(-2, 0.7, (kinds, machines + 2000)))
    errors = np.abs(spreads[:, :, None] * chance.normal(size=(kinds, machines + 2000, 8)))
    taught = [alike(str(at), str(kind), errors[kind, at]) for kind in range(kinds) for at in range(machines)]
    cells = learnt([row for own in taught for row in own], {}).cells
    names = [next(cells_of(Setting("all_reduce", 1, str(kind), 0.0))) for kind in range(kinds)]
    inside = [np.mean(errors[kind, machines:] <= NORMAL_90 * cells[name].error) for kind, name in enumerate(names)]
    assert least <= np.mean(inside) <= HELD + 0.02


def test_machines_that_agree_leave_some_width() -> None:
    """Rows without any error have the noise that any machine has: no interval is of no width."""
    known = learnt(rows_of({("one", "nvlink"): 0.0, ("other", "nvlink"): 0.0}), {})
    assert error_of(Setting("all_reduce", 1, "nvlink", 0.0), known) == pytest.approx(LEAST_NOISE)


def test_a_record_that_was_taken_over_is_of_another_machine(tmp_path: Path) -> None:
    """A profile that has the record of a shipped one, as after a fit of the host alone, has its intervals; with a
    record of its own it has those of the machine that it was fitted to."""
    text = find_profile("nccl-hopper").read_text(encoding="utf-8")
    assert text.count("date: ") > 1
    ends = []
    for name, written in (("taken", text), ("own", re.sub(r"date: '[\d-]+'", "date: '2001-01-01'", text))):
        (tmp_path / f"{name}.yaml").write_text(written, encoding="utf-8")
    for profile in ("nccl-hopper", str(tmp_path / "taken.yaml"), str(tmp_path / "own.yaml")):
        found = row(predict(Scenario.model_validate({**POINT, "size": "1 MiB", "profile": profile})))
        ends.append((found.low_us, found.high_us))
    assert ends[0] == ends[1] != ends[2]


def test_clusters_teach_the_width(seed: int = 7) -> None:
    """Of machines whose errors have one law, the interval that ten teach holds nine in ten rows of others."""
    chance = np.random.default_rng(seed)
    call, inside = Setting("all_reduce", 1, "nvlink", 0.4), []
    for _ in range(300):
        errors = 0.1 * chance.normal(size=(11, 30))
        spread = float(np.mean([np.percentile(np.abs(each), 90) / 1.6449 for each in errors[:-1]]))
        cells = {name: CellErrors(error=spread, clusters=10) for name in cells_of(call)}
        parts = of_another_machine(call, ModelErrors(noise=0.0, outliers=0, left_out=LEFT_OUT, nodes=16, cells=cells))
        inside.append(np.mean(np.abs(errors[-1]) <= parts.single))
    assert 0.87 <= np.mean(inside) <= 0.95
