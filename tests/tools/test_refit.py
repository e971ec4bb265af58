"""Profiles that are fitted again from their records."""

from __future__ import annotations

import pytest
import refit

from simcoll.accuracy.fit import parameters
from simcoll.accuracy.fit.parameters import OF_CALLS, cost
from simcoll.config import yaml_tree
from simcoll.engine.timing_model import Params
from simcoll.nccl.kernel_costs import KINDS, BlockCosts, Kernels
from simcoll.scenario.profile import load_network, load_profile, parse_profile, shipped_profiles


def test_generations_of_gpus_have_costs_in_common() -> None:
    """What was fitted to generations together is written once, and no fit to one of them names it. At most twelve
    fitted costs are a generation's own, and thirteen that are written."""
    profiles = {name: load_profile(name) for name in refit.GENERATIONS}
    for name in load_profile(refit.COMMON).fitted:
        assert len(sharing := refit.sharers(name)) > 1, name
        assert not any(name in profiles[each].fitted for each in sharing), name
    assert max(len(profile.fitted) for profile in profiles.values()) <= 12
    assert max(len(refit.costs_by_file(profile)[name]) for name, profile in profiles.items()) <= 13


@pytest.mark.parametrize("name", [name for name in shipped_profiles() if load_network(name).like])
def test_each_cost_is_written_in_one_file(name: str) -> None:
    """The files that a profile is like write all of its costs that differ from the defaults, each once."""
    profile, plain = load_network(name), Kernels.plain()
    names = [cost for costs in refit.costs_by_file(profile).values() for cost in costs]
    assert len(names) == len(set(names))
    for kind in KINDS:
        for key, value in getattr(profile.kernels, kind):
            assert f"{kind}.{key}" in names or value == getattr(getattr(plain, kind), key)


@pytest.mark.parametrize("name", refit.GENERATIONS)
def test_a_fit_again_leaves_inherited_costs_where_they_are(name: str) -> None:
    """A whole profile, as a calibration writes it, and the file that is like another say the same."""
    shipped = load_profile(name)
    of_calls = {each: parameters.text(each, cost(each, shipped, Params())) for each in OF_CALLS}
    blocks = {
        kind: {
            key: parameters.text(f"{kind}.{key}", cost(f"{kind}.{key}", shipped, Params()))
            for key in BlockCosts.model_fields
        }
        for kind in KINDS
    }
    file = yaml_tree.dump({"name": name, "kernels": {**of_calls, **blocks}})
    again = refit.inheriting(file, name)
    assert parse_profile(again, name).kernels == shipped.kernels
    written = yaml_tree.parse(again, name).plain()["kernels"]
    costs = {f"{kind}.{key}" for kind in KINDS for key in written.get(kind, {})}
    assert costs == {each for each in refit.costs_by_file(shipped)[name] if each.partition(".")[0] in KINDS}
