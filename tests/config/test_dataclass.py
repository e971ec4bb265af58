"""Dataclasses whose methods come later are dataclasses: what they do is what Python's own do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
from dataclasses import field
from typing import ClassVar

import pytest

from simcoll.dataclass import dataclass as later
from simcoll.dataclass import take_for


def _pair(**options):
    """The same class made by Python's decorator and by ours, with every kind of field."""

    def made(decorate):
        class Base:
            count: ClassVar[int] = 3
            a: int
            b: str = "b"

        class Shape(decorate(**options)(Base)):
            c: list = field(default_factory=list, hash=False)
            d: int = field(default=4, repr=False)
            e: int = field(default=5, compare=False)
            f: int = field(default=6, init=False)
            g: int = field(default=7, kw_only=True)
            h: list = field(default_factory=list, init=False, hash=False)

            def __post_init__(self):
                object.__setattr__(self, "seen", self.a)

        Base.__qualname__, Shape.__qualname__ = "Base", "Shape"
        return decorate(**options)(Shape)

    return made(dataclasses.dataclass), made(later)


OPTIONS = [
    dict(zip(("frozen", "eq", "repr"), values, strict=True)) for values in itertools.product((False, True), repeat=3)
]


def _tried(cls, *steps):
    """What each step gives, or how it fails."""
    found = []
    for step in steps:
        try:
            found.append(step(cls))
        except Exception as error:
            found.append((type(error), str(error)))
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_they_do_what_dataclasses_do(options):
    """Signature, fields, text, equality, hash, copies and refusals; in any order, as each method is made alone."""
    steps = (
        lambda cls: [
            (p.name, p.kind, str(p.default), p.annotation) for p in inspect.signature(cls).parameters.values()
        ],
        lambda cls: [(f.name, f.type, f.init) for f in dataclasses.fields(cls)],
        lambda cls: repr(cls(1)) if options["repr"] else None,
        lambda cls: (cls(1) == cls(1), cls(1) == cls(2), cls(1) != cls(1), cls(1) == cls(1, e=9), cls(1) == 1),
        lambda cls: (cls.__hash__ is None, cls.__hash__ is object.__hash__),
        lambda cls: len({cls(1, g=2), cls(1, g=2), cls(2)}),
        lambda cls: dataclasses.asdict(dataclasses.replace(cls(1, c=[2]), g=8)),
        lambda cls: copy.deepcopy(cls(1)).seen,
        lambda cls: cls(),
        lambda cls: cls(1, 2, 3, 4, 5, 6),
        lambda cls: setattr(cls(1), "a", 2),
        lambda cls: delattr(cls(1), "b"),
        lambda cls: setattr(cls(1), "other", 2),
        lambda cls: cls(1).h is cls(1).h,
    )
    for turn in range(len(steps)):
        python, ours = _pair(**options)
        asked = (*steps[turn:], *steps[:turn])
        assert _tried(ours, *asked) == _tried(python, *asked)


@later(frozen=True)
class _Pickled:
    a: int
    b: tuple = ()


def test_what_was_never_called_here_can_be_unpickled():
    """A worker gets objects of classes of which it has made none."""
    state = pickle.dumps(_Pickled(1, (2,)))
    first, second = pickle.loads(state), pickle.loads(state)
    assert (first == second, hash(first) == hash(second), repr(first)) == (True, True, "_Pickled(a=1, b=(2,))")


def test_those_of_a_package_are_made_later_once_this_is_asked(monkeypatch):
    """In a process of the command line that is pydantic; dataclasses of others stay Python's own."""
    monkeypatch.setattr(dataclasses, "dataclass", dataclasses.dataclass)
    take_for("strange")
    of_it = dataclasses.make_dataclass("A", ["a"], namespace={"__module__": "strange.parts"}, frozen=True, slots=True)
    other = dataclasses.make_dataclass("A", ["a"], frozen=True, slots=True)
    assert (repr(of_it(1)), of_it(1) == of_it(1), hasattr(of_it(1), "__dict__")) == ("A(a=1)", True, True)
    assert not hasattr(other(1), "__dict__")
