"""Names of algorithms in scenarios: the registry's, files of schedules, and words that choose one."""

from typing import Final

import simcoll.schedule.algorithms  # noqa: F401  (fills the registry)
from simcoll.errors import InputError, did_you_mean
from simcoll.formats.schedules import schedule_json
from simcoll.nccl import algorithm_names
from simcoll.schedule import registry

CHOSEN: Final = ("all", "auto", "best")  # words in place of an algorithm's name


def schedule_of(path: str, collective: str | None) -> str:
    """Check that a file is a schedule of this collective, and return its path. Raises ValueError."""
    try:
        schedule = schedule_json.read(path)
    except InputError as error:
        raise ValueError(str(error.diagnostics[0])) from None
    if collective and schedule.collective != collective:
        raise ValueError(f"{path!r} is a schedule of {schedule.collective}, not {collective}; let them agree")
    return path


def of_registry(collective: str, spec: str) -> str:
    """An algorithm and its options as the registry spells them; raises ValueError if it has no such algorithm."""
    name, known = spec.partition("(")[0].strip(), registry.names(collective)
    if name not in known:
        served = (*known, *algorithm_names.names(collective), *CHOSEN)
        raise ValueError(f"{name!r} is no algorithm for {collective}; {did_you_mean(name, dict.fromkeys(served))}")
    try:
        entry, options = registry.find(collective, spec)
    except InputError as error:
        first = error.diagnostics[0]
        raise ValueError(f"{first.what}; {first.cure}") from None
    return entry.spelt(options)


def algorithm_for(collective: str | None, spec: str) -> str:
    """A name that a scenario may ask for, as the registry spells it: a file of a schedule, a word that chooses, a name
    of NCCL's or of the registry. Raises ValueError for all else."""
    if schedule_json.is_file(spec):
        return schedule_of(spec, collective)
    if collective is None or spec in CHOSEN or spec in algorithm_names.names(collective):
        return spec
    return of_registry(collective, spec)


def every_algorithm() -> set[str]:
    """The names of all algorithms, of any collective."""
    return {name for which in registry.ALGORITHMS for name in registry.names(which)}
