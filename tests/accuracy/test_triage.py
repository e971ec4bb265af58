"""`diagnose` of logs: the table of lines, the facts that no single line says, healthy logs, and damaged ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import simcoll
from simcoll.errors import InputError
from simcoll.formats.debug_logs import line_cases, log_lines
from tests.helpers import log_variants


def diagnosis(folder: Path, *texts: str, **keys: Any) -> simcoll.Reply:
    """Return the diagnosis of logs, each a file of the folder."""
    for number, text in enumerate(texts):
        (folder / f"{number}.log").write_text(text, encoding="utf-8", errors="surrogateescape")
    return simcoll.diagnose(folder, **keys)


@pytest.mark.parametrize("case", line_cases.cases(), ids=lambda case: f"{case.cause}-{case.role}")
def test_each_case_is_found_in_its_sample(case: line_cases.LineCase) -> None:
    """Each row of the table fits its sample, and no earlier row does."""
    found = [line_cases.case_of(line) for line in log_lines.lines(case.sample)]
    assert case in found


def test_a_misspelt_machine_is_refused(tmp_path: Path) -> None:
    """Whatever the files are, a finding names no machine that there is not."""
    with pytest.raises(InputError, match="did you mean 'hgx-h100'"):
        diagnosis(tmp_path, line_cases.cases()[0].sample, on="hgx-h1000")


def test_causes_have_cures() -> None:
    """Who reads a cause also reads what to do."""
    assert all(case.cure for case in line_cases.cases() if case.role == "cause")


# --- which cause, and where ---

NODES = "".join(
    f"#  Rank {rank:2d} Group  0 Pid {1000 + rank} on n{rank // 8} device  {rank % 8} [0x00] NVIDIA H100 80GB HBM3\n"
    for rank in range(16)
)


def said(host: int, text: str, device: int = 0) -> str:
    """Return a line of NCCL's log."""
    return f"n{host}:{1000 + 8 * host + device}:7 [{device}] {text}\n"


def linked(first: str, second: str, way: str = "NET/IB/0") -> str:
    """Return the lines of a link between two nodes; `first` and `second` follow the way at each end."""
    return (
        said(0, f"NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via {way}{first}")
        + said(0, f"NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via {way}{first}")
        + said(1, f"NCCL INFO Channel 00/0 : 0[0] -> 8[0] [receive] via {way}{second}")
    )


