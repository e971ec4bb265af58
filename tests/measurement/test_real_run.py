"""Real runs over gloo: right results, a table that can be compared, and nothing left behind whatever happens."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import workloads
from command import KILLED, PATIENCE_S, ROOT, SCRIPT, Outcome, environment, python, simcoll
from extras import needs

from simcoll.errors import InputError, MeasureError, RefusedError
from simcoll.formats.measured import read_measured
from simcoll.measurement import network_namespaces, real_run
from simcoll.measurement.launcher import Launcher, on_one_gpu
from simcoll.prediction.predict import predict
from simcoll.scenario import scenario_files
from simcoll.scenario.scenario_files import Point
from simcoll.schedule import registry
from simcoll.schedule.collectives import OPERATORS

pytestmark = needs("torch")

MARK = "SIMCOLL_TEST_MARK"
FEW = {"warmup": 0, "repeats": 2}
CALLS = 100
MEAN = {**FEW, "harness": "nccl-tests", "calls": CALLS}
BOTH = {**FEW, "harness": ["p2p", "library"]}
TYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]
RING = "collective: all_reduce\nalgorithm: ring\nsize: 4 KiB\n"


def points(**keys: Any) -> list[Point]:
    """A scenario in the test's own words, small unless it says otherwise."""
    small = {"topology": {"system": "loopback"}, "ranks": 3, "size": "1248 B", "measure": FEW}
    return workloads.points({**small, **keys})


def scenario_file(folder: Path, text: str, name: str = "scenario") -> Path:
    """A scenario on this machine as a file."""
    path = folder / f"{name}.yaml"
    path.write_text(f"topology: {{system: loopback}}\n{text}")
    return path


def everything() -> list[Point]:
    """All that three ranks can do."""
    several = {**FEW, "harness": "library", "buckets": [1, 5], "async_op": [False, True]}
    asked = [
        points(collective="all", algorithm="all", measure=BOTH),
        points(collective=["reduce", "scatter", "gather"], algorithm="all", root=2, measure=BOTH),
        points(collective="all_reduce", algorithm="ring", op=["product", "min", "max"], dtype=TYPES[2:5], measure=BOTH),
        points(collective="all_reduce", algorithm="ring", op=["sum", "avg"], dtype=TYPES[:4], measure=BOTH),
        points(collective="all_reduce", algorithm="ring", op=["sum", "avg"], dtype=TYPES[4:]),
        points(collective="reduce_scatter", algorithm="ring", dtype=TYPES[4:], measure=BOTH),
        points(collective="reduce", algorithm="chain", op=["band", "bor", "bxor"], dtype=TYPES[4:6], measure=BOTH),
        points(collective="all_reduce", algorithm="auto", measure=MEAN),
        points(collective="all_gather", algorithm="auto", in_place=[False, True], measure=MEAN),
        points(collective="all_reduce", algorithm=["tree", "ring"], model={"chunk": "100 B"}),
        points(collective=["all_gather", "gather"], algorithm="direct", weights=[1, 0, 4]),
        points(collective="all_to_all", algorithm="direct", weights=[[1, 2, 3], [0, 5, 1], [2, 2, 2]], measure=BOTH),
        points(collective="all_gather", algorithm="ring", subgroups=[[2, 0]]),
        points(collective="scatter", algorithm="direct", subgroups=[[0, 2]], root=1, measure=BOTH),
        points(collective="all_reduce", algorithm="ring", model={"blocking": "even-odd"}),
        points(collective="all_reduce", algorithm="ring", size="4 B"),
        points(collective=["all_gather", "reduce_scatter"], algorithm="ring", in_place=True, measure=BOTH),
        points(collective="all_reduce", measure=several),
        workloads.points({
            "topology": {"system": "loopback"}, "ranks": 3, "collective": ["moe_dispatch", "moe_combine"],
            "algorithm": "all", "executor": "pairwise", "measure": BOTH,
            "moe": {"tokens": 96, "hidden": 16, "topk": 2, "experts": 6},
        }),
    ]  # fmt: skip
    return [point for some in asked for point in some]


