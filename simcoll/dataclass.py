"""Dataclasses whose methods are made when they are first called.

`dataclasses.dataclass` writes and compiles up to six functions for a class, in about a millisecond. A start loads a
hundred such classes, makes objects of half of them, and compares or prints hardly any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **options):
        """`dataclasses.dataclass`; with slots or an order, methods are made at once."""
        if cls is None:
            return lambda each: dataclass(each, **options)
        if options.keys() & {"slots", "order"}:
            return _PYTHONS(cls, **options)
        return _with_methods_to_come(cls, **options)


_PYTHONS = dataclasses.dataclass


def take_for(*packages: str) -> None:
    """Make the dataclasses of these packages, if they are imported from now on, the same way; slots they have none."""

    def chosen(cls: Any = None, /, **options: Any) -> Any:
        if cls is None:
            return lambda each: chosen(each, **options)
        if cls.__module__.partition(".")[0] not in packages or options.get("order"):
            return _PYTHONS(cls, **options)
        return _with_methods_to_come(cls, **{name: value for name, value in options.items() if "slot" not in name})

    dataclasses.dataclass = chosen


def _with_methods_to_come(
    cls: type, *, init: bool = True, repr: bool = True, eq: bool = True, frozen: bool = False, **options: bool
) -> type:
    own = {name for name, value in vars(cls).items() if name != "__hash__" or value is not None}
    cls.__doc__ = cls.__doc__ or cls.__name__  # `dataclasses` writes the signature, for which it needs the method
    fields = dataclasses.fields(_PYTHONS(cls, init=False, repr=False, eq=False, **options))
    hashed = [field.name for field in fields if (field.compare if field.hash is None else field.hash)]
    wanted = {
        "__init__": init and (lambda: _init(cls, fields, frozen)),
        "__repr__": repr and (lambda: _repr([field.name for field in fields if field.repr])),
        "__eq__": eq and (lambda: _eq([field.name for field in fields if field.compare])),
        "__hash__": eq and frozen and (lambda: _hash(hashed)),
        "__setattr__": frozen and (lambda: _refusal(cls, "assign to", object.__setattr__)),
        "__delattr__": frozen and (lambda: _refusal(cls, "delete", object.__delattr__)),
    }
    for name, make in wanted.items():
        if make and name not in own:
            setattr(cls, name, _ToCome(cls, name, make))
    if eq and not frozen and "__hash__" not in own:
        cls.__hash__ = None  # type: ignore[assignment]  # what can change has no hash; typeshed has a method here
    return cls


class _ToCome:
    """Stands for a method until it is asked for."""

    def __init__(self, cls: type, name: str, make: Callable[[], Callable[..., Any]]):
        self.cls, self.name, self.make = cls, name, make

    def __get__(self, instance: object, owner: type) -> Any:
        method: Any = self.make()
        method.__qualname__ = f"{self.cls.__qualname__}.{self.name}"
        setattr(self.cls, self.name, method)
        return method.__get__(instance, owner)


class _FromFactory:
    def __repr__(self) -> str:
        return "<factory>"


def _init(cls: type, fields: Sequence[dataclasses.Field[Any]], frozen: bool) -> Callable[..., None]:
    """A function that sets every field: what is given, else its default, else what its factory makes."""
    names: dict[str, Any] = {"_made": _FromFactory()}
    heads: dict[bool, list[str]] = {False: [], True: []}
    lines: list[str] = ["_own = self.__dict__"] if frozen else []  # five times as quick as `object.__setattr__`
    for field in fields:
        name, value = field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}() if {name} is _made else {name}" if field.init else f"_make_{name}()"
            default = "=_made"
        else:
            names[f"_default_{name}"] = field.default
            default = "" if field.default is dataclasses.MISSING else f"=_default_{name}"
        if field.init:
            heads[bool(field.kw_only)].append(name + default)
        if field.init or default == "=_made":
            lines.append(f"_own[{name!r}] = {value}" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    head = ", ".join(["self", *heads[False], *(["*"] if heads[True] else []), *heads[True]])
    exec(f"def __init__({head}):\n " + "\n ".join(lines or ["pass"]), names)  # as `dataclasses` does
    made: Callable[..., None] = names["__init__"]
    made.__annotations__ = {**{field.name: field.type for field in fields if field.init}, "return": None}
    return made


def _values(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    found: Callable[[Any], tuple[Any, ...]] = eval(f"lambda self: ({''.join(f'self.{name}, ' for name in names)})")
    return found


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    def written(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return recursive_repr()(written)


def _eq(names: Sequence[str]) -> Callable[[Any, object], bool]:
    values = _values(names)

    def equal(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return equal


def _hash(names: Sequence[str]) -> Callable[[Any], int]:
    values = _values(names)
    return lambda self: hash(values(self))


def _refusal(cls: type, what: str, change: Callable[..., None]) -> Callable[..., None]:
    """Changes what a subclass adds, and refuses to change the rest."""
    fields = {field.name for field in dataclasses.fields(cls)}

    def changed(self: object, name: str, *value: object) -> None:
        if type(self) is cls or name in fields:
            raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")
        change(self, name, *value)

    return changed
