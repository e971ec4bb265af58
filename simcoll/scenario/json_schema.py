"""The JSON Schema of scenario files, with which editors complete and check them."""

from __future__ import annotations

import inspect
from typing import Any

from simcoll.config.field_texts import field_texts, models
from simcoll.scenario.scenario import NATURAL_LISTS, Scenario


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a scenario file: every scalar may also be a list or a range."""
    scenario: dict[str, Any] = Scenario.model_json_schema(by_alias=True)
    scenario["properties"]["collective"]["enum"].append("all")  # which is read as a list of them
    known = models()
    for model, definition in [("Scenario", scenario), *scenario.get("$defs", {}).items()]:
        texts = field_texts(known[model]) if "properties" in definition else {}
        for name, value in definition.get("properties", {}).items():
            about = {"description": texts[name]} if name in texts else {}
            definition["properties"][name] = _sweepable(name, {**about, **value})
    scenario["required"] = [name for name in scenario["required"] if name != "collective"]
    scenario["anyOf"] = [{"required": ["collective"]}, {"required": ["workload"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **scenario,
        "title": "simcoll scenario",
        "description": inspect.cleandoc(Scenario.__doc__ or ""),
    }


def _sweepable(name: str, value: dict[str, Any]) -> dict[str, Any]:
    if name in NATURAL_LISTS:
        return value
    kept: dict[str, Any] = {key: value[key] for key in ("description", "default") if key in value}
    bounds = {"type": ["number", "string"]}
    swept = {
        "type": "object",
        "properties": dict.fromkeys(("from", "to", "factor", "step"), bounds),
        "required": ["from", "to"],
        "additionalProperties": False,
    }
    return {**kept, "anyOf": [value, {"type": "array", "minItems": 1, "items": {"anyOf": [value, swept]}}, swept]}
