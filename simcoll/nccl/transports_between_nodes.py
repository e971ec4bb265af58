"""Costs of messages between nodes, in proxies, NICs and the fabric.

A thread block writes a message into a buffer and signals its proxy, a thread of the host. Each GPU has one proxy, which
serves the messages of all channels one after the other, and hands each to the NIC. The NIC sends it to the receiver's
proxy, which signals the receiver's block. The engines model this as links. The link between a GPU and the network is
the proxy: the time of a message is part of the time of its bytes. The link between a NIC and a switch is the fabric,
with half of the latency. Sources: NVIDIA/nccl 2.30, src/proxy.cc and src/transport/net.cc; "Demystifying NCCL" (arXiv
2507.04786, 2025).
"""

from typing import Annotated, Final, Self

from pydantic import Field, PositiveInt, StrictBool

from simcoll.config.field_types import BandwidthCap, Duration, Share, Size
from simcoll.config.yaml_tree import Model
from simcoll.units import PS_PER_S, format_size

# Costs that all networks of a family share: the code by which proxies begin messages is the same, and the time of
# access to a GPU's memory depends on the host.
OF_FAMILY: Final = ("flush",)
FLUSHED: Final = 90  # from this compute capability on, NCCL does not read back data that a NIC wrote


class Transport(Model):
    """Costs of messages between nodes. Together with the efficiency of cables they describe a network."""

    latency: Duration = 0
    """Time of a message of 0 bytes from one proxy to another."""
    proxy: Duration = 0
    """Time of a proxy to send or to receive a message. The proxy of a GPU does one of these at a time."""
    operation: Duration = 0
    """Time of a proxy to begin sends to a peer, or receives from a peer, in addition to the time of its messages. It
    matters most if few messages go to many peers. In rings and trees it does not count, because the proxy begins the
    next call while the GPU still works on this one."""
    staging: BandwidthCap = 0
    """Bandwidth of a proxy for data in the host's memory. The proxy copies these data into a socket, or reads the flags
    of LL before it sends. `none`: NICs read and write these data themselves."""
    gpudirect: StrictBool = True
    """Whether NICs access the memory of GPUs. If so, only data of LL in rings and trees pass through the host's memory.
    If not, all data do."""
    flush: Duration = 0
    """Time of a proxy until a received message is visible in a GPU's memory. On GPUs before Hopper the proxy reads back
    each message without flags. If the host copies messages, it is the time of each message above `copied_above`."""
    copied_above: Size = None
    """Size up to which the host, in place of the NIC, stores a message into a GPU's memory at no visible cost. It
    copies larger messages."""
    connection: BandwidthCap = 0
    """Bandwidth of a single message from memory to memory, if software or a special protocol moves it. Several messages
    at once take no longer than one. `none`: messages are as fast as the links, as on InfiniBand and RoCE."""
    unexpected: Duration = 0
    """Time of a proxy for a message that arrives before its buffer is ready. Point-to-point messages that are
    `sent_at_once` may arrive so, and messages of rings and trees that are not `held`. The first messages of a call
    always find a buffer: as many as a connection has slots."""
    sent_at_once: Size = None
    """Size up to which a message is sent without asking the receiver, so that it may arrive before its buffer is
    ready."""
    held: Size = None
    """Size up to which messages of a ring or tree find room even if their buffer is not ready."""
    congestion: Annotated[Share, Field(le=4)] = 0.0
    """Share by which an all-to-all takes longer if other nodes send to its receivers all the time."""
    window: PositiveInt = 8
    """Number of receivers to which a sender has messages under way, of which any may go first. NCCL serves eight peers
    at a time. Queues of links between switches let only their oldest message go: 1."""

    @property
    def settings(self) -> dict[str, bool | int | str]:
        """Return the settings among the keys (not the costs) that differ from their defaults, as values for a file."""
        sizes = {"copied_above": self.copied_above, "sent_at_once": self.sent_at_once, "held": self.held}
        found: dict[str, bool | int | str] = {} if self.gpudirect else {"gpudirect": False}
        found |= {} if self.window == Transport.plain().window else {"window": self.window}
        return found | {key: format_size(size) for key, size in sizes.items() if size is not None}

    def without_gpudirect(self) -> Self:
        """Return a copy in which all data go through the host's memory."""
        return self.model_copy(update={"gpudirect": False})

    def hop_ps(self, nbytes: int) -> int:
        """Return the latency of a hop between nodes in ps for a message of `nbytes`, without times at links."""
        return self.latency + (-(-nbytes * PS_PER_S // self.connection) if self.connection else 0)

    def taken_up_ps(self, nbytes: int) -> int:
        """Return a proxy's time in ps to begin a send and a receive of point-to-point messages of `nbytes`."""
        return 2 * (self.operation + (self.unexpected if nbytes <= (self.sent_at_once or 0) else 0))

    def seen_in_ps(self, nbytes: int, *, read_back: bool) -> int:
        """Return the time in ps that a proxy needs until a received message is visible in the GPU's memory.
        `read_back`: the proxy makes it visible by reading from that memory."""
        copied = self.copied_above is not None and nbytes > self.copied_above
        return self.flush if read_back or copied else 0

    def late_ps(self, nbytes: int, messages: float, slots: int) -> float:
        """Return the mean extra time of a proxy per message, in ps, because some messages arrive before there is a
        buffer for them. In one call a connection with `slots` buffers carries `messages` messages of `nbytes`."""
        return self.unexpected * max(0.0, 1.0 - slots / messages) if nbytes > (self.held or 0) else 0.0

    def staged_ps(self, nbytes: int, *, in_host: bool) -> int:
        """Return the time in ps that a proxy needs to copy a message through the host's memory; 0 if it need not.
        `in_host`: the message is in the host's memory in any case."""
        copied = self.staging and (in_host or not self.gpudirect)
        return -(-nbytes * PS_PER_S // self.staging) if copied else 0

    def crowded(self, contention: float, peers: int) -> float:
        """Return the share of the NICs' bandwidth that an all-to-all reaches. `contention` is the share of time in
        which other senders occupy a receiver. A sender with no more `peers` than its `window` serves all of them at
        once, at equal shares of each receiver, and loses nothing.

        If only the head of a queue may go, as on links between switches, head-of-line blocking limits the throughput.
        With n senders and n receivers the throughput is 1, 0.75, … 0.59 for n = 1, 2, … ∞ (Karol, Hluchyj and Morgan,
        "Input versus output queueing on a space-division packet switch", 1987); the contention is then 0, 1/2, … 1. So
        `congestion` is 1 / 0.59 - 1, 70 %. If one switch joins all nodes, only senders queue. A sender serves eight
        peers at a time and sends to the first whose receiver is free: the throughput for large n is 0.88 (Hluchyj and
        Karol, "Queueing in high-performance packet switching", 1988, a window of 8), a `congestion` of 14 %.
        """
        return 1.0 / (1.0 + self.congestion * contention) if peers > self.window else 1.0


NO_TRANSPORT: Final = Transport.plain()
