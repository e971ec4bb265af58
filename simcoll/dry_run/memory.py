"""The memory that a rank takes at the peak of a step, by kind: which storages of tensors are made and freed, when."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final, TypeAlias

import torch

from simcoll.workload.training_memory import CONTEXT

Storage: TypeAlias = torch.UntypedStorage
ACTIVATIONS: Final = "activations"


class Allocations:
    """Which storages a rank makes, resizes and frees since the last step, in order. Views share their storage."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[weakref.ref[Any], int, int]] = {}  # identity -> the storage, its number, its bytes
        self.numbers = 0
        self.changes: list[tuple[int, int]] = []  # the number of a storage, the bytes that come or go
        self.received: set[int] = set()  # numbers of storages into which calls write, and FSDP's gathered parameters

    def number(self, storage: Storage) -> int:
        """Return the number of a storage; a new one is allocated now."""
        key = id(storage)
        if key not in self.known:
            self.numbers += 1
            freed = weakref.ref(storage, lambda _: self._set(key, 0))
            self.known[key] = freed, self.numbers, 0
            self._set(key, storage.nbytes())
        return self.known[key][1]

    def add(self, tensors: Iterable[torch.Tensor], received: bool = False) -> None:
        """Take in results of an operation. `received`: by a call, from other ranks."""
        for each in tensors:
            if each.device.type != "meta":
                number = self.number(each.untyped_storage())
                if received:
                    self.received.add(number)

    def resized(self, storage: Storage) -> None:
        """Take in that a storage has another size. FSDP frees and allocates gathered parameters that way."""
        self.received.add(self.number(storage))
        self._set(id(storage), storage.nbytes())

    def _set(self, key: int, nbytes: int) -> None:
        alive, number, before = self.known[key]
        self.changes.append((number, nbytes - before))
        self.known[key] = alive, number, nbytes
        if alive() is None:
            del self.known[key]

    def peak(self, kinds: dict[str, list[torch.Tensor]]) -> dict[str, int]:
        """Return the bytes by kind at the peak since the last call. Tensors of `kinds` count with their kind, others
        only if they are made or freed since then: data sets may lie in the memory of the host."""
        named = {self.number(each.untyped_storage()): kind for kind, tensors in kinds.items() for each in tensors}
        sizes = {number: nbytes for _, number, nbytes in self.known.values()}
        of = dict.fromkeys(self.received & sizes.keys(), "buffers") | named
        base = Counter({number: sizes[number] for number in of})
        net = Counter[int]()
        for number, nbytes in self.changes:
            if number not in net and nbytes < 0 and number not in of:
                base[number] = -nbytes
            net[number] += nbytes
        base.subtract({number: net[number] for number in of})
        levels = [*accumulate((nbytes for _, nbytes in self.changes), initial=0)]
        for number, nbytes in self.changes[: levels.index(max(levels))]:
            base[number] += nbytes
        found = Counter(dict.fromkeys((*kinds, ACTIVATIONS), 0) | {"buffers": CONTEXT})
        for number, nbytes in base.items():
            found[of.get(number, "buffers" if number in self.received else ACTIVATIONS)] += nbytes
        self.changes.clear()
        return dict(found)
