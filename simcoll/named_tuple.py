"""Named tuples whose constructors are made when they are first called.

`typing.NamedTuple` checks every annotation, and writes and compiles a constructor, in a quarter of a millisecond. A
start loads eighty such classes, and makes tuples of half of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import _tuplegetter

    class _Making(type):
        """Makes a subclass of tuple from the body of a class."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            if tuple(defaults) != fields[len(fields) - len(defaults) :]:
                raise TypeError(f"{name}: a field without a default follows one that has a default")
            constructor = _Constructor(fields, defaults)
            body |= {field: _tuplegetter(at, f"Alias for field number {at}") for at, field in enumerate(fields)}
            body |= {"__slots__": (), "_fields": fields, "_field_defaults": defaults, "__match_args__": fields}
            constructor.cls = type(name, (tuple,), {**_SHARED, **body, "__new__": constructor})
            return constructor.cls

    class NamedTuple(metaclass=_Making):
        """A class of this base is one of tuples; its annotations name their values, as with `typing.NamedTuple`."""


class _Constructor:
    """Stands for `__new__` until it is asked for."""

    cls: type

    def __init__(self, fields: tuple[str, ...], defaults: dict[str, Any]):
        self.fields, self.defaults = fields, defaults

    def __get__(self, instance: object, owner: type) -> Any:
        names = ", ".join(self.fields)
        values = f"({names},)" if self.fields else "()"
        made = eval(f"lambda {', '.join(['_cls', *self.fields])}: _new(_cls, {values})", {"_new": tuple.__new__})
        made.__defaults__ = tuple(self.defaults.values())
        made.__annotations__ = dict(self.cls.__annotations__)
        made.__name__, made.__qualname__ = "__new__", f"{self.cls.__qualname__}.__new__"
        made.__doc__ = f"Create new instance of {self.cls.__name__}({names})"
        setattr(self.cls, "__new__", staticmethod(made))  # noqa: B010  (mypy would take it for a method's override)
        return made


def _make(cls: Any, values: Any) -> Any:
    made = tuple.__new__(cls, values)
    if len(made) != len(cls._fields):
        raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
    return made


def _replace(self: Any, /, **changed: Any) -> Any:
    made = _make(type(self), map(changed.pop, self._fields, self))
    if changed:
        raise ValueError(f"Got unexpected field names: {list(changed)!r}")
    return made


def _repr(self: Any) -> str:
    texts = (f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
    return f"{type(self).__name__}({', '.join(texts)})"


_SHARED = {
    "_make": classmethod(_make),
    "_replace": _replace,
    "_asdict": lambda self: dict(zip(self._fields, self, strict=True)),
    "__repr__": _repr,
    "__getnewargs__": lambda self: tuple(self),  # a class would not be bound
}
