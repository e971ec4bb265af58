"""Small files of other programs for the tests of import and export; all of them written for this."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import ModuleType
from typing import Final

import networkx as nx
from command import Outcome, simcoll

from simcoll.formats import importers
from simcoll.formats.schedules import msccl, schedule_json
from simcoll.nccl.protocols import nvlink_GBps
from simcoll.schedule.schedule import Schedule
from simcoll.topology.machine_files import read_shipped, template
from simcoll.topology.topology_builder import load_system

MATRIX: Final = "\n".join(
    [
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m",
        "GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\tNODE\t0-31\t0\t\tN/A",
        "GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\tNODE\t0-31\t0\t\tN/A",
        "GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPXB\tSYS\t32-63\t1\t\tN/A",
        "GPU3\tNV12\tNV12\tNV12\t X \tSYS\tPXB\tSYS\t32-63\t1\t\tN/A",
        "NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\tNODE\t\t\t\t",
        "NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \tSYS\t\t\t\t",
        "NIC2\tNODE\tNODE\tSYS\tSYS\tNODE\tSYS\t X \t\t\t\t",
        "",
        "Legend:",
        "",
        "  X    = Self",
        "  NV#  = Connection traversing a bonded set of # NVLinks",
        "",
        "NIC Legend:",
        "",
        "  NIC0: mlx5_0",
        "  NIC1: mlx5_1",
        "  NIC2: eth0",
        "",
    ]
)


def mi300x(kind: str = "gfx942") -> str:
    """A dump of NCCL's topology as RCCL writes it: 8 GPUs of a kind that are all joined, each with a NIC."""
    pcie = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    lines = ['<system version="2">']
    for cpu in range(2):
        lines.append(f'<cpu numaid="{cpu}" affinity="f" arch="x86_64" vendor="AuthenticAMD" familyid="175">')
        for gpu in range(4 * cpu, 4 * cpu + 4):
            lines.append(f'<pci busid="0000:{gpu:02x}:00.0" class="0x060400" {pcie}>')
            lines.append(f'<pci busid="0000:{16 + gpu:02x}:00.0" class="0x120000" {pcie}>')
            lines.append(f'<gpu dev="{gpu}" gcn="{kind}" rank="{gpu}" gdr="1">')
            others = (other for other in range(8) if other != gpu)
            lines += (f'<xgmi target="0000:{16 + other:02x}:00.0" count="1" tclass="0x120000"/>' for other in others)
            lines.append(f'</gpu></pci><pci busid="0000:{48 + gpu:02x}:00.0" class="0x020000" {pcie}>')
            lines.append(f'<nic><net name="mlx5_{gpu}" dev="{gpu}" speed="400000" port="1" gdr="1"/></nic></pci></pci>')
        lines.append("</cpu>")
    return "\n".join([*lines, "</system>"])


def matrix_of(name: str) -> str:
    """What `nvidia-smi topo -m` would print on a shipped system."""
    system, plan = load_system(name), template(read_shipped(name).file)
    kinds = {device: data["kind"] for device, data in plan.devices}
    each = nvlink_GBps((system.gpu.compute_capability if system.gpu else None) or 0)
    nvlinks = {(u, v): round(link.bandwidth / 1e9 / each) for u, v, link in plan.links if link.kind == "nvlink"}
    tree = nx.Graph((u, v) for u, v, link in plan.links if u != v and link.kind != "nvlink")
    shown = [device for kind in ("gpu", "nic") for device in kinds if kinds[device] == kind]

    def cell(a: str, b: str) -> str:
        if a == b:
            return "X"
        if links := nvlinks.get((a, b)) or (kinds[a] == kinds[b] == "gpu" and nvlinks.get((a, "nvswitch0"))):
            return f"NV{links}"
        way = [kinds[device] for device in nx.shortest_path(tree, a, b)[1:-1]] if nx.has_path(tree, a, b) else []
        if way.count("cpu") == 1:
            return "NODE" if "pcie_switch" in way else "PHB"
        return "PIX" if way == ["pcie_switch"] else "PXB" if way and "cpu" not in way else "SYS"

    lines = ["\t".join(["", *map(str.upper, shown), "CPU Affinity", "NUMA Affinity"])]
    for a in shown:
        near = nx.single_source_shortest_path_length(tree, a)
        cpu = min((device for device in near if kinds[device] == "cpu"), key=near.__getitem__)[3:]
        lines.append(
            "\t".join([a.upper(), *(cell(a, b) for b in shown), f"{cpu}-{cpu}", cpu][: None if "gpu" in a else -2])
        )
    return "\n".join([*lines, ""])


