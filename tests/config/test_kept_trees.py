"""Trees of shipped files that are kept from run to run say what the files say, and what is damaged is read again."""

from __future__ import annotations

import pickle
import random

import pytest

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Node

FOLDERS = [*yaml_tree.shipped("topologies").glob("h*.yaml"), *yaml_tree.shipped("scenarios").glob("f*.yaml")]


def _everything(node: Node):
    """All that a tree says, with each place and each type."""
    value = node.value
    if isinstance(value, dict):
        value = {key: (node.keys[key], _everything(child)) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_everything(child) for child in value]
    return node.place, type(value), getattr(value, "text", None), value


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of our own, and nothing remembered in this process."""
    monkeypatch.setenv("SIMCOLL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _read(path):
    yaml_tree._kept.cache_clear()
    return yaml_tree.read(path)


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.stem)
def test_a_kept_tree_is_the_tree(path, cache):
    """Values, their types, the texts of numbers, places of values and of keys; also from another process."""
    made = _everything(yaml_tree.parse(path.read_text(encoding="utf-8"), str(path)))
    assert _everything(_read(path)) == made
    kept = _read(path)
    assert type(kept) is not Node
    assert kept.plain() == _read(path).plain()
    assert _everything(pickle.loads(pickle.dumps(kept))) == _everything(kept) == made


def test_what_is_damaged_is_made_again(cache):
    """A bit that fell over, an end that is missing, an empty file."""
    path = FOLDERS[0]
    wanted = _everything(_read(path))
    (file,) = cache.glob("tree-*.json")
    whole, rng = file.read_bytes(), random.Random(0)
    for turn in range(16):
        at = rng.randrange(len(whole))
        file.write_bytes(whole[:at] if turn % 2 else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert _everything(_read(path)) == wanted
        assert file.read_bytes() == whole


def test_what_others_can_write_is_not_trusted(cache):
    """Else who may write to the folder could say what a profile says."""
    path = FOLDERS[0]
    _read(path)
    (file,) = cache.glob("tree-*.json")
    file.write_bytes(b"wrong")
    cache.chmod(0o777)
    assert type(_read(path)) is Node or _read(path).place.source == str(path)
    assert file.read_bytes() == b"wrong"


def test_words_are_what_yaml_takes_them_for():
    """Values of options are read without the YAML library where they are words."""
    from simcoll.config import _yaml_text

    rng = random.Random(1)
    signs = "aefGiMNlsutr0192xob._-/ "
    words = [
        "64MiB",
        "64 MiB",
        "hgx-h100",
        "1e9",
        "0x1F",
        "true",
        "Null",
        "nan",
        "1_000",
        "12 us",
        "a - b",
        "x.yaml",
        "2.30",
    ]
    words += ["".join(rng.choices(signs, k=rng.randint(1, 6))) for _ in range(3000)]
    words += [" " * rng.randint(1, 9) + word for word in words]  # as `--set` reads what stands behind its `=`
    plain = [word for word in words if yaml_tree._PLAIN.fullmatch(word)]
    assert len(plain) > 1000 and any(word.startswith("  ") for word in plain)
    for word in plain:
        try:
            tree, mistakes = _yaml_text.parsed(word, "here")
        except yaml_tree.InputError:
            pytest.fail(f"{word!r} is not YAML")
        assert (yaml_tree.parse(word, "here"), mistakes) == (tree, ())
