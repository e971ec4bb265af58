"""JSON texts as mappings; a text that holds no mapping is refused with its place."""

from __future__ import annotations

import json
from typing import Any

from simcoll.errors import Diagnostic, InputError, Place


def mapping(text: str, source: str, cure: str, line: int = 1) -> dict[str, Any]:
    """The mapping that a text holds; `source` names its file, `line` is the line at which it begins there.

    Raises InputError with the place and the `cure`.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = Place(source, getattr(error, "lineno", 1) + line - 1, getattr(error, "colno", 1))
        deep = isinstance(error, RecursionError)  # else a number that Python does not read has too many digits
        problem = (
            f"not JSON: {getattr(error, 'msg', 'nested too deeply' if deep else 'a number of thousands of digits')}"
        )
        raise InputError([Diagnostic(problem, cure, "", place)]) from None
    if not isinstance(document, dict):
        raise InputError([Diagnostic("not a mapping", cure, "", Place(source, line, 1))])
    return document