MESH: Final = """\
        GPU0    GPU1    GPU2    GPU3    mlx5_0  mlx5_1  CPU Affinity    NUMA Affinity
GPU0     X      NV4     NV4     NV4     SYS     SYS     0-15    0
GPU1    NV4      X      NV4     NV4     PIX     SYS     16-31   1
GPU2    NV4     NV4      X      NV4     SYS     PIX     32-47   2
GPU3    NV4     NV4     NV4      X      SYS     SYS     48-63   3
mlx5_0  SYS     PIX     SYS     SYS      X      SYS
mlx5_1  SYS     SYS     PIX     SYS     SYS      X
"""


def rocm_smi(n: int, apart: tuple[int, int] | None = None) -> str:
    """What `rocm-smi --showtopo` prints of GPUs that XGMI joins, but for two that are `apart`; two NUMA nodes."""
    gpus = [f"GPU{i}" for i in range(n)]

    def table(title: str, near: str, far: str) -> list[str]:
        cells = {
            (a, b): "0" if a == b else far if {a, b} == {*(apart or ())} else near for a in range(n) for b in range(n)
        }
        rows = [" ".join([f"{gpu:6}", *(f"{cells[a, b]:12}" for b in range(n))]) for a, gpu in enumerate(gpus)]
        return [f"{title:=^90}", " " * 7 + " ".join(f"{gpu:12}" for gpu in gpus), *rows, ""]

    tables = [*table(" Weight between two GPUs ", "15", "40"), *table(" Hops between two GPUs ", "1", "2")]
    numa = [f"GPU[{i}]\t\t: (Topology) Numa Node: {2 * i // n}" for i in range(n)]
    return "\n".join(
        [*tables, *table(" Link Type between two GPUs ", "XGMI", "PCIE"), f"{' Numa Nodes ':=^90}", *numa, ""]
    )


OLD_MATRIX: Final = """\
$ nvidia-smi topo -m
        GPU0    GPU1    GPU2    mlx5_0  CPU Affinity
GPU0     X      NV1     NV2     PIX     0-19,40-59
GPU1    NV1      X      SOC     PHB     0-19,40-59
GPU2    NV2     SOC      X      SOC     20-39,60-79
mlx5_0  PIX     PHB     SOC      X
"""
TOPOLOGY: Final = """\
<?xml version="1.0"?>
<!-- two GPUs behind a bridge that is misread, two beside each other -->
<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143" host_hash="0x1">
    <pci busid="0000:08:00.0" class="0x060400" link_speed="2.5 GT/s PCIe" link_width="16">
      <pci busid="0000:09:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1">
          <nvlink target="0000:50:00.0" count="10" tclass="0x068000"/>
          <nvlink target="0000:51:00.0" count="8" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:0a:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:50:00.0" count="10" tclass="0x068000"/>
          <nvlink target="0000:51:00.0" count="8" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:0b:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.0" guid="0x1" maxconn="1" gdr="1"/>
          <net name="mlx5_1" dev="1" speed="200000" port="2" latency="0.0" guid="0x1" maxconn="1" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <nic><net name="eth0" dev="2" speed="10000" port="0" guid="0x9" maxconn="1" gdr="0"/></nic>
  </cpu>
  <cpu numaid="1" affinity="ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:89:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:8a:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="2" sm="90" rank="2" gdr="1"><nvlink target="0000:50:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
    </pci>
  </cpu>
</system>
"""
SKELETON: Final = """\
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0101:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0002:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0102:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>
    </pci>
  </cpu>
</system>
"""
GRAPH: Final = """\
<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="12" speedinter="12.5" latencyinter="1.5"
         typeintra="PHB" typeinter="PIX" samechannels="1">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/><net dev="0"/></channel>
    <channel><net dev="1"/><gpu dev="0x1"/><gpu dev="0"/><gpu dev="3"/><gpu dev="2"/><net dev="1"/></channel>
  </graph>
</graphs>
"""
INFRAGRAPH: Final = """\
name: two servers and a switch
devices:
- name: server
  components:
  - {choice: cpu, count: 1, name: cpu}
  - {choice: xpu, count: 2, name: xpu}
  - {choice: switch, count: 2, name: nvsw}
  - {choice: device, count: 2, name: card}
  links:
  - {name: pcie}
  - name: nvlink
    physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 100}, latency: {choice: ns, ns: 300}}
  edges:
  - {ep1: {component: xpu}, ep2: {component: nvsw}, link: nvlink, scheme: many2many}
  - {ep1: {component: xpu}, ep2: {component: 'cpu[0]'}, link: pcie, scheme: many2many}
  - {ep1: {component: 'card[0:2].nic'}, ep2: {component: 'cpu[0]'}, link: pcie, scheme: many2many}
- name: card
  components:
  - {choice: nic, count: 1, name: nic}
- name: switch
  components:
  - {choice: port, count: 4, name: port}
  - {choice: cpu, count: 1, name: asic}
  links: [{name: ic}]
  edges:
  - {ep1: {component: asic}, ep2: {component: port}, link: ic, scheme: many2many}
instances:
- {name: server, device: server, count: 2}
- {name: switch, device: switch, count: 1}
links:
- name: wire
  physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 200}}
edges:
- {ep1: {instance: 'server[0]', component: 'card[:].nic'}, ep2: {instance: 'switch[0]', component: 'port[0:2]'},
   link: wire, scheme: one2one}
- {ep1: {instance: 'server[1]', component: 'card[:].nic'}, ep2: {instance: 'switch[0]', component: 'port[2:]'},
   link: wire, scheme: one2one}
"""


