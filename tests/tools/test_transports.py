"""Laws of transports that are fitted together: what rows show is found, what they do not show is the family's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from clusters import transports
from clusters.transports import COSTS, ClusterSamples, Known, Together, networks

from simcoll.accuracy.fit import rows_to_fit
from simcoll.accuracy.measured_points import RowQuestions
from simcoll.config import yaml_tree
from simcoll.formats.measured import MeasuredRow
from simcoll.nccl.transports_between_nodes import OF_FAMILY, Transport
from simcoll.scenario.profile import Profile, load_network, load_profile, shipped_profiles

LATENCIES = {"a": 3.0, "b": 6.0}  # us
# A family of costs of its own, so that no fit of shipped transports decides what these rows can show.
LIKE = load_network("rdma").model_copy(update={"transport": Transport.model_validate({
    "latency": "3.3 us", "connection": "15.6 GB/s", "proxy": "1.6 us", "operation": "2.9 us", "flush": "3.9 us",
    "staging": "5.7 GB/s", "congestion": "40 %",
})})  # fmt: skip


def _cluster(name: str, latency_us: float) -> ClusterSamples:
    """A cluster whose times are those of the model with a latency between nodes, else as `LIKE` has it."""
    asking = RowQuestions("hgx-h100")
    rows = [
        MeasuredRow(collective="all_reduce", ranks=ranks, nodes=2, size_bytes=size, time_us=1.0, harness="library")
        for ranks in (2, 16)
        for size in (8, 1 << 12, 1 << 22, 1 << 28)
    ]
    samples, _ = rows_to_fit.samples(rows, asking)
    cluster = ClusterSamples(name, name, samples, load_profile("nccl-hopper"))
    values = transports.recorded(LIKE).values.copy()
    values[COSTS.index("transport.latency")] = np.log(latency_us * 1e6)
    return replace(cluster, samples=replace(samples, measured=cluster.times(values, LIKE)))


@pytest.fixture(scope="module")
def together() -> Together:
    """Two transports of a family, fitted together."""
    like = LIKE
    start = {name: like.model_copy(update={"name": name, "family": "rdma"}) for name in LATENCIES}
    clusters = [_cluster(name, latency) for name, latency in LATENCIES.items()]
    return transports.fit_together(clusters, start, lambda line: None)


def _costs(known: Known) -> dict[str, float]:
    return known.costs


@pytest.mark.thorough
def test_what_rows_show_is_found_and_the_rest_is_common(together: Together) -> None:
    """Latencies are found where a law put them, but drawn to each other; flushes, which Hopper does not need, stay
    those of the family."""
    family = _costs(together.common.families["rdma"])
    for name, latency in LATENCIES.items():
        own = _costs(together.known[name])
        assert own["transport.latency"] / 1e6 == pytest.approx(latency, rel=0.2)
        assert own["transport.flush"] == pytest.approx(family["transport.flush"], rel=0.01)
    assert 3.0 < family["transport.latency"] / 1e6 < 6.0
    shown = together.known["a"].widths / together.common.families["rdma"].widths
    assert shown[COSTS.index("transport.latency")] < 0.6 < shown[COSTS.index("transport.flush")]


def test_a_cluster_left_out_says_nothing_of_itself(together: Together) -> None:
    """Without the only cluster of a transport there is what the others have in common, and surely less surely."""
    slow = next(each for each in together.clusters if each.name == "b")
    missed, at = together.without(slow), COSTS.index("transport.latency")
    assert missed.costs["transport.latency"] / 1e6 == pytest.approx(3.0, rel=0.15)
    assert missed.widths[at] > 2 * together.known["b"].widths[at]


@pytest.mark.thorough
def test_what_a_network_derives_counts_before_its_family(together: Together) -> None:
    """Left out, a transport has the costs that its profile derives, and the others are as they were; where rows show a
    cost it is near them."""
    slow, derived = (next(each for each in together.clusters if each.name == "b"), {"transport.flush": "9 us"})
    start = {**together.start, "b": together.start["b"].model_copy(update={"derived": derived})}
    missed, before = (each.without(slow).costs for each in (replace(together, start=start), together))
    assert missed == {**before, "transport.flush": pytest.approx(9e6)}
    again = transports.fit_together([slow], {"b": start["b"]}, lambda line: None)
    assert again.known["b"].costs["transport.flush"] == pytest.approx(9e6, rel=0.01)
    start = {"b": start["b"].model_copy(update={"derived": {"transport.latency": "9 us"}})}
    again = transports.fit_together([slow], start, lambda line: None)
    assert again.known["b"].costs["transport.latency"] / 1e6 == pytest.approx(LATENCIES["b"], rel=0.1)


def test_what_own_hosts_cause_says_nothing_of_the_family(together: Together) -> None:
    """A cost that a transport has of its own hosts leaves the family to the others, however surely it is known; without
    its rows it is that of the family, less surely."""
    slow, at = next(each for each in together.clusters if each.name == "b"), COSTS.index("transport.latency")
    own = {**together.start, "b": together.start["b"].model_copy(update={"own": ("transport.latency",)})}
    shared = transports.common(together.known, own, together.common).families["rdma"]
    assert np.exp(shared.values[at]) / 1e6 == pytest.approx(LATENCIES["a"], rel=0.15)
    missed, before = (each.without(slow) for each in (replace(together, start=own), together))
    assert missed.values[at] == pytest.approx(before.values[at], rel=0.01)
    assert missed.widths[at] > before.widths[at]


def test_what_only_some_have_is_shared_by_those_that_have_it(together: Together) -> None:
    """A transport without a cost that only some have stays without it, and surely so, whatever its family has; those
    that have it are as they are without that one."""
    cost, at = "transport.connection", COSTS.index("transport.connection")
    none = LIKE.transport.model_copy(update={"connection": 0}) if LIKE.transport else None
    start = {**together.start, "c": together.start["a"].model_copy(update={"name": "c", "transport": none})}
    known = {**together.known, "c": transports.recorded(start["c"])}
    shared = transports.common(known, start, together.common)
    missed, others = shared.of(start["c"]), (together.known[name].costs[cost] for name in LATENCIES)
    assert (missed.costs[cost], missed.widths[at], known["c"].widths[at]) == (0, 0, 0)
    assert missed.costs["transport.latency"] > 0
    alone = transports.common(together.known, together.start, together.common).of(start["a"])
    assert shared.of(start["a"]).values[at] == alone.values[at]
    low, high = sorted(others)
    assert 0.999 * low <= alone.costs[cost] <= 1.001 * high


def test_a_record_is_read_as_it_is_written() -> None:
    """What a fit found is in the profile that it makes, with its intervals."""
    profile: Profile = load_network("ib-ndr")
    known = transports.recorded(profile)
    again = transports.recorded(known.network(profile))
    np.testing.assert_allclose(again.values, known.values, rtol=1e-3)
    np.testing.assert_allclose(again.widths, known.widths, rtol=1e-3)
    assert set(known.intervals) == set(COSTS) - set(transports.OF_SOME)  # which InfiniBand does not have


@pytest.mark.parametrize("name", sorted(networks()))
def test_a_transport_has_eight_costs_at_most(name: str) -> None:
    """Those that it does not share with its family, with shares of cables. Sizes and counts at which the network works
    in another way, which its documents or its tables show, are no costs."""
    profile = load_network(name)
    written = yaml_tree.read(shipped_profiles()[name]).plain()
    costs = set(written["transport"]) - {"copied_above", "sent_at_once", "held", "window", "gpudirect"}
    assert len(costs) + len(written.get("links", {})) <= 8
    family = load_network(str(profile.family)).transport
    for key in set(OF_FAMILY) - set(written["transport"]):
        assert getattr(profile.transport, key) == getattr(family, key) > 0