def programs() -> list[Point]:
    """The small workloads, from more than one root."""
    templates = ["mean", "softmax", "argmax", "scatter", "gather", "broadcast"]
    workload = {"template": templates, "size": "1200 B", "root": [0, 2]}
    keys = {"topology": {"system": "loopback"}, "ranks": 3, "measure": FEW, "workload": workload, "dtype": "float64"}
    return workloads.points(keys)


@pytest.fixture(scope="module")
def measured() -> list[dict[str, Any]]:
    """Everything and the programs, in one launch."""
    return real_run.run([*everything(), *programs()])


@pytest.fixture(scope="module")
def rows(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of everything."""
    return measured[: -len(programs())]


@pytest.mark.ranks
def test_everything_is_right(rows: list[dict[str, Any]]):
    """Every algorithm, operator and type, roots, weights, loops, sub-groups, blocking sends, and the library's own
    collectives: checked on every rank, and each has a time."""
    assert all(row["verified"] for row in rows)
    assert all(0 < row["time_us_min"] <= row["time_us"] <= row["time_us_max"] and row["runs"] == 2 for row in rows)
    p2p = {(row["collective"], row["algorithm"]) for row in rows if row["harness"] == "p2p"}
    entries = [entry for entries in registry.ALGORITHMS.values() for entry in entries.values()]
    assert p2p == {(entry.collective, entry.name) for entry in entries if not entry.needs_agent}
    library = [row for row in rows if row["harness"] == "library"]
    assert {row["collective"] for row in library} == set(registry.ALGORITHMS)
    assert not any(row["algorithm"] for row in library)
    assert {(row["buckets"], row["async_op"]) for row in library} == {(1, False), (5, False), (1, True), (5, True)}
    assert {(row["op"], row["dtype"]) for row in rows} > {(op, "int8") for op in OPERATORS}
    assert {row["in_place"] for row in library if row["collective"] == "all_gather"} == {False, True}
    assert all(row["in_place"] for row in rows if row["harness"] == "p2p" or row["collective"] == "all_reduce")


@pytest.mark.ranks
def test_small_programs_compute_what_one_process_does(measured: list[dict[str, Any]]):
    """Mean, softmax and argmax over spread data, a dataset handed out, predictions gathered and parameters sent out
    have the result of one process, whichever rank is the root: a run that has not is refused."""
    rows = measured[-len(programs()) :]
    assert len(rows) == 12
    assert all(row["verified"] for row in rows)
    parts = {row["workload"]: len(row["computed_us"].split()) for row in rows}
    assert parts == {"mean": 2, "softmax": 3, "argmax": 3, "scatter": 1, "gather": 1, "broadcast": 1}


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The first row that says so."""
    return next(row for row in rows if all(row[column] == value for column, value in wanted.items()))


@pytest.mark.ranks
def test_what_a_row_says(rows: list[dict[str, Any]]):
    """Schedule, harness, how it was timed and what the harness itself takes."""
    ring = one(rows, collective="all_reduce", algorithm="ring")
    assert [ring[c] for c in ("ranks", "nodes", "steps", "messages", "bytes_per_rank")] == [3, 1, 4, 12, 1664]
    assert [ring[c] for c in ("library", "backend", "harness")] == ["gloo", "gloo", "p2p"]
    assert "common start" in ring["timing"]
    assert ring["overhead_us"] > 0
    assert ring["clock_ns"] > 0
    assert "OMP_NUM_THREADS=" in ring["environment"]
    assert "cores of" in ring["machine"]


@pytest.mark.ranks
def test_beside_the_library(rows: list[dict[str, Any]]):
    """The ratio is to the library's collective on the same data, called once."""
    compared = real_run.beside_library(rows)
    ring = one(compared, collective="all_reduce", algorithm="ring")
    library = one(compared, collective="all_reduce", harness="library")
    assert ring["of_library"] == ring["time_us"] / library["time_us"]
    assert library["of_library"] == 1


@pytest.mark.ranks
def test_calls_back_to_back(rows: list[dict[str, Any]]):
    """The harness of nccl-tests makes many calls in a row, checks one, and gives the time of one, in and out of place:
    no more than some single calls take, where all of them would take a hundred times as long."""
    means = [row for row in rows if row["harness"] == "nccl-tests"]
    assert [(row["collective"], row["in_place"]) for row in means] == [
        ("all_reduce", True), ("all_gather", False), ("all_gather", True)
    ]  # fmt: skip
    for row in means:
        assert (row["calls"], row["runs"], row["launch.gpus_per_process"]) == (CALLS, 2, 1)
        assert row["timing"].startswith(f"mean of {CALLS} calls back to back; median over runs")
        alone = one(rows, collective=row["collective"], harness="library")
        assert row["time_us"] < CALLS / 10 * alone["time_us"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"measure": {"harness": "graph"}}, "a CUDA graph holds calls of NCCL only; add --backend nccl"),
        ({"launch": {"registered": True}}, "only nccl-tests registers buffers"),
        ({"measure": {"harness": "nccl-tests", "buckets": 2}}, "calls back to back have no buckets"),
    ],
)
def test_what_means_cannot_be(asked: dict[str, Any], said: str):
    """What only NCCL does is refused of gloo, with the cure."""
    with pytest.raises(RefusedError, match=said):
        real_run.run(points(collective="all_reduce", algorithm="auto", **asked))


