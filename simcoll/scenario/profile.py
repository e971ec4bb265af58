"""Profiles: files with the parameters and costs of calls and their source; their keys, and functions that read them.

A calibrated profile also records the rows that it was fitted to, and the errors of its predictions.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, WithJsonSchema

from simcoll import units
from simcoll.config import input_files, yaml_tree
from simcoll.config.field_types import BandwidthCap, Channels, Chunk, Duration, Gamma, Share, Slots
from simcoll.config.yaml_tree import Model, Node
from simcoll.engine.timing_model import Blocking, ChannelsBy, Params
from simcoll.errors import Diagnostic, InputError, did_you_mean, wrong
from simcoll.nccl.kernel_costs import Kernels
from simcoll.nccl.transports_between_nodes import OF_FAMILY, Transport
from simcoll.scenario.launch import Launch, Process
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import load_system

MOST_COPIES: Final = 256  # no shipped machine has as many NICs or direct links, so more copies bring nothing


def _blocking(value: object) -> Blocking:
    known: dict[object, Blocking] = {True: "sends-first", False: "no", "even-odd": "even-odd"}
    if not isinstance(value, bool | str) or value not in known:
        raise ValueError(f"{value!r} is no value of `blocking`; write true, false or even-odd")
    return known[value]


Blocks = Annotated[Blocking, BeforeValidator(_blocking), WithJsonSchema({"enum": [True, False, "even-odd"]})]


class ModelSpec(Model):
    """Parameters of the timing model, in scenarios and in profiles."""

    sharing: Literal["fair", "fifo"] | None = None
    """How messages share a link. `fair`: all move at once, at max-min fair rates. `fifo`: the link serves one whole
    chunk after the other."""
    o_send: Duration | None = None
    """Time that the sender spends before each message."""
    o_recv: Duration | None = None
    """Time that the receiver spends for each message."""
    g: Duration | None = None
    """Least time between the starts of two messages on one channel."""
    gamma: Gamma | None = None
    """Cost of adding received data: a time per byte, or a bandwidth."""
    channels: Channels | None = None
    """Number of channels of a rank. Each channel sends one message at a time. `per-peer`: a channel for each
    destination."""
    channels_by: ChannelsBy | None = None
    """What is dealt to the channels in turn: the chunks or the steps of the schedule. `port`: a channel for each link
    by which messages leave the rank, whatever `channels` says."""
    slots: Slots | None = None
    """Greatest number of messages under way on a connection (sender, receiver, channel), or `none` for no limit."""
    chunk: Chunk | None = None
    """Number of bytes of each slot that one run through the schedule moves. The schedule is repeated for the other
    bytes. `whole`: it runs only once."""
    channel_bandwidth: BandwidthCap | None = None
    """Greatest bandwidth of a channel."""
    copies: Annotated[StrictInt, Field(ge=1, le=MOST_COPIES)] | None = None
    """Number of copies of the schedule that run side by side, each with its share of the data. Each copy orders the
    ranks in another way, so that the copies use different NICs and different links, as a ring for each rail does."""
    barrier: StrictBool | None = None
    """Whether every step waits for the end of all earlier steps."""
    blocking: Blocks | None = None
    """Whether a rank does one thing at a time: in each step first its sends, then its receives. `even-odd`: ranks with
    an odd number receive first."""


class LinkScale(Model):
    """Corrections of links of one kind. For example, headers use a part of the rated bandwidth."""

    efficiency: Annotated[Share, Field(gt=0)] = 1.0
    """Share of the rated bandwidth that data without headers reach."""
    latency: Share = 1.0
    """Factor by which the rated latency is multiplied."""


class Errors(Model):
    """Errors of predictions on some rows: `mape`, `median`, `p95` of |error| and `bias`, in percent. If residuals are
    normal with the spread of these rows, 90 % of the ratios measured / predicted lie between `low` and `high`."""

    rows: int
    mape: float
    median: float
    p95: float
    bias: float
    low: float
    high: float


class Series(Model):
    """Measured rows that differ in size only. `setting` stands for everything else that decides a time: see
    `fingerprint`."""

    collective: str
    algorithm: str = "auto"
    protocol: str = "auto"
    ranks: int
    nodes: int | None = None
    topology: str
    setting: str
    fitted: tuple[int, ...] = ()
    held_out: tuple[int, ...] = ()
    former: bool = False
    """Of the fit that this one began with, whose costs of such calls stayed."""


class TableSource(Model):
    """A measured table to which costs were fitted: its file and the number of rows."""

    file: str
    sha256: str
    rows: int


class BesideTable(Model):
    """A measured table to which some costs were fitted, in addition to the tables in the record `calibration`. For
    example, one table may serve the fit of several profiles. Only rows whose column `table` matches one of the patterns
    `tables` count."""

    file: str
    """The name of the table's file."""
    sha256: str
    """The SHA-256 hash of the table's file."""
    tables: tuple[str, ...]
    """Patterns for the column `table`."""
    collective: str | None = None
    """Only rows of this collective count. Default: rows of all collectives."""
    costs: tuple[str, ...]
    """The fitted costs, with the names that `--free` of simcoll calibrate takes."""


