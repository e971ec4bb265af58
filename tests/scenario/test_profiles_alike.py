"""Profiles that are like another: what they do not write is that one's."""

import pytest

from simcoll.errors import InputError
from simcoll.scenario.profile import load_network, parse_profile


def test_what_is_not_written_is_that_of_the_other() -> None:
    """One cost is replaced, all others stay, and the other's launch is not taken."""
    begun = load_network("nccl-hopper")
    mine = parse_profile("name: mine\nlike: nccl-hopper\nkernels: {LL: {hop: 1 us}}\n", "mine.yaml")
    assert begun.kernels is not None
    changed = begun.kernels.LL.model_copy(update={"hop": 10**6})
    assert mine.kernels == begun.kernels.model_copy(update={"LL": changed})
    assert (mine.launch, parse_profile("name: mine\nlike: nccl-hopper\n", "").kernels) == (0, begun.kernels)


@pytest.mark.parametrize("like", ["nccl-hoper", "ideal"])
def test_what_has_no_costs_to_take_is_refused(like: str) -> None:
    """A profile that nobody ships, or one without kernels: with its place, and a name that would do."""
    with pytest.raises(InputError) as error:
        parse_profile(f"name: mine\nlike: {like}\n", "mine.yaml")
    assert "mine.yaml:2:7" in str(error.value)
    assert "nccl-hopper" in str(error.value)
