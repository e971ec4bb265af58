"""The keys of a scenario, each a field of `Scenario`, and checks of their combinations.

A `Scenario` is one point, so every value is a scalar. `scenario_files` reads a file whose values may be lists and
ranges, and makes a `Scenario` of each combination.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

import simcoll.schedule.algorithms  # noqa: F401  (fills the registry)
from simcoll.config import input_files, yaml_tree
from simcoll.config.field_types import Duration, OneOf, Size
from simcoll.config.yaml_tree import Model, field_texts, models
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError, did_you_mean
from simcoll.formats.schedules import schedule_json
from simcoll.nccl import algorithm_names, tuner_constants
from simcoll.nccl.environment import NcclEnv
from simcoll.scenario.faults import Fault, fit_together
from simcoll.scenario.key_types import Grouped, MeasureSpec, Placed, Plots, Release, weighed
from simcoll.scenario.launch import Launch
from simcoll.scenario.profile import ModelSpec, files_of, find_profile, load_profile
from simcoll.scenario.profile_choice import check_named, own_profile, peak_of, system_of
from simcoll.scenario.variability import Variability
from simcoll.schedule import registry
from simcoll.schedule.collectives import ALSO, BITWISE, COLLECTIVES, OPERATORS
from simcoll.schedule.names import DTYPES, WORKLOAD
from simcoll.synthesis import synthesize
from simcoll.topology.machine_files import files_of_machine, shipped_systems
from simcoll.topology.topology_builder import nodes_of
from simcoll.topology.topology_keys import PathDraws, TopologySpec
from simcoll.workload.expert_routing import BY_EXPERTS, DISPATCH, TOKENS, ExpertTokens
from simcoll.workload.workload_keys import Workload

CHOSEN: Final = ("all", "auto", "best")  # words in place of an algorithm's name
SYNTHESIZED: Final = synthesize.NAME  # … and of one that is made for the topology
ITEMSIZE: Final = {row.name: row.itemsize for row in DTYPES}
_DTYPE_ALIASES: Final = {row.nccl_tests: row.name for row in DTYPES if row.nccl_tests != row.name}
_VARIED: Final = "variability: {launch_skew: {distribution: lognormal, median: 3 us, sigma: 0.8}}"
OF_ONE: Final = {  # keys of a single collective -> the corresponding key of a workload's operation, if any
    **{key: key for key in ("collective", "algorithm", "size", "root")},
    **dict.fromkeys(("op", "in_place", "weights", "arrivals"), ""),
    "subgroups": "groups",
}
WITH_COLUMN: Final = frozenset(  # keys that have a column in the results, so that no column for swept keys is needed
    {"name", "seed", "collective", "algorithm", "ranks", "root", "op", "dtype", "in_place", "protocol", "profile"}
    | {"size", "engine", "shortcuts", "proof", "topology.system", "topology.nodes", "topology.hosts"}
    | {"workload.template", "workload.algorithm", "executor", "library_version"}
)
MOST_BYTES: Final = 2**60  # sizes and their sums stay within 64 bits
NATURAL_LISTS: Final = frozenset(
    {"plots", "groups", "subgroups", "placement", "dims", "weights", "arrivals", "routes", "layers", "operations"}
    | {"slow", "slow_links", "faults"}
)


def algorithm_for(collective: str | None, spec: str) -> str:
    """Return the value of the key `algorithm` in the registry's spelling. `spec` is the file of a schedule, one of
    CHOSEN, or a name of NCCL's or the registry's. Raises ValueError otherwise."""
    if schedule_json.is_file(spec):
        _check_schedule(spec, collective)
        return spec
    if collective is None or spec in CHOSEN or spec in algorithm_names.names(collective):
        return spec
    if spec == SYNTHESIZED and collective in synthesize.COLLECTIVES:
        return spec
    return _of_registry(collective, spec)


def _check_schedule(path: str, collective: str | None) -> None:
    """Raise ValueError unless the file is a schedule of the collective."""
    with _first_mistake():
        schedule = schedule_json.read(path)
    if collective and schedule.collective != collective:
        raise ValueError(f"{path!r} is a schedule of {schedule.collective}, not {collective}; change `collective`")


def _of_registry(collective: str, spec: str) -> str:
    """Return an algorithm and its options in the registry's spelling; raises ValueError if it is unknown."""
    name, known = spec.partition("(")[0].strip(), registry.names(collective)
    if name not in known:
        made = [SYNTHESIZED] if collective in synthesize.COLLECTIVES else []
        served = (*known, *algorithm_names.names(collective), *CHOSEN, *made)
        raise ValueError(f"{name!r} is no algorithm for {collective}; {did_you_mean(name, dict.fromkeys(served))}")
    with _first_mistake():
        entry, options = registry.find(collective, spec)
    return entry.spelt(options)


