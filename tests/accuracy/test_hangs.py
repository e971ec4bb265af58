"""Dumps of the flight recorder: who is missing, who calls otherwise, and that healthy and hostile dumps do no harm."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.command import simcoll
from helpers.recorded_jobs import Recorder, write

Script = Callable[[Recorder], None]
TP = {"1": (0, 1), "2": (2, 3)}


def mine(r: Recorder) -> str:
    """Return the rank's group of neighbours."""
    return "1" if r.rank < 2 else "2"


def steps(r: Recorder, count: int = 4, *, tp: bool = False) -> None:
    """Training steps that all ranks finish."""
    for _ in range(count):
        r.call("all_reduce", line=3)
        if tp:
            r.call("all_reduce", 10, group=mine(r), line=4)
        r.call("_all_gather_base", 50, line=5)


def verdict(folder: Path) -> Any:
    """Return the document of a diagnosis, whose verdict is the exit status."""
    outcome = simcoll("diagnose", folder, "--json")
    document = outcome.json
    assert outcome.status == {"healthy": 0, "finding": 1, "unknown": 2}[document["verdict"]]
    return document


def missing(r: Recorder) -> None:
    """Rank 2 never joins the last call."""
    steps(r)
    if r.rank != 2:
        r.call("all_reduce", 8, done=False, line=9)


def size(r: Recorder) -> None:
    """Rank 2 hands in more data."""
    steps(r)
    r.call("all_reduce", 8 if r.rank != 2 else 16, done=False, line=9)


def dtype(r: Recorder) -> None:
    """Rank 2 hands in another type of data."""
    steps(r)
    r.call("all_reduce", 8, dtype="Double" if r.rank == 2 else "Float", done=False, line=9)


def collective(r: Recorder) -> None:
    """Rank 2 calls another collective."""
    steps(r)
    r.call("broadcast" if r.rank == 2 else "all_reduce", 8, done=False, line=9 + r.rank // 2)


def order(r: Recorder) -> None:
    """Rank 2 makes two calls in the other order."""
    steps(r)
    for name in ("broadcast", "all_reduce") if r.rank == 2 else ("all_reduce", "broadcast"):
        r.call(name, 8, done=False, line=9)


def echo_in_another_group(r: Recorder) -> None:
    """Rank 2 stops; rank 3 waits for it in their group, and ranks 0 and 1 wait for both in the default group."""
    steps(r, tp=True)
    if r.rank == 3:
        r.call("all_reduce", 10, group=mine(r), done=False, line=9)
    if r.rank < 2:
        r.call("all_reduce", 10, group=mine(r), line=9)
        r.call("all_reduce", done=False, line=10, after_ms=5)


def message(r: Recorder) -> None:
    """Rank 3 waits for a message that rank 2 never sends."""
    steps(r)
    if r.rank == 2:
        r.call("send 2->3", line=6)
    if r.rank == 3:
        r.call("recv 3<-2", line=6)
        r.call("recv 3<-2", done=False, line=9)


CAUSES: list[tuple[Script, str]] = [
    (missing, "missing rank"), (size, "mismatched size"), (dtype, "mismatched dtype"), (message, "missing rank"),
    (collective, "mismatched collective"), (order, "mismatched order"), (echo_in_another_group, "missing rank"),
]  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("script", "cause"), CAUSES)
def test_the_cause_and_the_rank_are_named(tmp_path: Path, script: Script, cause: str, as_json: bool) -> None:
    """Each cause is named with the rank and the line of code, in pickles and in JSON."""
    document = verdict(write(tmp_path / "dumps", 4, script, groups=TP, as_json=as_json))
    assert (document["cause"], document["where"]["rank"]) == (cause, 2)
    assert "train.py:9" in document["text"]
    assert document["echoes"] > 0


def test_calls_of_two_groups_in_two_orders(tmp_path: Path) -> None:
    """Ranks that wait for each other in two groups are a wrong order of calls."""

    def crossed(r: Recorder) -> None:
        steps(r, tp=True)
        r.call("all_reduce", 8, group="0" if r.rank == 0 else mine(r), done=False, line=9)
        if r.rank > 1:
            r.call("all_reduce", 8, done=False, line=9)

    document = verdict(write(tmp_path / "dumps", 4, crossed, groups=TP))
    assert document["cause"] == "mismatched order"
    assert "ranks 0, 2-3 in call 9 of group 0" in document["text"]


