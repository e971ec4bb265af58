"""Environment variables of NCCL that a scenario sets, parsed as NCCL parses them.

Meanings and values are from NVIDIA's documentation of NCCL's environment variables. The old numbers of NCCL_P2P_LEVEL
and the order in which channels are limited are from NVIDIA/nccl, release 2.30, src/graph/paths.cc and connect.cc.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator

from simcoll import units
from simcoll.config.yaml_tree import Model
from simcoll.errors import InputError, RefusedError, did_you_mean
from simcoll.nccl.algorithm_names import COLLECTIVES, TunedCollective
from simcoll.nccl.transports_between_nodes import Transport
from simcoll.nccl.tuner_constants import socket_GBps
from simcoll.schedule.names import ALGORITHMS, PROTOCOLS, NcclAlgorithm, Protocol
from simcoll.topology.machine_files import SystemFile, hosts_of
from simcoll.topology.nccl_graphs import PATHS, Level, Path
from simcoll.units import MOST_DIGITS

if TYPE_CHECKING:
    from simcoll.nccl.communicator import Communicator

# Names of NCCL's symmetric kernels, by NVIDIA/nccl, release 2.30, src/sym_kernels.cc.
SYMMETRIC_KERNELS: Final = (
    *("AllReduce_AGxLL_R", "AllReduce_AGxLLMC_R", "AllReduce_RSxLD_AGxST", "AllReduce_RSxLDMC_AGxSTMC"),
    *("AllGather_LL", "AllGather_LLMC", "AllGather_ST", "AllGather_STMC"),
    *("ReduceScatter_LL", "ReduceScatter_LD", "ReduceScatter_LDMC"),
)
_NUMBERED: Final[tuple[Level, ...]] = ("LOC", "PIX", "PXB", "PHB", "SYS")  # greater numbers mean the last level
_SOCKETS: Final = frozenset(("NCCL_NET", "NCCL_IB_DISABLE"))  # select sockets
# Of logs, of errors, of how processes meet, and of how hosts reach each other, which is in the machine's file.
_WITHOUT_EFFECT: Final = frozenset((
    "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_TOPO_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_CHECKS_DISABLE",
    "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_COMM_ID", "NCCL_RAS_ENABLE", "NCCL_RAS_ADDR", "NCCL_OOB_NET_ENABLE",
    "NCCL_OOB_NET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_HOSTID", "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ROCE_VERSION_NUM",
))  # fmt: skip
_NVLS: Final = frozenset(("nvls", "nvls_tree"))


Name = TypeVar("Name", bound=str)


@dataclasses.dataclass(frozen=True)
class Selection:
    """The algorithms and protocols that each collective may use. A collective that is not listed may use all."""

    algorithms: Mapping[TunedCollective, frozenset[NcclAlgorithm]] = dataclasses.field(default_factory=dict)
    protocols: Mapping[TunedCollective, frozenset[Protocol]] = dataclasses.field(default_factory=dict)
    said: str = dataclasses.field(default="", compare=False)  # the variables as `NAME=value`, for messages

    def allows(self, collective: TunedCollective, algorithm: NcclAlgorithm, protocol: Protocol) -> bool:
        """Return whether the user's settings allow this pair of algorithm and protocol for a collective."""
        in_algorithms = algorithm in self.algorithms.get(collective, ALGORITHMS)
        return in_algorithms and protocol in self.protocols.get(collective, PROTOCOLS)

    def insists(self, collective: TunedCollective, protocol: Protocol) -> bool:
        """Return whether the user's settings name the protocol; they then allow LL128 even where NCCL avoids it."""
        return protocol in self.protocols.get(collective, ())


EVERYTHING: Final = Selection()


def selection(algo: str | None = None, proto: str | None = None) -> Selection:
    """Parse the values of NCCL_ALGO and NCCL_PROTO into a `Selection`; raises InputError for unknown names. A value is
    a list for all collectives, or lists for single collectives, or a list for all followed by lists for single ones:
    `ring,tree`, `^nvls`, `allreduce:tree;broadcast:ring`, `^LL128;allreduce:LL128`. `^` excludes the listed names."""
    return Selection(
        _lists("NCCL_ALGO", algo, "algorithm", ALGORITHMS), _lists("NCCL_PROTO", proto, "protocol", PROTOCOLS)
    )