def _every_algorithm() -> set[str]:
    """Return the names of all registered algorithms, of any collective."""
    return {name for which in registry.ALGORITHMS for name in registry.names(which)}


@contextlib.contextmanager
def _first_mistake() -> Iterator[None]:
    """Convert an InputError in the context into the ValueError that a validator must raise, with its first mistake."""
    try:
        yield
    except InputError as error:
        first = error.diagnostics[0]
        raise ValueError(str(first if first.place else replace(first, path=""))) from None


def machine_named(name: str) -> dict[str, Any]:
    """Convert a text at the key `topology` (a file, a shipped system's name, or keys in braces) into a mapping."""
    if name.startswith("{"):
        return dict(yaml_tree.parse(name, "topology").plain())
    return {"file" if input_files.names_yaml(name) else "system": name}


class Scenario(Model):
    """One point of a scenario file: each key has a single value.

    Raises InputError with every mistake.

    >>> Scenario(topology={"system": "hgx-h100"}, collective="all_reduce", size="1 MiB").nbytes
    1048576
    """

    also_called: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("on", "machine", "cluster"), "topology"),
        **{
            name: f"topology.{name}"
            for name in ("system", "nodes", "fabric", "hosts", "link", "links", "routing", "ecmp")
        },
        "transport": "profile: A+B, of GPUs and NICs, e.g. nccl-hopper+efa",
    }

    version: Literal[1] = 1
    """Version of the format."""
    name: str = "scenario"
    """Title of tables, plots and rows. Default: the name of the file, without `.yaml`."""
    seed: StrictInt = 0
    """Start of the random numbers of `variability`, and of the bandwidths of links that have a `spread`."""
    topology: TopologySpec
    """The machine: a shipped system, a topology file, or a fabric of hosts without GPUs."""
    workload: Workload | None = None
    """A training or inference step, in place of `collective`, `algorithm` and `size`."""
    collective: Annotated[str, OneOf("collective", lambda: COLLECTIVES, hidden=(WORKLOAD,))]
    """Name of the collective, or `all`."""
    moe: ExpertTokens | None = Field(default=None, validate_default=True)
    """Tokens of a mixture of experts, in place of `size` and `dtype`: for `moe_dispatch` and `moe_combine`."""
    algorithm: str = "auto"
    """Name of an algorithm, `all`, or the path of a schedule file that ends in `.json`. Options go in brackets:
    `hierarchical(across=recursive_doubling)`. `auto` takes NCCL's choice if the profile has `kernels`; else it takes,
    of the algorithms that NCCL has, the one with the shortest predicted time. `best` needs a profile with `kernels`: it
    takes the fastest pair of algorithm and protocol that NCCL could use. With `executor: msccl` or `p2p`, `auto` and
    `best` take the schedule with the shortest predicted time. The column `algorithm` of the results names the
    algorithm."""
    ranks: Annotated[StrictInt, Field(ge=1)] | None = None
    """Number of ranks. Default: every GPU, or every host."""
    placement: Placed = None
    """Where the ranks run: `{per_node: 2}`, or a list with a device for each rank."""
    groups: Grouped = None
    """Groups of ranks for hierarchical algorithms: a number of groups, or lists of ranks. Lists may be nested for more
    levels or dimensions. Default: a group for each node. If each node has one rank: a group for each leaf switch of a
    fat tree, or the dimensions of a torus. Else g equal groups, where g is the largest divisor of the number of ranks n
    with g² ≤ n."""
    subgroups: tuple[tuple[StrictInt, ...], ...] | None = None
    """Lists of ranks. The ranks of each list run the collective among themselves. All lists run at the same time, on
    the same links."""
    root: Annotated[StrictInt, Field(ge=0)] = 0
    """The root, for collectives that have one."""
    dtype: Annotated[str, OneOf("dtype", lambda: ITEMSIZE, _DTYPE_ALIASES)] = "float32"
    """Data type of an element."""
    op: Annotated[str, OneOf("operator", lambda: OPERATORS, ALSO)] = "sum"
    """Operator of the reduction. `band`, `bor` and `bxor` need an integer type."""
    in_place: StrictBool = False
    """Whether input and output share one buffer."""
    protocol: Literal["none", "auto", "LL", "LL128", "Simple", "pull"] = "none"
    """Protocol of NCCL, as the variable `NCCL_PROTO` sets it. With `auto` or `none`, NCCL chooses; with `executor:
    msccl`, simcoll takes the quickest. `pull` is for `executor: msccl`, and is no protocol of NCCL: ranks read each
    other's memory, and wait for each other at barriers of flags. A protocol needs a profile with `kernels`; `pull`
    needs a profile with `pull`."""
    library_version: Release | None = None
    """Release of NCCL, e.g. `2.27`: simcoll chooses as this release does. It must be 2.18 or newer, for point-to-point
    messages 2.7 or newer. Default: the release in the profile, else NCCL 2.30 or RCCL 2.21."""
    size: Size = Field(default=None, validate_default=True)
    """Largest buffer of a rank, as nccl-tests counts it. A barrier has none."""
    weights: tuple[Any, ...] | None = None
    """Blocks of unequal size. For gather, scatter, all_gather and reduce_scatter: a number for each rank. For
    all_to_all: a list of numbers for each rank."""
    arrivals: dict[Annotated[int, Field(ge=0)], Duration] | None = None
    """Ranks that start later than the others, and by how much: `{3: 50 us}`."""
    model: ModelSpec = ModelSpec.plain()
    """Parameters of the timing model. Parameters that are missing here come from the profile."""
    profile: str = Field(default="", validate_default=True)
    """Name of a shipped profile, or path of your own. Default: the profile that the topology file names. If it names
    none: the shipped profile that was fitted to GPUs of this `generation`, with the profile of the machine's NICs. If
    there is none, and for hosts without GPUs: `one-port`."""
    env: Annotated[NcclEnv, Field(validate_default=True)] = NcclEnv.plain()
    """Environment variables of NCCL, such as `{NCCL_ALGO: Tree}`. They are added to the variables that the machine's
    NICs need. Needs a profile with `kernels`."""
    executor: Literal["nccl", "msccl", "p2p", "pairwise", "deepep", "low-latency"] | None = Field(
        default=None, validate_default=True
    )
    """How a schedule runs on the GPUs, with a profile that has `kernels`. `nccl`: as NCCL's own call. `msccl`: as one
    kernel that is built from NCCL's primitives, as MSCCL's executor runs it. `p2p`: as sends and receives with a launch
    for each step, as `simcoll measure` runs it. Default: `nccl` for algorithms that NCCL has for the collective, else
    `msccl`. With `nccl`, names such as `ring` and `tree` mean NCCL's own call; with the others, simcoll's schedule of
    this name. `moe_dispatch` and `moe_combine` have three executors of their own. `pairwise`, the default: as an
    all_to_all, with a copy of a token for each of its experts. `deepep`: as DeepEP's normal kernels, with a copy for
    each node over NICs, and a copy for each rank within nodes. `low-latency`: as DeepEP's low-latency kernels, with a
    copy for each expert."""
    sms: Annotated[StrictInt, Field(ge=2, multiple_of=2)] | None = None
    """Number of SMs (multiprocessors of a GPU) that run a kernel of `executor: deepep`. Default: 20, as in DeepEP."""
    launch: Launch = Launch.plain()
    """How calls are launched, one after the other without a pause, as nccl-tests launches them. Default: as in the
    measurements to which the profile was fitted."""
    engine: Literal["auto", "event", "fast"] = "auto"
    """`event` runs on SimPy and defines the result. `fast` computes equal times sooner. `auto` means `fast`."""
    shortcuts: Literal["on", "off"] = "on"
    """Whether the fast engine may take shortcuts. They do not change the result. The column `shortcut` names the
    shortcut that it took."""
    proof: Literal["full", "fingerprint", "off"] | None = None
    """How a schedule is proved before it is timed. `full` tracks whose data each slot holds; it is the default up to
    1,024 ranks. `fingerprint`, the default for more ranks, adds up random 64-bit numbers, one for each rank and block;
    it misses a wrong slot with a probability of 2⁻⁶⁴. `off` proves nothing."""
    faults: tuple[Fault, ...] = ()
    """Links that fail, slow down or carry other traffic."""
    variability: Annotated[Variability | None, Field(title="Variability")] = None
    """How runs of one point differ at random."""
    replications: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = None
    """Number of random runs, for `variability` and for faults with a probability."""
    measured: str | None = None
    """Path of a measured table. Its points are drawn into the plots."""
    measure: MeasureSpec = MeasureSpec.plain()
    """How `simcoll measure` runs the point on real hardware."""
    plots: Plots = ("busbw", "latency")
    """Pictures to draw."""

    def __init__(self, /, *files: object, **keys: Any):
        if files:
            cure = f"write simcoll.load({files[0]!r}), or Sweep({files[0]!r}), for the points of a file or a mapping"
            raise InputError("Scenario() takes keys only: topology=, collective=, size=, …", cure)
        try:
            super().__init__(**keys)
        except ValidationError as error:
            raise InputError(yaml_tree.mistakes(error, type(self), keys)) from None

    # Validation of files does not call this method, so that their mistakes get places.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # a mark of pydantic

    @model_validator(mode="before")
    @classmethod
    def _machine_in_a_word(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(name := data.get("topology"), str):
            return {**data, "topology": machine_named(name)}
        return data

    @model_validator(mode="before")
    @classmethod
    def _draws_of_paths(cls, data: object) -> object:
        """Convert `topology.ecmp` into replications with random routes."""
        topology = data.get("topology") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(topology, dict) or not isinstance(topology.get("ecmp"), dict):
            return data
        try:
            paths = PathDraws.model_validate(topology["ecmp"])
        except ValidationError:  # reported at `topology.ecmp`
            return data
        draws, variability = paths.draws, data.get("variability") or {}
        if not isinstance(variability, dict) or "ecmp" in variability or data.get("replications", draws) != draws:
            problem = "`topology.ecmp` says how often which routes are drawn"
            cure = "leave out `variability.ecmp`, `replications`"
            raise yaml_tree.MisplacedKeyError(["topology", "ecmp"], f"{problem}; {cure}")
        flows = {"flows": paths.qps_per_connection}
        return {**data, "variability": {**variability, "ecmp": flows}, "replications": draws}

    @model_validator(mode="before")
    @classmethod
    def _workload_or_collective(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("workload") is None:
            return data
        for key in OF_ONE:
            if key in data:
                cure = (
                    f"leave it out, or write {OF_ONE[key]} in an entry of operations" if OF_ONE[key] else "leave it out"
                )
                if key == "algorithm":  # of all templates
                    cure = "write it below `workload`, where it may be a list"
                raise yaml_tree.MisplacedKeyError([key], f"{key!r} does not go with a workload; {cure}")
        work = data["workload"]
        if "dtype" in data and isinstance(work, dict) and work.get("template") == "training":
            problem = "'dtype' does not go with template: training; write `dtypes` below `workload`"
            raise yaml_tree.MisplacedKeyError(["dtype"], problem)
        return {"plots": ["step", "overlap"], **data, "collective": WORKLOAD, "size": "0 B"}

    @model_validator(mode="before")
    @classmethod
    def _tokens_in_place_of_size(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("collective") not in TOKENS:
            return data
        for key in ("size", "dtype", "weights", "subgroups"):
            if data.get(key) is not None:
                told = "it follows from `moe`" if key == "size" else "write `moe.dtype`" if key == "dtype" else ""
                cure = told or "`moe.routing` says which rank gets how much"
                raise yaml_tree.MisplacedKeyError([key], f"{key!r} does not go with {data['collective']}; {cure}")
        for key in ("protocol", "env") if data.get("executor") in BY_EXPERTS[1:] else ():
            if data.get(key) not in (None, "none", "auto"):
                raise yaml_tree.MisplacedKeyError([key], f"{key!r} has no effect on DeepEP's kernels; leave it out")
        return {**data, "dtype": "uint8"}

    @field_validator("moe")
    @classmethod
    def _tokens_to_move(cls, value: ExpertTokens | None, info: ValidationInfo) -> ExpertTokens | None:
        name = info.data.get("collective")
        if value is None and name in TOKENS:
            example = "moe: {tokens: 4096, hidden: 7168, topk: 8, experts: 256}"
            raise ValueError(f"{name} needs `moe`; add e.g. {example}")
        if value is not None and name not in (None, *TOKENS):
            raise ValueError(f"{name} moves no tokens; leave `moe` out, or write collective: {DISPATCH}")
        return value

    @field_validator("sms")
    @classmethod
    def _sms_of_a_kernel(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("executor") != "deepep":
            raise ValueError("only DeepEP's normal kernels have a number of SMs; add executor: deepep, or leave it out")
        return value

    @field_validator("workload")
    @classmethod
    def _known_algorithms(cls, value: Any) -> Any:
        every = {
            *(*CHOSEN, SYNTHESIZED),
            *_every_algorithm(),
            *(name for which in COLLECTIVES for name in algorithm_names.names(which)),
        }
        asked = [getattr(value, "algorithm", None), *(each.algorithm for each in getattr(value, "operations", ()))]
        for name in filter(None, asked):
            if name.partition("(")[0].strip() not in every and not schedule_json.is_file(name):
                raise ValueError(f"{name!r} is no algorithm; {did_you_mean(name, every)}")
        for number, each in enumerate(getattr(value, "operations", ())):
            path = ("operations", number, "algorithm") if each.algorithm else ("algorithm",)
            try:
                if each.collective:
                    algorithm_for(each.collective, each.algorithm or value.algorithm)
            except ValueError as error:
                raise yaml_tree.BelowError(path, str(error)) from None
        return value

    @field_validator("workload")
    @classmethod
    def _on_a_gpu(cls, value: Any, info: ValidationInfo) -> Any:
        if getattr(value, "model", None) is None or value.gpu is not None or "topology" not in info.data:
            return value  # mistakes of the topology are reported there
        system = system_of(info.data.get("topology"))
        if not (gpu := peak_of(system) if system else None):
            raise ValueError("a model needs a GPU to compute on; add e.g. gpu: h100")
        return value.model_copy(update={"gpu": gpu})

    @field_validator("workload")
    @classmethod
    def _measured_elsewhere(cls, value: Any, info: ValidationInfo) -> Any:
        """Forget the measured times of calls on any machine but the one on which they were measured."""
        elsewhere = getattr(value, "measured_on", None) not in (None, info.data.get("topology"))
        return value.model_copy(update={"measured_on": None}) if elsewhere else value

    @field_validator("collective")
    @classmethod
    def _no_workload_meant(cls, value: str, info: ValidationInfo) -> str:
        if value == WORKLOAD and info.data.get("workload", True) is None:
            raise ValueError(f"{value!r} is no collective; {did_you_mean(value, COLLECTIVES)}")
        return value

    @field_validator("algorithm")
    @classmethod
    def _known_algorithm(cls, value: str, info: ValidationInfo) -> str:
        name = info.data.get("collective")
        if name or schedule_json.is_file(value):
            return algorithm_for(name, value)
        every = {*CHOSEN, SYNTHESIZED, *_every_algorithm()}
        if value.partition("(")[0].strip() not in every:
            raise ValueError(f"{value!r} is no algorithm; {did_you_mean(value, every)}")
        return value

    @field_validator("op")
    @classmethod
    def _bitwise_on_integers(cls, value: str, info: ValidationInfo) -> str:
        dtype = str(info.data.get("dtype", "int32"))
        if value in BITWISE and "int" not in dtype:
            raise ValueError(f"{value!r} does not work on {dtype}; choose an integer dtype")
        return value

    @field_validator("size")
    @classmethod
    def _whole_elements(cls, value: int | None, info: ValidationInfo) -> int | None:
        name = info.data.get("collective")
        if name in ("barrier", WORKLOAD) or (name in TOKENS and not info.data.get("moe")):
            return 0  # of tokens: the mistake in `moe` is reported
        if name in TOKENS:
            value = info.data["moe"].nbytes(name)
        if value is None:
            raise ValueError("missing key 'size'; add e.g. size: 64 MiB")
        if value > MOST_BYTES:
            raise ValueError("the size is too large; write at most '1048576 TiB'")
        width = ITEMSIZE[dtype := str(info.data.get("dtype", "int8"))]
        if not value:
            raise ValueError(f"the size is 0; write at least '{width} B'")
        if value % width:
            above = value - value % width + width
            raise ValueError(f"{value} B is not a whole number of {dtype} elements; write e.g. '{above} B'")
        return value

    @field_validator("variability")
    @classmethod
    def _something_varies(cls, value: Variability | None) -> Variability | None:
        if value is not None and not value.causes:
            raise ValueError("`variability` is empty; write e.g. `compute_jitter: {sigma: 0.05}`")
        return value

    @model_validator(mode="after")
    def _launched_back_to_back(self) -> Self:
        if self.workload and self.launch.paced:
            problem = "a workload's calls are not launched back to back; leave out `launch.gpus_per_process`"
            raise yaml_tree.MisplacedKeyError(["launch", "gpus_per_process"], problem)
        return self

    @model_validator(mode="after")
    def _disturbed_as_can_be(self) -> Self:
        varies = self.variability is not None or (self.replications is not None and self.faults)
        if bool(varies) != (self.replications is not None):
            there, cure = ("variability", "replications: 200") if self.variability else ("replications", _VARIED)
            problem = f"`variability` and `replications` need each other; add e.g. `{cure}`, or leave out both"
            raise yaml_tree.MisplacedKeyError([there], problem)
        if varies and self.workload and self.workload.template == "training" and self.shortcuts == "on":
            problem = "one rank of each stage stands for all; write `shortcuts: off`, so that ranks vary"
            raise yaml_tree.MisplacedKeyError(["replications"], problem)
        if self.env.NCCL_IB_QPS_PER_CONNECTION and not (self.variability and self.variability.ecmp):
            cure = "add `variability: {ecmp: {}}` and `replications`, or leave it out"
            problem = f"NCCL_IB_QPS_PER_CONNECTION has an effect only with random ECMP routes; {cure}"
            raise yaml_tree.MisplacedKeyError(["env", "NCCL_IB_QPS_PER_CONNECTION"], problem)
        if self.faults:
            calls_of = self.profile if self.workload and load_profile(self.profile).as_nccl else ""
            fit_together(self.faults, self.replications, self.measure.buckets, calls_of)
        return self

    @field_validator("profile")
    @classmethod
    def _known_profile(cls, value: str, info: ValidationInfo) -> str:
        spec = info.data.get("topology")
        if (system := system_of(spec)) and spec and spec.file:
            check_named(system, yaml_tree.read(Path(spec.file)))
        profile = value or own_profile(spec)
        find_profile(profile)
        return profile

    @field_validator("env")
    @classmethod
    def _as_plugins_ask(cls, value: NcclEnv, info: ValidationInfo) -> NcclEnv:
        spec, profile = (info.data.get(key) for key in ("topology", "profile"))
        system = system_of(spec)  # None for what has no NICs that ask, and for a file with mistakes
        served = system and spec and nodes_of(spec) > 1 and profile and load_profile(profile).as_nccl
        return value.beside(system) if served else value

    @field_validator("executor")
    @classmethod
    def _kernels_to_execute(cls, value: str | None, info: ValidationInfo) -> str | None:
        profile, algorithm, collective = (info.data.get(key) for key in ("profile", "algorithm", "collective"))
        if collective in TOKENS or value in BY_EXPERTS:
            if value is not None and (collective in TOKENS) != (value in BY_EXPERTS):
                served = BY_EXPERTS if collective in TOKENS else ("nccl", "msccl", "p2p")
                raise ValueError(f"{collective} has no executor {value!r}; write {', '.join(served)}")
            return value
        if value is None or profile is None:
            return value
        if not load_profile(profile).as_nccl:
            raise ValueError(f"profile {profile!r} has no `kernels`; take one that has, or leave out `executor`")
        if value != "nccl" and collective and algorithm and algorithm in algorithm_names.names(collective):
            try:
                _of_registry(collective, algorithm)
            except ValueError as error:
                raise ValueError(f"`executor: {value}` runs only simcoll's schedules: {error}") from None
        return value

    @field_validator("library_version")
    @classmethod
    def _known_release(cls, value: str | None, info: ValidationInfo) -> str | None:
        with _first_mistake():
            tuner_constants.check(value, str(info.data.get("collective", "")))
        return value

    @field_validator("weights")
    @classmethod
    def _blocks_to_weigh(cls, value: tuple[Any, ...] | None, info: ValidationInfo) -> tuple[Any, ...] | None:
        name = str(info.data.get("collective", "gather"))
        if value is not None and COLLECTIVES[name].blocks(2) == 1:
            raise ValueError(f"{name} has no blocks to weight; leave out `weights`")
        return value if value is None else weighed(value)

    @field_validator("subgroups")
    @classmethod
    def _ranks_in_subgroups(cls, value: tuple[tuple[int, ...], ...] | None) -> tuple[tuple[int, ...], ...] | None:
        if value is not None and not all((value, *value)):
            raise ValueError("a group is empty; write lists of ranks: [[0, 1], [2, 3]]")
        return value

    @field_validator("measured")
    @classmethod
    def _known_table(cls, value: str | None) -> str | None:
        if value is not None:
            from simcoll.formats.measured import find_measured  # few scenarios name one

            with _first_mistake():
                find_measured(value)  # `scenario_files` reads it, once for all points
        return value

    @property
    def executed_by(self) -> str | None:
        """The executor of the call: `nccl`, `msccl` or `p2p`; for tokens `pairwise`, `deepep` or `low-latency`. None
        with a profile without `kernels`."""
        if self.moe:
            return self.executor if self.executor in BY_EXPERTS else "pairwise"
        if self.executor or not load_profile(self.profile).as_nccl:
            return self.executor
        names = algorithm_names.names(self.collective)
        own = (self.algorithm in CHOSEN and bool(names)) or algorithm_names.name_of(
            self.algorithm, self.collective
        ) in names
        own |= (self.collective, self.algorithm) == ("send_recv", "direct")  # one message, as pipelines send
        return "nccl" if own and self.protocol != "pull" else "msccl"

    @property
    def nbytes(self) -> int:
        """The size in bytes; 0 for a barrier."""
        return self.size or 0

    @property
    def itemsize(self) -> int:
        """The number of bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def striking(self) -> tuple[Fault, ...]:
        """The faults that strike the single undisturbed run. Empty with replications, because each replication draws
        its own faults."""
        return () if self.replications else self.faults

    @property
    def in_buckets(self) -> bool:
        """Whether the collective is cut into buckets, i.e. several calls."""
        return not self.workload and self.measure.harness == "library" and self.measure.buckets > 1

    def files(self) -> list[Path]:
        """Return the paths of the files that the result depends on, apart from the scenario: topology, profiles,
        schedule and counts of tokens."""
        named = Path(self.topology.file) if self.topology.file else shipped_systems().get(self.topology.system or "")
        topology = files_of_machine(named) if named and input_files.is_file(named) else [named] if named else []
        schedule = [Path(self.algorithm)] if schedule_json.is_file(self.algorithm) else []
        system = system_of(self.topology)
        of_system = [system.profile, system.nic.profile if system.nic else None] if system else []
        profiles = [path for name in (self.profile, *of_system) if name for path in files_of(name)]
        counts = [Path(self.moe.routing.counts)] if self.moe and self.moe.routing.counts else []
        return [*topology, *dict.fromkeys(profiles), *schedule, *counts]

    def contents(self) -> str:
        """Return the contents of `files`, joined. If they change, the results may change."""
        return "\0".join(input_files.text_of(path) for path in self.files() if input_files.is_file(path))

    def params(self) -> Params:
        """The parameters of the timing model, from the profile and from the scenario. The scenario counts if both have
        a parameter."""
        specs = load_profile(self.profile).model, self.model
        given = {name: value for spec in specs for name, value in spec if value is not None and name != "copies"}
        return Params(**given)

    @property
    def copies(self) -> int:
        """The number of copies of the schedule that run side by side."""
        return self.model.copies or load_profile(self.profile).model.copies or 1


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file, in which every scalar may also be a list or a range."""
    known = models()
    for each in known.values():
        each.model_rebuild()  # pydantic needs built serialisers to write defaults that are models
    scenario: dict[str, Any] = Scenario.model_json_schema(by_alias=True)
    scenario["properties"]["collective"]["enum"].append("all")  # stands for a list of all collectives
    for model, definition in [("Scenario", scenario), *scenario.get("$defs", {}).items()]:
        texts = field_texts(known[model]) if "properties" in definition else {}
        for name, value in definition.get("properties", {}).items():
            about = {"description": texts[name]} if name in texts else {}
            definition["properties"][name] = _sweepable(name, {**about, **value, **about})
    scenario["required"] = [name for name in scenario["required"] if name != "collective"]
    scenario["anyOf"] = [{"required": ["collective"]}, {"required": ["workload"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **scenario,
        "title": "simcoll scenario",
        "description": inspect.cleandoc(Scenario.__doc__ or ""),
    }


def _sweepable(name: str, value: dict[str, Any]) -> dict[str, Any]:
    if name in NATURAL_LISTS:
        return value
    kept: dict[str, Any] = {key: value[key] for key in ("description", "default") if key in value}
    bounds = {"type": ["number", "string"]}
    swept = {
        "type": "object",
        "properties": dict.fromkeys(("from", "to", "factor", "step"), bounds),
        "required": ["from", "to"],
        "additionalProperties": False,
    }
    return {**kept, "anyOf": [value, {"type": "array", "minItems": 1, "items": {"anyOf": [value, swept]}}, swept]}
