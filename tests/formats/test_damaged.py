"""Damaged files: whatever is cut off, shuffled or overwritten, import gives a result or one clear complaint."""

from __future__ import annotations

import random
import re
import resource
import time
from pathlib import Path

import pytest
from command import simcoll
from foreign import FILES, KINDS, MORE

SECONDS, MIB = 60.0, 500  # of a processor that others use as well
ODD = (
    *(b"\x00", b"\x1b[31m", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\t", b"<", b">", b'"', b"{", b"}", b"[", b"]"),
    *(
        b"&amp;",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]>",
        b"-",
        b"e9",
        b"\xf0\x9f\x92\xa5",
        b" nan ",
        b" inf ",
        b"0x",
        b"&a *a",
    ),
    *(b": ", b"#"),
)
NUMBERS = (b"0", b"-1", b"7", b"1e300", b"99999999", b"2147483648", b"9223372036854775808", b"1" * 400, b"nan", b"")


def cut(data: bytes, rng: random.Random) -> bytes:
    """Truncated, at either end."""
    a, b = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return rng.choice([data[:b], data[a:], data[a:b]])


def shuffled(data: bytes, rng: random.Random) -> bytes:
    """Lines in another order, left out, doubled."""
    lines = data.splitlines(keepends=True)
    for _ in range(rng.randint(1, 4)):
        how, i, j = rng.randrange(4), rng.randrange(len(lines)), rng.randrange(len(lines))
        if how == 0:
            rng.shuffle(lines)
        elif how == 1:
            lines[i], lines[j] = lines[j], lines[i]
        elif how == 2 and len(lines) > 1:
            del lines[i]
        else:
            lines[i:i] = [lines[j % len(lines)]] * rng.randint(1, 30)
    return b"".join(lines)


def overwritten(data: bytes, rng: random.Random) -> bytes:
    """Some bytes are others."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 12)):
        at = rng.randrange(len(found) + 1)
        found[at : at + rng.randrange(4)] = rng.choice([rng.choice(ODD), rng.randbytes(rng.randint(1, 3))])
    return bytes(found)


def renumbered(data: bytes, rng: random.Random) -> bytes:
    """Some numbers are others, and far too large or none at all."""
    spots = list(re.finditer(rb"\d+", data))
    for match in sorted(rng.sample(spots, min(len(spots), rng.randint(1, 3))), key=lambda m: -m.start()):
        data = data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]
    return data


def reworded(data: bytes, rng: random.Random) -> bytes:
    """Some words stand where others stood: the form stays, the sense does not."""
    words = list(re.finditer(rb"[A-Za-z0-9_.]+", data))
    for match in sorted(rng.sample(words, min(len(words), rng.randint(1, 4))), key=lambda m: -m.start()):
        data = data[: match.start()] + rng.choice(words)[0] + data[match.end() :]
    return data


WAYS = (cut, shuffled, overwritten, renumbered, renumbered, reworded, reworded)


def damaged(name: str, number: int) -> bytes:
    """Case `number` of a file, the same each time."""
    rng = random.Random(f"{name} {number}")
    data = FILES[name].encode()
    for _ in range(rng.choice((1, 1, 1, 2))):
        if data:
            data = rng.choice(WAYS)(data, rng) or b"\n"
    return data


def suffix(name: str) -> str:
    """How what a file becomes is named."""
    topologies = ("nvidia-smi", "nccl-topology", "nccl-graph", "infragraph", "graphml", "rocm-smi")
    return ".csv" if KINDS[name] == "measured" else ".yaml" if KINDS[name] in topologies else ".json"


def check(name: str, numbers: range, folder: Path) -> None:
    """Each case ends with 0 and a file, or with a complaint and none, with 2, or 1 where it is like no known machine;
    quickly and in little memory."""
    source, made = folder / "given", folder / f"made{suffix(name)}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in numbers:
        source.write_bytes(damaged(name, number))
        made.unlink(missing_ok=True)
        began = time.process_time()
        told = ["--as", KINDS[name]] if number % 2 else []  # so that what is not recognised is read as well
        done = simcoll("import", source, *MORE.get(name, []), *told, "-o", made)
        took = time.process_time() - began
        where = f"{name} {number}: {done.status} {took:.1f} s {done.err[:300]}"
        assert done.status in (0, 1, 2) and took < SECONDS, where
        assert made.exists() == (done.status == 0), where
        assert bool(done.err.strip()) == (done.status != 0), where
        assert "Traceback" not in done.err and len(done.err.splitlines()) <= 20, where
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MIB, f"{name}: {grown:.0f} MiB"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("numbers", [range(20), pytest.param(range(20, 1000), marks=pytest.mark.long)], ids=len)
@pytest.mark.parametrize("name", FILES)
def test_damaged_files(name: str, numbers: range, tmp_path: Path) -> None:
    """Damaged files of each kind: a result or one complaint, nothing half written, and all together below 500 MiB."""
    check(name, numbers, tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_whole_files_are_read(name: str, tmp_path: Path) -> None:
    """The files that are damaged can be read when they are not."""
    (tmp_path / "given").write_text(FILES[name])
    assert (
        simcoll("import", tmp_path / "given", *MORE.get(name, []), "-o", tmp_path / f"made{suffix(name)}").status == 0
    )


def _msccl(gpus: int, chunks: int, collective: str = "allreduce", inside: str = "") -> str:
    own = "".join(f'<gpu id="{i}" i_chunks="{chunks}">{inside}</gpu>' for i in range(gpus))
    return f'<algo name="a" nchunksperloop="{chunks}" ngpus="{gpus}" coll="{collective}" inplace="1">{own}</algo>'


LARGE = {
    "chunks": _msccl(2, 2_000_000),
    "ranks": _msccl(1900, 1900, "alltoall"),
    "counts": _msccl(2, 9, inside='<tb id="0" send="0"><step type="s" srcbuf="i" dstbuf="i" cnt="2147483647"/></tb>'),
    "goal": "num_ranks 2\nrank 0 {\n" + "send 1b to 1 tag 0\n" * 30_000,
    "matrix": "\t" + "\t".join(f"GPU{i}" for i in range(5000)),
    "aliases": "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\n"
    "devices: [*c,*c,*c,*c,*c,*c]\ninstances: [*c,*c,*c,*c,*c]\nedges: [*c,*c,*c,*c,*c]\n",
    "processors": '<system version="1">' + "<cpu/>" * 50_000 + "</system>",
    "entities": '<!DOCTYPE system [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><system version="1">&b;</system>',
    "outside": '<!DOCTYPE system SYSTEM "http://127.0.0.1:9/x.dtd"><system version="1"/>',
    "deep": '{"gpus":1,"threadblocks":1,"ops":' + "[" * 200_000,
    "own": '{"collective":"all_reduce","algorithm":"x","ranks":1,"n_chunks":99999999,"transfers":[]}',
    "nothing": "\x00" * 2_000_000,
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_large_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """Files that are small, or of no use, and would take long or much memory if they were believed."""
    (tmp_path / "given").write_text(LARGE[name])
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    done = simcoll("import", tmp_path / "given", "--collective", "all_reduce", "-o", tmp_path / "made")
    assert done.status == 2 and 1 <= len(done.err.splitlines()) <= 20
    assert time.process_time() - began < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MIB
