"""What NCCL's kernels cost: the key `kernels` of a profile.

A kernel runs one thread block a channel. In LL, which moves data by flags that the receiver polls, what a step takes is
time of the block. In LL128 and Simple the block keeps the link busy, and the link is what limits it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from simcoll.config.quantity_field import BandwidthCap, Duration, Share
from simcoll.config.yaml_tree import Model

CostKind = Literal["LL", "LL128", "Simple", "NVLS", "P2P"]

BETWEEN_NODES: Final = ("net", "net_tree", "net_rate")


class BlockCosts(Model):
    """A thread block of a protocol.

    `start`: before the first step, beside the launch. `hop`: from what one rank has to when the next can go on; `net`:
    how much longer that is between nodes; `net_tree`: for trees, where it differs; `net_rate`: B/s at which a message
    is brought to the NIC, which sends it when all of it is there (`none`: at once); what is not said of these is as the
    NICs have it. `slice`: what its sender is at each slice, beside moving it, in Simple. `first`: B/s at which its
    threads move their first line each; `rate`: B/s of all that comes after. `own`: what a rank's own block takes, which
    is copied locally, as a share of a step without its hop; a block does one thing at a time. In Simple that is told
    from a `turn`, what the block takes to load and to store its data once, as a share of a step, of which `load` is the
    loading. `saved`: so much less that is for all_gather in place, where it lies where it belongs. `reach`: the share
    of its links' bandwidth that it reaches. `host`: how much longer a hop is through the host's memory; in LL every
    line of a thread takes that long. `host_reach`: the share that is reached there.

    Of point-to-point messages `rate` is of LL, the others of Simple: `first`: of a chunk that a block sends while it
    receives nothing, or the other way round; `both`: of one that it sends while it receives another; `each`: what
    every further block takes; `reach`: of links of which several messages of a rank have a share.
    """

    start: Duration = 0
    hop: Duration = 0
    net: Duration | None = None
    net_tree: Duration | None = None
    net_rate: BandwidthCap | None = None
    slice: Duration = 0
    first: BandwidthCap = 0
    rate: BandwidthCap = 0
    both: BandwidthCap = 0
    each: Duration = 0
    own: Annotated[Share, Field(le=4)] = 0.0
    turn: Annotated[Share, Field(le=4)] = 0.0
    load: Annotated[Share, Field(le=1)] = 0.5
    saved: Annotated[Share, Field(le=4)] = 0.0
    reach: Annotated[Share, Field(gt=0)] = 1.0
    host: Duration = 0
    host_reach: Annotated[Share, Field(gt=0)] = 1.0

    @property
    def told(self) -> list[str]:
        """The keys that are not what they are without a word."""
        return [key for key, field in type(self).model_fields.items() if getattr(self, key) != field.default]


class Kernels(Model):
    """What calls cost. `grid` is what a launch of very many blocks takes longer than that of one; `spread` the standard
    deviation of what a block takes for 1 MiB, as a share of it: blocks share links unevenly, and a call ends with the
    last of them; `net` how much longer a hop between nodes is with these NICs, whatever the protocol, besides the `net`
    of its blocks. `version` is the release where a scenario does not say another."""

    library: Literal["nccl", "rccl"] = "nccl"
    version: str | None = None
    grid: Duration = 0
    net: Duration | None = None
    spread: Annotated[Share, Field(le=4)] = 0.0
    LL: BlockCosts = BlockCosts()
    LL128: BlockCosts = BlockCosts()
    Simple: BlockCosts = BlockCosts()
    NVLS: BlockCosts = BlockCosts()
    P2P: BlockCosts = BlockCosts()

    def over(self, network: Kernels) -> Kernels:
        """With what `network` says of hops between nodes, where these do not."""
        blocks: dict[str, Any] = {"net": network.net if self.net is None else self.net}
        for kind in KINDS:
            own, its = getattr(self, kind), getattr(network, kind)
            said = {name: getattr(its, name) for name in BETWEEN_NODES if getattr(own, name) is None}
            if own.net is not None:  # trees' hops are those of rings, unless they say so
                said.pop("net_tree", None)
            blocks[kind] = own.model_copy(update=said)
        return self.model_copy(update=blocks)


KINDS: Final[tuple[CostKind, ...]] = get_args(CostKind)
