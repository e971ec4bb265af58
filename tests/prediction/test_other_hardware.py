"""A profile answers for the GPUs that it is for, and for no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import simcoll

from simcoll.errors import InputError
from simcoll.prediction.predict import predict
from simcoll.scenario.profile import load_profile, shipped_profiles
from simcoll.scenario.scenario import Scenario
from simcoll.topology.machine_files import shipped_systems
from simcoll.topology.topology_builder import load_system

KERNELS = [name for name in shipped_profiles() if name.startswith(("nccl", "rccl"))]
SYSTEMS = [name for name in shipped_systems() if load_system(name).gpu]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_profile_is_for_its_generations(system: str, tmp_path: Path) -> None:
    """On every system each profile serves that names the generation of its GPUs (and their capability, if it names
    one), joined as they are there, or none; the error of another names what serves. The profile that a system's file
    names always serves, and is the one that a file takes that names none."""
    text = shipped_systems()[system].read_text()
    bare = tmp_path / "mine.yaml"
    bare.write_text("\n".join(line for line in text.splitlines() if not line.startswith("profile:")))
    mine = Scenario.model_validate({"topology": {"file": str(bare)}, "collective": "all_reduce", "size": "1 KiB"})
    assert mine.profile == load_system(system).profile
    file = load_system(system)
    where = {"system": system, "nodes": 2 if file.counts["gpu"] == 1 else 1}
    asked = {"topology": where, "collective": "all_reduce", "size": "1 KiB", "algorithm": "auto"}
    for name in KERNELS:
        profile, point = load_profile(name), Scenario.model_validate({**asked, "profile": name})
        own = {"nvlink", "xgmi", "pcie"} & {*profile.links}
        joined = {"nvlink", "xgmi"} & {rule.kind for rule in file.links} or {"pcie"}
        same = file.gpu and profile.capability in (None, file.gpu.compute_capability)
        if not profile.generations or (
            same and file.gpu and file.gpu.generation in profile.generations and own & joined
        ):
            assert predict(point).time_ps > 0
            continue
        assert name != file.profile
        with pytest.raises(InputError, match=f"{name} is for GPUs .*; take {file.profile}"):
            predict(point)
        assert predict(point, related=True).time_ps > 0


@pytest.mark.parametrize(("capability", "serves"), [(80, "nccl-pcie-a100"), (86, "nccl-pcie")])
def test_a_chip_may_be_unlike_its_generation(capability: int, serves: str, tmp_path: Path) -> None:
    """A profile of one compute capability is taken where a machine has it and names none, and nowhere else."""
    text = shipped_systems()["a100-pcie"].read_text().replace("profile: nccl-pcie-a100\n", "")
    (tmp_path / "mine.yaml").write_text(text.replace("capability: 80", f"capability: {capability}"))
    asked = ["predict", "all_reduce", "--on", tmp_path / "mine.yaml", "--size", "1 MiB"]
    assert {each["profile"] for each in simcoll(*asked, "--json").json["points"]} == {serves}
    found = simcoll(*asked, "--profile", "nccl-pcie-a100")
    assert found.status == (0 if capability == 80 else 2)
    assert capability == 80 or found.err.strip().endswith("; take nccl-pcie")


@pytest.mark.parametrize("command", ["diagnose", "compare"])
def test_measured_tables_are_not_judged_by_it(command: str, tmp_path: Path) -> None:
    """A table of one machine is not held against a profile of another; one without costs judges nothing."""
    table = "collective,ranks,dtype,size_bytes,time_us\nall_reduce,8,float16,1024,20\nall_reduce,8,float16,65536,25\n"
    (tmp_path / "t.csv").write_text(table)
    found = simcoll(command, tmp_path / "t.csv", "--on", "dgx-a100", "--profile", "nccl-hopper")
    assert (found.status, found.out) == (2, "")
    assert "nccl-hopper is for GPUs of hopper, and dgx-a100 has ampere; take nccl-ampere" in found.err
    assert len(found.err.strip().splitlines()) == 1
    if command == "diagnose":
        found = simcoll(command, tmp_path / "t.csv", "--on", "dgx-a100", "--profile", "ideal")
        assert "profile ideal has no costs of calls" in found.err
        assert "take nccl-ampere" in found.err
