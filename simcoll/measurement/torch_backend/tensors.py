"""Arrays as tensors and back; NumPy has no bfloat16, so there such values are float32."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

TYPES: Final = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}


def to_tensor(values: NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """Values as a tensor of the type and on the device of another."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype=like.dtype, device=like.device)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's values in host memory."""
    host = tensor.detach().to("cpu")
    values: NDArray[Any] = (host.float() if host.dtype == torch.bfloat16 else host).numpy().copy()
    return values