def test_calls_that_all_made_in_two_orders_are_no_sound_job(tmp_path: Path) -> None:
    """Calls of two groups that wait for each other on two ranks hang, though all ranks have joined both."""

    def crossed(r: Recorder) -> None:
        steps(r, tp=True)
        for group in ("1", "0") if r.rank == 0 else ("0", "1") if r.rank == 1 else ("0",):
            r.call("all_reduce", 8, group=group, done=False, line=9, time_discovered_started_ns=None)

    document = verdict(write(tmp_path / "dumps", 4, crossed, groups=TP))
    assert document["cause"] == "mismatched order"
    assert "rank 0 in call 5 of group 1" in document["text"]


def test_a_rank_without_a_dump_died_and_its_neighbour_is_an_echo(tmp_path: Path) -> None:
    """Of two ranks that others wait for, the one without a dump is the cause."""
    document = verdict(write(tmp_path / "dumps", 4, echo_in_another_group, groups=TP, skip=[2]))
    assert (document["cause"], document["where"]["rank"], document["confidence"]) == ("dead rank", 2, "likely")


def test_one_dump_of_many_decides_nothing(tmp_path: Path) -> None:
    """A rank that waits is no finding while the dumps of most others are missing."""
    document = verdict(write(tmp_path / "dumps", 4, missing, skip=[1, 2, 3]))
    assert (document["verdict"], document["cause"]) == ("unknown", None)
    assert "train.py:9" in document["text"]


def test_a_call_that_all_joined_and_that_outlasts_minutes_is_stuck(tmp_path: Path) -> None:
    """If all ranks joined a call that does not end, the network or a kernel is stuck."""

    def stuck(r: Recorder) -> None:
        steps(r, tp=True)
        r.call("all_reduce", done=False, line=9)
        r.call("all_reduce", group=mine(r), after_ms=300_000)

    document = verdict(write(tmp_path / "dumps", 4, stuck, groups=TP))
    assert (document["cause"], document["where"]["group"]) == ("stuck call", "0 (default_pg)")


def test_a_call_that_all_joined_is_not_called_healthy(tmp_path: Path) -> None:
    """Without a later call dumps do not tell whether it is stuck or under way: the answer says that, and what to do."""

    def under_way(r: Recorder) -> None:
        steps(r)
        r.call("all_reduce", done=False, line=9)

    document = verdict(write(tmp_path / "dumps", 4, under_way))
    assert (document["verdict"], document["where"]["call"].partition(":")[0]) == ("unknown", "9")
    assert "all ranks joined" in document["text"] and document["next"]


def test_a_gpu_that_does_not_start_a_call_is_named(tmp_path: Path) -> None:
    """With measured durations, dumps show on which GPU a call that all ranks made has not started."""

    def queued(r: Recorder) -> None:
        steps(r, tp=True)
        r.call("all_reduce", done=False, line=9, **({"time_discovered_started_ns": None} if r.rank == 2 else {}))
        r.call("all_reduce", group=mine(r), after_ms=300_000)

    document = verdict(write(tmp_path / "dumps", 4, queued, groups=TP))
    assert (document["cause"], document["where"]["rank"]) == ("call not started", 2)


def healthy(r: Recorder, seed: int) -> None:
    """A job whose ranks are not in step, with calls under way, coalesced calls, messages, uneven and rooted data."""
    draw = random.Random(seed)
    for step in range(draw.randint(1, 6)):
        for _ in range(draw.randint(1, 5)):
            kind = draw.choice(
                ["all_reduce", "broadcast", "coalesced", "gather", "all_to_all", "tp", "message", "batch"]
            )
            count, group = draw.choice([1, 1000, 12345]), "0"
            if kind == "tp":
                r.call("_reduce_scatter_base", count, group=mine(r), line=step)
            elif kind == "coalesced":
                for part in range(2):
                    r.call("all_reduce", count + part, again=part > 0, state="scheduled", retired=False, line=step)
                r.call("coalesced", again=True, input_sizes=[], output_sizes=[], line=step)
            elif kind == "gather":
                r.call("gather", count, output_sizes=[[4, count]] if r.rank == 0 else [], line=step + r.rank)
            elif kind == "all_to_all":
                r.call("all_to_all", count + r.rank, line=step)
            elif kind == "message" and r.rank < 2:
                r.call("send 0->1" if r.rank == 0 else "recv 1<-0", count, line=step)
            elif kind == "batch" and r.rank < 2:
                for part, name in enumerate((f"send {r.rank}->{1 - r.rank}", f"recv {r.rank}<-{1 - r.rank}")):
                    r.call(name, count, again=part > 0, state="scheduled", retired=False, line=step)
                r.call("coalesced", again=True, is_p2p=True, input_sizes=[], output_sizes=[], line=step)
            elif kind in ("all_reduce", "broadcast"):
                r.call(kind, count, group=group, line=step, after_ms=draw.uniform(0, 2))
    for _ in range(draw.randint(0, 3)):
        r.call("all_reduce", 77, done=False, line=99)
    if draw.random() < 0.3:  # a rank that is ahead of one whose calls are under way
        r.call("all_reduce", 77, done=False, line=99)
        if r.rank == 1:
            r.call("all_reduce", 78, done=False, line=99)


