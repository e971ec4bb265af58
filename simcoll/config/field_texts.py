"""The meaning of each key of a file: the string below its field, for the JSON Schema and the documentation."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from simcoll.config.yaml_tree import Model


def models() -> dict[str, type[Model]]:
    """Every kind of mapping that files hold, by name."""
    return {model.__name__: model for model in _subclasses(Model)}


def field_texts(model: type[Model]) -> dict[str, str]:
    """The text below each field of a model, by key; fields of the models that it extends included.

    Read from the source when it is asked for, so that no command pays for it at its start.
    """
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Model):
            texts.update(_own(base))
    return texts


def _own(model: type[Model]) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, " ".join(str(below.value.value).split())


def _subclasses(model: type[Model]) -> Iterator[type[Model]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