def _step(number: int, kind: str, src: str, dst: str, waits: tuple[int, int] = (-1, -1), count: int = 1) -> str:
    (a, i), (b, j) = src.split(), dst.split()
    where = f'srcbuf="{a}" srcoff="{i}" dstbuf="{b}" dstoff="{j}"'
    return f'<step s="{number}" type="{kind}" {where} cnt="{count}" depid="{waits[0]}" deps="{waits[1]}" hasdep="0"/>'


def _all_pairs() -> str:
    """Out of place, with scratch: everyone sends its whole buffer to everyone, sums up in the output."""
    lines = ['<algo name="pairs" proto="LL" nchannels="2" nchunksperloop="2" ngpus="3" coll="allreduce" inplace="0">']
    for gpu in range(3):
        lines.append(f'<gpu id="{gpu}" i_chunks="2" o_chunks="2" s_chunks="4">')
        lines += [
            '<tb id="0" send="-1" recv="-1" chan="0">',
            _step(0, "cpy", "i 0", "o 0", count=2),
            _step(1, "nop", "i 0", "o 0", (1, 1), count=0),
            _step(2, "re", "s 0", "o 0", (2, 1), count=2),
            _step(3, "re", "s 2", "o 0", count=2),
            "</tb>",
        ]
        for tb, shift in ((1, 1), (2, 2)):
            to, of = (gpu + shift) % 3, (gpu - shift) % 3
            lines.append(f'<tb id="{tb}" send="{to}" recv="{of}" chan="{tb - 1}">')
            lines += [_step(0, "s", "i 0", "s 0", count=2), _step(1, "r", "i 0", f"s {2 * tb - 2}", count=2), "</tb>"]
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _ring() -> str:
    """In place, of 4 GPUs: 2(n-1)+1 steps each."""
    lines = [
        '<algo name="ring" proto="Simple" nchannels="1" nchunksperloop="4" ngpus="4" coll="allreduce" inplace="1">'
    ]
    kinds = ("s", "rrs", "rrs", "rrcs", "rcs", "rcs", "r")
    for gpu in range(4):
        lines.append(f'<gpu id="{gpu}" i_chunks="4" o_chunks="0" s_chunks="0">')
        lines.append(f'<tb id="0" send="{(gpu + 1) % 4}" recv="{(gpu - 1) % 4}" chan="0">')
        chunks = [f"i {(gpu - k) % 4}" for k in range(7)]
        lines += [_step(k, kind, chunks[k], chunks[k]) for k, kind in enumerate(kinds)]
        lines += ["</tb>", "</gpu>"]
    return "\n".join([*lines, "</algo>", ""])


