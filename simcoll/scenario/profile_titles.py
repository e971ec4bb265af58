"""Names of profiles as reports show them, with what they were fitted to."""

from collections.abc import Iterable

from simcoll.scenario.profile import load_network, load_profile


def titled(name: str) -> str:
    """The name of a profile as reports show it: a bound is no prediction."""
    return f"{name}: a bound, not a prediction" if name == "ideal" else name


def described(name: str, transports: Iterable[str] = ()) -> str:
    """A profile, and transports that were taken with it, each with what it was fitted to, in a line."""
    return " + ".join([f"profile {name}: {load_profile(name).description}", *map(between, transports)])


def described_with(pairs: Iterable[tuple[str, str | None]]) -> str:
    """Profiles, each with the transport that was taken with it or None, in a line."""
    taken: dict[str, list[str]] = {}
    for name, transport in dict.fromkeys(pairs):
        taken.setdefault(name, []).extend([transport] if transport else [])
    return "; ".join(described(name, transports) for name, transports in taken.items())


def between(transport: str) -> str:
    """A transport and its description: which NICs it is of, and what it was fitted to."""
    return f"{transport}, {load_network(transport).description.replace('; ', ', ')}"
