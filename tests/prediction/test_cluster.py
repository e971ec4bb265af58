"""Sweeps on a Dask cluster: a real scheduler, with workers that know nothing but simcoll."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from command import PATIENCE_S, SCRIPT, environment, process, python, simcoll
from extras import needs

from simcoll.prediction import workers

pytestmark = needs("distributed")

SCENARIO = """\
name: cluster
topology: {file: star.yaml}
profile: mine.yaml
collective: all_reduce
algorithm: [ring, auto, naive]
size: {from: 1 KiB, to: 64 KiB, factor: 4}
plots: []
"""
OWN = """\
import os, signal, simcoll
from pathlib import Path

def everyone_but(rank, request):
    return [other for other in range(request.n) if other != rank]

@simcoll.register("all_reduce", "own")
def own(request):
    "Everyone to the last rank, and back."
    {trouble}
    last = request.n - 1
    yield simcoll.send(everyone_but(last, request), last, 0, reduce=True)
    yield simcoll.send(last, everyone_but(last, request), 0)
"""
STAR = "{fabric: single-switch, hosts: 4, link: {bandwidth: 50 GB/s, latency: 0.5 us}}"


class Cluster(NamedTuple):
    """Where a scheduler listens, and its process."""

    address: str
    scheduler: subprocess.Popen[bytes]


@contextmanager
def running(folder: Path, workers: int, path: str | None = None) -> Iterator[Cluster]:
    """A scheduler and workers in a folder of their own; `path` is where they find simcoll."""
    told, dask = folder / "scheduler.json", [sys.executable, "-m", "dask"]
    env = environment() | ({"PYTHONPATH": path} if path else {})
    how = {"cwd": folder, "env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            started = subprocess.Popen([*dask, *words, "--no-dashboard"], **how)  # type: ignore[call-overload]
            stack.callback(started.wait)
            stack.callback(started.kill if words[0] == "scheduler" else started.terminate)
            return started  # type: ignore[no-any-return]

        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(told))
        while not told.exists() or not told.read_text(encoding="utf-8").endswith("}"):
            assert scheduler.poll() is None
            time.sleep(0.05)
        for number in range(workers):
            local = ["--local-directory", str(folder / str(number)), "--memory-limit", "0", "--nthreads", "1"]
            start("worker", "--scheduler-file", str(told), "--nworkers", "1", *local)
        yield Cluster(json.loads(told.read_text(encoding="utf-8"))["address"], scheduler)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker."""
    with running(tmp_path_factory.mktemp("cluster"), 1) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a scenario and the files that it names, none of which a worker can see."""
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "star.yaml").write_text(STAR, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("{name: mine, model: {o_send: 1 us}}", encoding="utf-8")
    return tmp_path


def _own(folder: Path, trouble: str, *argv: object) -> subprocess.CompletedProcess[str]:
    """Run a command with an algorithm from a module of one's own."""
    (folder / "own.py").write_text(OWN.format(trouble=trouble), encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import own; {SCRIPT}"
    return python(code, argv, cwd=folder)


def _rows(folder: Path) -> int:
    return sum(log.read_text(encoding="utf-8").count("\n") for log in folder.glob("*.jsonl"))


@pytest.mark.thorough
def test_a_cluster_changes_nothing(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The bytes of a run on this machine, although the files that the scenario names are not where the workers are."""
    monkeypatch.chdir(folder)
    assert simcoll("run", "s.yaml", "-o", "here", "--quiet") == (0, "", "")
    assert simcoll("run", "s.yaml", "-o", "there", "--quiet", "--cluster", cluster.address) == (0, "", "")
    assert (folder / "there/results.csv").read_bytes() == (folder / "here/results.csv").read_bytes()


def test_mistakes_in_files_are_placed_as_here(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """What is wrong in a topology's file is told with its place there, wherever that was found out."""
    (folder / "star.yaml").write_text(STAR.replace("hosts", "hots"), encoding="utf-8")
    monkeypatch.chdir(folder)
    here = simcoll("run", "s.yaml", "--quiet")
    assert here.status == 2
    assert here.err.startswith("star.yaml:1:")
    assert simcoll("run", "s.yaml", "--quiet", "--cluster", cluster.address) == here


@pytest.mark.thorough
def test_own_algorithms_come_along(cluster: Cluster, folder: Path):
    """An algorithm from a module that the workers do not have runs there."""
    words = ["run", "s.yaml", "--set", "algorithm=[own, auto]", "--json"]
    here = _own(folder, "", *words)
    assert here.returncode == 0
    assert '"own"' in here.stdout
    assert _own(folder, "", *words, "--cluster", cluster.address).stdout == here.stdout


@pytest.mark.long
def test_a_worker_that_dies(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """Its point is computed by another one, and nobody notices."""
    flag = folder / "died"
    trouble = f"Path({str(flag)!r}).exists() or (Path({str(flag)!r}).touch(), os.kill(os.getpid(), signal.SIGKILL))"
    with running(tmp_path_factory.mktemp("two"), 2) as cluster:
        found = _own(folder, trouble, "run", "s.yaml", "--json", "--set", "algorithm=own", "--cluster", cluster.address)
    assert flag.exists()
    assert (found.returncode, len(json.loads(found.stdout)["points"])) == (0, 4)


@pytest.mark.long
def test_a_point_that_kills_its_workers(cluster: Cluster, folder: Path):
    """Exit 1 with a line that says so; the rows of other points are kept."""
    words = ["run", "s.yaml", "-o", "out", "--set", "algorithm=[ring, own]", "--cluster", cluster.address]
    found = _own(folder, "os.kill(os.getpid(), signal.SIGKILL)", *words)
    assert (found.returncode, found.stdout) == (1, "")
    assert "workers of a point died" in found.stderr
    assert "Traceback" not in found.stderr
    assert _rows(folder / "out") == 4


@pytest.mark.long
def test_a_scheduler_that_dies(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """Exit 1 with a line that says so; what was finished is kept, and the same command without a cluster goes on."""
    with running(tmp_path_factory.mktemp("dying"), 1) as cluster:
        words = ["run", "s.yaml", "-o", "out", "--quiet", "--set", "algorithm=[ring, own]"]
        kill = f"os.kill({cluster.scheduler.pid}, signal.SIGKILL)"
        found = _own(folder, kill, *words, "--cluster", cluster.address)
    assert (found.returncode, found.stdout) == (1, "")
    assert re.fullmatch(
        rf"--cluster {cluster.address}: [^\n]*finished rows are saved; run the same command again\n", found.stderr
    )
    kept = _rows(folder / "out")
    assert kept <= 4
    assert json.loads(_own(folder, "", *words, "--json").stdout)["reused"] == kept


@pytest.mark.long
def test_workers_with_another_simcoll(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """Workers whose simcoll is another version are told of before anything is computed there."""
    other = tmp_path_factory.mktemp("other")
    (other / "simcoll").mkdir()
    (other / "simcoll/__init__.py").write_text("__version__ = '0.0.1'", encoding="utf-8")
    with running(tmp_path_factory.mktemp("old"), 1, str(other)) as cluster:
        _wait_for_workers(cluster.address)
        found = process("run", "s.yaml", "-o", "out", "--cluster", cluster.address, cwd=folder)
    print(found.err)
    assert (found.status, found.out) == (2, "")
    assert "has simcoll 0.0.1; install simcoll" in found.err
    assert not (folder / "out").exists()


def _wait_for_workers(address: str) -> None:
    code = f"import sys; from distributed import Client; Client(sys.argv[1]).wait_for_workers(1, timeout={PATIENCE_S})"
    assert python(code, [address]).returncode == 0


@pytest.mark.parametrize("what", ["closed", "silent", "unknown", "no port", "no scheme", "nonsense"])
def test_addresses_where_nobody_answers(what: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Exit 2 and one line that names the address, soon."""
    monkeypatch.setattr(workers, "ANSWER_S", 0.5)
    monkeypatch.chdir(folder)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        if what == "closed":
            server.close()
        address = {
            "closed": f"tcp://127.0.0.1:{port}",
            "silent": f"127.0.0.1:{port}",
            "unknown": "tcp://host.invalid:8786",
            "no port": "tcp://127.0.0.1",
            "no scheme": "",
            "nonsense": "http://a b",
        }[what]
        found = simcoll("run", "s.yaml", "-o", "out", "--quiet", "--cluster", address)
    assert (found.status, found.out) == (2, "")
    (line,) = found.err.splitlines()
    assert line.startswith(f"--cluster {address}: ")
    assert not (folder / "out").exists()


@pytest.mark.thorough
def test_without_dask(folder: Path):
    """Where the extra is not installed, the command that installs it is told."""
    code = f"import sys; sys.modules['distributed'] = None; {SCRIPT}"
    done = python(code, ["run", "s.yaml", "--cluster", "tcp://127.0.0.1:8786"], cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'pip install "simcoll[cluster]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_cluster_and_jobs(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """--jobs counts processes of this machine: with --cluster it is wrong input."""
    monkeypatch.chdir(folder)
    found = simcoll("run", "s.yaml", "--cluster", "tcp://127.0.0.1:8786", "--jobs", 2)
    assert (found.status, found.out) == (2, "")
    assert "--jobs" in found.err


def test_a_cluster_that_has_nothing_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """If all rows are there nobody is called."""
    monkeypatch.chdir(folder)
    simcoll("run", "s.yaml", "-o", "out", "--quiet", "--shard", "1/2")
    words = ["run", "s.yaml", "-o", "out", "--quiet", "--shard", "1/2", "--cluster", "tcp://host.invalid:1"]
    assert simcoll(*words) == (0, "", "")
    assert _rows(folder / "out") == 6
