"""`Prediction.retimed`: a point bound once has, under other costs, the time of a run with a profile of these costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_law import BLOCK, EVERYWHERE, GRID, LAUNCH, SPREAD, asked, point_of, text, under
from workloads import STAR, ddp

from simcoll.config import yaml_tree
from simcoll.errors import Place
from simcoll.prediction.predict import predict
from simcoll.scenario import scenario_files
from simcoll.scenario.profile import CostSetting, parse_profile
from simcoll.scenario.scenario_files import Point

KINDS = {"nvls": "NVLS", "direct": "P2P"}
WAYS: list[dict[str, Any]] = [{}, {"gpus_per_process": 1}, {"gpus_per_process": "all"}, {"graph": True}]
RING = {"topology": STAR, "algorithm": "ring", "size": "1 MiB"}
PLAIN: dict[str, dict[str, Any]] = {
    "tree": {"topology": {"system": "dgx1-v100"}, "algorithm": "tree", "size": "1 MiB", "model": {"chunk": "256 KiB"}},
    "late": {**RING, "arrivals": {"3": "900 us"}},
    "buckets": {**RING, "measure": {"harness": "library", "buckets": 3}},
    "at once": {**RING, "measure": {"harness": "library", "buckets": 3, "async_op": True}},
    "weights": {**RING, "collective": "all_gather", "weights": [1, 2, 3, 4]},
    "groups": {**RING, "subgroups": [[0, 1], [2, 3]]},
    "fault": {**RING, "faults": [{"link": "host0->*", "kind": "slow", "at": "20 us", "factor": 3}]},
    "long": {**RING, "topology": {**STAR, "hosts": 256}},
    "fifo": {**RING, "algorithm": "naive", "model": {"sharing": "fifo"}},
}


def known(host: int, message: int, graph: int) -> str:
    """The part of a profile about other ways of launching, in ps."""
    return f"host: {{launch: {host} ps, message: {message} ps}}\ngraph: {{launch: {graph} ps}}\n"


BEFORE = known(3_000_000, 200_000, 4_000_000)


def check(point: Point, before: str, after: str) -> None:
    """The law, for a point bound under one profile and asked under another, and under that which it was bound with."""
    with under(after):
        ran = predict(point).time_ps
    costs, other = (parse_profile(law, "law.yaml") for law in (before, after))
    with under(before):
        prediction = predict(point)
        assert prediction.retimed(CostSetting.of(costs)) == prediction.time_ps
        assert prediction.retimed(CostSetting.of(other, params_of(after))) == ran


def params_of(law: str) -> Mapping[str, int]:
    """The parameters of the engines in a profile."""
    return parse_profile(law, "law.yaml").model.model_dump(exclude_none=True)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(EVERYWHERE), st.sampled_from(WAYS), st.floats(0.4, 2), st.integers(0, 10**7), st.data())
def test_a_call_of_nccl(call: tuple[Any, ...], way: dict[str, Any], times: float, ps: int, data: st.DataObject) -> None:
    """Whatever cost of its kernels, of launching or of links is another."""
    system, nodes, ranks, collective, algorithm, protocol = call
    how = {"ranks": ranks, "nodes": nodes, "algorithm": algorithm, "protocol": protocol, "launch": way}
    with under(text() + BEFORE):
        point = asked(system, collective, 1_000_000, **how)
    kind = KINDS.get(algorithm, protocol)
    name = data.draw(st.sampled_from(sorted(BLOCK[kind])))
    cost = BLOCK[kind][name] * times
    changed = {**BLOCK, kind: {**BLOCK[kind], name: cost if isinstance(BLOCK[kind][name], float) else round(cost)}}
    after = text(changed, LAUNCH + ps, GRID + ps // 2, SPREAD * times).replace("0.9", f"{min(1.0, times / 2)}")
    check(point, text() + BEFORE, after + known(ps, ps // 7, 2 * ps))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(set(PLAIN) - {"long"})),
    st.sampled_from(WAYS),
    st.integers(0, 10**7),
    st.integers(10**8, 10**11),
    st.floats(0.3, 1.5),
    st.floats(0.1, 50),
)
def test_a_plain_schedule(
    name: str, way: dict[str, Any], ps: int, gamma: int, efficiency: float, latency: float
) -> None:
    """Whatever parameter of the engines, launch, bandwidth or latency is another."""
    check_plain(name, way, ps, gamma, efficiency, latency)


def test_a_long_schedule() -> None:
    """Its program is not kept, but made again."""
    check_plain("long", {}, 5_000_000, 10**10, 0.8, 2.0)


def check_plain(name: str, way: dict[str, Any], ps: int, gamma: int, efficiency: float, latency: float) -> None:
    """The law for one of these points."""
    before = f"name: law\nlaunch: 5 us\n{BEFORE}"
    with under(before):
        point = point_of(before, **{**PLAIN[name], "launch": way})
    scales = {"efficiency": f"{100 * efficiency} %", "latency": f"{100 * latency} %"}
    model = {"o_send": f"{ps // 3} ps", "gamma": f"{gamma} B/s"}
    links = dict.fromkeys(("nvlink", "link"), scales)
    after = yaml_tree.dump({"name": "law", "model": model, "launch": f"{ps} ps", "links": links})
    check(point, before, after + known(ps, ps // 7, 2 * ps))


@pytest.mark.parametrize("profile", [f"name: law\nlaunch: 5 us\n{BEFORE}", text() + BEFORE])
def test_a_workload(profile: str) -> None:
    """A plan of several operations has another time where its launches and links cost more, which is that of a run."""
    with under(profile):
        keys = {"profile": "law.yaml", "topology": {"system": "hgx-h100"}, "workload": ddp(4), "dtype": "float32"}
        (point,) = scenario_files.points(yaml_tree.located(keys, Place("step", 1, 1)))
    check(point, profile, profile.replace("5 us", "9 us").replace("5000000 ps", "9000000 ps").replace("0.9", "0.6"))