class Uncertainty(Model):
    """Parts of the uncertainty of predictions, as standard deviations of logarithms of times."""

    noise: float
    """Of single measurements around the median of many, outliers apart."""
    outliers: float
    """Share of measurements that are outliers."""
    parameters: float
    """Of predictions, as the rows determine the parameters."""
    model: dict[Literal["sizes", "ranks", "collectives", "nodes"], float]
    """Of the model itself at other sizes, rank counts, collectives and node counts, as rows that were left out show."""
    groups: dict[Literal["sizes", "ranks", "collectives", "nodes"], int]
    """How many groups of rows, left out in turn, showed it; 0 where none did, and other machines have to."""


class Calibration(Model):
    """The record of a fit: when, with which rows, and how well."""

    topology: str
    date: str
    simcoll: str
    scipy: str
    seed: int
    files: tuple[TableSource, ...]
    where: tuple[str, ...] = ()
    split: str
    left: dict[str, str] = Field(default_factory=dict)
    intervals: dict[str, tuple[str, str]]
    errors: dict[Literal["fitted", "held_out"], Errors]
    regions: dict[Literal["latency-bound", "middle", "bandwidth-bound"], Errors] = Field(default_factory=dict)
    uncertainty: Uncertainty | None = None
    covers: tuple[Series, ...]


class HostCosts(Model):
    """Time of the host for a call, if the host launches each call by itself."""

    launch: Duration = 0
    """Time of the host to launch a call on one GPU."""
    message: Duration = 0
    """Time of the host for each message that it posts. A rank posts 2·(ranks − 1) messages in all_to_all and 2 in
    send_recv. In gather and scatter the root posts ranks − 1, and others post 1."""
    channel: Duration = 0
    """Time of the host for each channel after the first, on one GPU."""
    block: Duration = 0
    """If a process drives several GPUs: time by which each further thread block of a kernel starts later."""
    calibration: Calibration | None = None
    """The record of the fit: parameters, rows and errors."""

    def pace_ps(self, processes: Iterable[Process], further: int = 0) -> int:
        """Return the host's time for a call in ps: the time of its slowest process, 0 without processes. `further`: the
        number of channels beyond the first."""
        launch = self.launch + further * self.channel
        return max((process.launches * launch + process.messages * self.message for process in processes), default=0)

    def late_ps(self, processes: Iterable[Process]) -> int:
        """Return how many ps each further thread block begins after the one before: `block` if a process drives several
        GPUs, else 0."""
        return self.block if any(process.launches > 1 for process in processes) else 0


class CudaGraphCosts(Model):
    """Costs of calls in a CUDA graph."""

    launch: Duration
    """Time to launch a call in a CUDA graph. It replaces the profile's `launch`."""
    upload: Duration = 0
    """Time of the host to bring a call of a graph to one GPU. It counts only at the first launch of the graph."""
    calibration: Calibration | None = None
    """The record of the fit: parameters, rows and errors."""


