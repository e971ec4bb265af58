"""Names for NumPy arrays in annotations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # integers of any width, or floats: the text beside says which
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
