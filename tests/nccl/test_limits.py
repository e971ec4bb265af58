"""Laws of the variables that limit NCCL's blocks, kernels and ways."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command import simcoll
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import simcoll as sc
from simcoll.errors import SimcollError


def time_us(env: dict[str, Any], collective: str = "all_reduce", on: str = "hgx-h100", **keys: Any) -> float:
    """The predicted time under NCCL's variables."""
    (row,) = sc.run({"collective": collective, "env": env}, on=on, **{"size": "256 MiB", **keys}).rows()
    assert row["status"] == "ok", row["status"]
    return float(row["time_us"])


def test_limits_of_blocks_are_limits_of_channels_and_of_nvls() -> None:
    """NCCL_MAX_CTAS does to a ring what NCCL_MAX_NCHANNELS does, and limits NVLS, which has its own channels."""
    ring = {"algorithm": "ring", "protocol": "Simple"}
    for limit in (2, 8):
        both = {time_us({f"NCCL_M{which}": limit}, **ring) for which in ("AX_CTAS", "AX_NCHANNELS")}
        assert len(both) == 1
        assert time_us({"NCCL_MIN_CTAS": limit, "NCCL_MAX_CTAS": 1}, **ring) == both.pop()
    nvls = {"algorithm": "nvls"}
    assert time_us({"NCCL_MAX_NCHANNELS": 2}, **nvls) == time_us({}, **nvls) < time_us({"NCCL_MAX_CTAS": 2}, **nvls)
    assert time_us({"NCCL_MAX_CTAS": 64}, **nvls) == time_us({}, **nvls)


def test_fewer_blocks_of_symmetric_kernels_take_longer() -> None:
    """As many as the links need by themselves; their limit binds until then, and nothing else."""
    windows = {"launch": {"registered": True}}
    times = [time_us({"NCCL_SYM_CTAS": count}, **windows) for count in (1, 2, 4, 16, 64)]
    assert times == sorted(times, reverse=True) and times[0] > 1.5 * times[1]
    assert times[-1] == time_us({}, **windows)
    assert time_us({"NCCL_SYM_CTAS": 1}) == time_us({})


