"""What backends say: NCCL's log, its errors, the GPUs' connections."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from extras import needs

from simcoll.measurement import real_run

pytestmark = needs("torch")


LINES = [
    ("h:1:9 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}", "ring", "LL"),
    ("h:1:9 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..15}", "tree", "LL128"),
    ("h:1:9 [3] NCCL INFO AllGather: 1 Bytes -> Algo PAT proto SIMPLE channel{Lo..Hi}={0..0}", "pat", "Simple"),
    ("h:1:9 [0] NCCL INFO 67108864 Bytes -> Algo 5 proto 2 time 512.250000", "nvls_tree", "Simple"),
    ("h:1:9 [0] NCCL INFO 4 Bytes -> Algo 3 proto 0 time 9.1", "collnet_chain", "LL"),
    ("h:1:9 [0] NCCL INFO Reduce: 8 Bytes -> Algo COLLNET_DIRECT proto SIMPLE channel{Lo..Hi}={0..3}",
     "collnet_direct", "Simple"),
    ("h:1:9 [0] NCCL INFO Reduce: 8 Bytes -> Algo 9 proto 2 time 1", "9", "Simple"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "algorithm", "protocol"), LINES)
def test_lines_of_nccls_log(line: str, algorithm: str, protocol: str):
    """Names and numbers, of any version; a number that nobody knows stays. The last call counts."""
    from simcoll.measurement.rank_process import logged_choice

    around = "h:1:9 [0] NCCL INFO Connected all rings\n"
    for before in ("", *(line for line, *_ in LINES)):
        found = logged_choice(f"{before}\n{around}{line}\n{around}")
        assert found == {"algorithm": algorithm, "protocol": protocol}
    assert logged_choice(around) == {}


SAID = [
    ("NCCL error in: ../torch/x.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.3\n"
     "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
     "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
     "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"),
    ("[/a/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete",
     "Timed out waiting 2000ms for recv operation to complete"),
    ("Connection closed by peer [127.0.0.1]:1. It may have died.\n stack", "Connection closed by peer [127.0.0.1]:1"),
    ("Last error:", "Last error:"),
    ("", "failed"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), SAID)
def test_what_a_backend_says(text: str, wanted: str):
    """Its words for what went wrong, without source files, stacks and advice."""
    from simcoll.measurement.rank_process import reason

    assert reason(text) == wanted


def test_where_nccls_log_lies():
    """NCCL names files after host and process."""
    from simcoll.measurement.rank_process import log_file

    assert log_file("log") == Path("log")
    assert log_file("a-%h-%p") == Path(f"a-{socket.gethostname().partition('.')[0]}-{os.getpid()}")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for nvidia-smi")
def test_how_gpus_are_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Beside a table of NCCL lies what nvidia-smi tells, without its colours; without it there is a table as well."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\ncase $1 in topo) printf '\\033[4mGPU0 NV18\\033[0m\\n';; *) echo driver;; esac\n")
    program.chmod(0o755)
    real_run.write(tmp_path / "gpus.csv", [], "nccl")
    assert (tmp_path / "gpus.txt").read_text(encoding="utf-8") == "driver\nGPU0 NV18\n"
    program.write_text("no program\0")
    for name, backend in (("none", "nccl"), ("hosts", "gloo")):
        real_run.write(tmp_path / f"{name}.csv", [], backend)  # type: ignore[arg-type]
        assert (tmp_path / f"{name}.csv").exists()
        assert not (tmp_path / f"{name}.txt").exists()
