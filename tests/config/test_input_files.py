"""Files that a user names: text within a limit, from a file or a pipe."""

from __future__ import annotations

import fcntl
import gzip
import os
import random
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from command import simcoll

from simcoll.config import input_files
from simcoll.config.yaml_tree import shipped
from simcoll.errors import InputError
from simcoll.scenario.profile import find_profile

STAR = "{fabric: single-switch, hosts: 4, link: {bandwidth: 50 GB/s, latency: 1 us}}"
CALL = "collective: all_reduce\nalgorithm: [ring, naive]\nsize: 1 MiB\nplots: []\n"
SCENARIO = f"topology: {STAR}\n{CALL}"
READERS = {
    "run": ("run", "PIPE", "--json"),
    "diagnose": ("diagnose", "PIPE", "--on", "hgx-h100"),
    "import": ("import", "PIPE"),
    "plot": ("plot", "PIPE"),
}


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A named pipe that this process has not read yet."""
    monkeypatch.setattr(input_files, "_SAID", {})
    os.mkfifo(tmp_path / "p.yaml")
    return tmp_path / "p.yaml"


def said_to(pipe: Path, text: bytes, after: float = 0.0) -> threading.Thread:
    """A program that has a pipe open, waits, writes a text, and leaves once it has been read."""
    both_ends = os.open(pipe, os.O_RDWR)  # which does not wait for the reader

    def write() -> None:
        time.sleep(after)
        os.write(both_ends, text)
        while any(fcntl.ioctl(both_ends, termios.FIONREAD, bytes(4))):
            time.sleep(0.01)
        os.close(both_ends)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_a_pipe_is_read_once_and_then_known(pipe: Path) -> None:
    """`<(all_reduce_perf …)` says nothing for a while, and is waited for."""
    writer = said_to(pipe, b"name: x\n", after=0.2)
    assert input_files.bytes_of(pipe, "") == b"name: x\n"
    writer.join()
    assert input_files.bytes_of(pipe, "") == b"name: x\n"
    assert input_files.to_carry([pipe]) == {str(pipe): b"name: x\n"}


def test_a_pipe_is_whatever_a_file_is(pipe: Path) -> None:
    """A scenario that comes by a pipe, however often it is looked at."""
    writer = said_to(pipe, SCENARIO.encode())
    assert simcoll("run", pipe, "--report", pipe.with_name("r.html")).status == 0
    assert "hosts: 4" in pipe.with_name("r.html").read_text()
    writer.join()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_machine_and_a_profile_may_be_pipes_of_a_shell(jobs: int, tmp_path: Path) -> None:
    """`--on <(…)` is the file that the command prints, in each process that asks for it."""
    results = []
    for text, words in ((shipped("topologies") / "hgx-h100.yaml", ["--on"]), (find_profile("ideal"), ["--profile"])):
        receiver, sender = os.pipe()
        threading.Thread(target=lambda end=sender, text=text: (os.write(end, text.read_bytes()), os.close(end))).start()
        call = f"name: x\ntopology: hgx-h100\nprofile: ideal\n{CALL}"
        (tmp_path / "s.yaml").write_text(call if words == ["--on"] else call.replace("profile: ideal\n", ""))
        done = simcoll("run", tmp_path / "s.yaml", *words, f"/dev/fd/{receiver}", "--jobs", jobs, "--json")
        assert done.status == 0, done.err
        results.append([row["time_us"] for row in done.json["points"]])
        os.close(receiver)
    assert results[0] == results[1]


def test_an_end_without_a_word_is_empty(pipe: Path) -> None:
    """A shell's pipe whose program has ended, `<(true)`."""
    receiver, sender = os.pipe()
    os.close(sender)
    assert input_files.bytes_of(Path(f"/dev/fd/{receiver}"), "") == b""
    os.close(receiver)


@pytest.mark.parametrize("device", ["/dev/urandom", "/dev/zero"])
@pytest.mark.parametrize("reader", ["run", "diagnose", "import", "plot"])
def test_what_has_no_end_is_refused_by_its_first_bytes(device: str, reader: str) -> None:
    """Whoever reads it."""
    done = simcoll(*(device if word == "PIPE" else word for word in READERS[reader]))
    assert done.status == 2
    like_a_pickle = device == "/dev/urandom" and "larger than" in done.err  # one draw in a hundred begins as one does
    assert "not text" in done.err or like_a_pickle


def test_no_text_is_refused_and_any_text_is_read(tmp_path: Path) -> None:
    """Programs and pictures are none; other encodings are, and a log in which some bytes are damaged."""
    rng = random.Random(1)
    log = "# nThread 1 größe 中文\n   1024  256  float  sum\n" * 200
    for data in (Path(sys.executable).read_bytes()[:9000], rng.randbytes(50), gzip.compress(rng.randbytes(9000))):
        (tmp_path / "f").write_bytes(data)
        done = simcoll("diagnose", tmp_path / "f", "--on", "hgx-h100")
        assert (done.status, "not text" in done.err) == (2, True)
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "gbk", "gb18030"):
        (tmp_path / "f").write_bytes(log.replace("ö" if encoding == "gbk" else "\0", "").encode(encoding, "replace"))
        assert b"1024" in input_files.bytes_of(tmp_path / "f", "").replace(b"\0", b"")
    (tmp_path / "f").write_bytes(b"\x1b[31mred\x1b[0m 12\n" + bytes(40) + log.encode())
    assert "12\n" in input_files.text_of(tmp_path / "f")
    for mark, what in ((b"PK\x03\x04", "zip archive"), (b"\xfd7zXZ\0", "xz")):
        (tmp_path / "f").write_bytes(mark + rng.randbytes(99))
        assert what in simcoll("diagnose", tmp_path / "f", "--on", "hgx-h100").err


def test_what_is_too_large_is_refused_in_words(tmp_path: Path) -> None:
    """By a limit that no log is near."""
    (tmp_path / "log").write_text("x" * 5000)
    with pytest.raises(InputError, match=r"log: larger than 4999 B; give a part of it"):
        input_files.bytes_of(tmp_path / "log", "", 4999)
    assert len(input_files.bytes_of(tmp_path / "log", "", 5000)) == 5000
    with (tmp_path / "log").open("ab") as file:
        file.truncate(input_files.MOST_BYTES + 1)  # a hole: it takes no room
    done = simcoll("diagnose", tmp_path / "log", "--on", "hgx-h100")
    assert (done.status, "larger than 64 MiB" in done.err) == (2, True)


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    """The message opens with the file's name, as that of any other file."""
    file = tmp_path / "log.txt.gz"
    file.write_bytes(gzip.compress(b"text " * 1000)[:-9])
    with pytest.raises(InputError, match=rf"^{file}: a gzip file that cannot be unpacked"):
        input_files.text_of(file)
