"""Compare `simcoll.torch_estimator` with PyTorch's own estimate of collectives, on the shipped measured tables.

    python tools/torch_estimates.py      # mean absolute errors in percent, by GPU; half a minute of CPU

PyTorch's estimate is `estimate_nccl_collective_runtime_impl` of torch/_inductor/comm_analysis.py, a private name. It
asks the machine for its GPU, so it is told which one to assume. Both get the bytes that nccl-tests counts. The rows are
those to which simcoll's profiles were not fitted: every second size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
import torch
from torch._inductor import comm_analysis

import simcoll
from simcoll.accuracy.fit.rows_to_fit import every_second
from simcoll.formats.measured import read_measured

MEASURED: Final = Path(__file__).resolve().parents[1] / "validation/measured"
MACHINES: Final = {  # table -> our machine, PyTorch's generation
    "a100_sxm_nccl-2.27.3.csv": ("dgx-a100", "AMPERE"),
    "h100_sxm_nccl-2.27.3.csv": ("hgx-h100", "HOPPER"),
    "b200_sxm_nccl-2.29.2.csv": ("hgx-b200", "BLACKWELL"),
}
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def errors(table: str, collective: str) -> tuple[int, float, float]:
    """Return the number of rows, and the mean absolute errors of simcoll and of PyTorch, in percent."""
    system, generation = MACHINES[table]
    rows = [row for row in read_measured(MEASURED / table) if (row.collective, row.dtype) == (collective, "float16")]
    rows = [row for row, fitted in zip(rows, every_second(rows), strict=True) if not fitted]
    measured = np.array([row.time_us for row in rows])
    seconds = simcoll.torch_estimator(system)
    ours = [1e6 * seconds(collective, row.size_bytes, range(row.ranks)) for row in rows]
    kind, gpu = comm_analysis.NCCL_COLL[collective.upper()], comm_analysis.NVIDIA_GPU_TYPE[generation]
    with mock.patch.object(comm_analysis, "get_gpu_type", lambda: gpu):
        ms = [comm_analysis.estimate_nccl_collective_runtime_impl(row.size_bytes, row.ranks, kind) for row in rows]
    of_torch = 1e3 * np.array(ms)
    return len(rows), *(float(100 * np.mean(np.abs(found / measured - 1))) for found in (np.array(ours), of_torch))


def main() -> None:
    """Print a line for each GPU and collective."""
    print(f"torch {torch.__version__.split('+')[0]}; mean absolute error in percent")
    print(f"{'machine':<10}{'collective':<16}{'rows':>4}{'simcoll':>10}{'torch':>8}")
    for table, (system, _) in MACHINES.items():
        found = [errors(table, collective) for collective in COLLECTIVES]
        counts = [n for n, *_ in found]
        means = np.average([both for _, *both in found], axis=0, weights=counts)
        for name, n, ours, theirs in [
            *zip(COLLECTIVES, *zip(*found, strict=True), strict=True),
            ("all", sum(counts), *means),
        ]:
            print(f"{system:<10}{name:<16}{n:>4}{ours:>10.1f}{theirs:>8.1f}")


if __name__ == "__main__":
    main()