def test_symmetric_kernels_are_listed_as_algorithms_are() -> None:
    """A name, a list, or all but some; what leaves no kernel that is modelled is refused, an unknown name an error."""
    windows = {"launch": {"registered": True}, "size": "1 MiB"}
    by_flags, by_switch = (
        time_us({"NCCL_SYM_KERNEL": f"AllReduce_{name}"}, **windows) for name in ("AGxLLMC_R", "RSxLDMC_AGxSTMC")
    )
    assert min(by_flags, by_switch) == time_us({}, **windows) < max(by_flags, by_switch)
    assert time_us({"NCCL_SYM_KERNEL": "^allreduce_AGxLLMC_R"}, **windows) == by_switch
    assert time_us({"NCCL_SYM_KERNEL": "AllReduce_AGxLLMC_R,AllReduce_RSxLDMC_AGxSTMC"}, **windows) == time_us(
        {}, **windows
    )
    (row,) = sc.run(
        {"collective": "all_reduce", "env": {"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}}, on="hgx-h100", **windows
    ).rows()
    assert "simcoll models AllReduce_AGxLLMC_R and AllReduce_RSxLDMC_AGxSTMC only" in row["status"]
    with pytest.raises(SimcollError, match="NCCL_SYM_KERNEL: 'AllReduce_LL' is no symmetric kernel"):
        time_us({"NCCL_SYM_KERNEL": "AllReduce_LL"})


def test_channels_of_messages_between_nodes() -> None:
    """A peer on another node gets as many channels as asked for; messages within a node keep theirs."""
    far = {"collective": "all_to_all", "nodes": 2, "size": "1 GiB"}
    few, many = (time_us({"NCCL_NCHANNELS_PER_NET_PEER": count}, **far) for count in (1, 4))
    assert few >= many
    assert time_us({"NCCL_NCHANNELS_PER_NET_PEER": 1}, "all_to_all") == time_us({}, "all_to_all")


@pytest.mark.parametrize(
    ("env", "on", "said"),
    [
        ({"NCCL_SHM_DISABLE": 1}, "a100-pcie", "would send over their NICs, which is not modelled; leave it out"),
        ({"NCCL_MNNVL_ENABLE": 0}, "gb200-nvl72", "topology: {system: gb200-nvl72, gpus: 4, nodes: 18}"),
        ({"NCCL_CTA_POLICY": "ZERO"}, "hgx-h100", "NCCL_CTA_POLICY=ZERO: copy engines are modelled for an all_gather"),
    ],
)
def test_ways_that_are_not_modelled_are_refused(env: dict[str, Any], on: str, said: str) -> None:
    """Where they would change a time; where they change none, they are taken."""
    (row,) = sc.run(
        {"collective": "all_reduce", "env": env, "launch": {"registered": True}}, on=on, size="1 MiB"
    ).rows()
    assert said in row["status"]
    assert time_us(env) == time_us({})
    assert time_us({"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0"}, nodes=2) == time_us({}, nodes=2)
    assert time_us({"NCCL_IB_MERGE_NICS": 0}, nodes=2) == time_us({}, nodes=2)


WINDOWS = {"launch": {"registered": True}}


@pytest.mark.parametrize("on", ["hgx-h100", "hgx-b200"])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_symmetric_blocks_move_each_byte_once(collective: str, on: str) -> None:
    """Of small calls two hops with flags, of larger ones the bytes of a link; both grow with the size, and no call is
    below its bound. Nothing but the release decides that there are such kernels."""
    rows = sc.run(collective, on=on, size=["1 KiB", "64 KiB", "1 MiB", "8 MiB"], **WINDOWS).rows()
    assert {row["algorithm"] for row in rows} == {"symmetric"}
    assert rows[0]["protocol"] == "LL" and rows[-1]["protocol"] == "Simple"
    assert all(row["lower_bound_us"] < row["time_us"] and row["confidence"] == "extrapolated" for row in rows)
    assert rows[0]["time_us"] < time_us({}, collective, on, size="1 KiB")
    assert time_us({}, collective, on, library_version="2.26", **WINDOWS) == time_us(
        {}, collective, on, library_version="2.26"
    )


def test_copy_engines_run_an_all_gather_without_blocks() -> None:
    """A floor for each rank, another one in a graph, and the bytes of a link; on Blackwell large ones by default, from
    release 2.29 on. By NCCL's figures, to within a microsecond of a small call."""
    zero = {"NCCL_CTA_POLICY": "ZERO"}
    floors = {
        ("hgx-h100", False): 14.90 + 0.726 * 8,
        ("hgx-h100", True): 14.45 + 2.004 * 8,
        ("hgx-b200", False): 29.14 + 0.137 * 8,
    }
    for (on, graph), floor in floors.items():
        launch = {"registered": True, "graph": graph}
        assert floor < time_us(zero, "all_gather", on, size="1 KiB", launch=launch) < floor + 1
    (few, many) = (time_us(zero, "all_gather", size="1 GiB", ranks=ranks, **WINDOWS) for ranks in (2, 8))
    assert few < many and many > 0.875 * 2**30 / 392e3
    by_size = [
        row["algorithm"] for row in sc.run("all_gather", on="hgx-b200", size=["8 MiB", "16 MiB"], **WINDOWS).rows()
    ]
    assert by_size == ["symmetric", "ce"]
    (old,) = sc.run("all_gather", on="hgx-b200", size="16 MiB", library_version="2.28", **WINDOWS).rows()
    assert old["algorithm"] == "symmetric"


RATES = {
    "hgx-h100": {"nic": 50, "pcie": 48, "nvlink": 370.8},
    "dgx-a100": {"nic": 25, "pcie": 24, "nvlink": 240},
    "l40s-pcie": {"nic": 25, "pcie": 24},
    "gh200-4": {"nic": 25, "pcie": 48, "nvlink": 123.6},
}


@pytest.mark.thorough
@settings(max_examples=4, deadline=None)
@given(
    on=st.sampled_from([(system, kind) for system, kinds in RATES.items() for kind in kinds]),
    share=st.sampled_from([0.5, 1, 2]),
    faster=st.sampled_from([1.1, 1.6, 4]),
    collective=st.sampled_from(["all_reduce", "all_gather", "all_to_all"]),
    size=st.sampled_from(["64 KiB", "4 MiB", "256 MiB"]),
)
@example(on=("hgx-h100", "nic"), share=1, faster=1.6, collective="all_reduce", size="64 KiB")
@example(on=("hgx-h100", "nic"), share=1, faster=4, collective="all_to_all", size="256 MiB")
@example(on=("l40s-pcie", "nic"), share=0.5, faster=1.6, collective="all_gather", size="4 MiB")
def test_more_bandwidth_slows_no_call(
    tmp_path_factory: pytest.TempPathFactory,
    on: tuple[str, str],
    share: float,
    faster: float,
    collective: str,
    size: str,
) -> None:
    """Faster NICs, PCIe or NVLinks slow no algorithm that NCCL has. If its search finds other channels, they may be
    worse: it takes the most GB/s that it counts, and not the least time (300 Gb/s a NIC: 24 channels, not 8). Links
    serve messages in order of arrival, so what arrives sooner may let another wait: up to 1 %."""
    system, kind = on
    graphs, times = [], []
    for number, factor in enumerate((share, share * faster)):
        path = tmp_path_factory.mktemp("machine") / f"m{number}.yaml"
        rate = f"{RATES[system][kind] * factor:g} GB/s"
        changed = {"nic": {"rate": rate}} if kind == "nic" else {"links": {kind: {"bandwidth": rate}}}
        path.write_text(json.dumps({"like": system, **changed}), encoding="utf-8")
        tuned = simcoll("tune", path, "--nodes", 2, "--json").json
        graphs.append([(name, graph["channels"], graph["type_inter"]) for name, graph in tuned["graphs"].items()])
        names = {(c["algorithm"], c["protocol"]) for c in tuned["table"] if c["collective"] == collective}
        times.append(
            [
                time_us({}, collective, str(path), nodes=2, size=size, algorithm=algorithm, protocol=protocol)
                for algorithm, protocol in sorted(names) or [("auto", "auto")]
            ]
        )
    assume(graphs[0] == graphs[1])
    assert all(after <= 1.01 * before for before, after in zip(*times, strict=True))
