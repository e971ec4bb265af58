"""`simcoll synthesize` writes a schedule that other commands take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command import simcoll

RING = "{fabric: ring, hosts: 4, link: {bandwidth: 25 GB/s, latency: 1 us}}"


def test_a_schedule_is_written_proved_and_simulated(tmp_path: Path) -> None:
    """The file that the command writes is proved and simulated like any other."""
    file, picture = str(tmp_path / "ring.json"), tmp_path / "ring.svg"
    asked = ("synthesize", "all_gather", "--on", RING, "--size", "64 MiB")
    found = simcoll(*asked, "-o", file, "--png", str(picture), "--json").json
    assert picture.read_bytes().startswith(b"<?xml")
    assert (found["bound_exact"], found["bound_kind"], found["load_ok"], found["proved"]) == (
        "200/3",
        "cut",
        True,
        True,
    )
    assert len(found["witness"]["devices"]) == 3 and len(found["witness"]["links"]) == 2
    assert found["optimum_us"] <= found["time_us"] <= 1.1 * found["optimum_us"]
    assert simcoll("verify", "--schedule", file).status == 0
    run = ("predict", "all_gather", "--on", RING, "--size", "64 MiB", "--profile", "ideal", "--json", "--algorithm")
    as_made = ("--set", "model={sharing: fifo, channels_by: port, channels: 1, copies: 1, chunk: whole}")
    times = [simcoll(*run, name, *as_made).json["points"][0]["time_us"] for name in (file, "synthesized")]
    assert times == [found["time_us"]] * 2


def test_the_text_names_the_cut_and_what_was_proved() -> None:
    """The text has the loss of fewer trees, and the cut."""
    shown = simcoll("synthesize", "broadcast", "--on", RING, "--max-trees", "1", "--root", "2").out
    assert "gives away 50 % of the throughput" in " ".join(shown.split())
    assert "proof 1" in shown and "crosses 2 links of 25 GB/s" in shown


def test_mistakes_are_named() -> None:
    """Wrong input ends with status 2 and a message."""
    asked = ("synthesize", "all_gather", "--on", RING)
    for words, said in (
        (("--ranks", "9"), "9 ranks"),
        (("--size", "1 KiB,1 MiB"), "2 points are given"),
        (("--to", "msccl"), "--to needs a file"),
        (("--png", "ring.txt"), "'txt' is no kind of picture"),
        (("--set", "weights=[1, 2, 3, 4]"), "not synthesised with weights"),
    ):
        outcome = simcoll(*asked, *words)
        assert outcome.status in (1, 2) and said in outcome.err.replace("\n", " "), (words, outcome)
    assert simcoll("synthesize", "barrier", "--on", RING).status in (1, 2)


def test_a_program_for_msccl_has_the_networks_routes_alone(tmp_path: Path) -> None:
    """MSCCL's XML can say neither a route nor a switch that adds: programs are made for the links of the network's own
    routes. Where GPUs share a PCIe switch, some messages may still take another way than the network's."""
    file, written = tmp_path / "planes.yaml", str(tmp_path / "made.xml")
    read = str(tmp_path / "read.json")
    links = [f"{{from: 'host*', to: switch{plane}, bandwidth: 10 GB/s, latency: 1 us}}" for plane in (0, 1)]
    file.write_text(f"name: planes\ndevices: {{host: 2, switch: 2}}\nlinks: [{', '.join(links)}]\n")
    for collective, machine, gbps in (("broadcast", str(file), 10), ("all_reduce", "hgx-h100", 391.42 * 4 / 7)):
        asked = (collective, "--on", machine, "--size", "64 MiB", "--json")
        made = simcoll("synthesize", *asked, "--to", "msccl", "-o", written).json
        assert made["proved"] and made["schedule"]["GBps"] == pytest.approx(gbps, 1e-6)
        assert simcoll("import", written, "-o", read).status == 0
        (row,) = simcoll("predict", *asked, "--profile", "ideal", "--algorithm", read).json["points"]
        assert row["time_us"] == pytest.approx(made["time_us"], 1e-6)  # pieces are rounded in another order
    asked = ("synthesize", "all_reduce", "--on", "dgx-a100", "--nodes", "2", "--to", "msccl", "-o", written)
    refused = simcoll(*asked, "--size", "64 MiB")
    assert refused.status == 1 and ".pcie_switch" in refused.err and "not the network's route" in refused.err
