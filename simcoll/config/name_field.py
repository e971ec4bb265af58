"""String fields limited to known names: errors suggest the closest match, and the JSON Schema lists all names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from simcoll.errors import did_you_mean


@dataclass(frozen=True, eq=False)
class OneOf:
    """Annotates a text that is one of `names`, as they are known when the text is read.

    `kind` is the word for the names in errors; `also` maps other spellings to names; `hidden` names are accepted, but
    neither suggested nor listed. `instead` says what to write in place of any other text; default: the nearest name.
    """

    kind: str
    names: Callable[[], Iterable[str]]
    also: Mapping[str, str] = field(default_factory=dict)
    hidden: Collection[str] = ()
    instead: Callable[[str], str] | None = None

    def __call__(self, value: object) -> str:
        """The name that a text means; raises ValueError for an unknown name."""
        text, names = str(value), list(self.names())
        meant = self.also.get(text, text)
        if meant not in names and meant not in self.hidden:
            cure = self.instead(text) if self.instead else did_you_mean(text, names)
            raise ValueError(f"{value!r} is no {self.kind}; {cure}")
        return meant

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": [*self.names(), *self.also]}
