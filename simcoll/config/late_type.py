"""Types of keys that are loaded when a file has such a key: a start pays for what its file says, not for what it could.

Workload = Annotated[Any, LateType("simcoll.workload.workload_keys", "Workload")]
"""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import Any, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema


class LateType:
    """Annotates a value as one of the type that a module names."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    @property
    def type(self) -> Any:
        """The type; its module is imported for it."""
        return getattr(importlib.import_module(self.module), self.name)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: self._adapter.validate_python(value))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        known = self._adapter.core_schema
        if isinstance(self.type, type):  # a definition under its name
            ref = f"{self.module}.{self.name}:{id(self.type)}"
            named = cast("CoreSchema", {**known, "ref": ref})
            known = core_schema.definitions_schema(core_schema.definition_reference_schema(ref), [named])
        return handler(known)
