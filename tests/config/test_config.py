"""YAML files: strict, located, all mistakes at once."""

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll import units
from simcoll.config import text_table, yaml_tree
from simcoll.config.yaml_tree import Model
from simcoll.errors import Diagnostic, InputError, SimcollError
from simcoll.scenario.sweep_expansion import variants


class _Inner(Model):
    depth: int = 0


class _Outer(Model):
    name: str = ""
    size: int = 0
    inner: _Inner = _Inner()


def _complaints(text: str) -> list[str]:
    errors: list[Diagnostic] = []
    with pytest.raises(InputError) as error:
        yaml_tree.validate(_Outer, variants(yaml_tree.parse(text, "f.yaml", errors), frozenset(), errors), errors)
    return [str(d) for d in error.value.diagnostics]


def test_a_file_is_read_as_it_is_now(tmp_path: Path) -> None:
    """However often it was read before: what it says, from where it is, and its mistakes each time."""
    path = tmp_path / "f.yaml"
    for text, plain in (("a: 1", {"a": 1}), ("a: 2", {"a": 2}), ("a: 1", {"a": 1})):
        path.write_text(text)
        assert yaml_tree.read(path).plain() == plain
        tree = yaml_tree.read(path, "other").value["a"]
        assert (tree.value, tree.place.source) == (plain["a"], "other")
    path.write_text("a: 1\na: 2")
    for _ in range(2):
        with pytest.raises(InputError, match="stands twice"):
            yaml_tree.read(path)
        found: list[Diagnostic] = []
        assert yaml_tree.read(path, errors=found).plain() == {"a": 1}
        assert len(found) == 1


def test_yaml_means_what_it_says() -> None:
    """YAML 1.2: on and 12:30 are texts, 1e3 is a number, 0o17 octal, 017 is seventeen, null is nothing."""
    text = "a: on\nb: 12:30\nc: 1e3\nd: 0o17\ne: 017\nf: null\ng: true\nh: 2026-11-21\ni: ~\nj: 1.5"
    plain = yaml_tree.parse(text, "f.yaml").plain()
    assert plain == {
        "a": "on",
        "b": "12:30",
        "c": 1000.0,
        "d": 15,
        "e": 17,
        "f": None,
        "g": True,
        "h": "2026-11-21",
        "i": None,
        "j": 1.5,
    }


def test_every_mistake_is_named_with_its_place_and_cure() -> None:
    """Unknown keys and wrong values are all reported at once, in the order of the file."""
    assert _complaints("nme: x\nsize: big\ninner:\n  dept: 3\n") == [
        "f.yaml:1:1: nme: unknown key 'nme'; did you mean 'name'?",
        "f.yaml:2:7: size: 'big' is not a whole number; write e.g. 2",
        "f.yaml:4:3: inner.dept: unknown key 'dept'; did you mean 'depth'?",
    ]


def test_a_key_twice_is_an_error_that_names_both_places() -> None:
    """The last of two equal keys never wins silently."""
    assert _complaints("size: 1\nname: a\nsize: 2\n") == [
        "f.yaml:3:1: size: key 'size' stands twice (first in line 1, column 1); keep one of them"
    ]


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\t- x", "a: !!python/object:os.system {}", "&a [*a]", "a: *x"])
def test_what_is_not_plain_yaml_is_one_clear_error(text: str) -> None:
    """Broken syntax, tags and undefined or recursive aliases never end in a traceback."""
    with pytest.raises(InputError):
        yaml_tree.parse(text, "f.yaml")


@pytest.mark.parametrize("text", ["<<: {size: 1}", "inner: {<<: {depth: 1}}", "inner: &a {depth: 1}\n<<: *a", "<<: 3"])
def test_merge_keys_are_one_clear_error(text: str) -> None:
    """YAML 1.2 has none: what stands there is not taken for a key, and what it lacks is not said besides."""
    found = _complaints(text)
    assert len(found) == 1
    assert re.fullmatch(r"f.yaml:\d:\d+: YAML 1.2 has no merge key '<<'; write the keys themselves, .*", found[0])
    assert yaml_tree.parse("'<<': 1", "f.yaml").plain() == {"<<": 1}


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 4999, "0x" + "9" * 4998, "1." + "9" * 4998])
def test_a_number_without_end_is_one_clear_error(number: str) -> None:
    """Python turns no more than 4,300 digits into a number, and says so in words of its own."""
    assert _complaints(f"size: {number}\n") == ["f.yaml:1:7: a number of 5000 digits; write one of at most 300"]
    for kind in ("size", "bandwidth", "duration", "byte_time", "share"):
        with pytest.raises(ValueError, match=r"a number of 5000 digits is not a|is no unit of a"):
            units.parse(f"{number} B", kind)
    assert yaml_tree.parse("9" * 300, "f.yaml").plain() == int("9" * 300)


