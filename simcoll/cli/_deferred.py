"""Modules that libraries import at their start and use in few functions: loaded when one of these runs."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any, Final

from simcoll import dataclass

MODULES: Final = (
    "pydantic.plugin._loader",  # its search for plugins in all that is installed, which takes 30 modules
    "secrets",  # pydantic's secret texts
    "pickle",  # numpy's pickles
    "numpy._core._add_newdocs",  # texts of `help` for its compiled functions, which no command shows
    "numpy._core._add_newdocs_scalars",
)


class _Deferred(ModuleType):
    """Stands for a module until it is asked for a name. (`importlib.util.LazyLoader` loads when imported.)"""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # the machinery of imports looks at it
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def defer() -> None:
    """Put those that are not loaded yet off until they are used; pydantic finds no plugins.

    numpy's linear algebra, of which only fits have small problems, starts no threads: that takes as long as a fifth of
    numpy.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    dataclass.take_for("pydantic", "annotated_types")  # fifty classes, of which five are used
    for name in MODULES:
        sys.modules.setdefault(name, _Deferred(name))
    if isinstance(loader := sys.modules[MODULES[0]], _Deferred):
        vars(loader)["get_plugins"] = tuple