class PullCosts(Model):
    """Costs of kernels in which each rank reads the memory of its peers over NVLink and waits for flags, as in the
    all-reduces of vLLM and SGLang."""

    launch: Duration = 0
    """Time of such a kernel in a CUDA graph without its stages: launch, first and last barrier, and first load."""
    flag: Duration = 0
    """Time by which a barrier takes longer if there are twice as many ranks."""
    load: Duration = 0
    """Time from a load of a peer's memory until its data arrive."""
    reach: Annotated[Share, Field(gt=0, le=1)] = 1.0
    """Share of the links' rated bandwidth that loads reach."""
    calibration: Calibration | None = None
    """The record of the fit: parameters, rows and errors."""


CABLE: Final = "cable"  # the kind of links to NICs
PCIE: Final = "pcie"  # NCCL counts less of these links than NICs reach
OF_LIBRARY: Final = frozenset(("library", "nccl-tests", "graph"))  # harnesses that call the library's collectives
_UNKNOWN: Final = "profile {!r} has no cost of a launch {}"
_LEARN: Final = "take a profile that has, or fit one: `simcoll calibrate TABLE --set launch.{} …`"


class Profile(Model):
    """A set of parameters and costs, and their source."""

    name: str
    """Name that results show."""
    description: str = ""
    """What the profile is for, in one line."""
    source: str = ""
    """Where its numbers come from."""
    like: str | None = None
    """Name of a shipped profile. Costs of `kernels` that are missing here come from that profile. Everything else comes
    only from this one."""
    of_nics: StrictBool = False
    """Whether the profile holds only the costs that NICs add between nodes."""
    family: str | None = None
    """In a profile of NICs: name of the profile with the common costs of such networks. Its `operation` and `flush`
    count if they are missing here."""
    derived: dict[str, str] = Field(default_factory=dict)
    """In a profile of NICs: costs that were measured directly, or that follow from how the network is built, and the
    reason. A fit keeps them near these values, not near the common costs of the family. If the fitted rows do not show
    a cost, it keeps its value."""
    own: tuple[str, ...] = ()
    """In a profile of NICs: costs that depend on the hosts or software of this network. They do not count for the
    common costs of the family, and may lie farther from them."""
    bound: StrictBool = False
    """Whether a call is simulated with several numbers of copies and channels and several chunk sizes, of which the
    fastest counts. The result is a bound on times, not a prediction. Values that the profile or the scenario gives are
    kept."""
    harness: str | None = None
    """The way of measuring to which the profile was fitted, as in the column `harness` of measured tables."""
    generations: tuple[str, ...] = ()
    """Generations of GPUs for which the profile is made, with their names in topology files. simcoll refuses other
    GPUs. Default: all."""
    capability: int | None = None
    """Compute capability of the GPUs for which the profile is made, if GPUs of one generation differ. simcoll refuses
    other GPUs. Default: all."""
    model: ModelSpec = ModelSpec.plain()
    """Parameters of the timing model."""
    launch: Duration = 0
    """Time that is added to every call."""
    host: HostCosts | None = None
    """Costs of the host, if it launches each call by itself."""
    graph: CudaGraphCosts | None = None
    """Costs of calls in a CUDA graph."""
    links: dict[str, LinkScale] = Field(default_factory=dict)
    """Corrections of links, by kind: `{cable: {efficiency: 95 %, latency: 120 %}}`."""
    kernels: Kernels | None = None
    """Costs of NCCL's kernels. With this key, simcoll simulates a point as kernels run it; the key `executor` of the
    scenario says how."""
    transport: Transport | None = None
    """Costs of messages between nodes. They replace the costs of the system's NICs. A profile of NICs has only this key
    and the efficiency of cables."""
    pull: PullCosts | None = None
    """Costs of kernels that read the memory of peers (the protocol `pull`)."""
    fitted: dict[str, str] = Field(default_factory=dict)
    """Parameters that a calibration fitted, and their values."""
    calibration: Calibration | None = None
    """The record of the fit: parameters, rows and errors."""
    beside: tuple[BesideTable, ...] = ()
    """Further tables to which some of its costs were fitted."""

    def serves(self, harness: str) -> bool:
        """Return whether the profile's costs apply to measurements of a `harness`. All harnesses that call the
        library's collectives have equal costs, except for the launch."""
        own = self.harness
        return own is None or harness == own or (own in OF_LIBRARY and harness in OF_LIBRARY)

    def knows(self, launch: Launch) -> bool:
        """Return whether the profile has the costs of this kind of launch, e.g. in a CUDA graph."""
        return (self.graph is not None or not launch.graph) and (self.host is not None or not launch.paced)

    def check_launch(self, launch: Launch) -> None:
        """Raise InputError if the profile lacks the costs of this kind of launch."""
        if launch.graph and self.graph is None:
            raise wrong("launch.graph", _UNKNOWN.format(self.name, "in a CUDA graph"), _LEARN.format("graph=true"))
        if launch.paced and self.host is None:
            unknown = _UNKNOWN.format(self.name, "of the host")
            raise wrong("launch.gpus_per_process", unknown, _LEARN.format("gpus_per_process=all"))

    def check_pull(self) -> None:
        """Raise InputError if the profile has no costs of kernels that read peers' memory (`pull`)."""
        if self.pull is None:
            mistake = f"profile {self.name!r} has no costs of loads from peers' memory"
            raise wrong(
                "protocol", mistake, "take a profile that has, or fit one: `simcoll calibrate TABLE --free pull.load,…`"
            )

    def judged_by(self, way: HostCosts | CudaGraphCosts | PullCosts | None) -> Self:
        """Return the profile with another calibration record: the record of a kind of launch, given by its costs `way`.
        If `way` has no record, the profile's record stays, but covers no rows, because none was launched that way. It
        stays whole if both were fitted together."""
        if way is None:
            return self
        known, together = self.calibration, any(name.startswith(("host.", "graph.", "pull.")) for name in self.fitted)
        other = known if together or known is None else known.model_copy(update={"covers": ()})
        return self.model_copy(update={"calibration": way.calibration or other})

    @property
    def as_nccl(self) -> bool:
        """Whether the profile has costs of NCCL's `kernels`; calls are then simulated as NCCL runs them."""
        return self.kernels is not None


