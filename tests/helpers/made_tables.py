"""Measured tables of NCCL's calls whose times follow the law of `nccl_law`."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nccl_law import call

COLUMNS = ("system", "library", "library_version", "collective", "ranks", "nodes", "dtype", "size_bytes", "time_us")


def made(
    ranks: Sequence[int], collectives: Sequence[str], noise: float = 0.0, every: int = 1
) -> Iterator[dict[str, Any]]:
    """Rows of library calls on H100s by the law, release 2.27, with log-normal noise."""
    chance = np.random.default_rng(3)
    for collective, n, exponent in itertools.product(collectives, ranks, range(9, 29, every)):
        time_us = call("hgx-h100", collective, 2**exponent, ranks=n, library_version="2.27").time_ps / 1e6
        yield {
            "system": "h100", "library": "nccl", "library_version": "2.27.3", "collective": collective, "ranks": n,
            "nodes": 1, "dtype": "float32", "size_bytes": 2**exponent,
            "time_us": time_us * float(np.exp(chance.normal(0, noise))) if noise else time_us,
        }  # fmt: skip


def write(path: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A measured table."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path
