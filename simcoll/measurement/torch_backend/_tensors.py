"""Convert arrays to tensors and back. NumPy has no bfloat16, so such values are float32 there."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from simcoll.schedule.names import DTYPES

TYPES: Final[dict[str, torch.dtype]] = {row.name: getattr(torch, row.name) for row in DTYPES}


def to_tensor(values: NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """Return values as a tensor, with the type and on the device of another."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype=like.dtype, device=like.device)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values in host memory."""
    host = tensor.detach().to("cpu")
    values: NDArray[Any] = (host.float() if host.dtype == torch.bfloat16 else host).numpy().copy()
    return values
