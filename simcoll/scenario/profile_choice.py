"""Choose the profile of a machine, by the generation of its GPUs and the links that join them."""

from __future__ import annotations

from typing import Final

from simcoll.config.yaml_tree import Node
from simcoll.errors import Diagnostic, InputError, wrong
from simcoll.scenario.profile import Profile, find_profile, load_network, shipped_profiles
from simcoll.topology.machine_files import SystemFile
from simcoll.topology.topology_builder import described
from simcoll.topology.topology_keys import TopologySpec
from simcoll.topology.wiring import GPU_LINKS

UNFITTED: Final = "one-port"  # the profile of machines without a fitted one


def check_gpus(profile: Profile, system: SystemFile | None) -> None:
    """Raise InputError if the profile is for other GPUs, or GPUs with other links; the message names fitting
    profiles."""
    if system is None:
        return
    if system.gpu and profile.transport and profile.kernels is None:
        with_gpus = f"take {own}+{profile.name}" if (own := profile_of(system)) else "fit one with `simcoll calibrate`"
        raise wrong("profile", f"{profile.name} has costs of messages between nodes only, and none of GPUs", with_gpus)
    if (mismatch := _mismatch(profile, system)) is None:
        return
    own = system.profile if system.profile != profile.name else None
    serving = own or " or ".join(_serving(system))
    problem = f"{profile.name} is for GPUs {mismatch}"
    raise wrong("profile", problem, f"take {serving}" if serving else "fit one with `simcoll calibrate`")


def check_named(system: SystemFile, tree: Node) -> None:
    """Raise InputError, with the place in the file, if a machine's file names an unknown profile. Both profiles in the
    file are checked: the profile of the GPUs, which bounds always need, and the profile of the NICs."""
    nic = system.nic.profile if system.nic else None
    for part, name in ((tree, system.profile), (tree.get("nic"), nic)):
        if name and part and (written := part.get("profile")):
            try:
                find_profile(name)
            except ValueError as error:
                raise InputError([Diagnostic.of(str(error), "profile", written.place)]) from None


def profile_of(system: SystemFile) -> str | None:
    """Return the profile that a system's file names, else the only shipped profile for its GPUs, else None."""
    serving = [] if system.profile else _serving(system)
    return system.profile or (serving[0] if len(serving) == 1 else None)


def own_profile(spec: TopologySpec | None) -> str:
    """Return the default profile for a topology: the one its machine's file names, else one fitted to its GPUs, else
    `one-port`."""
    return ((system := system_of(spec)) and profile_of(system)) or UNFITTED


def system_of(spec: TopologySpec | None) -> SystemFile | None:
    """Return the file of the machine in a topology; None for bare hosts, and for a file with mistakes."""
    try:
        return described(spec) if spec else None
    except InputError:  # building the topology reports the mistake, with its place
        return None


def _serving(system: SystemFile) -> list[str]:
    """Return the shipped profiles for a system's GPUs: profiles for exactly their compute capability if there are any,
    else profiles for their generation."""
    if system.gpu is None:
        return []
    known = {name: load_network(name) for name in shipped_profiles()}
    serving = [name for name, profile in known.items() if profile.generations and not _mismatch(profile, system)]
    return [name for name in serving if known[name].capability is not None] or serving


def _mismatch(profile: Profile, system: SystemFile) -> str | None:
    generation = system.gpu.generation if system.gpu else None
    if generation is None or not profile.generations:
        return None
    if generation not in profile.generations:
        return f"of {' and '.join(profile.generations)}, and {system.name} has {generation}"
    capability = system.gpu.compute_capability if system.gpu else None
    if profile.capability not in (None, capability):
        has = "does not say" if capability is None else f"has {capability}"
        return f"of compute capability {profile.capability}, and {system.name} {has}"
    own = [kind for kind in (*GPU_LINKS, "pcie") if kind in profile.links]
    joined = {rule.kind for rule in system.links} & {*GPU_LINKS} or {"pcie"}
    if own and not joined & {*own}:
        return f"joined by {' and '.join(own)}, and those of {system.name} are by {' and '.join(sorted(joined))}"
    return None


def peak_of(system: SystemFile) -> str | None:
    """Return the key under which `workload.models.gpus` has the peak speed of a machine's GPUs; else None."""
    model = system.gpu.model.partition(" ")[0].lower() if system.gpu else ""
    from simcoll.workload.models import gpus  # only workloads ask

    return model if model in gpus() else None
