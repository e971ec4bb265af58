"""Profiles that are like another: what they do not write is that one's, and each cost is written in one file."""

import pytest

from simcoll.errors import InputError
from simcoll.nccl.kernel_costs import KINDS, Kernels
from simcoll.scenario.profile import costs_by_file, load_network, parse_profile, shipped_profiles

LIKE = [name for name in shipped_profiles() if load_network(name).like]


@pytest.mark.parametrize("name", LIKE)
def test_each_cost_is_written_in_one_file(name: str) -> None:
    """The files that a profile is like write all of its costs that differ from the defaults, each once."""
    profile, plain = load_network(name), Kernels.plain()
    names = [cost for costs in costs_by_file(profile).values() for cost in costs]
    assert len(names) == len(set(names))
    for kind in KINDS:
        for key, value in getattr(profile.kernels, kind):
            assert f"{kind}.{key}" in names or value == getattr(getattr(plain, kind), key)


def test_what_is_not_written_is_that_of_the_other() -> None:
    """One cost is replaced, all others stay, and the other's launch is not taken."""
    begun = load_network("nccl-hopper")
    mine = parse_profile("name: mine\nlike: nccl-hopper\nkernels: {LL: {hop: 1 us}}\n", "mine.yaml")
    assert begun.kernels is not None
    changed = begun.kernels.LL.model_copy(update={"hop": 10**6})
    assert mine.kernels == begun.kernels.model_copy(update={"LL": changed})
    assert (mine.launch, parse_profile("name: mine\nlike: nccl-hopper\n", "").kernels) == (0, begun.kernels)
    assert costs_by_file(mine)["mine"] == ["LL.hop"]


@pytest.mark.parametrize("like", ["nccl-hoper", "ideal"])
def test_what_has_no_costs_to_take_is_refused(like: str) -> None:
    """A profile that nobody ships, or one without kernels: with its place, and a name that would do."""
    with pytest.raises(InputError) as error:
        parse_profile(f"name: mine\nlike: {like}\n", "mine.yaml")
    assert "mine.yaml:2:7" in str(error.value)
    assert "nccl-hopper" in str(error.value)