@dataclass(frozen=True)
class CostSetting:
    """The costs by which calls are simulated, taken from a profile or tried by a fit.

    `params` override the engine parameters of the scenario and its profile. `launch` is in ps; in a CUDA graph `graph`
    has the launch. `links` has corrections of rated links by kind.
    """

    params: Mapping[str, int] = field(default_factory=dict)
    launch: int = 0
    links: Mapping[str, LinkScale] = field(default_factory=dict)
    kernels: Kernels | None = None
    host: HostCosts = field(default_factory=HostCosts)
    graph: CudaGraphCosts | None = None
    pull: PullCosts | None = None
    transport: Transport | None = None

    @classmethod
    def of(cls, profile: Profile, params: Mapping[str, int] | None = None) -> Self:
        """Return the costs of a profile, with `params` as overrides."""
        own = profile.launch, profile.links, profile.kernels
        return cls(params or {}, *own, profile.host or HostCosts(), profile.graph, profile.pull, profile.transport)

    def efficiency(self, kind: str, network: Profile) -> float:
        """Return the share of rated bandwidth that payload reaches on links of a kind: by these costs, else by the
        profile `network`."""
        scale = self.links.get(kind) or network.links.get(kind)
        return scale.efficiency if scale else 1.0

    def launch_ps(self, launch: Launch) -> int:
        """The launch time of one call, in ps."""
        return self.graph.launch if launch.graph and self.graph else self.launch

    @property
    def launched_free(self) -> Self:
        """These costs without any launch time: neither the launch nor the extra time to launch many blocks (`grid`)."""
        kernels = (self.kernels or Kernels()).model_copy(update={"grid": 0})
        return replace(self, launch=0, graph=None, kernels=kernels)


