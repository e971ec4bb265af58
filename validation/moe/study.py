"""Fit the costs of DeepEP's kernels to measured rows, with nodes and chips held out, and print the errors.

`simcoll/nccl/expert_kernels.yaml` has the shipped costs; `tests/prediction/test_expert_calls.py` holds these closed
forms against the simulation. Of TensorRT-LLM's kernels the study only says what their times follow.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from simcoll.nccl.expert_kernels import expert_kernels, largest_of
from simcoll.scenario.profile import load_profile

HERE = Path(__file__).parent
SMS = {"h100_sxm": 132, "h200_sxm": 132, "b200_sxm": 148}
NVLINK = {"h100_sxm": 370.8e3, "h200_sxm": 370.8e3, "b200_sxm": 721.8e3}  # payload in B/us, as in topologies/
NIC = 50e3 * 0.99322  # payload in B/us
HOP = 5.1  # us of a message between nodes by InfiniBand of 400 Gb/s (profile ib-ndr): what is known without these rows
SUMMED = 8 * 7168  # elements
Rows = pd.DataFrame
Form = Callable[[Any, Rows, str], Any]


def token_bytes(rows: Rows, way: str) -> Any:
    """Return the bytes of a copy: FP8 with scales, or bfloat16 on the way back."""
    return rows.hidden * (1 + 4 / 128) if way == "dispatch" else 2 * rows.hidden


def low_latency(costs: Any, rows: Rows, way: str) -> Any:
    """Return times in us; costs: floor, expert and token in us, share of NVLink, network in us, share of NICs. Of a
    combine the third is that of 8 copies of 7168 elements."""
    floor, expert, token, inside, network, share = costs
    ranks = 8 * rows.nodes
    sms = np.array([-(-e // -(-e // SMS[gpu])) for gpu, e in zip(rows.gpu, rows.experts, strict=True)])
    nbytes = rows.tokens * rows.topk * token_bytes(rows, way)
    near, far = nbytes * 7 / ranks, nbytes * (ranks - 8) / ranks
    moved = np.maximum((near + far * 7 / 8) / (inside * rows.gpu.map(NVLINK)), far / (share * NIC))
    token = token if way == "dispatch" else token * rows.topk * rows.hidden / SUMMED
    return floor + expert * rows.experts + np.ceil(rows.tokens / sms) * token + network * (rows.nodes > 1) + moved


def normal(costs: Any, rows: Rows, way: str) -> Any:
    """Return times in us; costs: floor in us, fill and sm in GB/s, copy time in us, share of NVLink."""
    floor, fill, sm, copy_time, inside = costs
    inside = np.minimum(inside, 1)
    share = expert_kernels().network.share
    nbytes, sms = token_bytes(rows, way), rows[f"{way}_sms"]
    keys = list(zip(rows.nodes, rows.experts, rows.topk, strict=True))
    to_rank = np.array([1 - comb(e - e // (8 * n), k) / comb(e, k) for n, e, k in keys]) * rows.tokens * rows.nodes
    to_node = np.array([1 - comb(e - e // n, k) / comb(e, k) for n, e, k in keys]) * rows.tokens
    hops = np.where(rows.nodes > 1, 2, 1)  # an SM copies into NICs' buffers and out of them
    channels, passed = sms // 2, rows.tokens * rows.nodes
    spread = np.sqrt((1 - to_rank / passed) / to_rank)  # of the copies to a rank, relative
    last = 1 + channels.map(largest_of) * spread * np.sqrt(channels)  # channel to be done
    copied = sms * nbytes / (hops * nbytes / (1e3 * sm) + copy_time) / last
    near, far = 7 * to_rank * nbytes, (rows.nodes - 1) * to_node * nbytes
    moved = np.maximum.reduce([near / copied, near / (inside * rows.gpu.map(NVLINK)), far / (share * NIC)])
    return floor + nbytes / (1e3 * fill) + (to_rank + rows.tokens) * nbytes / copied + moved


def fitted(form: Form, rows: Rows, way: str, suffix: str, start: list[float], fixed: dict[int, float]) -> Any:
    """Return the costs with the least errors of logarithms; `fixed` ones keep their values."""
    first = np.log([fixed.get(place, value) for place, value in enumerate(start)])
    free = [place for place in range(len(start)) if place not in fixed]

    def costs(some: Any) -> Any:
        every = first.copy()
        every[free] = some
        return np.exp(every)

    measured = rows[way + suffix]
    found = least_squares(
        lambda some: np.log(form(costs(some), rows, way) / measured), first[free], loss="soft_l1", f_scale=0.05
    )
    return costs(found.x)


def show(form: Form, costs: Any, rows: Rows, way: str, suffix: str, what: str) -> None:
    """Print the errors of some rows."""
    error = np.abs(form(costs, rows, way) / rows[way + suffix] - 1)
    said = f"{len(rows):5d} rows   median {np.median(error):5.1%}   mean {error.mean():5.1%}"
    print(f"{what:44s} {way:8s} {said}   90 % within {np.quantile(error, 0.9):5.1%}")


def lent(costs: Any, low: Any) -> Any:
    """Return Hopper's costs for Blackwell: a kernel of the family `low` waits for messages over NVLink, and a normal
    one for as many, as in `simcoll/prediction/expert_calls.py`."""
    hopper, blackwell = (load_profile(f"nccl-{chip}").kernels for chip in ("hopper", "blackwell"))
    assert hopper and blackwell
    late = blackwell.LL.hop / hopper.LL.hop
    if costs is low:
        return costs * [late, late, late, 1, 1, 1]
    return np.add(costs, [(late - 1) * low[0], 0, 0, 0, 0])


def shipped(chip: str, family: str, way: str) -> list[float]:
    """Return the shipped costs in the units of the closed forms."""
    kernels = expert_kernels()
    costs = getattr(getattr(kernels.chips[chip], family), way)
    if family == "low_latency":
        times = [costs.floor / 1e6, costs.expert / 1e6, costs.of_token(2 * SUMMED) / 1e6]
        return [*times, costs.inside, costs.network / 1e6, kernels.network.share]
    rates = [costs.fill / 1e9, costs.sm / 1e9]
    return [costs.floor / 1e6, *rates, costs.copy_time / 1e6, costs.inside]


def main() -> None:
    """Print the errors of DeepEP's kernels, then what TensorRT-LLM's follow."""
    tables: list[tuple[str, Form, str, list[float], tuple[int, ...]]] = [
        ("low_latency", low_latency, "_us", [7, 0.012, 2, 0.7, HOP, 0.95], (4, 5)),
        ("normal", normal, "_transmit_us", [26, 2, 30, 0.1, 0.9], ()),
    ]
    low: dict[str, Any] = {}  # Hopper's costs of low-latency kernels
    for family, form, suffix, start, of_network in tables:
        rows = pd.read_csv(HERE / f"deepep_{family}.csv")
        one, two = rows[rows.nodes == 1], rows[rows.nodes == 2]
        for way in ("dispatch", "combine"):
            known = {place: start[place] for place in of_network}
            for chip, some in (("hopper", rows[rows.gpu != "b200_sxm"]), ("blackwell", rows[rows.gpu == "b200_sxm"])):
                show(form, shipped(chip, family, way), some, way, suffix, f"{family}, {chip}, shipped costs")
            h100 = fitted(form, one[one.gpu == "h100_sxm"], way, suffix, start, known)
            show(form, h100, two, way, suffix, f"{family}, 2 nodes held out, by 1 node of H100")
            show(form, h100, one[one.gpu == "h200_sxm"], way, suffix, f"{family}, H200 held out, by H100")
            hopper = fitted(form, rows[rows.gpu != "b200_sxm"], way, suffix, start, {})
            found = lent(hopper, low.setdefault(way, hopper))
            show(form, found, rows[rows.gpu == "b200_sxm"], way, suffix, f"{family}, B200 held out, by Hopper")
    trt = pd.read_csv(HERE / "trtllm_alltoall.csv")
    two_sided = trt[(trt.kernel_source == "NVLinkTwoSided") & (trt.moe_dtype == "bfloat16") & (trt.tokens == 8192)]
    for row in two_sided.itertuples():
        copies = 8192 * 8 * 2 * 7168 / row.latency_us / 1e3
        rate = "" if row.op_name == "alltoall_prepare" else f", {copies:.0f} GB/s if each expert had a copy"
        print(f"TensorRT-LLM, bfloat16, EP {row.ep}, {row.op_name}: {row.latency_us:.0f} us{rate}")


if __name__ == "__main__":
    main()
