"""From what `nvidia-smi topo -m` prints to a verdict, without a word about profiles or graphs on the way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import simcoll

GPUS = 8


def matrix() -> str:
    """Eight GPUs on an NVSwitch, each with a NIC on its PCIe switch, four to a processor."""
    names = [*(f"GPU{i}" for i in range(GPUS)), *(f"NIC{i}" for i in range(GPUS))]

    def cell(a: int, b: int) -> str:
        if a == b:
            return "X"
        if a < GPUS and b < GPUS:
            return "NV18"
        return "PIX" if a % GPUS == b % GPUS else "NODE" if a % GPUS // 4 == b % GPUS // 4 else "SYS"

    rows = [
        "\t".join([name, *(cell(i, j) for j in range(2 * GPUS)), f"{i % GPUS // 4}"]) for i, name in enumerate(names)
    ]
    return "\n".join(["\t".join(["", *names, "NUMA Affinity"]), *rows, ""])


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine that such a matrix becomes."""
    folder = tmp_path_factory.mktemp("journey")
    (folder / "topo.txt").write_text(matrix())
    guessed = simcoll("import", folder / "topo.txt", "-o", folder / "machine.yaml")
    assert guessed.status == 1 and "hgx-h100, hgx-h100-efa, hgx-h200" in guessed.err
    made = simcoll("import", folder / "topo.txt", "-o", folder / "machine.yaml", "--assume", "hgx-h100")
    assert made.status == 0
    return folder / "machine.yaml"


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_it_predicts_as_the_shipped_machine(machine: Path, collective: str, nodes: int) -> None:
    """Within 2 %, with the profile that its file names, though no graphs are stored with it."""
    words = ["predict", collective, "--nodes", nodes, "--size", "16 MiB", "--json", "--on"]
    own, shipped = (simcoll(*words, name).json["points"][0] for name in (machine, "hgx-h100"))
    assert own["time_us"] == pytest.approx(shipped["time_us"], rel=0.02)
    for key in ("profile", "transport", "algorithm", "protocol", "confidence"):
        assert own[key] == shipped[key], key
    assert (own["profile"], own["transport"]) == ("nccl-hopper", "ib-ndr" if nodes > 1 else None)


@pytest.mark.parametrize(("rate", "transport"), [(100, "ib-hdr"), (200, "ib-hdr"), (400, "ib-ndr"), (800, "ib-ndr")])
def test_nics_take_the_nearest_transport(machine: Path, tmp_path: Path, rate: int, transport: str) -> None:
    """A hand-written machine whose file names none says in the first line which NICs the costs were fitted to."""
    text = re.sub(
        r"(?m)^nic: .*", f"nic: {{rate: {rate} Gb/s, latency: 0.5 us, trunk_latency: 0.3 us}}", machine.read_text()
    )
    (tmp_path / "own.yaml").write_text(text)
    asked = simcoll("predict", "all_reduce", "--on", tmp_path / "own.yaml", "--nodes", 2, "--size", "1 KiB")
    about = f"+ {transport}, InfiniBand of {200 if rate < 300 else 400} Gb/s"
    assert about in " ".join(asked.out.partition("#")[0].split()), asked.out


def test_a_cube_mesh_answers_as_the_shipped_one(tmp_path: Path) -> None:
    """What `nvidia-smi topo -m` prints on a DGX-1, imported: pairs without NVLink talk over the same other GPUs."""
    rows = ["X1122000", "1X210200", "12X20010", "212X0001", "2000X112", "02001X21", "001012X2", "0001212X"]
    cells = {"X": " X ", "0": "SYS", "1": "NV1", "2": "NV2"}
    head = "\t".join(["", *(f"GPU{i}" for i in range(8)), "CPU Affinity"])
    lines = ["\t".join([f"GPU{i}", *(cells[cell] for cell in row), f"{i // 4}"]) for i, row in enumerate(rows)]
    (tmp_path / "matrix.txt").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    machine = tmp_path / "machine.yaml"
    assert simcoll("import", tmp_path / "matrix.txt", "-o", machine).status == 0
    for size in ("64 KiB", "16 MiB", "1 GiB"):
        asked = ("--size", size, "--json", "--set", "collective=[all_reduce, all_gather, all_to_all]")
        mine, shipped = (
            [row["time_us"] for row in simcoll("predict", "all_reduce", "--on", on, *asked).json["points"]]
            for on in (machine, "dgx1-v100")
        )
        assert mine == pytest.approx(shipped, rel=0.02), size