def alarms(folder: Path, count: int) -> list[tuple[int, Any]]:
    """Return the seeds of healthy jobs that are not called healthy, and what is said. Whether calls stand still that
    all ranks joined and that have not ended, dumps do not tell."""
    found = []
    for seed in range(count):
        how = {"buffer": random.Random(seed).choice([3, 7, 2000]), "as_json": seed % 4 == 0, "groups": TP}
        document = verdict(write(folder / str(seed), 4, lambda r, seed=seed: healthy(r, seed), **how))
        open_calls = document["verdict"] == "unknown" and "it has not ended" in document["text"]
        found += [(seed, document)] if document["verdict"] != "healthy" and not open_calls else []
    return found


def test_healthy_dumps_raise_no_alarm(tmp_path: Path) -> None:
    """Healthy jobs in many variations are called healthy."""
    assert alarms(tmp_path, 20) == []


@pytest.mark.long
def test_two_hundred_healthy_dumps_raise_no_alarm(tmp_path: Path) -> None:
    """So are 200 of them."""
    assert alarms(tmp_path, 200) == []


# --- hostile and damaged dumps ---


class Hostile:
    """An object whose pickle runs a command."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_hostile_dump_runs_nothing(tmp_path: Path, protocol: int) -> None:
    """A pickle that runs a command when it is loaded is refused, and runs nothing."""
    ran = tmp_path / "ran"
    dump = tmp_path / "trace_0"
    dump.write_bytes(pickle.dumps({"version": "2.10", "entries": [Hostile(f"touch {ran}")]}, protocol))
    outcome = simcoll("diagnose", dump)
    assert outcome.status == 2 and "it could run code" in outcome.err
    assert not ran.exists()
    pickle.loads(dump.read_bytes())  # the dump is hostile indeed
    assert ran.exists()


def nested(depth: int) -> Any:
    """Return tuples that share their parts: few bytes, and endless when printed."""
    value: Any = ("x",)
    for _ in range(depth):
        value = (value, value)
    return value


BOMBS = {
    "memo": b"\x80\x02}r\xff\xff\xff\x3f.",  # entry 2^30 of the memo alone would take 16 GB
    "text": b"\x80\x02X\xff\xff\xff\xffa.",
    "long": b"\x80\x02\x8b\xff\xff\xff\x7f1.",
    "tuples": pickle.dumps({"entries": [{"process_group": (nested(60), "x"), "profiling_name": nested(60)}]}, 2),
    "lists": b"\x80\x02(" + 4_600_000 * b"]" + b"l.",
}


def test_bombs_fill_no_memory(tmp_path: Path) -> None:
    """Small files that would fill the memory are refused within 5 GB of addresses."""
    for rank, bomb in enumerate(BOMBS.values()):
        (tmp_path / f"trace_{rank}").write_bytes(bomb)
    limited = f"ulimit -v 5000000; exec {sys.executable} -m simcoll diagnose {tmp_path} --json"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert [each["cause"] for each in json.loads(done.stdout)["harmless"]] == len(BOMBS) * ["damaged dump"]


def test_terminal_escapes_are_not_passed_on(tmp_path: Path) -> None:
    """Names in dumps cannot steer a terminal."""

    def escape(r: Recorder) -> None:
        missing(r)
        for entry in r.entries:
            entry["frames"][1]["filename"] = "\x1b[2Jtrain.py"
            entry["profiling_name"] += "\x1b]0;title\x07"

    outcome = simcoll("diagnose", write(tmp_path / "dumps", 4, escape))
    assert outcome.status == 1 and "\x1b" not in outcome.out + outcome.err and "\x07" not in outcome.out


def mutants(folder: Path, count: int) -> None:
    """Damage a dump in `count` ways: no traceback, and a message or a verdict each time."""
    write(folder / "whole", 3, missing)
    write(folder / "text", 3, missing, as_json=True)
    for seed in range(count):
        draw = random.Random(seed)
        name = draw.choice(["whole/trace_1", "text/trace_1.json"])
        data = bytearray((folder / name).read_bytes())
        for _ in range(draw.randint(1, 8)):
            at = draw.randrange(len(data))
            edit = draw.choice(["byte", "cut", "double", "swap"])
            if edit == "byte":
                data[at] = draw.randrange(256)
            elif edit == "cut":
                del data[at : at + draw.randint(1, 40)]
            elif edit == "double":
                data[at:at] = data[at : at + draw.randint(1, 200)]
            else:
                data[at:at] = draw.choice([b"null", b"-1", b"1e999", b"[]", b"N", b"}", b"K\x00", b"\xff"])
        damaged = folder / f"{seed}" / Path(name).name
        damaged.parent.mkdir()
        damaged.write_bytes(bytes(data))
        outcome = simcoll("diagnose", damaged, folder / Path(name).parent / Path(name).name.replace("1", "0"))
        assert outcome.status in (0, 1, 2) and (outcome.out or outcome.err), seed


def test_damaged_dumps_give_a_message(tmp_path: Path) -> None:
    """Damaged dumps give a verdict or a message, never a traceback."""
    mutants(tmp_path, 40)


@pytest.mark.long
def test_five_hundred_damaged_dumps_give_a_message(tmp_path: Path) -> None:
    """So do 500 of them."""
    mutants(tmp_path, 500)


# --- watchdogs and RAS ---


def waits_in_vain(rank: int, number: int, last: int) -> str:
    """Return the lines of a rank's watchdog (PyTorch 2.6)."""
    head = f"[rank{rank}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:"
    work = f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000)"
    return (
        f"{head}632] [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600080 milliseconds "
        f"before timing out.\n{head}2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] failure detected by watchdog at "
        f"work sequence id: {number} PG status: last enqueued work: {last}, last completed work: {number - 1}\n"
    )