def _leader() -> str:
    """Of 2 GPUs: reduced at GPU 0 by `rrc` with another source, and sent back from scratch."""
    return "\n".join(
        [
            '<algo name="lead" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2" coll="allreduce" inplace="1">',
            '<gpu id="0" i_chunks="1" o_chunks="0" s_chunks="1"><tb id="0" send="1" recv="1" chan="0">',
            _step(0, "rrc", "i 0", "s 0"),
            _step(1, "s", "s 0", "i 0"),
            '</tb><tb id="1" send="-1" recv="-1" chan="0">',
            _step(0, "cpy", "s 0", "i 0", (0, 0)),
            '</tb></gpu><gpu id="1" i_chunks="1" o_chunks="0" s_chunks="0"><tb id="0" send="0" recv="0" chan="0">',
            _step(0, "s", "i 0", "i 0"),
            _step(1, "r", "i 0", "i 0"),
            "</tb></gpu></algo>",
        ]
    )


def _scattered() -> str:
    """A reduce_scatter of 2 GPUs, out of place."""
    lines = ['<algo name="half" proto="Simple" nchunksperloop="2" ngpus="2" coll="reducescatter" inplace="0">']
    for gpu in range(2):
        lines.append(f'<gpu id="{gpu}" i_chunks="2" o_chunks="1" s_chunks="0">')
        lines.append(f'<tb id="0" send="{1 - gpu}" recv="{1 - gpu}" chan="0">')
        lines += [_step(0, "s", f"i {1 - gpu}", "o 0"), _step(1, "rrc", f"i {gpu}", "o 0"), "</tb></gpu>"]
    return "\n".join([*lines, "</algo>", ""])


SCATTERED: Final = _scattered()
RING, ALL_PAIRS, LEADER = _ring(), _all_pairs(), _leader()


def plan(n: int = 3) -> dict[str, object]:
    """An all_reduce of MSCCL++ by packets, in place: scatter, reduce, gather."""
    gpus = []
    for rank in range(n):
        peers = [peer for peer in range(n) if peer != rank]

        def piece(buffer: str, index: int) -> dict[str, object]:
            return {"type": buffer, "index": index, "size": 1}

        ops: list[dict[str, object]] = []
        for j, peer in enumerate(peers):
            to = [{"buffer_id": j, "index": rank, "size": 1}]
            ops.append({"name": "ppkt", "src_buff": [piece("i", peer)], "dst_buff": to, "channel_type": "memory"})
        scratch = [piece("s", peer) for peer in peers]
        ops.append({"name": "repkt", "src_buff": [piece("i", rank), *scratch], "dst_buff": [piece("i", rank)]})
        to = [{"buffer_id": j, "index": n + rank, "size": 1} for j in range(n - 1)]
        ops.append({"name": "ppkt", "src_buff": [piece("i", rank)], "dst_buff": to, "channel_type": "memory"})
        ops += [{"name": "upkt", "src_buff": [piece("s", n + p)], "dst_buff": [piece("i", p)]} for p in peers]
        all_of_them = list(range(n - 1))
        block = {
            "id": 0,
            "ops": ops,
            "channels": [{"channel_type": "memory", "channel_ids": all_of_them}],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": all_of_them}],
        }
        gpus.append(
            {
                "id": rank,
                "input_chunks": n,
                "output_chunks": n,
                "scratch_chunks": 2 * n,
                "channels": [{"channel_type": "memory", "connected_to": peers}],
                "remote_buffers": [{"rank": p, "type": "s", "access_channel_types": ["memory"]} for p in peers],
                "threadblocks": [block],
            }
        )
    return {"name": "packets", "collective": "allreduce", "protocol": "LL", "inplace": True, "gpus": gpus}


def gather_plan(n: int = 3) -> dict[str, object]:
    """An all_gather of MSCCL++ by put, signal and wait, out of place."""
    gpus = []
    for rank in range(n):
        peers, them = [peer for peer in range(n) if peer != rank], list(range(n - 1))
        own = [{"type": "i", "index": 0, "size": 1}]
        ops: list[dict[str, object]] = [
            {"name": "put", "src_buff": own, "channel_ids": [j], "channel_type": "memory",
             "dst_buff": [{"buffer_id": j, "index": rank, "size": 1}]}
            for j in them
        ]  # fmt: skip
        ops += [
            {"name": "copy", "src_buff": own, "dst_buff": [{"type": "o", "index": rank, "size": 1}]},
            {"name": "signal", "channel_ids": them, "channel_type": "memory"},
            {"name": "wait", "channel_ids": them, "channel_type": "memory"},
        ]
        block = {
            "id": 0,
            "ops": ops,
            "channels": [{"channel_type": "memory", "channel_ids": them}],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": them}],
        }
        remote = [{"rank": p, "type": "o", "access_channel_types": ["memory"]} for p in peers]
        gpus.append(
            {"id": rank, "input_chunks": 1, "output_chunks": n, "scratch_chunks": 0, "remote_buffers": remote,
             "channels": [{"channel_type": "memory", "connected_to": peers}], "threadblocks": [block]}
        )  # fmt: skip
    return {"name": "puts", "collective": "allgather", "protocol": "Simple", "inplace": False, "gpus": gpus}