def _lists(variable: str, text: str | None, kind: str, names: Sequence[Name]) -> dict[TunedCollective, frozenset[Name]]:
    selected: dict[TunedCollective, frozenset[Name]] = {}
    for i, entry in enumerate((text or "").split(";") if text else ()):
        function, colon, listed = entry.rpartition(":")
        if not colon and i:
            raise InputError(
                f"{variable}: {entry!r} names no collective",
                "write e.g. allreduce:ring; only the first list needs none",
            )
        collectives = [_known(variable, function, "collective", COLLECTIVES)] if colon else COLLECTIVES
        selected.update(dict.fromkeys(collectives, _list(variable, listed, kind, names)))
    return selected


def symmetric_kernels(text: str | None) -> frozenset[str]:
    """Parse the value of NCCL_SYM_KERNEL into the names of the kernels that it allows. Raises InputError for unknown
    names."""
    return (
        _list("NCCL_SYM_KERNEL", text, "symmetric kernel", SYMMETRIC_KERNELS) if text else frozenset(SYMMETRIC_KERNELS)
    )


def _list(variable: str, text: str, kind: str, names: Sequence[Name]) -> frozenset[Name]:
    listed = text.strip().removeprefix("^")
    given = frozenset(_known(variable, word, kind, names) for word in listed.split(","))
    return frozenset(names) - given if text.strip().startswith("^") else given


def _known(variable: str, word: str, kind: str, names: Sequence[Name]) -> Name:
    by_spelling = {name.replace("_", "").lower(): name for name in names}  # as NCCL writes them, in any case
    spelling = word.strip().replace("_", "").lower()
    if spelling not in by_spelling:
        raise InputError(f"{variable}: {word.strip()!r} is no {kind}", did_you_mean(spelling, by_spelling))
    return by_spelling[spelling]


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """The settings of NCCL's graph search, from NCCL_* variables; None stands for NCCL's default.

    `p2p_level` (NCCL_P2P_LEVEL; LOC is NCCL_P2P_DISABLE=1): the longest path over which GPUs talk directly. `pxn`:
    whether GPUs may use NICs of other GPUs (NCCL_PXN_DISABLE=0). `cross_nic`: NCCL_CROSS_NIC. `nics`: numbers of the
    NICs that NCCL may use (NCCL_IB_HCA). `socket_GBps`: GB/s between processors, if the release of NCCL assumes other
    ones than the machine's file has.
    """

    p2p_level: Path | None = None
    pxn: bool = True
    cross_nic: Literal[0, 1, 2] = 2
    nics: tuple[int, ...] | None = None
    socket_GBps: float | None = None  # noqa: N815


DEFAULTS: Final = SearchSettings()


# --- the variables ---


def _listed(text: str, info: ValidationInfo) -> str:
    try:
        _PARSE[str(info.field_name)](text)
    except InputError as error:
        raise ValueError(str(error.diagnostics[0]).partition(": ")[2]) from None
    return text


_PARSE: Final[Mapping[str, Callable[[str], object]]] = {
    "NCCL_ALGO": lambda text: selection(algo=text),
    "NCCL_PROTO": lambda text: selection(proto=text),
    "NCCL_SYM_KERNEL": symmetric_kernels,
}


def _number(value: object) -> object:
    """Convert a text of digits to an int, because variables are texts; return any other value unchanged."""
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if len(text) <= MOST_DIGITS and text.isascii() and text.isdecimal() else value


def _bytes(value: object) -> object:
    number = _number(value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"{value!r} is not a whole number of bytes; write e.g. {4 << 20}")
    return number


def _named(names: Sequence[str], beyond: bool = False) -> BeforeValidator:
    """Return a validator that replaces numbers from 0 on by `names`; `beyond`: greater numbers mean the last name."""

    def name(value: object) -> object:
        number = _number(value)
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            return value
        return names[min(number, len(names) - 1)] if beyond or number < len(names) else value

    return BeforeValidator(name)


_Listed = Annotated[str, AfterValidator(_listed)]
_Channels = Annotated[int, Field(strict=True, ge=1, le=64), BeforeValidator(_number)]
_Switch = Annotated[Literal[0, 1], BeforeValidator(_number)]
_Three = Annotated[Literal[0, 1, 2], BeforeValidator(_number)]
_Bytes = Annotated[int, Field(strict=True, ge=4096, le=1 << 30), BeforeValidator(_bytes)]
_Pairs = Annotated[int, Field(strict=True, ge=1, le=128), BeforeValidator(_number)]
_Distance = Annotated[Level, _named(_NUMBERED, True), WithJsonSchema({"type": ["string", "integer"]})]
Policy = Literal["DEFAULT", "EFFICIENCY", "ZERO"]
_Policy = Annotated[Policy, _named(get_args(Policy)), WithJsonSchema({"type": ["string", "integer"]})]
_Never = Annotated[Literal["LOC"], _named(["LOC"]), WithJsonSchema({"enum": ["LOC", 0, "0"]})]


