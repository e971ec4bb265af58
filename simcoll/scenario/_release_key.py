"""The scenario's key `library_version`: a release of NCCL, as one writes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from simcoll.config import yaml_tree
from simcoll.errors import InputError


def _as_written(value: object) -> object:
    """A release is a text that may look like a number, of which `2.3` and `2.30` are two."""
    if isinstance(value, yaml_tree.WrittenFloat):
        return value.text
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Release = Annotated[str, BeforeValidator(_as_written), WithJsonSchema({"type": ["string", "number"]})]


def check_release(release: str | None, collective: str) -> None:
    """Raise ValueError for a release whose choice for a collective is not known."""
    from simcoll.nccl import tuner_constants

    try:
        tuner_constants.check(release, collective)
    except InputError as error:
        raise ValueError(str(replace(error.diagnostics[0], path=""))) from None  # the key is known where it is checked
