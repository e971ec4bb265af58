"""Costs of a profile of NCCL's kernels, by the file that writes them: its own, or one of those that it is `like`."""

from itertools import takewhile

from simcoll.nccl.kernel_costs import KINDS, Kernels
from simcoll.scenario.profile import LinkScale, Profile, load_network


def _kernel_costs(kernels: Kernels) -> dict[str, float]:
    blocks = {f"{kind}.{key}": value for kind in KINDS for key, value in getattr(kernels, kind)}
    return {"grid": kernels.grid, "spread": kernels.spread, **blocks}


def written_in(profile: Profile) -> dict[str, list[str]]:
    """The costs of a call, by the profile that writes them: itself first, then those that it is `like`.

    Costs are the launch, what links keep of their rates, and `kernels`; defaults are not counted. Other launches
    (`host`, `graph`), other kernels (`pull`) and transports have costs of their own, which are not among them.
    """
    chain = [profile]
    while like := chain[-1].like:
        chain.append(load_network(like))
    of_files = [_kernel_costs(each.kernels or Kernels.plain()) for each in (*chain, Profile.plain())]
    found: dict[str, list[str]] = {each.name: [] for each in chain}
    plain = LinkScale.plain()
    shares = [(f"{key}.{kind}", key, value) for kind, scale in profile.links.items() for key, value in scale]
    found[profile.name] += ["launch"] * bool(profile.launch)
    found[profile.name] += [name for name, key, value in shares if value != getattr(plain, key)]
    for name, value in of_files[0].items():
        same = len(list(takewhile(value.__eq__, (costs[name] for costs in of_files))))
        if same <= len(chain):
            found[chain[same - 1].name].append(name)
    return found
