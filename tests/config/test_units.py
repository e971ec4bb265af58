"""Quantities: one parser, exact, and no guessing."""

from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll import units

RIGHT = [
    ("400 Gb/s", "bandwidth", 50 * 10**9),
    ("400Gbps", "bandwidth", 50 * 10**9),
    ("900 GBps", "bandwidth", 900 * 10**9),
    ("8 Gib/s", "bandwidth", 2**30),
    ("50 GB/s", "bandwidth", 50 * 10**9),
    ("64 MiB", "size", 64 * 2**20),
    ("1 KB", "size", 1000),
    ("400 Gb", "size", 50 * 10**9),
    ("1e6 B", "size", 10**6),
    ("1.5 us", "duration", 1_500_000),
    ("1.5 µs", "duration", 1_500_000),
    ("0.5us", "duration", 500_000),
]


@pytest.mark.parametrize(("text", "kind", "value"), RIGHT)
def test_what_people_write(text: str, kind: units.Unit, value: int) -> None:
    """b is a bit, B a byte, k M G decimal, Ki Mi Gi binary, and the value is exact."""
    assert units.parse(text, kind) == value


@pytest.mark.parametrize("kind", get_args(units.Unit))
@pytest.mark.parametrize("zero", [0, 0.0, "0", " 0.0 "])
def test_zero_needs_no_unit(zero: object, kind: units.Unit) -> None:
    """It is the same in all units."""
    assert units.parse_exact(zero, kind) == 0


WRONG = [
    (64, "size", "no unit"),
    ("64", "size", "no unit"),
    ("64 M", "size", "'M' is no unit.*write '64 MiB'"),
    ("64 MB2", "size", "'MB2' is no unit"),
    ("25 GT/s", "bandwidth", "'GT/s' is no unit"),
    ("50 GB", "bandwidth", "'GB' is no unit"),
    ("-1 us", "duration", "negative"),
    ("soon", "duration", "not a duration"),
    ("1e30 Gb/s", "bandwidth", "write at most '4611686 TB/s'"),
    ("5e6 s", "duration", "write at most '4611686 s'"),
    (True, "size", "not a size"),
    (None, "size", "not a size"),
    ("1_0 MiB", "size", "not a size"),
    ("１０ MiB", "size", "not a size"),
    ("1٣ us", "duration", "not a duration"),
]


@pytest.mark.parametrize(("text", "kind", "what"), WRONG)
def test_what_is_refused(text: object, kind: units.Unit, what: str) -> None:
    """A bare number, a wrong unit, a negative value and nonsense are errors that say what to write instead."""
    with pytest.raises(ValueError, match=what) as error:
        units.parse(text, kind)
    assert "; " in str(error.value)


@pytest.mark.parametrize("text", ["1_0", "１０", "1٣", "0x10", "", " ", "ten"])
def test_numbers_are_written_in_plain_digits(text: str) -> None:
    """Of the texts that Python reads as numbers, those are none that people do not write."""
    for read in (units.int_of, units.float_of):
        with pytest.raises(ValueError, match=r"not a|invalid literal|could not convert"):
            read(text)
    assert (units.int_of(" 10"), units.float_of("-1e1")) == (10, -10)


@given(st.integers(0, 2**50))
def test_sizes_round_trip(nbytes: int) -> None:
    """What is formatted is parsed back to the same number of bytes."""
    assert units.parse(units.format_size(nbytes), "size") == nbytes


@given(st.integers(0, 2**62))
def test_exact_us_loses_nothing(ps: int) -> None:
    """Six decimals of a microsecond are picoseconds."""
    assert Fraction(units.exact_us(ps)) * 10**6 == ps
