"""Read NCCL's XML files: topology files and graph files. NCCL writes topology files to NCCL_TOPO_DUMP_FILE; cloud
vendors ship incomplete ones, called skeletons here, for NCCL_TOPO_FILE.

A topology file is a tree of processors, PCIe devices, GPUs and NICs with the speed of each PCIe link, Mb/s of each NIC
and the number of NVLinks. A skeleton has processors and PCIe devices only; the device class shows GPUs and NICs.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from simcoll.config import xml_tree
from simcoll.config.xml_tree import Element
from simcoll.errors import SimcollError
from simcoll.formats.topologies._sketch import (
    LenderSystem,
    LinkText,
    Sketch,
    check_assumed,
    lender,
    nvlinks,
    system_of,
)
from simcoll.nccl import graph_xml
from simcoll.topology.machine_files import read_shipped, shipped_systems, template
from simcoll.topology.nccl_graphs import ChannelGraph
from simcoll.topology.topology_builder import load_system

TOPOLOGY_ROOT: Final = "system"
GRAPHS_ROOT: Final = "graphs"
_CURE: Final = "give a file that NCCL_TOPO_DUMP_FILE wrote"
MOST_DEVICES: Final = 2048  # of one machine: far more than any has
MOST_PROCESSORS: Final = 64  # of one machine: far more than any has

_LANE: Final = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}  # 1/80 GB/s per lane, by GT/s, as NCCL
_SWITCH, _NIC, _GPU = ("0x0604", "0x0801"), ("0x02",), ("0x03", "0x12")  # beginnings of classes of PCIe devices
_NVSWITCH, _BRIDGE_TO_CPU = "0x068000", "0x068001"
_CHIPS: Final = {
    "906": ("MI50 or MI60", "vega20", 24.0),
    "908": ("MI100", "cdna1", 24.0),
    "94": ("MI300", "cdna3", 48.0),
    **dict.fromkeys(("90a", "910"), ("MI210 or MI250X", "cdna2", 36.0)),
    "950": ("MI350X or MI355X", "cdna4", 0.0),
}
"""By how `gcn` begins: GPUs and their generation (documentation of LLVM's AMDGPU backend, list of GPUs); GB/s of one
xGMI link and direction as RCCL counts it (topo.h: VEGA, MI200 and GFX94X_XGMI_WIDTH), 0 if this is not known."""


@dataclass
class _PcieDevice:
    """A PCIe device: GB/s of its link upwards, the devices below it, and its GPU or NICs if it is one."""

    element: Element
    up: float
    below: list[_PcieDevice] = field(default_factory=list)
    gpu: Element | None = None
    nets: list[Element] = field(default_factory=list)
    kind: str = ""  # gpu, nic, pcie_switch; empty for other devices

    @property
    def busid(self) -> str:
        """PCIe bus address of the device."""
        return self.element.attributes.get("busid", "").lower()


def read_topology(text: str, source: str, assumed: str | None = None) -> Sketch:
    """Return the machine that a topology file describes. The `assumed` shipped system (default: one with such GPUs)
    supplies missing facts. Raises InputError with line and column, and SimcollError for an ambiguous skeleton."""
    root = xml_tree.parse(text, source, root=TOPOLOGY_ROOT, kind="topology file", deepest=40, cure=_CURE)
    processors = list(root.each("cpu"))
    if not 0 < len(processors) <= MOST_PROCESSORS:
        root.wrong(f"it has {len(processors)} <cpu>", f"give a machine of 1 to {MOST_PROCESSORS}")
    tops = [[box for child in cpu.children if (box := _box(child))] for cpu in processors]
    boxes = [box for top in tops for box in _all(top)]
    gpus = sorted((box for box in boxes if box.kind == "gpu"), key=_number)
    if not gpus or len(boxes) > MOST_DEVICES:
        root.wrong(f"{len(gpus)} GPUs, {len(boxes)} PCIe devices", f"give a machine of 1 to {MOST_DEVICES}")
    skeleton = all(box.gpu is None for box in gpus)
    for box in gpus:
        if box.gpu is None and not skeleton:
            box.element.wrong(
                f"GPU {box.busid} has no <gpu>, and other GPUs have one", "give a whole dump, or one without any <gpu>"
            )
    sketch = Sketch(_pattern(gpus, skeleton, source, assumed))
    _tell(sketch, gpus, boxes, skeleton, assumed)
    names = {id(box): sketch.add("gpu") for box in gpus}
    nics = _wanted_nics([box for box in boxes if box.kind == "nic"], sketch)
    names |= {id(box): sketch.add("nic") for box in nics}
    cpus = [sketch.add("cpu") for _ in processors]
    for cpu, top in zip(cpus, tops, strict=True):
        _hang(top, cpu, names, sketch)
    for (processor, a), (_, b) in itertools.combinations(zip(processors, cpus, strict=True), 2):
        speed = sketch.pattern.speed("socket", _socket_speed(processor))
        sketch.join(a, b, speed)
        sketch.notes.assume(f"{speed.bandwidth:g} GB/s between processors, as NCCL counts for this kind")
    _between_gpus(gpus, names, cpus, sketch, skeleton)
    _say_hardware(processors[0], nics, sketch)
    sketch.borrow()
    return sketch


# --- the tree ---


def _box(element: Element) -> _PcieDevice | None:
    if element.name == "nic":  # directly below a processor
        return (
            _PcieDevice(element, 0.0, nets=list(element.each("net")), kind="nic") if list(element.each("net")) else None
        )
    if element.name != "pci":
        return None
    box = _PcieDevice(element, _pcie(element), [inner for child in element.children if (inner := _box(child))])
    box.gpu = next(element.each("gpu"), None)
    box.nets = [net for below in box.below if below.element.name == "nic" for net in below.nets]
    box.below = [below for below in box.below if below.element.name == "pci"]
    pci_class = element.attributes.get("class", "").lower()
    if box.gpu is not None or (pci_class.startswith(_GPU) and not box.nets):
        box.kind = "gpu"
    elif box.nets or pci_class.startswith(_NIC):
        box.kind = "nic"
    elif box.below:
        box.kind = "pcie_switch"
    return box


def _pcie(element: Element) -> float:
    """Return a PCIe link's GB/s as in NCCL: unknown speeds are generation 3, unknown widths (255 on Linux) 16 lanes."""
    speed = re.match(r"([0-9.]+?)(?:\.0)? GT/s", element.attributes.get("link_speed", ""))
    width = element.whole("link_width", "16", most=255) % 255 or 16
    return width * _LANE.get(speed[1] if speed else "", 60) / 80


def _all(boxes: list[_PcieDevice]) -> list[_PcieDevice]:
    return [box for top in boxes for box in (top, *_all(top.below))]


def _number(box: _PcieDevice) -> tuple[int, str]:
    return (box.gpu.whole("dev", "0", most=1023) if box.gpu is not None else 0, box.busid)


def _hang(boxes: list[_PcieDevice], above: str, names: dict[int, str], sketch: Sketch) -> None:
    """Add devices and their links below the device `above`. A bridge with a single device below is left out."""
    for box in boxes:
        speed = _checked(box, sketch)
        while box.kind == "pcie_switch" and len(useful := [b for b in box.below if _leads(b, names)]) == 1:
            box = useful[0]
            speed = min(speed, _checked(box, sketch))
        if box.kind == "pcie_switch" and _leads(box, names):
            switch = sketch.add("pcie_switch")
            sketch.join(switch, above, sketch.pattern.speed("pcie", speed))
            _hang(box.below, switch, names, sketch)
        elif id(box) in names:
            sketch.join(names[id(box)], above, sketch.pattern.speed("pcie", speed or None))


def _leads(box: _PcieDevice, names: dict[int, str]) -> bool:
    return any(id(device) in names for device in _all([box]))


def _checked(box: _PcieDevice, sketch: Sketch) -> float:
    """Return the GB/s of a device's upward link. If a bridge of generation 1 or 2, or with a single lane, has faster
    devices below, we assume that firmware or hypervisor reported it wrongly, and use the speed below."""
    fastest = max((below.up for below in _all(box.below)), default=0.0)
    slow = box.element.attributes.get("link_speed", "").startswith(("2.5", "5")) or box.up < 1.0
    if box.kind != "pcie_switch" or not slow or fastest <= box.up:
        return box.up
    line = box.element.place.line
    said = f"{box.element.attributes.get('link_speed', '')!r} x{box.element.attributes.get('link_width', '')}"
    problem = f"line {line}: bridge {box.busid} says {said} ({box.up:g} GB/s), with {fastest:g} GB/s below it"
    sketch.notes.warn(f"{problem}; NCCL uses this speed, simcoll that of the links below")
    return fastest


# --- the pattern and the hardware ---


def _pattern(gpus: list[_PcieDevice], skeleton: bool, source: str, assumed: str | None) -> LenderSystem:
    if skeleton:
        problem = f"a skeleton does not say which {len(gpus)} GPUs these are"
        return lender(source, assumed, problem, lambda file: file.counts.get("gpu", 0) >= len(gpus))
    element = gpus[0].gpu
    assert element is not None
    amd, capability = "gcn" in element.attributes or any(element.each("xgmi")), element.whole("sm", "70", most=2000)
    pattern = LenderSystem(assumed or (_amd_system(gpus, source) if amd else system_of(capability)))
    vendor = pattern.file.gpu.vendor if pattern.file.gpu else None
    if vendor and (vendor == "amd") != amd:
        check_assumed(source, assumed, f"its GPUs are of {'AMD' if amd else 'NVIDIA'}")
    if "sm" in element.attributes and not amd and pattern.capability != capability:
        check_assumed(source, assumed, f"its GPUs have compute capability {capability}, and there {pattern.capability}")
    return pattern


def _amd_system(gpus: list[_PcieDevice], source: str) -> str:
    """Return the first shipped system with such GPUs of AMD. Raises SimcollError with the GPUs' name if none has."""
    model, generation, _ = _chip(gpus) or ("unknown", "", 0.0)
    systems = {name: file.gpu for name in shipped_systems() if (file := load_system(name)).gpu}
    known = {name: gpu for name, gpu in systems.items() if gpu and gpu.vendor == "amd"}
    if fitting := [name for name, gpu in known.items() if gpu.generation == generation]:
        return fitting[0]
    problem = f"its GPUs are of {_gcn(gpus) or 'an unknown architecture'} ({model}), which no shipped system has"
    raise SimcollError(f"{source}: {problem}; name the nearest with --assume, of AMD {', '.join(known)}")


def _gcn(gpus: list[_PcieDevice]) -> str:
    """Return the architecture of AMD GPUs, e.g. gfx942; empty if the file does not name it."""
    said = next((box.gpu.attributes.get("gcn", "") for box in gpus if box.gpu is not None), "").removeprefix("gfx")
    return f"gfx{said}" * bool(said)


def _chip(gpus: list[_PcieDevice]) -> tuple[str, str, float] | None:
    """Return the row of `_CHIPS` for the GPUs' architecture; None if it has none."""
    return next((chip for begins, chip in _CHIPS.items() if _gcn(gpus).startswith(f"gfx{begins}")), None)


def _tell(
    sketch: Sketch, gpus: list[_PcieDevice], boxes: list[_PcieDevice], skeleton: bool, assumed: str | None
) -> None:
    nets = sum(len(box.nets) or 1 for box in boxes if box.kind == "nic")
    kind = "a skeleton (PCIe devices only)" if skeleton else "a full dump"
    sketch.notes.read.append(f"{len(gpus)} GPUs, {nets} NIC ports of NCCL's topology file, {kind}")
    said = gpus[0].gpu.whole("sm", "0", most=2000) if gpus[0].gpu is not None and not _gcn(gpus) else 0
    capability, lent_gpu = sketch.pattern.capability, sketch.pattern.file.gpu
    reason = "as was asked for" if assumed else "it has such GPUs; --assume NAME takes another"
    if not skeleton and said and capability and said != capability and lent_gpu:
        name = f"compute capability {said / 10:g}"
        reason = f"no shipped system is known to have its GPUs, of {name}; --assume NAME takes another"
        sketch.keys["gpu"] = lent_gpu.model_dump(exclude_none=True) | {"model": name, "compute_capability": said}
        sketch.notes.warn(f"GPUs of {name} are predicted with the profile of {sketch.pattern.name}")
    lent = "latencies, memory and what the file does not carry are" if not skeleton else "all but the speeds of PCIe is"
    sketch.notes.assume(f"{lent} as in {sketch.pattern.name} ({reason})")


def _rate(box: _PcieDevice) -> float:
    """Return the GB/s of all ports of a NIC together; a port of unknown speed counts 10 Gb/s, as in NCCL."""
    return sum(net.whole("speed", "0", least=-(2**31), most=10**8) or 10_000 for net in box.nets) / 8000


def _wanted_nics(nics: list[_PcieDevice], sketch: Sketch) -> list[_PcieDevice]:
    """Return the NICs for traffic between GPUs: those with at least half the speed of the fastest NIC."""
    fastest = max(map(_rate, nics), default=0.0)
    wanted = [box for box in nics if _rate(box) * 2 >= fastest]
    if len(wanted) < len(nics):
        slow = ", ".join(net.attributes.get("name", "?") for box in nics if box not in wanted for net in box.nets)
        sketch.notes.assume(f"NICs of less than half the speed of others are for management, and left out: {slow}")
    if any(len(box.nets) > 1 for box in wanted):
        sketch.notes.assume("the ports of one NIC are one device with their summed speed")
    return wanted


def _say_hardware(cpu: Element, nics: list[_PcieDevice], sketch: Sketch) -> None:
    """Record the processor's vendor and the NICs' rate in the sketch; the choices of NCCL depend on them."""
    vendors = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
    vendor = vendors.get(cpu.attributes.get("vendor", ""), {"arm64": "arm", "ppc64": "ibm"}.get(_arch(cpu), ""))
    if vendor:
        model = f"family {cpu.attributes.get('familyid', '?')} model {cpu.attributes.get('modelid', '?')}"
        sketch.keys["cpu"] = {"vendor": vendor, "model": model}
    rates = Counter(round(_rate(box) * 8, 3) for box in nics if box.nets)
    if rates and sketch.pattern.file.nic:
        (rate, _), *others = rates.most_common()
        if others:
            sketch.notes.warn(f"NICs have different speeds: simcoll gives all {rate:g} Gb/s")
        said = {"model": "", "rate": f"{rate:g} Gb/s"}
        sketch.keys["nic"] = {**sketch.pattern.file.nic.model_dump(), **said}
    elif nics and sketch.pattern.file.nic:
        sketch.notes.assume(f"NICs run at {sketch.pattern.file.nic.rate}, as in {sketch.pattern.name}")


def _arch(cpu: Element) -> str:
    return cpu.attributes.get("arch", "")


# --- between sockets and GPUs ---


def _socket_speed(cpu: Element) -> float:
    """Return the GB/s between two processors that NCCL 2.30 assumes (topo.h)."""
    arch, vendor = _arch(cpu), cpu.attributes.get("vendor", "")
    if arch == "ppc64":
        return 32.0
    if arch == "arm64":
        return 6.0
    if vendor == "AuthenticAMD":
        return 16.0
    if vendor == "GenuineIntel":
        model = cpu.whole("modelid", "0", most=10**6)
        return 40.0 if model >= 0xCF else 22.0 if model >= 0x8F else 10.0 if model in (0x55, 0x6A, 0x6C) else 6.0
    return 9.0


def _between_gpus(
    gpus: list[_PcieDevice], names: dict[int, str], cpus: list[str], sketch: Sketch, skeleton: bool
) -> None:
    """Add the NVLinks and xGMI links of GPUs: to GPUs, to NVSwitches (one device stands for all) and to processors."""
    if skeleton:
        _borrowed_links([names[id(box)] for box in gpus], sketch)
        return
    by_bus = {box.busid: names[id(box)] for box in gpus}
    switched: list[tuple[str, float]] = []
    lent = sketch.pattern.speed("xgmi").bandwidth if sketch.pattern.has("xgmi") else sketch.pattern.nvlink
    lender_gpu, (model, generation, own) = sketch.pattern.file.gpu, _chip(gpus) or (_gcn(gpus), _gcn(gpus), 0.0)
    known = sketch.pattern.has("xgmi") and own > 0
    each = own if known else lent
    for box in gpus:
        name, to_switch = names[id(box)], 0.0
        assert box.gpu is not None
        for link in box.gpu.children:
            if link.name in ("nvlink", "xgmi"):
                count = link.whole("count", "1", least=1, most=64)
                target = link.attributes.get("target", "").lower()
                if by_bus.get(target, name) != name:  # a virtual machine's NVSwitch has the address of the GPU
                    _direct(name, by_bus[target], count * each, sketch)
                elif link.attributes.get("tclass", _NVSWITCH).lower().startswith(_BRIDGE_TO_CPU):
                    sketch.join(name, cpus[0], sketch.pattern.speed("nvlink", count * each))
                else:
                    to_switch += count * each
            elif link.name == "c2c":
                bandwidth = link.number("bw") * link.whole("count", "1", least=1, most=64) / 1000
                cpu = next((v for u, v in sketch.links if u == name and v.startswith("cpu")), cpus[0])
                sketch.links[name, cpu] = LinkText(bandwidth or 1.0, 0.3, "c2c")  # in place of PCIe
        if to_switch:
            switched.append((name, to_switch))
    if switched:
        switch = sketch.add("nvswitch")
        for name, bandwidth in switched:
            sketch.join(name, switch, sketch.pattern.speed("nvlink", bandwidth))
    if switched or any(speed.kind in ("nvlink", "xgmi") for speed in sketch.links.values()):
        by = "as RCCL counts them for such GPUs" if known else f"as in {sketch.pattern.name}"
        if model and lender_gpu and lender_gpu.generation != generation:  # the pattern's profile does not apply
            sketch.keys["gpu"] = {"vendor": "amd", "model": model, "generation": generation}
            sketch.keys["profile"] = "one-port"
            sketch.notes.warn("no profile fits such GPUs: calls are predicted as plain schedules (profile one-port)")
        sketch.notes.assume(f"{each:g} GB/s a link between GPUs and direction, {by}")
        _known_search(list(by_bus.values()), each, sketch)
    elif len(gpus) > 1:
        sketch.notes.warn("no NVLinks in it: GPUs talk over PCIe")


def _known_search(gpus: list[str], each: float, sketch: Sketch) -> None:
    """Copy the pattern's results of RCCL's graph search, if all GPUs are joined by links as fast as the pattern's.
    Results for several nodes are copied only if the numbers of NICs and GPUs are the pattern's."""
    search, lent = sketch.pattern.file.nccl, sketch.pattern
    joined = all((u, v) in sketch.links or (v, u) in sketch.links for u, v in itertools.combinations(gpus, 2))
    if search is None or not lent.has("xgmi") or not joined or each != lent.speed("xgmi").bandwidth:
        return
    devices = lent.file.counts
    alike = sketch.counts["nic"] == devices.get("nic") and len(gpus) == devices.get("gpu")
    kept = [row for row in search.graphs if row.gpus[1] <= len(gpus) and (alike or row.nodes == "one")]
    if any(row.gpus[1] == len(gpus) for row in kept):
        found = search.model_copy(update={"graphs": tuple(kept)})
        sketch.keys["nccl"] = found.model_dump(mode="json", exclude_defaults=True)
        sketch.notes.assume(f"channels of RCCL are as in {lent.name}: all GPUs are joined")


def _direct(a: str, b: str, bandwidth: float, sketch: Sketch) -> None:
    """Join two GPUs once, because the file lists the link at both ends."""
    if (a, b) not in sketch.links and (b, a) not in sketch.links:
        pattern = sketch.pattern
        sketch.join(a, b, pattern.speed("xgmi", bandwidth) if pattern.has("xgmi") else pattern.direct(bandwidth))


def _borrowed_links(gpus: list[str], sketch: Sketch) -> None:
    """Add the pattern's NVLinks to a skeleton, if both have equally many GPUs, or the pattern has NVSwitches."""
    counts = sketch.pattern.file.counts
    kind = next((kind for kind in ("nvlink", "xgmi") if sketch.pattern.has(kind)), None)
    if "nvswitch" in counts:
        switch = sketch.add("nvswitch")
        for gpu in gpus:
            sketch.join(gpu, switch, sketch.pattern.speed("nvlink"))
        sketch.notes.assume(f"GPUs hang on an NVSwitch by {sketch.pattern.speed('nvlink').bandwidth:g} GB/s each")
    elif kind and counts.get("gpu") == len(gpus):
        plan = template(read_shipped(sketch.pattern.name).file)
        for u, v, link in plan.links:
            if link.kind == kind and (v, u) not in sketch.links:
                sketch.join(u, v, sketch.pattern.speed(kind, link.bandwidth / 1e9))
        sketch.notes.assume(f"{'NVLinks' if kind == 'nvlink' else 'links'} join the GPUs as in {sketch.pattern.name}")
        if kind == "xgmi":
            _known_search(gpus, sketch.pattern.speed(kind).bandwidth, sketch)
    elif len(gpus) > 1:
        sketch.notes.warn(f"no NVLinks: the file has none, and {sketch.pattern.name} has none for {len(gpus)} GPUs")


# --- the graph file ---


def read_graphs(text: str, source: str, assumed: str | None = None) -> Sketch:
    """Return a machine for a graph file: its GPUs on one switch, with the bandwidth of all channels of the ring. The
    topology file also contains the graphs, for `simcoll tune`. Raises InputError with line and column, and SimcollError
    unless `assumed` names a similar machine or only one system fits."""
    file = graph_xml.parse(text, source)
    ring = file.graphs["ring"]
    joined = ring.type_intra in ("NVL", "NVB")
    problem = f"a graph file does not say which {file.gpus} GPUs these are"
    pattern = lender(
        source,
        assumed,
        problem,
        lambda system: bool(nvlinks(system)) == joined and system.counts.get("gpu", 0) >= file.gpus,
        lambda system: "its GPUs have NVLinks" if joined and not nvlinks(system) else "",
    )
    sketch = Sketch(pattern)
    notes = sketch.notes
    graphs = ", ".join(f"{kind} {graph.channels} x {graph.intra:g} GB/s" for kind, graph in file.graphs.items())
    notes.read.append(f"{file.gpus} GPUs and the channels of NCCL's graph file: {graphs}")
    reason = "as was asked for" if assumed else "no other has such paths"
    notes.assume(f"latencies, memory, NICs and what the file does not carry are as in {pattern.name} ({reason})")
    gpus = [sketch.add("gpu") for _ in range(file.gpus)]
    kind = "nvlink" if pattern.has("nvlink") and joined else "pcie"
    switch = sketch.add("nvswitch" if kind == "nvlink" else "pcie_switch")
    bandwidth = ring.channels * ring.intra
    for gpu in gpus:
        sketch.join(gpu, switch, pattern.speed(kind, bandwidth))
    notes.assume(f"GPUs hang on one switch by {bandwidth:g} GB/s each: all channels of the ring")
    if file.across and pattern.file.nic:
        inter = ring.channels * ring.inter / len(gpus)
        for gpu in gpus:
            nic = sketch.add("nic")
            sketch.join(gpu, nic, pattern.speed("pcie", inter))
        sketch.keys["nic"] = {**pattern.file.nic.model_dump(), "model": "", "rate": f"{inter:.6g} GB/s"}
        notes.assume(f"a NIC of {inter:g} GB/s beside each GPU: what the ring's channels carry between nodes, shared")
    where = ("one", "several") if file.across else ("one",)
    rows = [_row(kind, graph, file.gpus, nodes) for kind, graph in file.graphs.items() for nodes in where]
    sketch.keys["nccl"] = {"source": f"NCCL's graph file {source}", "graphs": rows}
    same = "one node and several have the same graphs: a file holds those of one run"
    notes.assume(same if file.across else "no NICs: its channels stay on one node, so that it says nothing of several")
    sketch.borrow()
    return sketch


def _row(kind: str, graph: ChannelGraph, gpus: int, nodes: str) -> dict[str, Any]:
    keys = graph.model_dump(exclude={"orders", "latency_us", "nics"})
    return {"graph": kind, "nodes": nodes, "gpus": gpus, **keys, "orders": [list(order) for order in graph.orders]}