class NcclEnv(Model):
    """Environment variables of NCCL, by name. For variables that are not set, NCCL's own rules decide. Variables of
    logs, errors and connections (NCCL_DEBUG, NCCL_SOCKET_IFNAME, NCCL_IB_TIMEOUT, …) are taken, and change nothing."""

    NCCL_ALGO: _Listed | None = None
    """Algorithms that NCCL may choose: `Tree`; `Ring,Tree`; `^NVLS` (all but NVLS); `allreduce:Tree;broadcast:Ring`. It
    has no effect on point-to-point messages, such as those of all_to_all."""
    NCCL_PROTO: _Listed | None = None
    """Protocols that NCCL may choose, in the form of NCCL_ALGO: `Simple`, `^LL128`."""
    NCCL_P2P_LEVEL: _Distance | None = None
    """Greatest distance at which GPUs of a node access each other's memory directly: `LOC` (never), `NVL`, `PIX`,
    `PXB`, `PHB`, `SYS`, or an old number. Beyond this distance, data go through the host's memory. Default: the level
    of the system; else `SYS` for two GPUs of an AMD host, and `PXB` for others."""
    NCCL_P2P_DISABLE: _Switch | None = None
    """`1`: GPUs never access each other's memory directly, whatever NCCL_P2P_LEVEL says."""
    NCCL_MIN_NCHANNELS: _Channels | None = None
    """Least number of channels of ring, tree and PAT. It wins over NCCL_MAX_NCHANNELS."""
    NCCL_MAX_NCHANNELS: _Channels | None = None
    """Greatest number of channels of ring, tree and PAT. Each channel keeps the speed that NCCL's graph search found
    for it, even if fewer channels share the links."""
    NCCL_MIN_CTAS: _Channels | None = None
    """Least number of thread blocks of a call, for all algorithms. It wins over NCCL_MAX_CTAS."""
    NCCL_MAX_CTAS: _Channels | None = None
    """Greatest number of thread blocks of a call, for all algorithms and symmetric kernels."""
    NCCL_NCHANNELS_PER_NET_PEER: _Channels | None = None
    """Number of channels of point-to-point messages to a peer on another node. NCCL rounds it up to a power of two."""
    NCCL_NVLS_ENABLE: _Three | None = None
    """`0`: neither `nvls` nor `nvls_tree` is used."""
    NCCL_SHM_DISABLE: _Switch | None = None
    """`1`: GPUs of a node do not send through the host's memory. It has no effect where all GPUs access each other's
    memory directly; simcoll refuses it elsewhere, because these GPUs would send over their NICs."""
    NCCL_MNNVL_ENABLE: _Three | None = None
    """`0`: NVLink joins only the GPUs of a host, also in a rack such as GB200 NVL72. simcoll refuses it there; write
    the rack's hosts as nodes."""
    NCCL_IB_MERGE_NICS: _Switch | None = None
    """Whether NCCL merges the ports of a NIC. It has no effect: NCCL uses the NICs of a machine's file."""
    NCCL_CTA_POLICY: _Policy | None = None
    """`DEFAULT`, `EFFICIENCY` or `ZERO`, or their numbers from 0: how many thread blocks NCCL prefers for registered
    buffers. With `launch.registered` copy engines run an all_gather under `ZERO`; simcoll refuses other calls, and
    `EFFICIENCY`. Without it the variable has no effect."""
    NCCL_SYM_CTAS: _Channels | None = None
    """Number of thread blocks of symmetric kernels. Default: as many as the links need."""
    NCCL_SYM_KERNEL: _Listed | None = None
    """Symmetric kernels that NCCL may choose, in the form of NCCL_ALGO (before 2.31: one name). simcoll models those
    that multicast or reduce in the switch (`AllReduce_AGxLLMC_R`, …), and `ReduceScatter_LL`."""
    NCCL_IB_HCA: str | None = None
    """The NICs to use, by the first letters of their names: `mlx5_0,mlx5_1` (`mlx5_0` is the `nic0` of a system). `=`
    before the list asks for whole names; `^` means all NICs but these. simcoll ignores numbers of ports."""
    NCCL_CROSS_NIC: _Three | None = None
    """Whether a channel may leave a node by one NIC and enter the next by another NIC: `0` no, `1` yes, `2` if that is
    faster."""
    NCCL_PXN_DISABLE: _Switch | None = None
    """`1`: a GPU does not send through the NIC of another GPU. Messages may then cross from rail to rail, and a proxy
    receives each message by itself."""
    NCCL_NET_GDR_LEVEL: _Never | None = None
    """`LOC` or `0`: NICs do not access the memory of GPUs (GPUDirect RDMA is off), so proxies copy all data through the
    host's memory. simcoll does not know the effect of other values."""
    NCCL_BUFFSIZE: _Bytes | None = None
    """Bytes of a connection's buffer in Simple: 4,194,304 by default. It has room for 8 steps. The sizes of chunks,
    slices and messages are shares of it. NVLS has chunks of its own, of at most an eighth of it."""
    NCCL_P2P_NET_CHUNKSIZE: _Bytes | None = None
    """Greatest number of bytes in a chunk of point-to-point messages between nodes: 131,072 by default."""
    NCCL_IB_QPS_PER_CONNECTION: _Pairs | None = None
    """Number of queue pairs of a connection: 1 by default. If switches choose routes by a hash, each queue pair has its
    own route. It has an effect only if routes are drawn at random (`variability: {ecmp: {}}`)."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        data = {name: value for name, value in data.items() if name not in _WITHOUT_EFFECT}
        if unknown := [repr(name) for name in data if name not in cls.model_fields]:
            sockets = _SOCKETS & {*data}
            known = f"set {', '.join(cls.model_fields)}"
            cure = "for sockets take `profile: PROFILE+tcp`, e.g. nccl-hopper+tcp" if sockets else known
            raise ValueError(f"{', '.join(unknown)}: not modelled; {cure}")
        return data

    def __str__(self) -> str:
        """Return the variables that are set, as `NAME=value NAME=value`."""
        return " ".join(f"{name}={value}" for name, value in self.given.items())

    @property
    def given(self) -> dict[str, Any]:
        """The variables that the user set, as a dictionary from name to value."""
        named = self.model_fields_set  # often empty, while there are many variables
        return {name: value for name, value in self if value is not None} if named else {}

    def beside(self, system: SystemFile | None) -> Self:
        """Return a copy with the variables that the system's NICs need on several nodes, unless the user set them."""
        asked = system.nic.env if system and system.nic else {}
        return self.model_validate({**asked, **self.given}) if asked else self

    def apart(self, system: SystemFile | None) -> Self:
        """Return a copy with the user's own settings only, without the variables that the system's NICs need."""
        asked = type(self)().beside(system).given.items()
        own = {name: value for name, value in self.given.items() if (name, value) not in asked}
        return self.model_validate(own) if asked else self

    @property
    def selection(self) -> Selection:
        """The algorithms and protocols that NCCL_ALGO, NCCL_PROTO and NCCL_NVLS_ENABLE allow."""
        chosen = selection(self.NCCL_ALGO, self.NCCL_PROTO)
        algorithms = dict(chosen.algorithms)
        if self.NCCL_NVLS_ENABLE == 0:
            algorithms = {name: algorithms.get(name, frozenset(ALGORITHMS)) - _NVLS for name in COLLECTIVES}
        return Selection(algorithms, chosen.protocols, said=str(self))

    def without_p2p(self) -> Self:
        """Return a copy with NCCL_P2P_DISABLE=1."""
        return self.model_copy(update={"NCCL_P2P_DISABLE": 1})

    def search(self, system: SystemFile, version: str | None = None) -> SearchSettings:
        """Return the settings of NCCL's graph search on a system, for a release. Raises RefusedError like
        `unused_nics`."""
        self.check_rack(system)
        sockets = [units.parse(rule.bandwidth, "bandwidth") / 1e9 for rule in system.links if rule.kind == "socket"]
        assumed = socket_GBps(system.cpu.model, version) if system.cpu and system.gpu and sockets else None
        found: dict[str, Any] = {} if self.NCCL_CROSS_NIC is None else {"cross_nic": self.NCCL_CROSS_NIC}
        count, unused = system.counts.get("nic", 0), self.unused_nics(system)
        used = tuple(number for number in range(count) if number not in unused)
        nics = used if unused else None
        other = None if assumed in sockets else assumed
        found |= {"p2p_level": self._p2p_level, "nics": nics, "pxn": not self.NCCL_PXN_DISABLE, "socket_GBps": other}
        return SearchSettings(**found)

    def unused_nics(self, system: SystemFile) -> tuple[int, ...]:
        """Return the numbers of a node's NICs that NCCL_IB_HCA excludes. Raises RefusedError if it excludes all."""
        count = system.counts.get("nic", 0)
        unused = tuple(number for number in range(count) if not self._uses(number))
        if count and len(unused) == count:
            raise RefusedError(f"NCCL_IB_HCA={self.NCCL_IB_HCA} matches no NIC of mlx5_0 … mlx5_{count - 1}; name some")
        return unused

    @property
    def _p2p_level(self) -> Level | None:
        return "LOC" if self.NCCL_P2P_DISABLE else self.NCCL_P2P_LEVEL

    def _uses(self, number: int) -> bool:
        """Return whether NCCL_IB_HCA lets NCCL use the NIC with this number in the node."""
        listed = (self.NCCL_IB_HCA or "").strip()
        but, listed = listed.startswith("^"), listed.removeprefix("^")
        exact, listed = listed.startswith("="), listed.removeprefix("=")
        names = [name.partition(":")[0].strip() for name in listed.split(",") if name.strip()]
        own = (f"mlx5_{number}", f"nic{number}")
        met = any(each == name if exact else each.startswith(name) for name in names for each in own)
        return not names or met != but

    def transport(self, transport: Transport) -> Transport:
        """Return the costs of messages between nodes, changed as NCCL_NET_GDR_LEVEL demands."""
        return transport.without_gpudirect() if self.NCCL_NET_GDR_LEVEL else transport

    def _check_ways(self, comm: "Communicator") -> None:
        """Raise RefusedError for variables that send data over ways that simcoll does not know."""
        far = PATHS.index(comm.graphs["ring"].type_intra) > PATHS.index(self._p2p_level or comm.p2p_level)
        if self.NCCL_SHM_DISABLE and far and comm.gpus > 1:
            why = "GPUs of this machine that do not talk directly would send over their NICs, which is not modelled"
            raise RefusedError(f"NCCL_SHM_DISABLE=1: {why}; leave it out")

    def check_rack(self, system: SystemFile) -> None:
        """Raise RefusedError if NCCL_MNNVL_ENABLE=0 divides a node into hosts."""
        if self.NCCL_MNNVL_ENABLE == 0 and (hosts := hosts_of(system)) > 1:
            own = f"gpus: {system.counts['gpu'] // hosts}, nodes: {hosts}"
            cure = f"write its hosts as nodes, e.g. topology: {{system: {system.name}, {own}}}"
            raise RefusedError(f"NCCL_MNNVL_ENABLE=0: {system.name} is then {hosts} nodes; {cure}")

    def applied(self, comm: "Communicator") -> "Communicator":
        """Return the communicator with the effects of all variables but those for `search` and `selection`."""
        from simcoll.nccl.protocols import figures

        self._check_ways(comm)
        ctas = self.NCCL_MIN_CTAS, self.NCCL_MAX_CTAS
        least = max(filter(None, (self.NCCL_MIN_NCHANNELS, ctas[0])), default=None)
        most = min(filter(None, (self.NCCL_MAX_NCHANNELS, ctas[1])), default=None)
        changed: dict[str, Any] = {"p2p_level": self._p2p_level, "min_channels": least, "max_channels": most}
        changed |= {"ctas": ctas if any(ctas) else None, "net_channels": self.NCCL_NCHANNELS_PER_NET_PEER}
        allowed = symmetric_kernels(self.NCCL_SYM_KERNEL) if self.NCCL_SYM_KERNEL else None
        changed |= {"symmetric_ctas": self.NCCL_SYM_CTAS or self.NCCL_MAX_CTAS, "symmetric_kernels": allowed}
        buffer, chunk = self.NCCL_BUFFSIZE, self.NCCL_P2P_NET_CHUNKSIZE
        if buffer is not None:  # NCCL's default value counts as unset
            changed["buffer_bytes"] = None if buffer == figures().protocols["Simple"].buffer_bytes else buffer
        if chunk is not None:
            own = next(row.chunk_bytes for row in figures().messages if row.nodes == "several")
            changed["net_chunk_bytes"] = None if chunk == own else chunk
        changed |= {"pxn": False if self.NCCL_PXN_DISABLE else None}
        given = {name: value for name, value in changed.items() if value is not None}
        return dataclasses.replace(comm, **given) if given else comm
