"""What each key of a file means: the string below its field, which the JSON Schema and the documentation show."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from simcoll.config.yaml_tree import Model


def models() -> dict[str, type[Model]]:
    """By name every kind of mapping that files hold."""
    return {model.__name__: model for model in _subclasses(Model)}


def field_texts(model: type[Model]) -> dict[str, str]:
    """By key the text below its field, of the model and those it extends.

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
    for one in model.__subclasses__():
        yield one
        yield from _subclasses(one)