CASES = {
    "gpudirect off at one end": (NODES + linked("/GDRDMA", ""), "gpudirect off", {"host": "n1"}),
    "gpudirect off everywhere": (NODES + linked("", ""), "gpudirect off", {"host": None}),
    "sockets by a variable": (
        NODES
        + said(0, "NCCL INFO NCCL_IB_DISABLE set by environment to 1.")
        + said(0, "NCCL INFO Using network Socket"),
        "sockets",
        {},
    ),
    "p2p switched off": (
        NODES
        + said(0, "NCCL INFO NCCL_P2P_LEVEL set by environment to LOC")
        + said(0, "NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"),
        "p2p off",
        {},
    ),
    "a nic is missing": (
        NODES
        + said(0, "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:1.2.3.4<0>")
        + said(1, "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:1.2.3.4<0>"),
        "nic missing",
        {"host": "n1", "device": "mlx5_1"},
    ),
    "two releases": (
        NODES + said(0, "NCCL INFO NCCL version 2.26.2+cuda12") + said(1, "NCCL INFO NCCL version 2.27.3+cuda12"),
        "mixed versions",
        {},
    ),
    "a variable is unset on a node": (
        NODES
        + "".join(said(h, "NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.") for h in (0, 1, 2))
        + "".join(said(h, "NCCL INFO NCCL_ALGO set by environment to Ring") for h in (0, 2)),
        "ranks disagree",
        {"host": "n1"},
    ),
    "a device list that fits no device": (
        NODES
        + said(0, "NCCL INFO NCCL_IB_HCA set to mlx5_bond_9")
        + said(0, "NCCL INFO NET/IB : No device found.")
        + said(0, "NCCL INFO Using network Socket"),
        "sockets",
        {},
    ),
    "the missing process of an answer of RAS": (
        "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 34 on node n1 managing GPU 5\n\n"
        "#0-0 (cf26) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 21\n",
        "silent rank",
        {"host": "n1", "device": "5", "rank": 21},
    ),
    "the surest cause wins": (
        NODES
        + said(
            0, "transport/net_ib.cc:99 NCCL WARN NET/IB: Got completion with error 12, opcode 0, len 0, vendor err 129"
        )
        + said(1, "transport/net_ib.cc:97 NCCL WARN NET/IB : mlx5_4:1 Got async event : port error", 3)
        + said(0, "misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1<4>"),
        "port down",
        {"host": "n1", "device": "mlx5_4:1", "rank": 11},
    ),
    "links alone, as people paste them": (
        linked("", "").replace("n0:1000:7 ", "<n0>:1000:7 "),
        "gpudirect off",
        {},
    ),
    "lines without host and process": (
        "[0] NCCL INFO NET/IB : No device found.\nNCCL INFO Using network Socket\n"
        "NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n",
        "sockets",
        {},
    ),
    "one channel, and no table": (
        NODES
        + said(0, "NCCL INFO NCCL_MAX_NCHANNELS set by environment to 1.")
        + said(0, "NCCL INFO comm 0x1 rank 0 nranks 16 cudaDev 0 busId 0 commId 0xa - Init COMPLETE"),
        "channels",
        {},
    ),
    "what the kernel says is surer than what a process says": (
        "[rank4]: RuntimeError: CUDA error: unspecified launch failure\n"
        "n0 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n",
        "GPU fell off the bus",
        {"host": "n0", "device": "0000:3b:00"},
    ),
    "a rank never joined": (
        NODES
        + "".join(
            said(0, f"NCCL INFO comm 0x1 rank {rank} nranks 8 cudaDev {rank} busId 0 commId 0xa - Init START", rank)
            for rank in range(7)
        ),
        "rank never joined",
        {"rank": 7},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_and_its_place_are_named(name: str, tmp_path: Path) -> None:
    """A log gives its cause, and the host, rank and device of it."""
    text, cause, where = CASES[name]
    found = diagnosis(tmp_path, text)
    assert (found["verdict"], found["cause"]) == ("finding", cause)
    assert where.items() <= found["where"].items()
    assert found["evidence"][0]["line"]
    assert found["next"]


def test_echoes_alone_point_to_the_peer(tmp_path: Path) -> None:
    """Echoes of a failure elsewhere are no clear cause; they name the other end."""
    found = diagnosis(tmp_path, said(0, "misc/socket.cc:49 NCCL WARN recv: Connection closed by remote peer n1<4>"))
    assert (found["confidence"], found["where"]["peer"]) == ("open", "n1<4>")


def test_the_earliest_of_several_logs_wins(tmp_path: Path) -> None:
    """Time stamps order the causes of several logs."""
    late = "[2026-03-13 22:27:00] " + said(0, "NCCL WARN Cuda failure 'out of memory'")
    early = "[2026-03-13 22:26:00] " + said(1, "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory")
    found = diagnosis(tmp_path, late, early)
    assert (found["cause"], found["where"]["host"]) == ("locked memory limit", "n1")


# --- a log with a table ---

TABLE = """#       size         count      type   redop    root     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1    {time:.1f}   {algbw:.2f}   {busbw:.2f}      0
  4294967296    1073741824     float     sum      -1    {time4:.1f}   {algbw:.2f}   {busbw:.2f}      0
"""


def table(busbw: float) -> str:
    """Return a table of all_reduce on 16 ranks with this busbw in GB/s."""
    algbw = busbw * 16 / 30
    time_us = 2**30 / algbw / 1e3
    return TABLE.format(time=time_us, time4=4 * time_us, algbw=algbw, busbw=busbw)


def test_a_setting_of_the_log_explains_a_table(tmp_path: Path) -> None:
    """GPUDirect off in the log, and a table that it predicts: the log explains the table."""
    off = {"NCCL_NET_GDR_LEVEL": "LOC"}
    expected = simcoll.predict("all_reduce", on="hgx-h100", nodes=2, size="4 GiB", env=off).busbw
    found = diagnosis(tmp_path, NODES + linked("", ""), NODES + table(expected))
    assert (found["cause"], found["confidence"], found["machine"]) == ("gpudirect off", "clear", "hgx-h100")
    assert "That alone predicts" in found["text"]


@pytest.mark.parametrize("busbw", [20.0, 300.0])
def test_what_nobody_wants_is_the_finding_of_a_slow_table(busbw: float, tmp_path: Path) -> None:
    """GPUDirect off at one end is named with its rate, whether the table is slower or faster than that."""
    found = diagnosis(tmp_path, NODES + linked("/GDRDMA", ""), NODES + table(busbw))
    assert (found["cause"], found["where"]["host"]) == ("gpudirect off", "n1"), found["text"]
    assert f"you measured {busbw:.3g}" in found["text"]


def test_settings_explain_a_table_together(tmp_path: Path) -> None:
    """Two channels cost nothing beside NVLS, and NVLS alone less than both: both are named with what they give."""
    both = {"NCCL_NVLS_ENABLE": "0", "NCCL_MAX_NCHANNELS": "2"}
    expected = simcoll.predict("all_reduce", on="hgx-h100", size="4 GiB", env=both)
    algbw = expected.busbw * 8 / 14
    rows = TABLE.format(time=2**30 / algbw / 1e3, time4=2**32 / algbw / 1e3, algbw=algbw, busbw=expected.busbw)
    log = "".join(NODES.splitlines(True)[:8]) + said(0, "NCCL INFO NCCL_MAX_NCHANNELS set by environment to 2.")
    log += said(0, "NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.")
    log += said(0, "NCCL INFO NCCL_BUFFSIZE set by environment to 4194304.")
    found = diagnosis(tmp_path, log + rows)
    assert all(f"{name}={value} is set" in found["text"] for name, value in both.items()), found["text"]
    assert "BUFFSIZE" not in found["text"] and "Together they predict" in found["text"]


@pytest.mark.parametrize("together", [False, True])
def test_a_forced_protocol_explains_a_table(together: bool, tmp_path: Path) -> None:
    """A variable of the log explains a table, in the file of the table as in one beside it."""
    expected = simcoll.predict("all_reduce", on="hgx-h100", nodes=2, size="4 GiB", protocol="LL").busbw
    log, rows = NODES + said(0, "NCCL INFO NCCL_PROTO set by environment to LL"), table(expected)
    found = diagnosis(tmp_path, *([log + rows] if together else [log, NODES + rows]))
    assert (found["cause"], found["confidence"]) == ("forced protocol", "clear"), found["text"]


def test_healthy_times_acquit_a_setting(tmp_path: Path) -> None:
    """A variable that is set and a warning of what costs time are no causes, if times are as they should be."""
    expected = simcoll.predict("all_reduce", on="hgx-h100", nodes=2, size="4 GiB").busbw
    log = NODES + linked("/GDRDMA", "/GDRDMA") + said(0, "NCCL INFO NCCL_BUFFSIZE set by environment to 8388608.")
    warned = said(
        0, "graph/xml.cc:311 NCCL WARN Could not open XML topology file /opt/a.xml : No such file or directory"
    )
    assert diagnosis(tmp_path, log + warned, NODES + table(expected))["verdict"] == "healthy"
    damaged = NODES + table(expected).replace("      0\n", "      7\n")
    assert diagnosis(tmp_path, log, damaged)["cause"] == "wrong data"
    unknown = [text.replace("H100", "other") for text in (log, NODES + table(expected / 9))]
    assert diagnosis(tmp_path, *unknown)["verdict"] == "unknown"  # a sound log does not say that the times are


def test_nics_that_are_missing_on_all_nodes_explain_a_table(tmp_path: Path) -> None:
    """The machine has eight NICs a node, and the log has two: times are predicted with two."""
    few = {"NCCL_IB_HCA": "=mlx5_0,mlx5_4"}
    expected = simcoll.predict("all_reduce", on="hgx-h100", nodes=2, size="4 GiB", env=few).busbw
    nics = " ".join(f"[{number}]mlx5_{number}:1/IB" for number in range(2))
    log = NODES + linked("/GDRDMA", "/GDRDMA") + "".join(said(h, f"NCCL INFO NET/IB : Using {nics}") for h in (0, 1))
    found = diagnosis(tmp_path, log, NODES + table(expected), on="hgx-h100")
    assert (found["cause"], "That alone predicts" in found["text"]) == ("fewer nics", True), found["text"]
    assumed = diagnosis(tmp_path, log, NODES + table(expected))  # a node may have no more NICs
    assert (assumed["verdict"], "That alone predicts" in assumed["text"]) == ("unknown", True), assumed["text"]


TREE = """=== System : maxBw 20.6 totalBw {nvlink} ===
CPU/0-0 (1/1/2)
+ PCI[48.0] - GPU/0-1b000 (0)
              + NVL[{nvlink}] - NVS/0-0
+ PCI[48.0] - NIC/0-18000
              + NET[{nic}] - NET/0-0 (1/0/{nic})"""


def tree(nvlink: float, nic: float) -> str:
    """Return the tree of devices that NCCL prints with NCCL_DEBUG_SUBSYS=GRAPH."""
    size = said(0, "NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0")
    return size + "".join(said(0, f"NCCL INFO {line}") for line in TREE.format(nvlink=nvlink, nic=nic).splitlines())


def test_the_tree_of_devices_is_the_machine(tmp_path: Path) -> None:
    """Without names of GPUs the machine is that with such NVLinks and NICs; then nothing is assumed."""
    assert diagnosis(tmp_path, tree(370.8, 50.0))["machine"] == "{system: hgx-h100, nodes: 2}"
    slower = "{system: hgx-h100, nodes: 2, nic_bandwidth: 12.5 GB/s}"
    expected = simcoll.predict("all_reduce", on=slower, size="4 GiB").busbw
    for rate, verdict in ((expected, "healthy"), (expected / 4, "finding")):
        found = diagnosis(tmp_path, tree(370.8, 12.5) + table(rate))
        assert (found["machine"], found["verdict"]) == (slower, verdict), found["text"]


def test_a_host_with_slower_nics_is_named(tmp_path: Path) -> None:
    """A host's NICs are slower than another's, in the tree of devices as in the list of NICs, whose unit is Mb/s."""
    listed = "NCCL INFO NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed={speed} pciPath=/sys/devices/0 ar=1"
    found = diagnosis(tmp_path, NODES + tree(370.8, 50.0) + said(1, listed.format(speed=200000)))
    assert (found["cause"], found["where"]["host"]) == ("slow nic", "n1")
    alike = NODES + tree(370.8, 50.0) + said(1, listed.format(speed=400000))
    one_more = said(1, listed.format(speed=100000).replace("mlx5_0", "mlx5_8"))  # which serves something else
    assert all(diagnosis(tmp_path, text)["cause"] is None for text in (alike, alike + one_more))


def test_what_is_assumed_makes_no_finding(tmp_path: Path) -> None:
    """Names of GPUs tell neither the NICs nor the PCIe: who names the machine gets a finding, others no verdict."""
    slow = NODES + table(20.0)
    assert diagnosis(tmp_path, slow)["verdict"] == "unknown"
    assert diagnosis(tmp_path, slow, on="hgx-h100")["verdict"] == "finding"


def test_wrong_data_need_no_machine(tmp_path: Path) -> None:
    """A table with wrong elements is a finding, whatever the machine."""
    assert diagnosis(tmp_path, table(300.0).replace("      0\n", "      7\n"))["cause"] == "wrong data"


def test_a_text_without_a_known_line_says_so(tmp_path: Path) -> None:
    """It is a text, and none of its lines is known; the message says what to give."""
    with pytest.raises(simcoll.SimcollError, match="no line of it is known"):
        diagnosis(tmp_path, "step 10 loss 8.1\n")


def test_files_for_import_are_named(tmp_path: Path) -> None:
    """A matrix of nvidia-smi is no file of a job; the message says what reads it."""
    with pytest.raises(simcoll.SimcollError, match="nvidia-smi: `simcoll import` reads it"):
        diagnosis(tmp_path, "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-9\nGPU1\tNV4\t X \t0-9\n")


# --- pairs of nodes ---


def of_hosts(busbw: float, *hosts: str) -> str:
    """Return a table of all_reduce on hosts of 8 GPUs."""
    lines = [
        f"#  Rank {rank:2d} Group  0 Pid {rank} on {hosts[rank // 8]} device  {rank % 8} [0x00] NVIDIA H100 80GB HBM3\n"
        for rank in range(8 * len(hosts))
    ]
    factor = 2 * (1 - 1 / (8 * len(hosts)))
    time_us = 2**30 * factor / busbw / 1e3
    header, row, *_ = TABLE.splitlines()
    row = row.format(time=time_us, algbw=busbw / factor, busbw=busbw)
    return "".join(lines) + f"{header}\n{row}\n"


PAIRS = {"ab": 300.0, "bc": 300.0, "cd": 300.0, "da": 300.0, "ac": 300.0, "bd": 300.0}


@pytest.mark.parametrize(
    ("slow", "cause", "host"),
    [("cd da ac", "bad node", "hosta"), ("bc", "bad link between nodes", "hostb"), ("", None, None)],
)
def test_pairs_of_nodes_find_a_node_or_a_cable(slow: str, cause: str | None, host: str | None, tmp_path: Path) -> None:
    """A node that all slow pairs share is at fault; else what joins the only slow pair."""
    slow = {"cd da ac": "ab da ac"}.get(slow, slow)
    rates = {pair: 150.0 if pair in slow.split() else rate for pair, rate in PAIRS.items()}
    found = diagnosis(tmp_path, *(of_hosts(rate, *(f"host{name}" for name in pair)) for pair, rate in rates.items()))
    assert found["cause"] == cause
    assert cause is None or found["where"]["host"] == host


def test_a_slow_node_is_found_by_itself(tmp_path: Path) -> None:
    """A node that is slow without the network is at fault."""
    found = diagnosis(tmp_path, *(of_hosts(200.0 if name == "c" else 480.0, f"host{name}") for name in "abcd"))
    assert (found["cause"], found["where"]["host"]) == ("bad node", "hostc")


def test_a_release_of_rccl_that_is_too_old_is_judged_by_the_oldest_known(tmp_path: Path) -> None:
    """As one of NCCL is: RCCL names itself so in its log, or by the release of HIP."""
    rate = simcoll.predict("all_reduce", on="mi300x", size="1 GiB").busbw
    rows = of_hosts(rate, "hosta").replace("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X")
    found = diagnosis(tmp_path, said(0, "NCCL INFO NCCL version 2.18.3+hip5.7") + rows)
    assert (found["verdict"], found["machine"]) == ("healthy", "mi300x"), found["text"]


# --- healthy logs, damaged logs, long logs ---


def is_healthy(seed: int, folder: Path) -> None:
    """Assert that a healthy log gives no alarm, and shows its machine."""
    made = log_variants.healthy(seed)
    found = diagnosis(folder, made.text)
    assert (found["verdict"], found["machine"], found["nodes"]) == ("healthy", made.machine, made.nodes), found["text"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_a_log_of_windows_is_read(encoding: str, tmp_path: Path) -> None:
    """PowerShell writes UTF-16, and lines that end in CR LF."""
    (tmp_path / "job.log").write_bytes(log_variants.healthy(1).text.replace("\n", "\r\n").encode(encoding))
    assert simcoll.diagnose(tmp_path)["verdict"] == "healthy"


@pytest.mark.parametrize("seed", range(12))
def test_healthy_logs_give_no_alarm(seed: int, tmp_path: Path) -> None:
    """Some healthy logs."""
    is_healthy(seed, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        said(0, "NCCL INFO Call to connect returned Connection refused, retrying"),
        "[W socket.cpp:759] [c10d] The client socket has failed to connect to [n0]:29500 (errno: 111).\n",
        "[rank0]:[I ProcessGroupNCCL.cpp:914] TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 480, Heartbeat monitor\n",
    ],
)
def test_beginnings_of_healthy_jobs_give_no_alarm(line: str, tmp_path: Path) -> None:
    """Ranks try to connect until the first one listens."""
    assert diagnosis(tmp_path, line + log_variants.healthy(1).text)["verdict"] == "healthy"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12, 200))