@pytest.mark.parametrize(
    ("lines", "cause", "rank"),
    [
        ([(r, 2847, 2850) for r in range(4)], "stuck call", None),
        ([(r, 2847, 2850) for r in (0, 1, 3)], "dead rank", 2),
        ([(3, 2847, 2850)], "too few dumps", None),
        ([(0, 2847, 2850)], "too few dumps", None),
        ([(0, 2847, 2850), (1, 2847, 2850), (2, 2846, 2846)], "ranks behind", 2),
    ],
)
def test_watchdog_lines(tmp_path: Path, lines: list[tuple[int, int, int]], cause: str, rank: int | None) -> None:
    """Lines on stderr alone tell a stuck network from a rank that died or never called."""
    (tmp_path / "stderr.txt").write_text("".join(waits_in_vain(*line) for line in lines))
    document = verdict(tmp_path / "stderr.txt")
    assert (document["cause"], document["where"]["rank"]) == (cause, rank)


@pytest.mark.parametrize(
    ("ranks", "cause", "rank"), [((0, 1, 2, 3, 4, 6, 7), "dead rank", 5), ((0, 4, 8, 12), "stuck call", None)]
)
def test_a_gap_in_a_group_is_a_missing_rank(
    tmp_path: Path, ranks: tuple[int, ...], cause: str, rank: int | None
) -> None:
    """Ranks of a group that no file lists lie at equal distances, so a gap is a rank without a file."""
    text = "".join(waits_in_vain(each, 40, 47) for each in ranks)
    (tmp_path / "stderr.txt").write_text(text.replace("PG ID 0 PG GUID 0(default_pg)", "PG ID 2 PG GUID 2(dp)"))
    document = verdict(tmp_path / "stderr.txt")
    assert (document["cause"], document["where"]["rank"]) == (cause, rank)


@pytest.mark.parametrize(
    ("line", "cause", "where"),
    [
        (
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "GPU memory full",
            (2, None),
        ),
        ("[rank2]: KeyError: 'input_ids'", "exception of the program", (2, None)),
        ("Mar 11 08:20:01 n7 kernel: NVRM: Xid (PCI:0000:9a:00): 79, pid=4", "GPU fell off the bus", (None, "n7")),
        ("srun: error: n7: task 2: Out Of Memory", "process killed by memory", (2, "n7")),
        ("[W socket.cpp:759] [c10d] The client socket has failed to connect to [n7]:29500", "dead rank", (2, None)),
    ],
)
def test_a_line_that_says_why_comes_before_those_who_wait(
    tmp_path: Path, line: str, cause: str, where: tuple[int | None, str | None]
) -> None:
    """Time-outs, and the processes that a watchdog ends, follow from what another line says."""
    aborted = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_02:00:00\n  host      : n07\n"
    aborted += "  rank      : 1 (local_rank: 1)\n  exitcode  : -6 (pid: 4100)\n"
    waits = "".join(waits_in_vain(rank, 9, 9) for rank in (0, 1, 3))
    (tmp_path / "stderr.txt").write_text(f"{waits}{aborted}{line}\n")
    document = verdict(tmp_path / "stderr.txt")
    assert (document["cause"], (document["where"]["rank"], document["where"]["host"])) == (cause, where)