# --- files of profiles ---


_SHIPPED: Final = dict(sorted((path.stem, path) for path in (Path(__file__).parent / "profiles").glob("*.yaml")))


def shipped_profiles() -> dict[str, Path]:
    """Return the file of every shipped profile, by name."""
    return _SHIPPED


def find_profile(name: str) -> Path:
    """Return the file of a shipped profile, or the path of the user's own file. For `GPUS+TRANSPORT` return the file of
    GPUS. Raises ValueError with the nearest name."""
    if name in _SHIPPED:
        return _SHIPPED[name]
    if _is_own(name):
        return Path(name)
    gpus, plus, transport = name.partition("+")
    if plus:
        find_profile(transport)
        return find_profile(gpus)
    cure = _of_machine(name) or did_you_mean(name, _SHIPPED)
    raise ValueError(f"{name!r} is neither a shipped profile nor a file; {cure}")


def _is_own(name: str) -> bool:
    """Return whether a profile's name is the path of a user's file; such a path may contain `+`."""
    return input_files.names_yaml(name) and input_files.is_file(Path(name))


def transport_of(name: str) -> str | None:
    """Return the name of the transport in `GPUS+TRANSPORT`; None without one."""
    _, plus, transport = name.partition("+")
    return transport if plus and not _is_own(name) else None


def files_of(name: str) -> list[Path]:
    """Return the files from which a profile gets its values: its own file, the files of the profile that it is `like`,
    and the files of its transport. Raises the errors of `load_network`."""
    files, profile = [find_profile(name)], load_network(name)
    while profile.like:
        files, profile = [*files, find_profile(profile.like)], load_network(profile.like)
    transport = transport_of(name)
    return [*files, find_profile(transport)] if transport else files


def _of_machine(name: str) -> str | None:
    """Return the fix for a profile's name with a machine's name in it, such as `nccl-h100`: the machine's profile; else
    None."""
    parts = set(re.split(r"[^a-z0-9]+", name.lower()))
    for system in shipped_systems():
        file, words = load_system(system), {*system.split("-")} - {"hgx", "dgx", "pcie", "efa", "slingshot"}
        if file.profile and not file.like and parts & words:
            return f"write {file.profile!r}, which is of {system}"
    return None


def load_profile(name: str) -> Profile:
    """Read a profile of calls, or `GPUS+TRANSPORT`: a profile of GPUs with the transport costs of a second profile.

    Raises InputError for an unreadable file, for a profile of NICs alone, and for a second profile without a transport.
    """
    profile, transport, gpus = load_network(name), transport_of(name), name.partition("+")[0]
    if profile.of_nics:
        problem = f"{gpus!r} has costs of NICs only, and none of GPUs"
        raise wrong("profile", problem, f"add a GPU profile, e.g. `profile: nccl+{gpus}`")
    if transport is None:
        return profile
    network = load_network(transport)
    if network.transport is None:
        raise wrong("profile", f"{transport!r} has no costs of messages between nodes", f"write {gpus}")
    links = {**profile.links, CABLE: network.links.get(CABLE, LinkScale())}
    return profile.model_copy(update={"name": name, "transport": network.transport, "links": links})


def load_network(name: str) -> Profile:
    """Read a profile of any kind: of NICs, or of calls with or without costs of NICs. Raises InputError."""
    if name in _SHIPPED:
        return yaml_tree.once(_shipped, name)
    try:
        path = find_profile(name)
    except ValueError as error:  # a machine's file may name any
        raise wrong("profile", *str(error).split("; ", 1)) from None
    return parse_profile(input_files.text_of(path), str(path))


def _shipped(name: str) -> Profile:
    return parse_profile(input_files.text_of(_SHIPPED[name]), str(_SHIPPED[name]))