def switched_plan(n: int = 4, together: bool = True) -> dict[str, object]:
    """An all_reduce of MSCCL++ through a switch: each rank sums one chunk of all ranks, and stores it to all of them.
    Either `together`, or by way of scratch."""
    gpus = []
    for rank in range(n):
        peers, them = [peer for peer in range(n) if peer != rank], list(range(n - 1))
        joined = [{"switch_channel_id": 0, "index": rank, "size": 1}]
        kept = [{"type": "s", "index": 0, "size": 1}]
        switch = {"channel_ids": [0], "channel_type": "switch"}
        turn: list[dict[str, object]] = [
            {"name": "signal", "channel_ids": them, "channel_type": "memory"},
            {"name": "wait", "channel_ids": them, "channel_type": "memory"},
        ]
        loads: list[dict[str, object]] = [
            {"name": "glre", "src_buff": joined, "dst_buff": kept, "reduce_op": "sum", **switch},
            {"name": "gstore", "src_buff": kept, "dst_buff": joined, **switch},
        ]
        if together:
            loads = [{"name": "glres", "src_buff": joined, "dst_buff": joined, "reduce_op": "sum", **switch}]
        block = {
            "id": 0,
            "ops": [*turn, *loads, *turn],
            "channels": [
                {"channel_type": "memory", "channel_ids": them},
                {"channel_type": "switch", "channel_ids": [0]},
            ],
        }
        group = {"size": n, "ranks": list(range(n))}
        channels = [
            {"channel_type": "memory", "connected_to": peers},
            {"channel_type": "switch", "buffer_type": "i", "rank_groups": [group]},
        ]
        gpus.append(
            {"id": rank, "input_chunks": n, "output_chunks": n, "scratch_chunks": 1, "channels": channels,
             "threadblocks": [block]}
        )  # fmt: skip
    return {"name": "switched", "collective": "allreduce", "protocol": "Simple", "inplace": True, "gpus": gpus}


