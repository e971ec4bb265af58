"""Fits that begin at a profile that was fitted before: what rows do not see stays, and no fit makes a machine worse."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.accuracy.fit.calibrate import Calibrated, calibrate, check_believable
from simcoll.accuracy.fit.least_squares import Belief, Line, variances
from simcoll.accuracy.fit.posterior_estimate import COARSE, coarse
from simcoll.config import yaml_tree
from simcoll.errors import InputError
from simcoll.formats.measured import MeasuredRow
from simcoll.prediction.sweep import run_point
from simcoll.report.verdicts import of_calibration
from simcoll.scenario.profile import find_profile, load_network, parse_profile
from simcoll.scenario.scenario_files import load

SIZES = "size=[1 KiB, 16 KiB, 256 KiB, 4 MiB, 64 MiB]"
LARGE = "size={from: 4 KiB, to: 256 MiB, factor: 16}"
MANY = "size={from: 4 KiB, to: 256 MiB, factor: 4}"
MORE = "size={from: 1 KiB, to: 64 MiB, factor: 2}"
WHOLE = ("links", "kernels", "launch")


def shipped() -> dict[str, Any]:
    """The profile `nccl-hopper`, with the costs that it takes from others written out."""
    plain: dict[str, Any] = yaml_tree.read(find_profile("nccl-hopper")).plain()
    like = plain.pop("like")
    while like:
        parent = yaml_tree.read(find_profile(like)).plain()
        for key, value in parent["kernels"].items():
            own = plain["kernels"].get(key, {})
            plain["kernels"][key] = {**value, **own} if isinstance(value, dict) else own or value
        like = parent.get("like")
    return plain


def machine(chance: np.random.Generator, times: float = 0.25, rates: float = 0.05) -> dict[str, Any]:
    """A profile whose costs differ from those of the shipped one as machines of a generation do."""
    plain = shipped()
    kept = {key: plain[key] for key in ("name", "harness", "generations", *WHOLE)}

    def changed(value: Any, share: float) -> str:
        number, _, unit = str(value).partition(" ")
        return f"{float(number) * max(0.2, 1 + share * chance.normal())} {unit}"

    kept["launch"] = changed(kept["launch"], times)
    kept["links"] = {"nvlink": {"efficiency": changed(plain["links"]["nvlink"]["efficiency"], rates)}}
    for block in ("LL", "LL128", "Simple", "NVLS"):
        costs = kept["kernels"][block]
        kept["kernels"][block] = {
            key: changed(value, rates if key == "reach" else times) for key, value in costs.items()
        }
    return {**kept, "name": "law"}


def measured(law: Mapping[str, Any], name: str, chance: np.random.Generator, noise: float, *sets: str) -> str:
    """A table of what a law predicts on a node of eight H100, with noise."""
    Path("law.yaml").write_text(yaml_tree.dump(dict(law)), encoding="utf-8")
    asked = ["topology={system: hgx-h100}", "dtype=float16", "profile=law.yaml", "algorithm=auto", "protocol=auto"]
    rows = [run_point(point) for point in load("quickstart", [*asked, SIZES, *sets])]
    columns = ("system", "collective", "ranks", "dtype", "size_bytes", "time_us", "harness")
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            time_us = row["time_us"] * float(np.exp(noise * chance.normal()))
            writer.writerow(["h100", row["collective"], row["ranks"], "float16", row["size_bytes"], time_us, "library"])
    return name


def fitted(table: str, *fit: str, **more: Any) -> Calibrated:
    """A fit that begins at the shipped profile."""
    return calibrate([table], "hgx-h100", fit=fit, **more)


def errors(found: Calibrated) -> dict[str, float]:
    """The mean error on rows held out, by what predicted them."""
    return {way["predicted_by"]: way["mape"] for way in found.document["beside"]}


@pytest.mark.thorough
@pytest.mark.parametrize("machines", [2, pytest.param(6, marks=pytest.mark.long)])
def test_a_fit_is_no_worse_than_the_profile_that_it_begins_with(machines: int, folder: Path):
    """Over machines that differ from the shipped profile as machines of a generation do: fitted to all-reduce on 2 and
    4 ranks, other collectives on 8 are predicted better than before, on average, and on none much worse."""
    chance = np.random.default_rng(1)
    before, after = [], []
    for _ in range(machines):
        law = machine(chance)
        table = measured(law, "t.csv", chance, 0.03, "collective=[all_reduce, all_gather]", "ranks=[2, 4, 8]")
        found = errors(fitted(table, "collective=all_reduce", "ranks=2,4"))
        before.append(found["profile nccl-hopper"])
        after.append(found["fitted"])
    assert np.mean(after) < 0.8 * np.mean(before)
    assert max(np.subtract(after, before)) < 2
    assert found["plain model"] > max(before)


@pytest.mark.thorough
def test_another_host_is_found(folder: Path):
    """A machine whose host launches faster and takes longer for each channel, of which blocks begin in turn: all-reduce
    on 2 and 4 ranks, launched by one process, shows it, and 8 ranks and an all-gather take what it says. GPUs stay what
    they are."""
    law = {**shipped(), "host": {"launch": "3 us", "message": "0.2 us", "channel": "0.1 us", "block": "1.1 us"}}
    del law["calibration"]
    sets = ("collective=[all_reduce, all_gather]", "ranks=[2, 4, 8]", "launch.gpus_per_process=all", MORE)
    table = measured(law, "t.csv", np.random.default_rng(2), 0.01, *sets)
    found = fitted(table, "collective=all_reduce", "ranks=2,4", sets=["launch.gpus_per_process=all"])
    names = {parameter["name"] for parameter in found.document["parameters"]}
    assert {"host.launch"} < names <= {"host.launch", "host.channel", "host.block"}
    off = errors(found)
    assert off["profile nccl-hopper"] > 10
    assert off["fitted"] < 2


THREE = st.lists(st.floats(-1, 1), min_size=3, max_size=3)
ROWS = st.lists(st.tuples(st.integers(0, 3), THREE), min_size=2, max_size=8)


@settings(max_examples=30)
@given(ROWS, st.lists(st.floats(0.01, 3), min_size=3, max_size=3))
def test_a_row_more_makes_nothing_less_sure(rows: list[tuple[int, list[float]]], widths: list[float]):
    """No value is known worse than before any row, nor worse by a row more, whichever rows it is like; rows that are
    alike in all tell no more than one of them."""
    belief = Belief(np.ones(3), np.array(widths), 1.0)

    def known(some: Sequence[tuple[int, list[float]]]) -> Any:
        slopes, ones = np.array([slopes for _, slopes in some]), np.ones(len(some))
        line = Line(np.ones(3), ones, slopes)
        return variances(line, ones, belief, [label for label, _ in some], np.eye(3)[:, None])

    less, more = known(rows[:-1]), known(rows)
    assert (more > 0).all() and (more <= 1.01 * less).all() and (less <= 1.01 * belief.widths**2).all()
    assert known([*rows, rows[-1]]) == pytest.approx(more, rel=0.01)


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(1, 3), st.integers(1, 3), st.randoms(use_true_random=False))
def test_no_run_is_preferred_to_another(sizes: int, series: int, runs: int, chance: Random):
    """Of many rows a fit takes some sizes, each with all its runs, whatever the order of the rows: of two tables of the
    same calls both count. The smallest and the largest size of each series are there."""
    rows = [
        MeasuredRow(collective="all_reduce", ranks=2 + of, size_bytes=1 + at, time_us=1.0 + run)
        for of in range(series)
        for at in range(sizes)
        for run in range(runs)
    ]
    shuffled = chance.sample(rows, len(rows))
    taken = {row for row, flag in zip(rows, coarse(rows), strict=True) if flag}
    assert taken == {row for row, flag in zip(shuffled, coarse(shuffled), strict=True) if flag}
    calls = {(row.ranks, row.size_bytes) for row in taken}
    assert len(taken) == runs * len(calls)
    assert all({(2 + of, 1), (2 + of, sizes)} <= calls for of in range(series))
    assert len(calls) <= COARSE + 2 * series


@pytest.mark.long  # what decides is in test_a_row_more_makes_nothing_less_sure; this one has the fit around it
def test_rows_that_agree_do_not_widen_intervals(folder: Path):
    """From rows of a law without noise, and twice as many of the same law, intervals are not wider by more than the
    values themselves have moved: however bold a fit dares to be, it is no surer for that."""
    chance = np.random.default_rng(1)
    law = {**machine(chance), "launch": "9 us"}
    asked = "collective=[all_reduce, all_gather]", "ranks=[2, 4, 8]"
    few = fitted(measured(law, "few.csv", chance, 0.0, *asked, "size=[1 KiB, 4 MiB]"), "ranks=2,4,8").document[
        "parameters"
    ]
    many = fitted(measured(law, "t.csv", chance, 0.0, *asked, MORE), "ranks=2,4,8").document["parameters"]
    widths = [{p["name"]: (p["high"] - p["low"]) / p["value"] for p in each} for each in (few, many)]
    assert set(widths[0]) & set(widths[1])
    assert all(widths[1][name] < 1.2 * width for name, width in widths[0].items() if name in widths[1])


def of_nodes(
    name: str, chance: np.random.Generator, nodes: Sequence[int] = (2, 3), sizes: str = LARGE, **costs: str
) -> str:
    """A table of calls of `nodes` of eight H100 by the shipped profiles, with other `costs` of the network: rows of 2
    nodes with noise, and one in twenty far too long."""
    plain = {
        key: value for key, value in yaml_tree.read(find_profile("ib-ndr")).plain().items() if key != "calibration"
    }
    plain["links"] = {"cable": {"efficiency": costs.pop("cable", plain["links"]["cable"]["efficiency"])}}
    law = {**plain, "name": "net", "transport": {**plain["transport"], **costs}}
    Path("net.yaml").write_text(yaml_tree.dump(law), encoding="utf-8")
    columns = ("system", "collective", "ranks", "nodes", "dtype", "size_bytes", "time_us", "harness")
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for count in nodes:
            asked = ["profile=nccl-hopper+net.yaml", "algorithm=auto", "protocol=auto", "dtype=float32"]
            asked += [
                f"topology={{system: hgx-h100, nodes: {count}}}",
                "collective=[all_reduce, all_gather, all_to_all]",
            ]
            for row in (run_point(point) for point in load("quickstart", [*asked, sizes])):
                time_us = float(row["time_us"] or 0)
                if count == 2:
                    time_us *= np.exp(0.03 * chance.normal()) * (4 if chance.random() < 0.05 else 1)
                writer.writerow(
                    [
                        "h100",
                        row["collective"],
                        8 * count,
                        count,
                        *("float32", row["size_bytes"], time_us),
                        "nccl-tests",
                    ]
                )
    return name


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("costs", "most", "step"),
    [
        ({}, 1.0, 16),
        ({"cable": "70 %", "latency": "9 us", "proxy": "2.8 us"}, 4.0, 16),
        pytest.param({"cable": "72 %"}, 4.0, 4, marks=pytest.mark.long),
        pytest.param({"latency": "14 us"}, 4.0, 4, marks=pytest.mark.long),
        pytest.param({"cable": "85 %", "latency": "6 us", "proxy": "1.2 us"}, 4.0, 4, marks=pytest.mark.long),
    ],
)
def test_a_network_of_another_kind_is_found(costs: dict[str, str], most: float, step: int, folder: Path):
    """Costs of a network that are far from the profile's are found from two nodes, cables that ports hide among them:
    calls of three nodes come out. Where the profile is right, they stay right."""
    sizes = f"size={{from: 4 KiB, to: 4 GiB, factor: {step}}}"
    table = of_nodes("t.csv", np.random.default_rng(1), sizes=sizes, **costs)
    found = fitted(table, "nodes=2")
    assert errors(found)["fitted"] < most < max(errors(found)["profile nccl-hopper"], 1.1)
    ends = {each["name"]: (each["low"], each["high"]) for each in found.document["parameters"]}
    for name, text in costs.items():
        low, high = ends["efficiency.cable" if name == "cable" else f"transport.{name}"]
        assert low <= float(text.split()[0]) <= high


@pytest.mark.thorough
def test_a_named_cost_may_be_hidden_where_the_fit_begins(folder: Path):
    """Cables that are slower than ports and blocks of rings are found where they are named; where they are not slower,
    too, for the NIC moves a message after the proxy began it. Links to NICs hide behind cables: the refusal says it."""
    slow = of_nodes("t.csv", np.random.default_rng(1), (2,), MANY, cable="65 %")
    (cable,) = fitted(slow, "nodes=2", free=["efficiency.cable"]).document["parameters"]
    assert cable["low"] <= 65 <= cable["high"] and cable["value"] == pytest.approx(65, abs=3)
    usual = of_nodes("t.csv", np.random.default_rng(1), (2,), MANY)
    (cable,) = fitted(usual, "nodes=2", free=["efficiency.cable"]).document["parameters"]
    known = 100 * load_network("ib-ndr").links["cable"].efficiency
    assert cable["low"] <= known <= cable["high"] and cable["value"] == pytest.approx(known, abs=3)
    with pytest.raises(InputError, match=r"efficiency.pcie: near its present value it changes none of these rows"):
        fitted(usual, "nodes=2", free=["efficiency.pcie"])


def test_what_rows_do_not_see_stays(folder: Path):
    """Rows of small all-reduces say nothing of point-to-point messages, nor of switches that reduce: these costs stay
    exactly as the profile has them. The launch, which they do see, is found."""
    chance = np.random.default_rng(2)
    law = {**machine(chance), "launch": "15 us"}
    table = measured(law, "t.csv", chance, 0.02, "collective=all_reduce", "ranks=[2, 4]", "size=[1 KiB, 2 KiB]")
    found = parse_profile(fitted(table, "ranks=2,4").text, "p")
    before = parse_profile(find_profile("nccl-hopper").read_text("utf-8"), "nccl-hopper")
    assert found.kernels and before.kernels
    assert (found.kernels.P2P, found.kernels.NVLS) == (before.kernels.P2P, before.kernels.NVLS)
    assert found.links == before.links
    assert found.launch == pytest.approx(15_000_000, rel=0.1)


def test_messages_do_not_move_the_links_of_other_calls(folder: Path):
    """Rows of all-to-alls that are slower than the profile has them say what messages reach of links, and nothing of
    rings on the same links."""
    chance = np.random.default_rng(5)
    plain = shipped()
    law = {key: plain[key] for key in ("name", "harness", "generations", *WHOLE)}
    law["kernels"]["P2P"]["reach"] = "60 %"
    table = measured(
        law, "t.csv", chance, 0.0, "collective=all_to_all", "ranks=[4, 8]", "size=[4 MiB, 32 MiB, 64 MiB, 256 MiB]"
    )
    found = parse_profile(fitted(table, "ranks=4,8").text, "p")
    before = parse_profile(find_profile("nccl-hopper").read_text("utf-8"), "nccl-hopper")
    assert found.links == before.links
    assert found.kernels and before.kernels
    assert found.kernels.P2P.reach < 0.92 * before.kernels.P2P.reach


def test_rows_that_agree_with_the_profile_leave_it(folder: Path):
    """From rows of the shipped profile itself, no prediction moves by more than the noise. The first line says that
    no parameter is moved, and the series to which the profile was fitted are covered as before."""
    chance = np.random.default_rng(3)
    plain = shipped()
    law = {key: plain[key] for key in ("name", "harness", "generations", *WHOLE)}
    table = measured(law, "t.csv", chance, 0.0, "collective=[all_reduce, all_gather]", "ranks=[2, 4, 8]")
    found = fitted(table, "collective=all_reduce")
    assert errors(found)["fitted"] < 0.5
    assert "no parameter is moved by 15 rows" in of_calibration(found.document)
    assert found.document["parameters"] == []
    now, before = (
        parse_profile(text, "p").calibration for text in (found.text, find_profile("nccl-hopper").read_text())
    )
    assert now and before
    former = [series.model_copy(update={"former": False}) for series in now.covers if series.former]
    assert former == list(before.covers)
    assert now.intervals == before.intervals


@pytest.mark.thorough
def test_a_fit_widens_no_interval_without_reason(folder: Path):
    """From rows that a fit meets, intervals of other calls of the machine are no wider than by the shipped profile:
    noise apart. From rows that no cost explains, they are wider."""
    table = of_nodes("t.csv", np.random.default_rng(2), latency="6 us")
    head, *lines = Path(table).read_text("utf-8").split()

    def widths(profile: str) -> list[float]:
        asked = [
            f"profile={profile}",
            "topology={system: hgx-h100, nodes: [2, 3]}",
            "collective=[all_reduce, broadcast]",
        ]
        rows = [run_point(point) for point in load("quickstart", [*asked, "algorithm=auto", "protocol=auto", LARGE])]
        return [float(np.log(row["median_high_us"] / row["median_low_us"])) for row in rows]

    def fitted_widths(lines: Sequence[str]) -> list[float]:
        Path(table).write_text("\n".join([head, *lines]), encoding="utf-8")
        Path("p.yaml").write_text(fitted(table, "nodes=2").text, encoding="utf-8")
        return widths("p.yaml")

    def bent(line: str) -> str:
        *cells, time_us, harness = line.split(",")
        wave = np.exp(np.sin(3 * int(cells[5]).bit_length()))  # no law of sizes
        return ",".join([*cells, str(float(time_us) * wave), harness])

    shipped_widths = widths("nccl-hopper")
    assert (np.array(fitted_widths(lines)) <= 1.05 * np.array(shipped_widths)).all()  # other costs, other shares busy
    assert np.mean(fitted_widths(list(map(bent, lines)))) > 1.5 * np.mean(shipped_widths)


@pytest.mark.thorough
def test_equal_calls_that_disagree_are_told_apart(folder: Path):
    """Of a table of two networks a line says how far equal calls are apart, and which column to keep one value of; of
    rows that agree within noise it says nothing."""
    chance = np.random.default_rng(6)
    table = Path(measured(shipped(), "t.csv", chance, 0.02, "collective=all_reduce", "ranks=[2, 8]"))
    head, *lines = table.read_text("utf-8").split()

    def notes(*tables: tuple[str, float]) -> list[str]:
        cells = [line.split(",") for line in lines]
        every = [(by.format(i), times, c) for by, times in tables for i, c in enumerate(cells)]
        rows = [",".join([*c[:5], str(float(c[5]) * times), c[6], by]) for by, times, c in every]
        table.write_text("\n".join([f"{head},by", *rows]), encoding="utf-8")
        found: list[str] = fitted("t.csv", "ranks=2,8").document["notes"]
        return [note for note in found if "equal calls" in note]

    assert notes(("ofi", 1.0), ("ofi", 1.02)) == []
    (note,) = notes(("ofi", 1.0), ("tcp", 7.0))
    assert "up to 7x apart" in note and "; they differ in by: keep one value, e.g. --where by=" in note
    (note,) = notes(("a{}", 1.0), ("b{}", 7.0))  # a name of each row groups nothing
    assert "they differ in no other column" in note


def test_a_unit_is_not_hidden_by_a_network() -> None:
    """Rows on one node that take ten times what a fit says are refused, though more rows on two nodes are near: they
    could be those of a slow cable. Half of them may be far off by chance."""
    near = [{"nodes": 2, "fitted": True, "measured_us": 11.0, "predicted_us": 10.0}] * 5
    far = {"nodes": 1, "fitted": True, "measured_us": 100.0, "predicted_us": 10.0}
    with pytest.raises(InputError, match="the rows take 10 times as long as what the best fit on hgx-h100 takes"):
        check_believable([*near, far, far], "hgx-h100")
    check_believable([*near, far, {**far, "measured_us": 10.0}], "hgx-h100")
    check_believable([*near, {**far, "fitted": False}], "hgx-h100")


@pytest.mark.thorough
@pytest.mark.parametrize(("factor", "said"), [(0.04, "1/"), (30.0, "times as long as")])
def test_a_table_of_another_machine_is_refused(folder: Path, factor: float, said: str):
    """Times that no fit brings near are an error in words, and nothing is written."""
    chance = np.random.default_rng(6)
    table = Path(measured(shipped(), "t.csv", chance, 0.02, "collective=all_reduce", "ranks=[2, 8]"))
    head, *lines = table.read_text("utf-8").split()
    at = head.split(",").index("time_us")

    def times(line: str) -> str:
        cells = line.split(",")
        cells[at] = str(float(cells[at]) * factor)
        return ",".join(cells)

    table.write_text("\n".join([head, *map(times, lines)]), encoding="utf-8")
    with pytest.raises(InputError, match=f"the rows take .*{said}.*best fit on .* in the median; check that the unit"):
        fitted("t.csv", "ranks=2,8")


def test_a_parameter_at_its_limit_is_an_error(folder: Path):
    """Rows that would need links of more than twice their rate are refused in words, and nothing is written."""
    chance = np.random.default_rng(4)
    law = machine(chance)
    law["links"] = {"nvlink": {"efficiency": "700 %"}}
    table = measured(
        law, "t.csv", chance, 0.0, "collective=all_gather", "ranks=[2, 4]", "size={from: 64 MiB, to: 8 GiB, factor: 2}"
    )
    with pytest.raises(InputError, match=r"efficiency.nvlink: the best fit is more than its limit, 200 %"):
        fitted(table, free=["efficiency"])


@pytest.mark.parametrize(("gone", "refused"), [("grid", False), ("launch", True)])
def test_a_cost_may_not_be_there_where_calls_go_without(gone: str, refused: bool, folder: Path) -> None:
    """From rows of a machine that has none of a cost, zero is found for a grid, as some shipped profile has it; that
    nothing launches calls is refused."""
    law = {key: value for key, value in shipped().items() if key in ("name", "harness", "generations", *WHOLE)}
    none = {"launch": "0 us"} if refused else {"kernels": {**law["kernels"], gone: "0 us"}}
    table = measured({**law, **none}, "t.csv", np.random.default_rng(5), 0.0, "collective=all_reduce", "ranks=[2, 8]")
    if refused:
        with pytest.raises(InputError, match=f"{gone}: the best fit is less than its limit, 0 us"):
            fitted(table, free=[gone])
    else:
        (found,) = fitted(table, free=[gone]).document["parameters"]
        assert (found["name"], found["value"]) == (gone, pytest.approx(0, abs=0.01))


def test_rows_of_gigabytes_move_the_cost_of_a_message(folder: Path) -> None:
    """A fit that begins at another transport comes near, by rows alone that take far longer than one message."""
    asked = ["topology={system: hgx-h100, nodes: 2}", "collective=all_to_all", "algorithm=auto", "dtype=float16"]
    rows = [run_point(point) for point in load("quickstart", [*asked, "size=[8 GiB, 16 GiB]"])]
    columns = ("system", "collective", "ranks", "nodes", "dtype", "size_bytes", "time_us", "harness")
    with Path("large.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "system": "hgx-h100", "harness": "nccl-tests"} for row in rows)
    found = calibrate(["large.csv"], "hgx-h100", sets=["profile=nccl-hopper+tcp"])
    _, begun, fitted = found.document["beside"]
    assert begun["mape"] > 25
    assert fitted["mape"] < begun["mape"] / 2


@pytest.mark.long
def test_two_nodes_show_what_more_take(folder: Path) -> None:
    """Rows on one and two nodes over all sizes move costs of the network that show in small messages only, and more
    nodes are predicted the better for it."""
    law = shipped()
    network = yaml_tree.read(find_profile("ib-ndr")).plain()
    costs = {**network["transport"], "latency": "6 us", "staging": "2.5 GB/s"}
    kept = {key: law[key] for key in ("harness", "generations", *WHOLE)}
    Path("law.yaml").write_text(yaml_tree.dump({**kept, "name": "law", "transport": costs}), encoding="utf-8")
    asked = ["size={from: 1 KiB, to: 64 MiB, factor: 4}", "dtype=float16", "profile=law.yaml", "algorithm=auto"]
    lines = ["system,collective,ranks,nodes,dtype,size_bytes,time_us,harness"]
    for nodes in (1, 2, 4):
        sets = [f"topology={{system: hgx-h100, nodes: {nodes}}}", f"ranks={8 * nodes}", "collective=all_reduce"]
        for row in (run_point(point) for point in load("quickstart", [*asked, *sets])):
            size, time_us = row["size_bytes"], row["time_us"]
            lines.append(f"h100,all_reduce,{8 * nodes},{nodes},float16,{size},{time_us},library")
    Path("t.csv").write_text("\n".join(lines), encoding="utf-8")
    off = errors(fitted("t.csv", "nodes=1,2"))
    assert off["fitted"] < 0.7 * off["profile nccl-hopper"]