def parse_profile(text: str, source: str) -> Profile:
    """Parse a profile; `source` names it in errors. Raises InputError for wrong text."""
    return yaml_tree.once(_parsed, text, source)


def _parsed(text: str, source: str) -> Profile:
    return yaml_tree.validate(Profile, [_with_inherited(yaml_tree.parse(text, source))])[0]


def _with_inherited(tree: Node) -> Node:
    """Add inherited values to the tree of a profile's file: the `kernels` of the profile named by `like`, and missing
    transport costs from its `family`. Raises InputError if `like` is no shipped profile or has no `kernels`."""
    return _of_like(_of_family(tree))


def _of_family(tree: Node) -> Node:
    family, own = tree.get("family"), tree.get("transport")
    if own is None or family is None or family.value not in _SHIPPED:
        return tree
    common = yaml_tree.read(_SHIPPED[str(family.value)]).get("transport")
    for key in OF_FAMILY:
        if common and (cost := common.get(key)) and own.get(key) is None:
            tree = yaml_tree.put(tree, f"transport.{key}", cost)
    return tree


def _of_like(tree: Node) -> Node:
    like, own = tree.get("like"), tree.get("kernels")
    if like is None or not isinstance(like.value, str):
        return tree
    if like.value not in _SHIPPED:
        problem = f"{like.value!r} is no shipped profile"
        raise InputError([Diagnostic(problem, did_you_mean(like.value, _SHIPPED), "like", like.place)])
    costs = _with_inherited(yaml_tree.read(_SHIPPED[like.value])).get("kernels")
    if costs is None:
        cure = "name a profile with `kernels`, such as nccl-hopper, or leave 'like' out"
        raise InputError([Diagnostic(f"{like.value!r} has no costs of kernels", cure, "like", like.place)])
    return yaml_tree.put(tree, "kernels", yaml_tree.over(costs, own) if own else costs)


# --- texts of profiles ---


def titled(name: str) -> str:
    """Return the name of a profile for reports, which call `ideal` a bound."""
    return f"{name}: a bound, not a prediction" if name == "ideal" else name


def described(name: str, transports: Iterable[str] = ()) -> str:
    """Return one line with the descriptions of a profile and of transports used with it."""
    return " + ".join([f"profile {name}: {load_profile(name).description}", *map(described_transport, transports)])


def described_with(pairs: Iterable[tuple[str, str | None]]) -> str:
    """Return one line with the descriptions of (profile, transport or None) pairs."""
    taken: dict[str, list[str]] = {}
    for name, transport in dict.fromkeys(pairs):
        taken.setdefault(name, []).extend([transport] if transport else [])
    return "; ".join(described(name, transports) for name, transports in taken.items())


def described_transport(name: str) -> str:
    """Return the name and description of a transport: its NICs, and the data that it was fitted to."""
    return f"{name}, {load_network(name).description.replace('; ', ', ')}"


def params_as_written(params: Params) -> dict[str, object]:
    """Return engine parameters as exact texts for the key `model` of a profile, without those equal to `one-port`."""
    plain = Params()
    given = {name: value for name, value in vars(params).items() if value != getattr(plain, name)}
    return {name: _SPELT[name](value) if name in _SPELT else value for name, value in given.items()}


def _exact(value: int, digits: int) -> str:
    return f"{value // 10**digits}.{value % 10**digits:0{digits}d}".rstrip("0").rstrip(".")


_SPELT: Final[dict[str, Callable[[Any], object]]] = {
    **dict.fromkeys(("o_send", "o_recv", "g"), lambda ps: f"{_exact(ps, 6)} us"),
    **dict.fromkeys(("gamma", "channel_bandwidth"), lambda rate: f"{_exact(rate, 9)} GB/s"),
    "channels": lambda channels: channels or "per-peer",
    "chunk": units.format_size,
    "blocking": lambda blocking: blocking == "sends-first" or blocking,
}