def test_an_alias_bomb_is_refused() -> None:
    """A few hundred bytes cannot fill the memory."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(InputError, match="aliases"):
        yaml_tree.parse("\n".join(lines), "f.yaml")


def test_ranges_of_quantities_keep_their_unit() -> None:
    """A range of sizes by factor gives exact sizes."""
    tree = yaml_tree.parse("size: {from: 1 KiB, to: 16 KiB, factor: 4}", "f.yaml")
    assert [t.plain()["size"] for t in variants(tree, frozenset(), [])] == ["1024 B", "4096 B", "16384 B"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("size: {from: 1, to: 8, factor: 1}", "1:32: size.factor: factor 1 does not grow; write a factor above 1"),
        ("size: {from: 8, to: 1, factor: 2}", "1:7: size: the range is empty"),
        ("size: {from: 1, to: 8}", "1:7: size: a range has either 'factor' or 'step'"),
        ("size: {from: 1, to: 8, faktor: 2}", "unknown key 'faktor' in a range; did you mean 'factor'?"),
        ("size: {from: 1 KiB, to: 8, factor: 2}", "different kinds"),
        ("size: {from: 0, to: 8, factor: 2}", "cannot start at 0"),
        ("size: {from: 1, to: 1e18, step: 1}", "more than 10000 values"),
        ("size: []", "1:7: size: the list is empty"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(text: str, what: str) -> None:
    """Every wrong range says why, and where."""
    assert any(what in line for line in _complaints(text)), _complaints(text)


def test_set_goes_through_the_same_validation() -> None:
    """--set creates missing keys, replaces given ones, and its mistakes are located in the option."""
    tree = yaml_tree.assign(yaml_tree.parse("size: 1", "f.yaml"), "inner.depth=7", "--set[1]")
    assert yaml_tree.validate(_Outer, [tree])[0].inner.depth == 7
    with pytest.raises(InputError, match=r"^--set\[2\]:1:6: size: 'x' is not a whole number"):
        yaml_tree.validate(_Outer, [yaml_tree.assign(tree, "size=x", "--set[2]")])
    with pytest.raises(InputError, match="not PATH=VALUE"):
        yaml_tree.assign(tree, "size", "--set[1]")


@given(st.text(max_size=60))
def test_any_text_is_a_tree_or_one_kind_of_error(text: str) -> None:
    """No input makes the reader fail in another way."""
    with contextlib.suppress(SimcollError):
        variants(yaml_tree.parse(text, "f.yaml"), frozenset(), [])


NUMERIC = st.text("0123456789eE.+-_xo:~", max_size=12)


@given(st.dictionaries(NUMERIC, NUMERIC))
def test_text_stays_text(value: dict[str, str]) -> None:
    """What is written is read again as it was, also text that looks like a number, such as a hash of 9e47."""
    for inline in (False, True):
        assert yaml_tree.parse(yaml_tree.dump(value, inline=inline), "file").plain() == value


@given(st.dictionaries(st.text("abc", min_size=1), st.floats(allow_nan=False)))
def test_numbers_stay_numbers(value: dict[str, float]) -> None:
    """What was read can be written, and is read again as the same numbers."""
    read = yaml_tree.parse(yaml_tree.dump(value), "file").plain()
    assert yaml_tree.parse(yaml_tree.dump(read), "file").plain() == read == value


@pytest.mark.parametrize("columns", [40, 50, 60, 100])
def test_a_table_is_no_wider_than_a_line(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are broken at spaces, but no number from its name or unit; every word stays, in its order."""
    monkeypatch.setenv("COLUMNS", str(columns))
    row = {"size_bytes": 28 << 10, "spent on": "contention 62.91, latency 2", "on": "node0.gpu0 and 7 alike"}
    lines = text_table.render([*row], [row]).splitlines()
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    assert all(kept in text for kept in ("28 KiB", "contention 62.91,", "latency 2", "and 7 alike"))
    assert (len(lines) == 2) == (columns >= 60)


@given(
    st.lists(st.tuples(*[st.sampled_from(["a", "long_name"])] * 3), min_size=1, max_size=6),
    st.sampled_from([1, 20, 30, 40, 200]),
)
def test_rows_stay_told_apart(keys: list[tuple[str, str, str]], columns: int):
    """Of what was asked for, columns go from a table that is too wide only if all rows share them, be they said by
    others or not; without a need none goes."""
    rows = [dict(zip(("one", "two", "three", "time_us"), (*key, 1.0), strict=True)) for key in keys]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        table, remark = text_table.fitted([*rows[0]], rows, [*rows[0]])
    left = [name for name in ("one", "two", "three") if name in table.split("\n")[0].split()]
    assert {name for name in rows[0] if len({row[name] for row in rows}) > 1} <= {*left}
    assert columns < 200 or (table, remark) == (text_table.render([*rows[0]], rows), "")