GOAL: Final = """\
num_ranks 4

rank 0 {
r1: recv 1024b from 1 tag 5 cpu 0 nic 0
c1: calc 100
r2: recv 1024b from 2 tag 5
s1: send 1024b to 2 tag 9
c1 requires r1
s1 requires r2
s1 irequires c1
s2: send 1024b to 1 tag 9
s2 requires r2
s2 requires c1
}
rank 1 {
s: send 1024b to 0 tag 5
r: recv 1024b from 0 tag 9
}
rank 2 {
g: recv 1024b from 3 tag 5
s: send 1024b to 0 tag 5
s requires g
r: recv 1024b from 0 tag 9
f: send 1024b to 3 tag 9
f requires r
}
rank 3 {
s: send 1024b to 2 tag 5
r: recv 1024b from 2 tag 9
}
"""
TESTS: Final = """\
# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 graph: 0
# Using devices
#  Rank  0 Group  0 Pid   4242 on      hosta device  0 [0x0f] NVIDIA H100
#  Rank  1 Group  0 Pid   4242 on      hosta device  1 [0x2d] NVIDIA H100
# all_reduce_perf
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    10.50    0.10    0.10      0    10.10    0.10    0.10      0
        2048           512     float     sum      -1hosta:4242:4260 [0] NCCL INFO Connected all rings
    11.50    0.18    0.18      0    11.10    0.18    0.18      0
        4096          1024     float     sum      -1    12.50    0.33    0.33      0    12.10    0.34    0.34      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.2
"""
TESTS_JSON: Final = json.dumps(
    {
        "version": 3,
        "args": ["./build/all_reduce_perf", "-b", "1K"],
        "env": ["PATH=/usr/bin", "MY_TOKEN=hunter2", "NCCL_ALGO=RING", "NCCL_AUTH_TOKEN=hunter2"],
        "nccl_version": "2.28.3",
        "config": {"devices": [{"rank": r, "group": 0, "hostname": "ab"[r // 2]} for r in range(4)]},
        "results": [
            {"size": 1024, "type": "float", "redop": "sum", "root": -1, "actual_iterations": 20,
             "out_of_place": {"time": 10.5, "nwrong": 0}, "in_place": {"time": 11.0}},
            {"size": 2048, "type": "float", "redop": "sum", "root": -1, "out_of_place": {"time": 99.0},
             "out_of_place_per_iter": {"times_us": [9.0, 10.0, 14.0], "p50_us": 10.0}},
        ],
    }
)  # fmt: skip
RCCL_LINES: Final = """\
{"name": "AllGather", "nodes": 1, "ranks": 8, "size": 1024, "type": "half", "inPlace": 0, "time": 12.3, "busBw": 0.2}
{"name": "AllGather", "nodes": 1, "ranks": 8, "size": 1024, "type": "half", "inPlace": 1, "time": 12.1, "busBw": 0.2}
"""
RCCL_CSV: Final = """\
name, nodes, ranks, size, type, redop, inPlace, time, algBw, busBw, wrong
AllGather, 1, 8, 1024, half, none, 0, 12.3, 0.08, 0.07, 0
AllGather, 1, 8, 1024, half, none, 1, 12.1, 0.08, 0.07, 0
"""
OSU: Final = """\
# OSU MPI Allgather Latency Test v7.0
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       2.41              1.89              3.06        1000
1024                    5.41              4.89              6.06        1000
"""
IMB: Final = """\
#----------------------------------------------------------------
# Benchmarking Allreduce
# #processes = 4
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.05         0.05         0.05
         1024         1000         5.33         6.70         6.50

# Benchmarking Barrier
# #processes = 8
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1000         1.79         1.80         1.79
"""
CSV: Final = "collective,ranks,size_bytes,time_us,cluster\nall_reduce,8,1024,12.5,east\nall_reduce,8,2048,13.5,east\n"
# Tables of other benchmarks: what is given beside the text, and the rows (collective, ranks, bytes, us) that it holds.
TABLES: Final[dict[str, tuple[str, dict[str, object], list[tuple[str, int, int, float]]]]] = {
    "osu": (OSU, {"ranks": 4}, [("all_gather", 4, 16, 2.41), ("all_gather", 4, 4096, 5.41)]),
    "imb": (IMB, {}, [("all_reduce", 4, 1024, 6.5), ("barrier", 8, 0, 1.79)]),
    "osu, non-blocking, labelled": (
        """\
00: # OSU MPI Non-blocking Allgather Latency Test v5.0
00: # Overall = Coll. Init + Compute + MPI_Test + MPI_Wait
00:
00: # Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)
00: 1024                  260.00            130.00            125.00              1.00
""",
        {"ranks": 32}, [("all_gather", 32, 32768, 125.0)],
    ),
    "osu, non-blocking, all columns": (
        """\
# OSU MPI Non-blocking Allreduce Latency Test v7.2
# Size    Overall(us)   Compute(us)   Coll. Init(us)   MPI_Test(us)   MPI_Wait(us)   Pure Comm.(us)   Overlap(%)
1024           260.00        130.00             1.00           2.00           3.00           125.00         1.00
""",
        {"ranks": 32}, [("all_reduce", 32, 1024, 125.0)],
    ),
    "osu, all to all by NCCL": (
        "[1,0]<stdout>:# OSU NCCL All-to-All Personalized Exchange Latency Test v7.5\n"
        "[1,0]<stdout>:# Datatype: MPI_FLOAT.\n[1,0]<stdout>:# Size       Avg Latency(us)\n[1,0]<stdout>:1024  4.50\n",
        {"ranks": 4}, [("all_to_all", 4, 4096, 4.5)],
    ),
    "imb, non-blocking": (
        """\
# Benchmarking Iallgather
# #processes = 4
       #bytes #repetitions t_ovrl[usec] t_pure[usec]  t_CPU[usec]   overlap[%]
         1024         1000        10.00         5.00         5.00         1.00
""",
        {}, [("all_gather", 4, 4096, 5.0)],
    ),
    "osu, barrier": (
        "# OSU MPI Barrier Latency Test v7.0\n# Avg Latency(us)   Min Latency(us)\n    2.41      1.89\n",
        {"ranks": 32}, [("barrier", 32, 0, 2.41)],
    ),
    "DeepSpeed's log": (
        """\
[2026-01-05 09:00:00,001] [INFO] [comm.py:100:init_distributed] backend=nccl
Comm. Op            Message Size        Count   Total Latency(ms)   Avg Latency(ms)   tput_avg (Gbps)   busbw_avg (Gbps)
all_reduce
                    64.0 MB             10      12.60               1.26              852.18            1597.83
reduce_scatter_tensor
                    128.0 MB            4       5.80                1.45              11848.6           11108.1
log_summary_barrier
                    0B                  4       5.80                1.45              0.0               0.0
""",
        {}, [("all_reduce", 16, 64 << 20, 1260.0), ("reduce_scatter", 16, 2 << 30, 1450.0)],
    ),
    "ds_bench": (
        """\
---- Performance of all_gather on 16 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
128.0 MB             33554432x4                12.05 ms             1425.7               1336.6
2.0 KB               512x4                     131.7 us             1.99                 1.86
""",
        {}, [("all_gather", 16, 2 << 30, 12050.0), ("all_gather", 16, 32768, 131.7)],
    ),
    "a loop, decimal": (
        "size(MB) tavg(usec) tmin(usec) tmax(usec) avgbw(GB/sec)\n 16.78     200.0    190.0      210.0     157.3\n",
        {"collective": "all_reduce", "ranks": 16}, [("all_reduce", 16, 16_780_000, 200.0)],
    ),
    "a loop, binary": (
        "size(MB) tavg(usec) tmin(usec) tmax(usec) avgbw(GB/sec)\n  16.0     200.0    190.0      210.0     157.3\n",
        {"collective": "all_reduce", "ranks": 16}, [("all_reduce", 16, 1 << 24, 200.0)],
    ),
    "PARAM": (
        """\
\tCOMMS-RES-all_reduce-float32\tsize (B)\tnum-elements\tLatency(us):p50\tp75\tp95\tMin\tMax\tAlgBW(GB/s)\tBusBW(GB/s)
\tCOMMS-RES-all_reduce-float32\t  1048576\t 262144\t 30.0\t31.0\t35.0\t29.0\t40.0\t34.952\t61.166
""",
        {}, [("all_reduce", 8, 1 << 20, 30.0)],
    ),
    "all_reduce_bench": (
        """\
The average bandwidth of all_reduce over 4GB payload (5 trials, 16 ranks):
| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|     1GB | 360.00GBps | 192.00GBps |
""",
        {}, [("all_reduce", 16, 1 << 30, 5592.405333)],
    ),
    "UCC": (
        """\
Collective:             Allgather
Memory type:            cuda
Datatype:               float32
       Count        Size                Time, us                           Bandwidth, GB/s
                                 avg         min         max         avg         max         min
      262144     1048576      100.00       99.00      101.00      157.28      158.90      155.70
""",
        {"ranks": 16}, [("all_gather", 16, 1 << 24, 100.0)],
    ),
    "NVSHMEM": (
        """\
+------------------------+----------------------+
|     alltoall_device    |                      |
+------------------------+----------------------+
|       size (Bytes)     |    latency (us)      |
+------------------------+----------------------+
|       4096             |       14.340000      |
""",
        {"ranks": 8}, [("all_to_all", 8, 32768, 14.34)],
    ),
    "NVSHMEM, wide": (
        "#reduction_on_stream\nsize(B) count type redop latency(us) min_lat(us) max_lat(us) algbw(GB/s) busbw(GB/s)\n"
        "1048576 262144 float sum 12.0 11.0 13.0 87.381 152.917\n",
        {}, [("all_reduce", 8, 1 << 20, 12.0)],
    ),
    "gloo": (
        """\
Algorithm:   allreduce_ring_chunked
Options:     processes=4, inputs=1, threads=1
   size (B)   elements   min (us)   p50 (us)   p99 (us)   max (us)   avg (us)   avg (GB/s)   iterations
       4000       1000         48         57         81        117         60        0.066        15000
""",
        {}, [("all_reduce", 4, 4000, 57.0)],
    ),
    "gloo, old": (
        "Algorithm:   broadcast_one_to_all\nOptions:     processes=8, inputs=1\n"
        "   elements   min (us)   p50 (us)   p99 (us)   max (us)    samples\n   100   38   47   71   107   20000\n",
        {}, [("broadcast", 8, 400, 47.0)],
    ),
}  # fmt: skip

GRAPHML: Final = """\
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="k" for="node" attr.name="kind" attr.type="string"/>
  <key id="x" for="node" attr.name="x" attr.type="double"/>
  <key id="b" for="edge" attr.name="bandwidth" attr.type="string"/>
  <key id="l" for="edge" attr.name="latency" attr.type="double"/>
  <graph edgedefault="undirected">
    <node id="a"><data key="k">host</data><data key="x">0.5</data></node>
    <node id="b"><data key="k">host</data></node>
    <node id="s"><data key="k">switch</data></node>
    <edge source="a" target="s"><data key="b">25 GB/s</data><data key="l">5e-07</data></edge>
    <edge source="b" target="s"><data key="b">25 GB/s</data><data key="l">5e-07</data></edge>
  </graph>
</graphml>
"""

FILES: Final[dict[str, str]] = {
    "nvidia-smi": MATRIX, "nvidia-smi, old": OLD_MATRIX, "nvidia-smi, mesh": MESH,
    "rocm-smi": rocm_smi(4), "topology": TOPOLOGY, "skeleton": SKELETON, "graph": GRAPH,
    "infragraph": INFRAGRAPH, "graphml": GRAPHML, "msccl ring": RING, "msccl pairs": ALL_PAIRS, "msccl leader": LEADER,
    "msccl half": SCATTERED,
    "mscclpp": json.dumps(plan(), indent=1), "mscclpp gather": json.dumps(gather_plan(), indent=1),
    "mscclpp switch": json.dumps(switched_plan(), indent=1), "goal": GOAL,
    "nccl-tests": TESTS, "nccl-tests json": TESTS_JSON, "rccl-tests": RCCL_LINES,
    "rccl-tests csv": RCCL_CSV, "osu": OSU, "imb": IMB, "deepspeed": TABLES["DeepSpeed's log"][0],
    "csv": CSV,
}  # fmt: skip
MORE: Final[dict[str, list[str]]] = {
    "nvidia-smi": ["--assume", "dgx-a100"], "nvidia-smi, mesh": ["--assume", "hgx-a100-4"],
    "nvidia-smi, old": ["--assume", "dgx1-v100"], "rocm-smi": ["--assume", "mi300x"],
    "skeleton": ["--assume", "dgx-a100"], "graph": ["--assume", "l40s-pcie"],
    "goal": ["--collective", "all_reduce"], "osu": ["--set", "ranks=4"],
}  # fmt: skip
KINDS: Final[dict[str, str]] = {  # what `--as` calls them
    **dict.fromkeys(("nvidia-smi", "nvidia-smi, old", "nvidia-smi, mesh"), "nvidia-smi"), "rocm-smi": "rocm-smi",
    "topology": "nccl-topology",
    "skeleton": "nccl-topology",
    "graph": "nccl-graph", "infragraph": "infragraph", "graphml": "graphml", "goal": "goal",
    **{name: "msccl" for name in FILES if name.startswith("msccl ")},
    **{name: "mscclpp" for name in FILES if name.startswith("mscclpp")},
    **dict.fromkeys(("nccl-tests", "nccl-tests json", "rccl-tests", "rccl-tests csv", "osu", "imb", "deepspeed", "csv"),
                    "measured"),
}  # fmt: skip


def brought(folder: Path, text: str, *options: str) -> tuple[Path, Outcome]:
    """A file after import, and what the command said."""
    (folder / "given").write_text(text)
    said = dict(itertools.pairwise(options))
    asked = importers.ImportOptions(said.get("--assume"), said.get("--collective"), columns={"ranks": "4"})
    suffix = importers.convert(text, "given", asked).suffixes[0]
    done = simcoll("import", folder / "given", "-o", folder / f"made{suffix}", *options)
    assert done.status == 0, done.err
    return folder / f"made{suffix}", done


def read(text: str, reader: ModuleType = msccl) -> Schedule:
    """The schedule of a text, by the reader of a format."""
    kind = reader.__name__.rpartition(".")[2]
    return schedule_json.parse(importers.convert(text, "x", importers.ImportOptions(), kind).text, "x")
