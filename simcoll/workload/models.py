"""Named neural networks: the tensors and multiply-adds of their layers, or their shapes (`models.yaml`).

The peak speeds of GPUs come from `compute.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Model
from simcoll.workload import compute
from simcoll.workload.transformer import Transformer

Shapes = tuple[tuple[int, ...], ...]


class ModelRow(NamedTuple):
    """A part of a named model, e.g. a linear layer: the number of elements of each tensor, and the multiply-adds of a
    forward pass over one sample."""

    name: str
    tensors: tuple[int, ...]
    macs: int


class _Module(Model):
    name: str
    shapes: Shapes = ()
    uses: Shapes = ()
    positions: int | None = None
    attends: int = 0
    lookup: bool = False


class _Repeated(Model):
    times: int
    layers: tuple[_Module, ...]


class NamedModel(Model):
    """A named model: its source, the number of parameters, its modules in forward order, and the modules of a block
    that is repeated several times."""

    source: str
    parameters: int
    positions: int
    layers: tuple[_Module | _Repeated, ...]

    @property
    def rows(self) -> Iterator[ModelRow]:
        """Yield the model's modules in forward order; modules of a repeated block come once for each repetition."""
        block = 0
        for entry in self.layers:
            if isinstance(entry, _Module):
                yield _row(entry, self.positions, None)
                continue
            for _ in range(entry.times):
                yield from (_row(module, self.positions, block) for module in entry.layers)
                block += 1


class Shaped(Model):
    """A named transformer: its source, the number of parameters, and its shapes."""

    source: str
    parameters: int
    shapes: Transformer


class _File(Model):
    models: dict[str, NamedModel]
    shapes: dict[str, Shaped]


def _file() -> _File:
    return yaml_tree.once(_read, Path(__file__).parent / "models.yaml")


def _read(path: Path) -> _File:
    return yaml_tree.validate(_File, [yaml_tree.read(path)])[0]


def gpus() -> dict[str, float]:
    """Return the dense peak speed of each known GPU by name, in FLOP/s of its 16-bit types."""
    return {name: gpu.peak[compute.BASE] for name, gpu in compute.gpus().items()}


def models() -> Sequence[str]:
    """Return the names of the models."""
    return tuple(_file().models)


def transformers() -> dict[str, Shaped]:
    """Return the transformers that are known by their shapes, by name."""
    return _file().shapes


def transformer(name: str) -> Transformer:
    """Return the shapes of a named transformer. Raises KeyError for an unknown name."""
    return transformers()[name].shapes


def load_model(name: str) -> NamedModel:
    """Return a named model. Raises KeyError for an unknown name."""
    return _file().models[name]


def _row(module: _Module, positions: int, block: int | None) -> ModelRow:
    at = module.positions or positions
    used = (*(() if module.lookup else (shape for shape in module.shapes if len(shape) > 1)), *module.uses)
    macs = at * sum(map(math.prod, used)) + at * at * module.attends
    name = module.name if block is None else f"{block}.{module.name}"
    return ModelRow(name, tuple(map(math.prod, module.shapes)), macs)
