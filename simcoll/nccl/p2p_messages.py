"""Split point-to-point messages as NCCL does: into parts on several channels, which are sent in chunks.

One thread block sends one part of a message, and receives a part at the same time. Every chunk is copied twice, because
the buffer is between the two GPUs: the sender's block writes it into the buffer, the receiver's block reads it. The
numbers are in `protocols.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcoll.nccl.communicator import Communicator
from simcoll.nccl.protocols import MessageRule, figures, nvlink_GBps, step_bytes
from simcoll.nccl.tuner_constants import numbers
from simcoll.schedule.names import Protocol

AT_ONCE: Final = 8  # number of messages that a block serves at once


@dataclass(frozen=True)
class MessageParts:
    """How a message is split: into parts of at most `part` bytes, each on one of the `channels`, sent with `protocol`.

    `blocks`: number of the kernel's blocks; `most`: its limit; `sent`: bytes that a proxy sends at a time; `rounds`:
    whether blocks serve peers one after the other.
    """

    channels: int
    part: int
    chunk: int
    protocol: Protocol
    blocks: int
    most: int
    sent: int
    rounds: bool = False

    @property
    def first(self) -> int:
        """Bytes of the first chunk of a message part."""
        return min(self.part, self.chunk)


def parts(
    comm: Communicator, message: int, peers: int, between: int, version: str | None, protocol: Protocol | None = None
) -> MessageParts:
    """Return how NCCL splits a message of `message` bytes to each of `peers` ranks. `between`: B/s between GPUs of a
    node."""
    rule, most = _rule(comm, version), _power(comm.channels)
    least = highest = _each(comm, between)
    if comm.nodes == 1 and not rule.rounds:
        while least * comm.ranks > most and least > 1:
            least //= 2
        while highest * comm.ranks > AT_ONCE * most and highest > 1:
            highest //= 2
    elif comm.nodes > 1:
        while least * -(-comm.ranks // AT_ONCE) > most and least > 1:
            least = highest = least // 2
    count = min(least, -(-message // rule.least_bytes) or 1)
    size = max(rule.least_bytes, -(-message // count))
    while size > rule.most_bytes and count <= highest // 2:
        count *= 2
        size = -(-message // count)
    if message > rule.least_bytes:
        count = -(-message // (-(-size // rule.grain_bytes) * rule.grain_bytes))
    usual: Protocol = "LL" if message <= count * rule.LL_bytes else "Simple"
    part = min(message, size)
    used = protocol or usual
    # if a message fills less than a step, or less than all steps of a buffer, proxies send smaller pieces
    few = 4 if message < rule.chunk_bytes else 2 if message < figures().steps * rule.chunk_bytes else 1
    sent = max(1, min(part, rule.chunk_bytes // few if used == "Simple" else step_bytes("LL")))
    return MessageParts(count, part, rule.chunk_bytes, used, min(most, count * peers), most, sent, rule.rounds)


def _rule(comm: Communicator, version: str | None) -> MessageRule:
    known = figures().messages
    for row in known:
        near = comm.nodes == 1 and comm.graphs["ring"].type_intra in ("NVL", "NVB")
        fits = row.nvlink in (None, near) and row.nodes in (None, "one" if comm.nodes == 1 else "several")
        if fits and (row.before is None or (version is not None and numbers(version) < numbers(row.before))):
            return _cut(row, comm)
    raise AssertionError("the last rows fit all")


def _cut(rule: MessageRule, comm: Communicator) -> MessageRule:
    """Return `rule` with the user's chunk size, if set, at most a buffer step; sizes of parts scale with it."""
    chunk = rule.chunk_bytes
    if comm.net_chunk_bytes and comm.nodes > 1:
        chunk = comm.net_chunk_bytes
    if comm.buffer_bytes:
        chunk = min(chunk, step_bytes("Simple", comm.buffer_bytes))
    if chunk == rule.chunk_bytes:
        return rule
    least, most = (max(1, each * chunk // rule.chunk_bytes) for each in (rule.least_bytes, rule.most_bytes))
    return rule.model_copy(update={"chunk_bytes": chunk, "least_bytes": least, "most_bytes": most})


def _each(comm: Communicator, between: int) -> int:
    """Return the number of channels per peer: two for each NVLink, two over PCIe, but no more than the network can
    use."""
    speed = nvlink_GBps(comm.capability)
    near = comm.graphs["ring"].type_intra in ("NVL", "NVB")
    channels = 2 * max(1, round(between / 1e9 / speed)) if near and speed and comm.gpus > 1 else 2
    if comm.nodes > 1 and comm.net_channels is not None:
        channels = comm.net_channels
    elif comm.nodes > 1 and comm.nic_GBps:
        network = max(1, -(-comm.nic_GBps // figures().network_GBps_a_channel))
        channels = int(network) if comm.gpus == 1 else min(channels, int(network))
    return _power(min(channels, comm.channels))


def _power(count: int) -> int:
    """Return the least power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()