def test_more_healthy_logs_give_no_alarm(seed: int, tmp_path: Path) -> None:
    """Many healthy logs."""
    is_healthy(seed, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "NCCL WARN NET/IB : Got completion from peer 10.1\x1b[31m.2<33> with error 10, opcode 0",
        "NCCL INFO NCCL_P2P_LEVEL set by environment to LOC\x1b]0;x",
        "NCCL WARN socketProgress: \x1b[2J Connection closed by remote peer n1\x1b<4>",
    ],
)
def test_escapes_of_a_log_reach_no_terminal(line: str, tmp_path: Path) -> None:
    """Whatever a log says is shown without control characters: in the sentence, the place, the advice."""
    found = diagnosis(tmp_path, NODES.replace("n1 ", "n1\x1b[5m ") + said(0, line))
    assert "\x1b" not in str(found) + found.text


def survives(seed: int, folder: Path) -> None:
    """Assert that a damaged log gives an answer or one error of input, within 5 s of CPU."""
    text = log_variants.damaged(log_variants.healthy(seed).text + "".join(text for text, *_ in CASES.values()), seed)
    began = time.process_time()
    try:
        found = diagnosis(folder, text)
    except simcoll.SimcollError:
        return
    assert "\x1b" not in str(found)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("seed", range(8))
def test_damaged_logs_give_an_answer(seed: int, tmp_path: Path) -> None:
    """Some damaged logs."""
    survives(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 300))
def test_more_damaged_logs_give_an_answer(seed: int, tmp_path: Path) -> None:
    """Many damaged logs."""
    survives(seed, tmp_path)


@pytest.mark.long
def test_a_log_of_100000_lines_takes_5_seconds(tmp_path: Path) -> None:
    """Reading takes time in proportion to distinct lines."""
    text = log_variants.healthy(1).text
    text += text * (100_000 // text.count("\n"))
    began = time.process_time()
    assert diagnosis(tmp_path, text)["verdict"] == "healthy"
    assert time.process_time() - began < 5
