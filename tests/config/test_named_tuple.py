"""Named tuples whose constructors come later do what Python's own do."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pytest

from simcoll import named_tuple


def _made(base):
    class Shape(base):
        """A shape."""

        a: int
        b: str = "b"
        c: tuple = ()

        @property
        def twice(self):
            return self.a * 2

    return Shape


class _Pickled(named_tuple.NamedTuple):
    a: int
    b: tuple = ()


STEPS = (
    lambda cls: repr(cls(1)),
    lambda cls: cls(1) == (1, "b", ()) == cls(a=1, c=()),
    lambda cls: hash(cls(1)) == hash((1, "b", ())),
    lambda cls: (cls._fields, cls._field_defaults, cls.__match_args__, cls.__doc__, cls.__bases__, cls.__slots__),
    lambda cls: ([(p.name, p.kind, p.default) for p in inspect.signature(cls).parameters.values()], cls.a.__doc__),
    lambda cls: (cls(1).twice, cls(3)[0], cls(*"xyz").c, copy.copy(cls(1)), copy.deepcopy(cls(1, c=[2]))),
    lambda cls: (cls(1)._replace(b=2), cls._make(range(3)), cls(1)._asdict()),
    lambda cls: type(cls(1)._replace(b=2)) is type(cls._make(range(3))) is cls,
    lambda cls: type("Child", (cls,), {})(1),
    lambda cls: cls(),
    lambda cls: cls(1, 2, 3, 4),
    lambda cls: cls(d=1),
    lambda cls: cls._make(range(2)),
    lambda cls: cls(1)._replace(e=1),
    lambda cls: setattr(cls(1), "a", 1),
    lambda cls: setattr(cls(1), "other", 1),
)


def _tried(step, cls):
    try:
        return step(cls)
    except Exception as error:
        return type(error), str(error).replace("_make.<locals>.", "").split(".")[-1]


@pytest.mark.parametrize("step", STEPS)
def test_they_do_what_named_tuples_do(step):
    """Fields, text, equality, hash, copies, changes, refusals: with our base and with Python's own."""
    assert _tried(step, _made(named_tuple.NamedTuple)) == _tried(step, _made(typing.NamedTuple))


def test_a_field_without_a_default_follows_none_with_one():
    """As Python refuses it."""
    with pytest.raises(TypeError):

        class Wrong(named_tuple.NamedTuple):
            a: int = 1
            b: int


def test_tuples_are_pickled():
    """Workers hand them to each other."""
    assert pickle.loads(pickle.dumps(_Pickled(1))) == (1, ()) == _Pickled(1)
