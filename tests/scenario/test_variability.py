"""Runs that differ: what is drawn, quantiles, and whose fault it is."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from workloads import STAR, ddp, points

from simcoll.errors import InputError
from simcoll.prediction import result_rows
from simcoll.prediction.replications import merged, part
from simcoll.prediction.sweep import run_point, sweep
from simcoll.scenario.scenario_files import Point
from simcoll.scenario.variability import CAUSES, Delay, Drawn, Jitter, Slow, Variability

SKEW = {"distribution": "lognormal", "median": "3 us", "sigma": 0.8}
RING = {"collective": "all_reduce", "algorithm": "ring", "size": "64 KiB"}


def given(**keys: Any) -> list[Point]:
    """Points around a switch, 60 runs each unless told otherwise."""
    return points({"topology": STAR, "replications": 60, **keys})


def row(**keys: Any) -> result_rows.ResultRow:
    """The row of one point."""
    (point,) = given(**keys)
    found = run_point(point)
    assert found["status"] == "ok", found["status"]
    return found


# --- what is drawn ---


def test_draws_have_the_distribution_that_was_asked_for() -> None:
    """Medians, means and limits of many draws are those given."""
    rng = np.random.default_rng(1)
    lognormal = Delay(distribution="lognormal", median="3 us", sigma=0.8).draw(rng, 20_000)
    assert statistics.median(lognormal) == pytest.approx(3e6, rel=0.03)
    assert np.log(lognormal).std() == pytest.approx(0.8, rel=0.03)
    assert Delay(distribution="exponential", mean="2 us").draw(rng, 20_000).mean() == pytest.approx(2e6, rel=0.03)
    uniform = Delay(distribution="uniform", low="1 us", high="2 us").draw(rng, 20_000)
    assert 1e6 <= uniform.min() < 1.01e6 < 1.99e6 < uniform.max() <= 2e6
    assert np.log(Jitter(sigma=0.1).draw(rng, 20_000)).std() == pytest.approx(0.1, rel=0.03)


def test_a_cause_draws_the_same_whatever_the_others_are() -> None:
    """Leaving a cause out changes none of the other numbers; runs and seeds differ."""
    spec = Variability(launch_skew=Delay(**SKEW), compute_jitter=Jitter(sigma=0.1), slow=(Slow(rank=1, factor=2),))
    every, alone = Drawn(spec, 5, 7, CAUSES), Drawn(spec, 5, 7, ("launch_skew",))
    assert every.skew(9).tolist() == alone.skew(9).tolist()
    assert alone.jitter(9).tolist() == [1.0] * 9
    assert alone.slow(3).tolist() == [1.0] * 3
    assert every.slow(3).tolist() == [1.0, 2.0, 1.0]
    assert len({tuple(Drawn(spec, seed, run, CAUSES).skew(4)) for seed in (-1, 0, 1) for run in range(3)}) == 9


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_intervals_of_quantiles_hold(share: float) -> None:
    """Of many samples of 400 some 95 % have the true quantile between the two order statistics."""
    counted = merged([result_rows.ResultRow(status="ok", times_ps={"": [10**6 * place for place in range(400)]})])
    low, high = (int(counted[f"time_us_p{100 * share:.0f}_{end}"]) for end in ("low", "high"))
    samples = np.sort(np.random.default_rng(3).random((4000, 400)), axis=1)
    held = ((samples[:, low] <= share) & (share <= samples[:, high])).mean()
    assert 0.94 <= held <= (0.985 if share < 0.99 else 1.0)


# --- collectives and workloads ---


def test_a_late_rank_delays_a_ring_by_as_much() -> None:
    """A ring cannot end before its last rank has come: with one rank that is always late by a fixed time the time is
    the undisturbed one and that."""
    found = row(**RING, variability={"launch_skew": {"distribution": "uniform", "low": "50 us", "high": "50 us"}})
    assert found["time_us_p50"] == found["time_us_p99"] == pytest.approx(found["time_us"] + 50, abs=1e-6)
    assert found["slowdown_shares"] == {"launch_skew": 1.0}


def test_quantiles_are_in_order_within_their_intervals() -> None:
    """p50 ≤ p95 ≤ p99, each within its interval, none below the undisturbed time."""
    found = row(**RING, variability={"launch_skew": SKEW}, replications=200)
    assert found["time_us"] < found["time_us_p50"] < found["time_us_p95"] <= found["time_us_p99"]
    for name in ("p50", "p95", "p99"):
        assert found[f"time_us_{name}_low"] <= found[f"time_us_{name}"] <= found[f"time_us_{name}_high"]
    assert found["replications"] == 200


def test_a_step_waits_for_the_slow_rank() -> None:
    """Without anything else a rank that computes twice as long makes the step as long as its own computing is."""
    workload = ddp(4, bucket_cap="1 GiB", layers=[{"parameters": "4 B", "backward": "1 ms", "times": 4}])
    found = row(workload=workload, variability={"slow": [{"rank": 2, "factor": 2}]}, replications=3)
    assert found["time_us_p50"] == pytest.approx(found["step_us"] + found["compute_us"], abs=1)
    assert found["slowdown_shares"] == {"slow": 1.0}


@pytest.mark.parametrize("profile", ["one-port", "slower"])
def test_a_slow_link_is_a_topology_with_a_slow_link(profile: str, tmp_path: Any) -> None:
    """Runs in which a link has a quarter of its bandwidth take what they take on a topology that is so, of a
    collective and of a workload; a launch is paid as ever."""
    (tmp_path / "slower.yaml").write_text("name: slower\nsource: test\nlaunch: 9 us\nmodel: {o_send: 1 us}\n")
    common = {"profile": profile if profile == "one-port" else str(tmp_path / "slower.yaml")}
    worse = {**STAR, "links": {"host2->switch": {"bandwidth": "2500 MB/s"}}}
    varied = {"slow_links": [{"link": "host2->switch", "factor": 4}]}
    for what in (RING, {"workload": ddp(4)}):
        found = row(**what, **common, variability=varied, replications=2)
        (point,) = given(**what, **common, topology=worse, replications=None)
        assert found["time_us_p50"] == pytest.approx(run_point(point)["time_us"], abs=1e-5)
        assert found["time_us_p50"] > found["time_us"]
        assert found["slowdown_shares"] == {"slow_links": 1.0}


def test_a_step_is_put_together_in_each_run() -> None:
    """Runs of a step whose calls are run by themselves take as long, each, as those of one program of all, whether
    calls meet (where buckets are small) or not."""
    varied = {"launch_skew": SKEW, "compute_jitter": {"sigma": 0.2}, "slow": [{"rank": 2, "factor": 3}]}
    for workload in (ddp(4), ddp(4, bucket_cap="1 MiB", streams=2)):
        (on,), (off,) = (
            given(workload=workload, variability=varied, replications=6, model={"sharing": "fifo"}, shortcuts=shortcuts)
            for shortcuts in ("on", "off")
        )
        found, expected = (part(replace(point, replicas=(0, 6))) for point in (on, off))
        assert found.times_ps == expected.times_ps
    assert found.shortcut != expected.shortcut == "none"


def test_shares_add_to_one_and_tell_the_culprit() -> None:
    """Where one rank is far slower than all jitter it has nearly all of the blame."""
    varied = {"launch_skew": SKEW, "compute_jitter": {"sigma": 0.01}, "slow": [{"rank": 2, "factor": 3}]}
    link = {"link": "host1->*", "factor": 1.1, "probability": "50 %"}
    shares = row(workload=ddp(4), variability={**varied, "slow_links": [link]}, replications=20)["slowdown_shares"]
    assert set(shares) == {*CAUSES} - {"faults", "ecmp"}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["slow"] > 0.9


def test_the_result_is_the_same_for_any_number_of_jobs() -> None:
    """Runs computed side by side, in parts, make the same row as one after the other."""
    found = given(workload=ddp(4), variability={"launch_skew": SKEW, "compute_jitter": {"sigma": 0.1}})
    found += given(**RING, variability={"launch_skew": SKEW})
    one, two = ({index: row for index, row, _ in sweep(found, jobs=jobs)} for jobs in (1, 2))
    assert one == two
    assert one[0] == run_point(found[0])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"variability": {}}, "`variability` is empty"),
        ({"variability": {"launch_skew": SKEW}, "replications": None}, "add e.g. `replications: 200"),
        ({}, r"replications: `variability` and `replications` need each other; add e.g. `variability: \{launch_skew: "),
        ({"variability": {"launch_skew": {"distribution": "lognormal", "mean": "3 us"}}}, "takes median and sigma"),
        ({"variability": {"launch_skew": {**SKEW, "distribution": "normall"}}}, "'normall' is not known"),
        ({"variability": {"slow": [{"rank": 1, "factor": 0.5}]}}, "out of range"),
    ],
)
def test_what_is_wrong_is_told(keys: dict[str, Any], said: str) -> None:
    """Each mistake by name."""
    with pytest.raises(InputError, match=said):
        given(**RING, **keys)


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ({"slow": [{"rank": 9, "factor": 2}]}, "there is no rank 9"),
        ({"slow_links": [{"link": "host9->*", "factor": 2}]}, "no link is called 'host9->*'"),
    ],
)
def test_what_is_not_there_cannot_be_slow(slow: dict[str, Any], said: str) -> None:
    """That is known when the topology is."""
    (point,) = given(**RING, variability=slow)
    assert said in run_point(point)["status"]
