"""Options shared by several commands, and readers of files with uniform errors."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from simcoll.errors import InputError
from simcoll.units import in_plain_digits

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def completed(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a function that completes a typed word in the shell with names of `kinds`; `file` means files."""

    def names(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from simcoll.cli.convert import FORMATS
        from simcoll.config.yaml_tree import shipped
        from simcoll.scenario.profile import shipped_profiles
        from simcoll.scenario.scenario_files import shipped_scenarios
        from simcoll.schedule import registry
        from simcoll.schedule.collectives import COLLECTIVES
        from simcoll.topology.machine_files import shipped_systems
        from simcoll.workload.expert_routing import BY_EXPERTS

        def algorithms() -> list[str]:
            asked = context.params.get("collective")
            every = (name for c in COLLECTIVES if asked in (None, c) for name in registry.names(c))
            return ["auto", "all", *dict.fromkeys(every)]

        known: dict[str, Callable[[], Iterable[str]]] = {
            "scenario": shipped_scenarios,
            "system": shipped_systems,
            "profile": shipped_profiles,
            "collective": lambda: COLLECTIVES,
            "algorithm": algorithms,
            "executor": lambda: ("nccl", "msccl", "p2p", *BY_EXPERTS),
            "schedule": lambda: (f"{c}/{name}" for c in COLLECTIVES for name in registry.names(c)),
            "table": lambda: sorted(path.name for path in shipped("measured").glob("*.csv")),
            "format": lambda: FORMATS,
        }
        found = [CompletionItem(begun, type="file")] if "file" in kinds else []  # first, as it clears bash's list
        found += [CompletionItem(name) for k in kinds if k in known for name in known[k]() if name.startswith(begun)]
        return found

    return names


class _PlainDigits:
    """A type of numbers that refuses `1_0` and digits of other scripts, although Python reads these as numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return an option's text as a number; ends the command with a usage error if it is none."""
        if isinstance(value, str) and not in_plain_digits(value):
            raise click.BadParameter(f"{value!r} is not a number.")
        return super().convert(value, param, ctx)  # type: ignore[misc]  # of the number type that follows


class Whole(_PlainDigits, click.types.IntParamType):
    """The type of an option that is a whole number."""


class WholeFrom(_PlainDigits, click.IntRange):
    """The type of an option that is a whole number within a range."""


class Number(_PlainDigits, click.types.FloatParamType):
    """The type of an option that is a number."""


SCENARIO = click.argument("scenario", shell_complete=completed("file", "scenario", "collective"))
SCENARIO_OR_KEYS = click.argument(
    "scenario", required=False, shell_complete=completed("file", "scenario", "collective")
)
COLLECTIVE = click.argument("collective", shell_complete=completed("collective"))
SETS = click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Override a scenario key by YAML text.")
_PROFILE = click.option(
    "--profile",
    metavar="NAME",
    help="Profile of costs: the name of a shipped one, or a file.",
    shell_complete=completed("file", "profile"),
)
_ON = click.option(
    "--on",
    "system",
    metavar="SYSTEM",
    help="Machine, instead of the scenario's: a shipped system, a file, or keys of a topology in braces.",
    shell_complete=completed("file", "system"),
)
_NODES = click.option("--nodes", metavar="N[,N…]", help="Number of nodes, or a list of numbers.")
SIZE = click.option(
    "--size",
    help="e.g. 64MiB; a list '[1 MiB, 64 MiB]', or a range '{from: 1 KiB, to: 1 GiB, factor: 4}'; barrier: no size.",
)
WHERE = click.option(
    "--where",
    multiple=True,
    metavar="COL=V,V",
    help="Keep rows with this value, or one of several. Rows without a value are kept, and their number is printed.",
)
_MEASURED_ON = click.option(
    "--on",
    "--topology",
    "topology",
    metavar="SYSTEM|FILE.yaml",
    help="Machine that was measured: a shipped system, a file, or keys of a topology in braces.",
    shell_complete=completed("file", "system"),
)
_MEASURED_NODES = click.option(
    "--nodes", metavar="N[,N…]", help="Keep rows with this number of nodes. Rows without a number count as having it."
)
_COLLECTIVE = click.option(
    "--collective",
    metavar="NAME",
    help="Keep rows of this collective. Rows without a collective count as rows of it.",
    shell_complete=completed("collective"),
)
ALGORITHM = click.option(
    "--algorithm",
    help="Algorithm: a name, a list, `auto` or `all`.  [default: auto, or the scenario's]",
    shell_complete=completed("file", "algorithm"),
)
PICTURES = ("png", "svg", "pdf")
FORMAT = click.option(
    "--format", "kind", type=click.Choice(PICTURES), default="png", show_default=True, help="File format of pictures."
)


def check_format(output: Path | None) -> None:
    """Raise InputError if `--format` is given without `-o`, as the command then draws nothing."""
    source = click.get_current_context().get_parameter_source("kind")
    if output is None and source is ParameterSource.COMMANDLINE:
        raise InputError("--format without -o has nothing to draw", "add -o FOLDER")


A_SYSTEM = "SYSTEM, e.g. --on hgx-h100 (`simcoll list topologies` has all), or --on FILE.yaml"
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


Command = Callable[..., Any]


# Suffixes of files: a name that ends in one means a folder only if that folder exists.
OF_FILES: Final = frozenset(
    f".{end}"
    for end in ("png", "svg", "pdf", "gif", "jpg", "jpeg", "webp", "tif", "tiff", "bmp", "eps", "csv", "json", "html")
)


class _Folder(click.Path):
    """A folder to write to, as an option's type. A name with a file's suffix is refused unless the folder exists."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if path.suffix.lower() in OF_FILES and not path.is_dir():
            raise InputError(f"-o {path}: the output is a folder", f"give -o {path.with_suffix('')}")
        return path


def output_folder(text: str) -> Callable[[Command], Command]:
    """Return the option `-o`, a folder; `text` is its help."""
    return click.option("-o", "--output", type=_Folder(), help=text)


# Options that set keys of the scenario: parameter of the command → key, option.
_KEYS: Final[dict[str, tuple[str, Callable[[Command], Command]]]] = {
    "system": ("topology", _ON),
    "nodes": ("topology.nodes", _NODES),
    "size": ("size", SIZE),
    "profile": ("profile", _PROFILE),
    "algorithm": ("algorithm", ALGORITHM),
}


def with_keys(*parameters: str) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command; each given option becomes an assignment in `sets`."""

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def asked(*args: Any, sets: tuple[str, ...], **options: Any) -> Any:
            own: list[str] = []
            for name in parameters:
                value = options.pop(name)
                value = listed(value) if value and name != "profile" else value
                own += assigned(_KEYS[name][0], value, "--on" if name == "system" else f"--{name}")
            return command(*args, sets=(*own, *sets), **options)

        made: Command = asked
        for name in reversed(parameters):
            made = _KEYS[name][1](made)
        return made

    return decorated


def with_measured_on(command: Command) -> Command:
    """Add the options `--on`, `--nodes`, `--collective` and `--profile` to a command with the parameters `topology`,
    `where` and `sets`: the machine of a measured table, and which rows of the table count."""

    @functools.wraps(command)
    def asked(*args: Any, nodes: str | None, collective: str | None, where: tuple[str, ...], **options: Any) -> Any:
        rows = (*_given("nodes", nodes and unbracketed(nodes)), *_given("collective", collective))
        return command(*args, where=(*rows, *where), **options)

    return _MEASURED_ON(_MEASURED_NODES(_COLLECTIVE(with_keys("profile")(asked))))


def assigned(path: str, value: str | None, option: str) -> list[str]:
    """Return an option's value as an assignment to the key `path`, as `--set` takes it; messages name the option."""
    from simcoll.config.yaml_tree import OptionValue

    return [] if value is None else [OptionValue(path, value, option)]


def _given(key: str, value: str | None) -> list[str]:
    return [] if value is None else [f"{key}={value}"]


def measured_on(topology: str | None) -> str:
    """Return the machine that `--on` names; raises InputError if the option is not given."""
    if topology is None:
        raise InputError("the measured machine is missing", f"add --on {A_SYSTEM}")
    return topology


def listed(text: str) -> str:
    """Return values as YAML: `1,2` and `hgx-h100,{system: hgx-h200}` become lists. Commas in brackets, as in options of
    algorithms, do not separate values.

    >>> listed("ring,swing(ports=one)"), listed("{from: 1 KiB, to: 1 GiB}")
    ('[ring,swing(ports=one)]', '{from: 1 KiB, to: 1 GiB}')
    """
    depth = 0
    for letter in text:
        depth += (letter in "[{(") - (letter in ")}]")
        if letter == "," and not depth:
            return f"[{text}]"
    return text


def check_timeout(timeout: float) -> None:
    """Raise InputError, before a long run, if `--timeout` is longer than torch.distributed can wait, or not above 0."""
    if not 0 < timeout <= LONGEST_S:
        raise InputError(f"--timeout {timeout:g} is no time to wait", f"give seconds above 0, at most {LONGEST_S:.0f}")


def unbracketed(text: str) -> str:
    """Return a YAML list such as `[1, 2]` without its brackets."""
    return text.strip().removeprefix("[").removesuffix("]")


def counts(text: str, option: str, what: str, cure: str) -> list[int]:
    """Return the different numbers (1 or more) in an option such as `--ranks N[,N…]`; raises InputError."""
    numbers = text.split(",")
    if not all(re.fullmatch(r" *0*[1-9][0-9]{0,18} *", number) for number in numbers):
        raise InputError(f"{option}: {text!r} is no number of {what}", cure)
    return list(dict.fromkeys(map(int, numbers)))


JOBS = click.option(
    "--jobs",
    type=Whole(),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of points to simulate at the same time; -1: one per core.",
)


def read_text(path: Path) -> str:
    """Return the text of a file, or of stdin for `-`; raises InputError."""
    from simcoll.config import input_files
    from simcoll.config.input_files import decoded

    if str(path) == "-":
        return input_files.text_of_stdin()
    return decoded(input_files.bytes_of(path, "give the path of a text file"), str(path))


def measured_text(name: str) -> str:
    """Return the text of a measured table, given a file, a shipped table's name or `-` (stdin); raises InputError."""
    if name == "-":
        return read_text(Path(name))
    from simcoll.formats.measured import find_measured

    return read_text(find_measured(name))


TIMEOUT = click.option(
    "--timeout",
    type=Number(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time that one transfer may take.",
)
LONGEST_S = 1e6  # longest time-out: torch.distributed counts milliseconds
QUIET = click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
