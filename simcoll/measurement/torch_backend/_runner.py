"""The runner of a collective on one rank; runners of the library and of schedules are made from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.measurement._rank_messages import IDLE


class Runner:
    """A collective, ready on one rank; as it stands here, that of a rank outside all groups, which does nothing."""

    def fill(self, values: NDArray[Any]) -> None:
        """Put the rank's buffer in."""

    def run(self) -> None:
        """Run it once."""

    def often(self, calls: int) -> Callable[[], None]:
        """Return a function that runs it so often, one run behind the other."""

        def runs() -> None:
            for _ in range(calls):
                self.run()

        return runs

    def close(self) -> None:
        """Give back what others hold of its buffers."""

    def result(self) -> NDArray[Any]:
        """Return what the contract promises this rank."""
        return np.zeros(0)

    def undone(self) -> int:
        """Return the transfer that a GPU is at; IDLE for none, or where transfers inside a call are unknown."""
        return IDLE