def test_more_buffers_than_memory():
    """No process starts where all of them together would not fit."""
    with pytest.raises(InputError, match="3 processes with 1 TiB each take 39583 GB of memory, and this machine has"):
        real_run.run(points(collective="all_reduce", algorithm="ring", size="1 TiB"))


@pytest.mark.ranks
def test_the_table_is_a_measured_table(rows: list[dict[str, Any]], tmp_path: Path):
    """What is written is read again with the same numbers."""
    real_run.write(tmp_path / "t.csv", rows, "gloo")
    for row, read in zip(rows, read_measured(tmp_path / "t.csv"), strict=True):
        assert (read.collective, read.algorithm, read.ranks) == (row["collective"], row["algorithm"], row["ranks"])
        assert read.time_us == pytest.approx(row["time_us"], rel=1e-3)
        assert (read.harness, read.runs, read.system) == (row["harness"], 2, "loopback")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.ranks
@pytest.mark.parametrize(("launches", "runs"), [(1, "5"), pytest.param(2, "6", marks=pytest.mark.long)])
def test_the_command_writes_a_table_that_can_be_compared(
    launches: int, runs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Over two rank counts, in several launches each: a table on stdout, a file that `compare` joins row by row, and
    nothing of the environment in it but what backends read. Several launches by default: test_tasks_of_slurm.

    Killed within its second row it goes on there: the first is taken over, and the log of rows is gone in the end."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback()["GLOO_SOCKET_IFNAME"])
    text = "collective: broadcast\nalgorithm: [naive, chain]\nsize: 4 KiB\n"
    path = scenario_file(tmp_path, text + f"measure: {{warmup: 1, repeats: 5, launches: {launches}}}\n")
    log = tmp_path / "measured.csv.jsonl"
    log.write_text("-" * 100_000 + "\n")  # not ours; other files of the run are not as long
    words = ["measure", path, "--ranks", "1,2", "-o", tmp_path / "measured.csv"]
    killed = python(KILLED + SCRIPT, [101_600, *words])
    assert killed.returncode == -signal.SIGXFSZ, killed.stderr
    _, first, torn = log.read_text().splitlines()
    assert not torn.endswith("}}")
    made = simcoll(*words)
    assert made.status == 0, made.err
    assert f"taken over from {log}: 1 of 4 points" in made.err
    assert not log.exists()
    assert re.search(r"4 KiB +broadcast +p2p +chain +none +2 ", made.out)
    table = (tmp_path / "measured.csv").read_text()
    assert "hunter2" not in table
    assert str(tmp_path) not in table
    cells = list(csv.DictReader(line for line in table.splitlines() if not line.startswith("#")))
    asked = [("naive", "1"), ("naive", "2"), ("chain", "1"), ("chain", "2")]
    assert [(row["algorithm"], row["ranks"]) for row in cells] == asked
    assert all(row["runs"] == runs and len(row["launch_us"].split()) == launches for row in cells)
    assert cells[0]["launch_us"] == json.loads(first)["row"]["launch_us"]
    compared = simcoll("compare", path, tmp_path / "measured.csv", "--set", "ranks=2", "--json")
    assert len(compared.json["points"]) == 2


@pytest.mark.parametrize("harness", ["library", "nccl-tests", "graph"])
def test_a_dry_run_says_how_calls_are_made(tmp_path: Path, harness: str):
    """Of each harness that calls the library."""
    path = scenario_file(tmp_path, f"collective: all_reduce\nsize: 8 KiB\nmeasure: {{harness: {harness}}}\n")
    told = simcoll("measure", path, "--ranks", 2, "--backend", "nccl", "--dry-run").out
    assert told.count("all_reduce in place") == 2
    assert told.count("in a CUDA graph") == 2 * (harness == "graph")


def test_auto_is_what_can_be_sent(tmp_path: Path):
    """On a machine whose switches reduce `auto` is the quickest schedule that ranks can send and receive."""
    path = tmp_path / "scenario.yaml"
    path.write_text("topology: {system: hgx-h100}\ncollective: all_reduce\nsize: 1 MiB\n")
    told = simcoll("measure", path, "--dry-run").out
    assert "all_reduce/ring, 8 ranks" in told


@pytest.mark.thorough
@pytest.mark.parametrize("path", sorted((ROOT / "validation" / "cases").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_cases_can_be_run(path: Path):
    """Every point of every case is served by gloo, and the first and the last can be predicted."""
    asked = scenario_files.load(str(path))
    assert real_run.cases(asked, "gloo", pytest.fail)
    assert all(predict(point).time_ps > 0 for point in (asked[0], asked[-1]))


def test_buckets_are_predicted_as_they_are_called(tmp_path: Path):
    """One after another they take what each of them takes, launches too; all on their way at once they share the links
    like loops of the schedule that do not wait for each other."""

    profile = tmp_path / "profile.yaml"
    profile.write_text("name: late\nsource: the test\nmodel: {o_send: 1 us}\nlaunch: 5 us\n")

    def time_ps(how: dict[str, Any], **keys: Any) -> int:
        asked = {
            "size": "4400 B",
            "algorithm": "ring",
            "profile": str(profile),
            "measure": {"harness": "library", **how},
            **keys,
        }
        [point] = points(collective="all_reduce", **asked)
        return predict(point).time_ps

    parts = [time_ps({}, size=f"{nbytes} B") for nbytes in (1468, 1468, 1464)]
    assert time_ps({"buckets": 3}) == sum(parts)
    at_once = {"buckets": 3, "async_op": True}
    loops = time_ps({}, model={"chunk": "492 B", "channels": 9})
    assert time_ps(at_once) == loops < sum(parts)
    assert time_ps({"harness": "p2p", **at_once}) == time_ps({})


MISTAKES = [
    (["--ranks", "0"], 2, "--ranks: '0' is no number of ranks; write e.g. 2 or 2,4"),
    (["--ranks", "two"], 2, "--ranks: 'two' is no number of ranks; write e.g. 2 or 2,4"),
    (["--timeout", "0"], 2, "--timeout 0 is no time to wait; give seconds above 0, at most 1000000"),
    (["--timeout", "nan"], 2, "--timeout nan is no time to wait; give seconds above 0, at most 1000000"),
    (["--timeout", "inf"], 2, "--timeout inf is no time to wait; give seconds above 0, at most 1000000"),
    (["--limit", "nan"], 2, "--limit nan is no time to run; give seconds above 0"),
    (["--limit", "-1"], 2, "--limit -1 is no time to run; give seconds above 0"),
    (["--ranks", "2", "--limit", "0.1"], 1, "not over after 0.1 s"),
    (["-o", "."], 2, "is a folder; give the name of a file"),
    (["--set", "measure.repeat=3"], 2, "did you mean 'repeats'?"),
    (["--set", "measure.repeats=0"], 2, "measure.repeats"),
    (["--ranks", "9"], 1, "9 ranks do not fit 8 places of loopback"),
    (["--set", "measure.buckets=4"], 1, "buckets need the library's collectives"),
    (["--set", "measure.harness=library", "--set", "op=avg", "--set", "dtype=int32"], 1, "gloo has no avg of int32"),
    (["--set", "model.barrier=true"], 1, "a real run has no barriers between steps; leave out `model.barrier`"),
    (["--one-gpu"], 2, "--one-gpu works with NCCL only; add --backend nccl"),
    (["--ranks", "2", "--prefix", "no-such-program"], 2, "rank 0 cannot be started: no-such-program: No such file"),
]


@pytest.mark.parametrize(("words", "status", "said"), MISTAKES)
def test_mistakes(words: Sequence[str], status: int, said: str, tmp_path: Path):
    """One clear message, no table, no traceback."""
    outcome = simcoll("measure", scenario_file(tmp_path, RING), *words)
    assert (outcome.status, outcome.out) == (status, "")
    assert said in outcome.err
    assert len(outcome.err.splitlines()) <= 3


def test_a_switch_that_reduces_is_refused():
    """What only a switch can do is refused by name; beside what can be run it is left out and told of, once."""
    keys: dict[str, Any] = {"collective": "all_reduce", "topology": {"system": "hgx-h100"}, "ranks": 2}
    with pytest.raises(RefusedError, match="all_reduce/nvls reduces in the network"):
        real_run.run(points(algorithm="nvls", **keys))
    told: list[str] = []
    both = points(algorithm=["nvls", "ring"], size=["4 KiB", "8 KiB"], **keys)
    found = real_run.cases(both, "gloo", told.append)
    assert [case.columns["algorithm"] for case in found] == ["ring", "ring"]
    assert len(told) == 1  # of both sizes
    assert told[0].startswith("left out: all_reduce/nvls")


def loopback() -> dict[str, str]:
    """An environment in which ranks find each other on any machine."""
    interface = "lo" if sys.platform == "linux" else "lo0"
    return {**environment(), "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}


@pytest.mark.long  # torchrun's own process imports torch, too; test_members_must_fit reads the variables that it sets
def test_torchrun(tmp_path: Path):
    """Under torchrun every process is a rank, and rank 0 writes the table; what a launch is there, it says."""
    path = scenario_file(tmp_path, RING + "measure: {repeats: 4, launches: 2}\n")
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "simcoll"]
    words = [sys.executable, "-m", *torchrun, "measure", path, "--ranks", "2", "-o", tmp_path / "t.csv"]
    done = subprocess.run([*map(str, words)], env=loopback(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    [row] = read_measured(tmp_path / "t.csv")
    assert (row.ranks, row.runs, row.others["launches"], len(row.others["launch_us"].split())) == (2, 4, "2", 2)
    assert str(row.timing).endswith("each launch connects the same processes anew")
    assert done.stdout.count("all_reduce") == 1


LOSSY = """
from simcoll import register
from simcoll.schedule.steps import send

@register("all_reduce", "lossy")
def forgets_the_last_rank(request):
    yield send(range(1, request.n), 0, 0, reduce=True)
    yield send(0, range(1, request.n - 1), 0)
"""
FORKED = f"""
import json, os, sys
from simcoll.cli import main
from simcoll.measurement import rank_process  # torch is imported once, for the tasks of all jobs
{LOSSY}
for job, (variables, tasks) in enumerate(json.load(sys.stdin)):
    processes = []
    for rank, words in enumerate(tasks):
        processes.append(os.fork())
        if not processes[-1]:
            os.environ.update(variables, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
            for number in (1, 2):
                os.dup2(os.open(f"{{job}}-{{rank}}-{{number}}", os.O_CREAT | os.O_WRONLY), number)
            sys.exit(main(words))
    print(*(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes), flush=True)
"""


def tasks_of_slurm(folder: Path, *jobs: Sequence[Sequence[object]]) -> list[list[Outcome]]:
    """What becomes of jobs, one after another: a process for each list of words, with what srun tells its tasks."""
    there = {**loopback(), "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "127.0.0.1"}
    asked = [({**there, "MASTER_PORT": str(free_port())}, [[*map(str, words)] for words in job]) for job in jobs]
    done = python(FORKED, input=json.dumps(asked), cwd=folder)
    assert done.returncode == 0, done.stderr
    statuses = [[*map(int, line.split())] for line in done.stdout.splitlines()]

    def text(job: int, rank: int, number: int) -> str:
        return (folder / f"{job}-{rank}-{number}").read_text(encoding="utf-8")

    return [
        [Outcome(status, text(job, rank, 1), text(job, rank, 2)) for rank, status in enumerate(ended)]
        for job, ended in enumerate(statuses)
    ]


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Outcome]]]:
    """A folder, and what became of jobs of two tasks there: two that run, two that run nothing, two of which each takes
    the other for the root, and two whose all_reduce forgets the last rank."""
    folder = tmp_path_factory.mktemp("slurm")
    here = ["--ranks", "2", "-o", "t.csv"]
    twice = scenario_file(folder, RING + "measure: {repeats: 4, launches: 2, harness: [p2p, library]}\n", "twice")
    rooted = scenario_file(folder, "collective: broadcast\nalgorithm: naive\nsize: 4 KiB\n", "rooted")
    lossy = scenario_file(folder, "collective: all_reduce\nalgorithm: lossy\nsize: 1248 B\nproof: 'off'\n", "lossy")
    jobs = [
        [["measure", twice, *here]] * 2,
        [["measure", twice, *here, "--dry-run"]] * 2,
        [
            ["measure", rooted, "--ranks", "2", "--timeout", "6", "-o", "none.csv", "--set", f"root={root}"]
            for root in (1, 0)
        ],
        [["measure", lossy, "--ranks", "2", "-o", "none.csv"]] * 2,
    ]
    return folder, tasks_of_slurm(folder, *jobs)


@pytest.mark.ranks
def test_tasks_of_slurm(slurm: tuple[Path, list[list[Outcome]]]):
    """Tasks that srun has started are ranks: both run, and the table is the first one's; what a launch is there, it
    says. Where nothing is run the first one says what would be."""
    folder, (done, dry, *_) = slurm
    assert [(task.status, task.out.count("all_reduce")) for task in done] == [(0, 4), (0, 0)], done
    assert [task.out.count("rank 0:") for task in dry] == [2, 0], dry
    rows = read_measured(folder / "t.csv")
    assert [row.harness for row in rows] == ["p2p", "library"]
    for row in rows:
        assert (row.ranks, row.runs, row.others["launches"], len(row.others["launch_us"].split())) == (2, 4, "2", 2)
        assert str(row.timing).endswith("each launch connects the same processes anew")


@pytest.mark.ranks
def test_members_that_wait_for_ever(slurm: tuple[Path, list[list[Outcome]]]):
    """Where others have started the ranks, one that waits in vain names itself and the transfer, and ends: here both,
    as each takes the other for the root."""
    folder, (_, _, waiting, _) = slurm
    for rank, task in enumerate(waiting):
        assert task.status == 1
        said = rf"^broadcast/naive, 2 ranks, .*: rank {rank}: transfer 0 \(step 0: chunk 0: {1 - rank}→{rank}\): "
        assert re.search(said, task.err, re.MULTILINE), task.err
        assert "Traceback" not in task.err
    assert not (folder / "none.csv").exists()


@pytest.mark.ranks
def test_a_wrong_result_is_no_measurement(slurm: tuple[Path, list[list[Outcome]]]):
    """What an unproved schedule computes wrong is found on the rank where it is wrong, and there is no table."""
    folder, (*_, (first, second)) = slurm
    assert (first.status, second.status) == (1, 1)
    said = r"^all_reduce/lossy, 2 ranks, .*: rank 1: \d+ of 312 elements are wrong: "
    assert re.search(said, second.err, re.MULTILINE), second.err
    assert "elements are wrong" not in first.err
    assert not (folder / "none.csv").exists()


def test_the_batch_script(tmp_path: Path):
    """The script for Slurm tells every task where rank 0 is, and hands on the scenario and further words."""
    programs = {
        "scontrol": 'test "$*" = "show hostnames there[1-2]" && printf "there1\\nthere2\\n"',
        "srun": 'echo "$MASTER_ADDR $MASTER_PORT $*"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "there[1-2]"}
    words = ["bash", str(ROOT / "validation" / "slurm" / "measure.sbatch"), "some.yaml", "--set", "size=[1 MiB, 2 MiB]"]
    done = subprocess.run(words, env={**environment(), **slurm}, capture_output=True, text=True, timeout=PATIENCE_S)
    wanted = "measure some.yaml --backend nccl -o measured-77.csv --set size=[1 MiB, 2 MiB]"
    assert done.stdout == f"there1 20077 --kill-on-bad-exit=1 simcoll {wanted}\n", done.stderr


def test_members_must_fit(monkeypatch: pytest.MonkeyPatch):
    """As one of several ranks: the number of ranks must be the scenario's, and the meeting place be known."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not real_run.is_member()
    monkeypatch.setenv("SLURM_PROCID", "1")  # in a batch script that starts no tasks
    assert not real_run.is_member()
    with pytest.raises(InputError, match="the environment sets no rank; start this with torchrun or srun"):
        real_run.membership()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_LOCALID", "0")
    assert real_run.is_member()
    with pytest.raises(InputError, match="MASTER_ADDR is not set"):
        real_run.membership()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert real_run.membership() == (1, 2, 0)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "3"), ("LOCAL_RANK", "2")):  # torchrun's
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert real_run.membership() == (1, 2, 0)  # one alone is no rank
    with monkeypatch.context() as patch:
        for name, value in (("RANK", "0"), ("WORLD_SIZE", "3"), ("LOCAL_RANK", "2")):
            patch.setenv(name, value)
        assert real_run.is_member()
        assert real_run.membership() == (0, 3, 2)
    with pytest.raises(InputError, match=r"needs 3 ranks, and 2 have started; start 3 ranks, or give --ranks 2"):
        real_run.join(points(collective="all_reduce", algorithm="ring", ranks=3))
    from simcoll.measurement.torch_backend.session import gpus

    if not gpus():
        with pytest.raises(InputError, match=r"--backend nccl needs a GPU"):
            real_run.join(points(collective="all_reduce", algorithm="ring", ranks=2), backend="nccl")


def marked(mark: str) -> dict[int, list[bytes]]:
    """Processes that have a mark in their environment, and that environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            names = (entry / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in names:
                found[int(entry.name)] = names
        except OSError:
            continue  # gone, or another user's
    return found


def ranks_of(mark: str) -> dict[str, int]:
    """Which rank each of those processes was told to be."""
    found = marked(mark).items()
    return {name[5:].decode(): pid for pid, names in found for name in names if name.startswith(b"RANK=")}


def until(true: Callable[[], bool]) -> None:
    """Wait for something that comes to be."""
    for _ in range(50 * PATIENCE_S):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError(f"it did not come to that within {PATIENCE_S} s")


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in /proc")
WHERE = r"in all_reduce/ring, 2 ranks, 1248 B float32, "
BLOWS = [
    (signal.SIGKILL, r"^rank 1 died \(signal SIGKILL\) " + WHERE),
    (signal.SIGSTOP, r"^rank 1 gave no answer for 10 s " + WHERE),
]


@needs_proc
@pytest.mark.ranks
@pytest.mark.parametrize(("blow", "said"), BLOWS)
def test_a_rank_that_dies_or_hangs(blow: signal.Signals, said: str):
    """It is named with what it was at, the others with the transfer they waited for, and no process is left."""
    mark = str(uuid.uuid4())
    long = {"warmup": 0, "repeats": 10**6}

    def strike(line: str) -> None:
        time.sleep(0.2)
        os.kill(ranks_of(mark)["1"], blow)

    asked = points(collective="all_reduce", algorithm="ring", ranks=2, measure=long)
    with pytest.raises(MeasureError, match=said) as raised:
        real_run.run(asked, Launcher(environment=lambda rank: {MARK: mark}), timeout_s=10, tell=strike)
    transfer = r"^all_reduce/ring.*: rank 0: (transfer \d+ \(step \d: chunk \d: \d→\d( reduce)?\)|\w+)"
    assert re.search(transfer, str(raised.value), re.MULTILINE)
    assert not marked(mark)


@needs_proc
def test_a_launch_is_bounded():
    """What would run for ever ends after the time that a launch may take; every rank's place is told, none is left."""
    mark = str(uuid.uuid4())
    asked = points(collective="all_reduce", algorithm="ring", ranks=2, measure={"repeats": 10**6})
    with pytest.raises(MeasureError, match=r"^not over after 1 s\nrank 0 was (in|before) .*\nrank 1 was "):
        real_run.run(asked, Launcher(environment=lambda rank: {MARK: mark}), limit_s=1)
    assert not marked(mark)


@pytest.mark.thorough
@needs_proc
@pytest.mark.parametrize(
    ("blow", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.ranks),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
    ],
)
def test_when_the_command_is_ended(blow: signal.Signals, status: int, tmp_path: Path):
    """Interrupted, terminated or killed: its ranks end with it, and no table is written. Unless it was killed it takes
    its folder along."""
    mark = str(uuid.uuid4())
    path = scenario_file(tmp_path, RING + "measure: {repeats: 1000000}\n")
    words = ["measure", path, "--ranks", "1", "-o", tmp_path / "t.csv"]  # one: each rank's torch takes long to come
    command = [sys.executable, "-c", SCRIPT, *map(str, words)]
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    surroundings = {**loopback(), MARK: mark, "TMPDIR": str(rooms)}
    with subprocess.Popen(command, env=surroundings, stderr=subprocess.DEVNULL) as process:
        until(lambda: len(ranks_of(mark)) == 1)
        assert list(rooms.glob("simcoll-*"))
        process.send_signal(blow)
        assert process.wait(timeout=PATIENCE_S) == status
    until(lambda: not marked(mark))
    assert not (tmp_path / "t.csv").exists()
    assert blow == signal.SIGKILL or not list(rooms.glob("simcoll-*"))


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace with a loopback interface of its own."""
    if why := network_namespaces.why_not():
        pytest.skip(why)
    name = f"wire-test-{os.getpid()}"  # not one that a lab would take for its own
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def sent_bytes(name: str) -> int:
    """What a namespace's loopback interface has sent so far."""
    words = ["ip", "netns", "exec", name, "cat", "/proc/net/dev"]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    line = next(line for line in text.splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


@pytest.mark.long  # tests/measurement/test_network_lab.py counts the bytes of every link of a ring
def test_bytes_on_the_wire(namespace: str):
    """The interface carries the bytes of the schedules, ring and all_pairs, and little more: headers and the harness's
    own messages, together below 2 %. No library call in disguise, which would send what a ring sends."""
    how = {"warmup": 1, "repeats": 3}
    launcher = Launcher(prefix=lambda rank: ["ip", "netns", "exec", namespace])
    asked = points(collective="all_reduce", algorithm=["ring", "all_pairs"], ranks=3, size="4 MiB", measure=how)
    before = sent_bytes(namespace)
    real_run.run(asked, launcher)
    runs = 3 + 3 + 1  # timed, a warm-up in each of three passes, checked
    schedules = (4 + 6) * (4 << 20)  # 2(n−1) and n(n−1) times the buffer, all ranks together
    assert 1 <= (sent_bytes(namespace) - before) / (runs * schedules) <= 1.02


def test_ranks_on_one_gpu_look_like_hosts():
    """Each rank has a host of its own for NCCL, all have the same GPU."""
    seen = [on_one_gpu().environment(rank) for rank in range(4)]
    assert len({one["NCCL_HOSTID"] for one in seen}) == 4
    assert len({one["CUDA_VISIBLE_DEVICES"] for one in seen}) == 1
    assert all(one["NCCL_NET"] == "Socket" for one in seen)


def test_several_ranks_share_a_gpu():
    """Rings, trees and naive by several NCCL ranks on one GPU, checked on every rank."""
    from simcoll.measurement.torch_backend.session import gpus

    if not gpus():
        pytest.skip("needs a GPU")
    asked = scenario_files.load(
        str(ROOT / "validation" / "cases" / "one-gpu.yaml"), ["size=64 KiB", "measure.repeats=4"]
    )
    measured = real_run.run(asked, on_one_gpu(), backend="nccl", timeout_s=60, limit_s=200)
    assert all(row["verified"] and row["library"] == "nccl" for row in measured)
