"""The costs of DeepEP's kernels, which send tokens to the GPUs of their experts and bring the results back.

Two families of kernels have costs for `dispatch` and for `combine`. A normal kernel sends a token once to each node by
a NIC, and once to each rank within the node; a fixed number of SMs (multiprocessors) copy. A low-latency kernel writes
a token once for each of its experts into the memory of the expert's GPU, and uses all SMs. `expert_kernels.yaml` names
the rows to which the costs were fitted.

Sources: deepseek-ai/DeepEP (README, csrc/kernels/intranode.cu, internode.cu, internode_ll.cu).
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from simcoll.config import yaml_tree
from simcoll.config.field_types import BandwidthCap, Count, Duration, Share
from simcoll.config.yaml_tree import Model
from simcoll.units import PS_PER_S

FILE: Final = Path(__file__).with_name("expert_kernels.yaml")
Way = Literal["dispatch", "combine"]
Fraction = Annotated[Share, Field(gt=0, le=1)]


class KernelErrors(Model):
    """How far predicted times are from measured ones."""

    error: Fraction
    """Error of a predicted time on one node that nine of ten rows kept below, as a share of the measured time."""
    error_between: Fraction
    """The same for several nodes."""

    def error_of(self, several: bool) -> float:
        """Return the error on one node or on several."""
        return self.error_between if several else self.error


class LowLatencyCosts(KernelErrors):
    """Costs of a low-latency kernel."""

    floor: Duration
    """Time of a kernel without tokens."""
    expert: Duration
    """Time for each expert of all ranks: a kernel sends a count, and awaits one, for each of them."""
    token: Duration = 0
    """Time in which an SM handles one token. SMs handle a rank's tokens in turn."""
    added: BandwidthCap | None = None
    """Bandwidth at which an SM reads the results of a token's experts and adds them up."""
    inside: Fraction
    """Share of the rated bandwidth of links within a node that the copies reach."""
    network: Duration
    """Extra time of a kernel if ranks are on several nodes."""

    def of_token(self, nbytes: int) -> float:
        """Return the time in ps of an SM for a token that has `nbytes` in all its copies."""
        return self.token + (nbytes * PS_PER_S / self.added if self.added else 0)


class NormalCosts(KernelErrors):
    """Costs of a normal kernel."""

    floor: Duration
    """Time of a kernel without tokens."""
    fill: BandwidthCap
    """Bandwidth at which a token passes the stages of the kernel before the next one follows."""
    sm: BandwidthCap
    """Bandwidth at which an SM copies. On several nodes it copies everything twice: NICs have buffers of their own."""
    copy_time: Duration
    """Time of an SM for each copy, in addition to its bytes."""
    inside: Fraction
    """Share of the rated bandwidth of links within a node that the copies reach."""

    def rate(self, sms: int, token_bytes: int, several: bool, spread: float) -> float:
        """Return the bandwidth at which `sms` SMs copy tokens of so many bytes until the last channel is done, in B/s.
        Two SMs are a channel. The copies to a rank have the relative standard deviation `spread`."""
        hops, channels = 2 if several else 1, sms // 2
        last = 1 + largest_of(channels) * spread * math.sqrt(channels)
        return sms * token_bytes / (hops * token_bytes / self.sm + self.copy_time / PS_PER_S) / last


class LowLatencyKernels(Model):
    """The low-latency kernels."""

    tokens: Count
    """Most tokens of a rank in the measured rows."""
    dispatch: LowLatencyCosts
    """Costs of the kernel that sends tokens."""
    combine: LowLatencyCosts
    """Costs of the kernel that brings results back."""


class NormalKernels(Model):
    """The normal kernels."""

    tokens: Count
    """Most tokens of a rank in the measured rows."""
    sms: Count
    """Most SMs of a kernel in the measured rows."""
    dispatch: NormalCosts
    """Costs of the kernel that sends tokens."""
    combine: NormalCosts
    """Costs of the kernel that brings results back."""


class ChipKernels(Model):
    """The costs on GPUs of one generation."""

    source: str
    """Rows to which the costs were fitted."""
    capability: Count
    """Compute capability of the GPUs: 90 is 9.0."""
    gpus: tuple[str, ...]
    """Models of GPUs in the measured rows."""
    profile: str
    """NCCL's profile of these GPUs, which has the latency of a message over NVLink."""
    sms: Count
    """Number of SMs of the GPU."""
    nodes: Count
    """Most nodes in the measured rows."""
    low_latency: LowLatencyKernels
    """Costs of low-latency kernels."""
    normal: NormalKernels
    """Costs of normal kernels."""

    def sms_for(self, experts: int) -> int:
        """Return how many SMs a low-latency kernel uses: one for each expert, or for equally many experts."""
        return -(-experts // -(-experts // self.sms))


class NetworkCosts(Model):
    """What DeepEP's kernels reach of NICs."""

    source: str
    """Rows to which the numbers were fitted."""
    share: Fraction
    """Share of a NIC's payload rate that the kernels reach."""
    notify: Duration
    """Time in which ranks on several nodes tell each other how many tokens come, before a normal kernel."""


class ExpertKernels(Model):
    """The file `expert_kernels.yaml`."""

    default_sms: Count
    """Number of SMs of a normal kernel, if nothing is said."""
    network: NetworkCosts
    """What the kernels reach of NICs."""
    error_elsewhere: Fraction
    """As `error` of a kernel, on a generation of GPUs that was not measured."""
    chips: dict[str, ChipKernels]
    """Costs by generation of GPUs."""


def between(error: float) -> tuple[float, float]:
    """Return between which factors of a predicted time nine of ten measured times lie."""
    return 1 / (1 + error), 1 / (1 - error)


@functools.cache
def largest_of(count: int) -> float:
    """Return the mean of the largest of `count` draws from the standard normal distribution.

    >>> round(largest_of(2), 2)
    0.56
    """
    draws = np.linspace(-8, 8, 4001)
    below = np.cumsum(np.exp(-(draws**2) / 2))
    return float(np.diff((below / below[-1]) ** count, prepend=0) @ draws)


def expert_kernels() -> ExpertKernels:
    """Return the costs of DeepEP's kernels that simcoll ships."""
    return yaml_tree.validate(ExpertKernels, [yaml_tree.read(FILE)])[0]