def test_a_group_of_unknown_ranks_is_not_complete_with_one(tmp_path: Path) -> None:
    """Dumps of gloo name no ranks of groups: a rank that waits in one alone waits for ranks that are elsewhere."""

    def crossed(recorder: Recorder) -> None:
        recorder.call("all_reduce", group="2" if recorder.rank == 0 else "0", done=False)

    folder = write(tmp_path / "dumps", 4, crossed, groups={"2": (0, 1)}, as_json=True)
    for dump in folder.iterdir():
        told = json.loads(dump.read_text())
        dump.write_text(json.dumps({**told, "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}))
    assert verdict(folder)["cause"] == "mismatched order"


def test_a_time_out_makes_a_missing_rank_certain(tmp_path: Path) -> None:
    """Dumps alone may be of a rank that is only late; with the watchdog's line it is clear that the others hang."""
    folder = write(tmp_path / "dumps", 4, missing)
    assert verdict(folder)["confidence"] == "likely"
    (folder / "stderr.txt").write_text(waits_in_vain(0, 9, 9))
    document = verdict(folder)
    assert (document["cause"], document["where"]["rank"], document["confidence"]) == ("missing rank", 2, "clear")


def test_who_died_first_is_the_cause_and_time_outs_are_echoes(tmp_path: Path) -> None:
    """The process that torchrun saw fail first comes before what other ranks' dumps show."""
    write(tmp_path / "dumps", 4, missing, skip=[2])
    died = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_02:00:00\n  host      : n07\n"
    died += "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 4100)\n"
    (tmp_path / "dumps" / "stderr.txt").write_text(waits_in_vain(0, 9, 9) + died)
    document = verdict(tmp_path / "dumps")
    assert document["where"] | {"rank": 2, "host": "n07"} == document["where"] and "signal 9" in document["text"]
    assert document["evidence"][0]["line"] == 7 and document["echoes"] >= 3


def ras(counts: list[int], missing_ranks: Sequence[int] = (), at: int = 1) -> str:
    """Return an answer of RAS about a communicator."""
    status = {"unresponsive": True, "considered_dead": True}
    ranks = [{"rank": r, "host": f"n{r}", "collective_counts": {"AllReduce": n}} for r, n in enumerate(counts)]
    gone = [{"rank": rank, "host": f"n{rank}", "status": status} for rank in missing_ranks]
    communicator = {"hash": "0xabc", "size": 4, "ranks": ranks, "missing_ranks": gone}
    return json.dumps(
        {"nccl_version": "2.29.2", "timestamp": f"2026-03-01 02:00:0{at}", "communicators": [communicator]}
    )


@pytest.mark.parametrize(
    ("answers", "verdict_of", "rank"),
    [
        ([ras([7, 7, 7, 7])], "healthy", None),
        ([ras([7, 7, 6, 7])], "unknown", 2),
        ([ras([7, 7, 6, 7]), ras([8, 8, 8, 8], at=2)], "healthy", None),
        ([ras([7, 7, 6, 7]), ras([7, 7, 6, 7], at=2)], "finding", 2),
        ([ras([7, 7], missing_ranks=[2])], "finding", 2),
        ([ras([7, 7, 7, 7]).replace('"rank": 3,', '"rank": 3, "status": {"async_error": 6},')], "finding", 3),
        ([ras([7, 7, 7, 7]).replace('"rank": 3,', '"rank": 3, "status": {"async_error": 7},')], "healthy", None),
    ],
)
def test_ras(tmp_path: Path, answers: list[str], verdict_of: str, rank: int | None) -> None:
    """A rank behind in one answer is normal, in two it is the cause; dead ranks are named."""
    for number, answer in enumerate(answers):
        (tmp_path / f"ras{number}.json").write_text(answer)
    document = verdict(tmp_path)
    assert (document["verdict"], document["where"]["rank"]) == (verdict_of, rank)
