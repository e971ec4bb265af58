"""Made-up logs of NCCL: healthy communicators of any size, on several machines and releases, with harmless noise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

GPUS = {
    "NVIDIA H100 80GB HBM3": "hgx-h100",
    "NVIDIA H200": "hgx-h200",
    "NVIDIA A100-SXM4-80GB": "dgx-a100",
    "NVIDIA B200": "hgx-b200",
}
RELEASES = ("2.18.5", "2.20.3", "2.22.3", "2.24.3", "2.26.2", "2.27.7", "2.28.9", "2.29.2", "2.30.7", "2.31.2")
NOISE = (
    "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    "NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
    "TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.",
    "PROFILER/Plugin: Could not find: libnccl-profiler.so.",
    "ENV/Plugin: Could not find: libnccl-env.so",
    "NCCL_SOCKET_IFNAME set by environment to eth",
    "NCCL_IB_TIMEOUT set by environment to 22.",
    "NCCL_IB_GID_INDEX set by environment to 3.",
    "NCCL_NET_GDR_LEVEL set by environment to SYS",
    "NCCL_DEBUG_SUBSYS set by environment to INIT,NET",
    "Setting affinity for GPU 0 to ffffffff,ffffffff",
    "RAS client listening socket at ::1<28028>",
    "DMA-BUF is available on GPU device 0",
    "CC Off, workFifoBytes 1048576",
    "cudaDriverVersion 12080",
    "P2P Chunksize set to 524288",
)
OTHERS = (
    "step 120 loss 2.3311 lr 1.0e-04 error 0.0012",
    "Warning: Permanently added 'worker-1' (ED25519) to the list of known hosts.",
    "INFO 03-04 10:11:12 model_runner.py:1025] Loading model weights took 12.5 GB of memory",
    "[rank0]:[W ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called before program exit",
    "OMP_NUM_THREADS not set, so timeouts of 600 s hold; 0 errors, 0 failures",
)
CLOSING = (
    "proxy.cc:1458 NCCL WARN [Service thread] Could not receive type from localRank 2, res=3, closed=0",
    "proxy.cc:1521 NCCL WARN [Proxy Service 0] Failed to execute operation Close from rank 1, retcode 3",
    "NCCL INFO misc/socket.cc:47 -> 3",
)


@dataclass(frozen=True)
class Variant:
    """A healthy log, and the machine that it shows."""

    text: str
    machine: str
    nodes: int


def healthy(seed: int) -> Variant:
    """Return a healthy log, drawn with a seed: nodes, ranks, release, launcher's labels, time stamps, noise."""
    draw = random.Random(seed)
    gpu = draw.choice(list(GPUS))
    nodes, release = draw.choice((1, 2, 3, 4)), draw.choice(RELEASES)
    stamp = draw.random() < 0.3
    label = draw.choice(("", "[1,{rank}]<stdout>:", "{rank}: "))
    lines = [
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank} on node{rank // 8} device  {rank % 8} [0x{rank % 8:x}0] {gpu}"
        for rank in range(8 * nodes)
    ]
    lines.append(f"NCCL version {release}+cuda12.8")
    for rank in range(8 * nodes):
        own = list(_of_rank(draw, rank, nodes, "IB", gpu))
        for line in own:
            when = f"[2026-03-13 22:26:{draw.randrange(60):02d}] " if stamp else ""
            lines.append(
                f"{label.format(rank=rank)}{when}node{rank // 8}:{1000 + rank}:{2000 + rank} [{rank % 8}] {line}"
            )
        if draw.random() < 0.2:
            lines.append(draw.choice(OTHERS))
    return Variant("\n".join(lines) + "\n", GPUS[gpu], nodes)


def _of_rank(draw: random.Random, rank: int, nodes: int, network: str, gpu: str) -> Iterator[str]:
    ranks, node = 8 * nodes, rank // 8
    yield from (f"NCCL INFO {line}" for line in draw.sample(NOISE, draw.randrange(len(NOISE))))
    used = "Socket" if nodes == 1 and draw.random() < 0.5 else network
    if used == "Socket":
        yield "NCCL INFO NET/IB : No device found."
    else:
        nics = " ".join(f"[{n}]mlx5_{n}:1/{draw.choice(('IB', 'RoCE'))}" for n in range(8))
        yield f"NCCL INFO NET/IB : Using {nics} [RO]; OOB eth0:198.51.100.{node}<0>"
    yield f"NCCL INFO Using network {used}"
    head = f"comm 0x55{rank:04x} rank {rank} nranks {ranks} cudaDev {rank % 8} nvmlDev {rank % 8} busId {rank}000"
    yield f"NCCL INFO ncclCommInitRank {head} commId 0xabc - Init START"
    yield f"NCCL INFO comm 0x55{rank:04x} rank {rank} nRanks {ranks} nNodes {nodes} localRanks 8 localRank {rank % 8}"
    hopper = "A100" not in gpu
    yield f"NCCL INFO NVLS multicast support is {'' if hopper else 'not '}available on dev {rank % 8}"
    after = node * 8 + (rank + 1) % 8
    for channel in range(2):
        head_of_link = f"NCCL INFO Channel {channel:02d}/0 :"
        yield f"{head_of_link} {rank}[{rank % 8}] -> {after}[{after % 8}] via P2P/CUMEM/read"
        if nodes > 1:
            peer, way = (rank + 8) % ranks, f"via NET/IB/{rank % 8}/GDRDMA"
            yield f"{head_of_link} {rank}[{rank % 8}] -> {peer}[{peer % 8}] [send] {way}"
            yield f"{head_of_link} {peer}[{peer % 8}] -> {rank}[{rank % 8}] [receive] {way}"
    yield "NCCL INFO Connected all rings"
    nvls = f"{16 * hopper} nvls channels"
    yield f"NCCL INFO 24 coll channels, 24 collnet channels, {nvls}, 32 p2p channels, 32 p2p channels per peer"
    yield f"NCCL INFO ncclCommInitRank {head} commId 0xabc - Init COMPLETE"
    if draw.random() < 0.2:
        yield draw.choice(CLOSING)
        yield f"NCCL INFO comm 0x55{rank:04x} rank {rank} nranks {ranks} cudaDev {rank % 8} busId 1000 - Abort COMPLETE"


def damaged(text: str, seed: int) -> str:
    """Return a text with parts cut out, doubled, or replaced by any characters, drawn with a seed."""
    draw = random.Random(seed)
    for _ in range(draw.randrange(1, 6)):
        first, last = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        middle = draw.choice(("", text[first:last] * 2, "\x1b[2J\x00" * 5, "9" * 5000, "\n" * 50, "NCCL WARN " * 400))
        text = text[:first] + middle + text[last:]
    return text[:2_000_000]
