"""Dry runs of training scripts: they find the collectives that the same script makes on real gloo ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from command import PATIENCE_S, ROOT
from extras import needs

from simcoll.api.dry_runs import dry_run
from simcoll.api.questions import predict
from simcoll.errors import InputError, RefusedError
from simcoll.report.dryrun_text import text
from simcoll.workload.training_memory import CONTEXT

SCRIPT = ROOT / "tests" / "dry_run" / "scripts" / "training.py"
KINDS = ("ddp", "fsdp2", "hsdp", "tp", "tp_fsdp", "pp", "moe", "mixed", "zero", "fsdp1")

torch_needed = needs("torch")


def real_calls(folder: Path, world: int, *args: str) -> dict[int, list[list[object]]]:
    """Return the collectives of each gloo rank: name, bytes and ranks."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = str(found.getsockname()[1])
    ranks = []
    for rank in range(world):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        environment = {**os.environ, "MASTER_ADDR": "localhost", **{key: str(value) for key, value in own.items()}}
        command = [sys.executable, str(ROOT / "tests/helpers/gloo_calls.py"), str(folder / f"{rank}.json"), *args]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    assert [each.wait(PATIENCE_S) for each in ranks] == [0] * world
    return {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)}


@torch_needed
@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.filterwarnings("default")  # torch's own
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_collectives_are_those_of_real_ranks(kind: str, world: int, tmp_path: Path) -> None:
    """A dry run lists the calls of each rank, in order, with the bytes."""
    real = real_calls(tmp_path, world, str(SCRIPT), kind)
    found = dry_run(str(SCRIPT), [kind], world=world, on="hgx-h100", all_ranks=True).collectives(everyone=True)
    for rank, calls in real.items():
        mine = [[row["collective"], row["bytes"], row["ranks"]] for row in found if row["rank"] == rank]
        assert mine == [call for call in calls if len(call[2]) > 1]  # type: ignore[arg-type]


BEGIN = "import sys, torch, torch.distributed as dist\ndist.init_process_group()\n"
BAD = {
    "print('hello')": r"never calls torch.distributed.init_process_group",
    BEGIN + "raise ValueError('no data')": r"bad.py:3: rank \d: ValueError: no data",
    BEGIN + "sys.exit(3)": r"bad.py:3: rank \d: the script calls sys.exit\(3\)",
    BEGIN + "t = torch.ones(1, dtype=int)\ndist.recv(t, 1 - dist.get_rank())": r"bad.py:4: rank .* wait in a circle",
    "import torch\ntorch.multiprocessing.spawn(print)": r"bad.py:2: .*; let the command start the ranks",
    BEGIN + "x = (": r"bad.py:3: rank \d: SyntaxError",
    BEGIN + "if dist.get_rank():\n    dist.barrier()\ndist.all_reduce(torch.ones(4))": (
        r"bad.py:4: call 0 of a group: rank 0 calls all_reduce of 4 float32 .*rank 1 calls barrier.*would hang"
    ),
}


@torch_needed
@pytest.mark.ranks
@pytest.mark.parametrize(("script", "message"), BAD.items(), ids=range(len(BAD)))
def test_a_bad_script_is_named_with_its_line(script: str, message: str, tmp_path: Path) -> None:
    """The error has the place, the problem, and both calls of ranks that would wait for ever."""
    path = tmp_path / "bad.py"
    path.write_text(script)
    with pytest.raises(InputError, match=message):
        dry_run(str(path), world=2, on="hgx-h100")


@torch_needed
def test_more_ranks_than_memory_holds_are_refused_at_once(tmp_path: Path) -> None:
    """The script does not run."""
    with pytest.raises(InputError, match=r"12500000 nodes of hgx-h100 .* GB of memory"):
        dry_run(str(tmp_path / "absent.py"), world=10**8, on="hgx-h100")


@torch_needed
@pytest.mark.ranks
@pytest.mark.parametrize("first", ["", "torch.empty(2**50)\n"], ids=["layers", "one"])
def test_a_large_script_needs_no_memory(first: str, tmp_path: Path) -> None:
    """Layers of 40 GB, also behind a tensor that no machine has memory for, are recorded: their buckets hold all
    gradients, and the plan is a scenario with the same time."""
    path, width, layers = tmp_path / "large.py", 50_000, 4
    path.write_text(
        BEGIN + first + f"blocks = torch.nn.Sequential(*(torch.nn.Linear({width}, {width}) for _ in range({layers})))\n"
        "model = torch.nn.parallel.DistributedDataParallel(blocks)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        f"while True:\n    model(torch.randn(2, {width})).sum().backward()\n    optimizer.step()\n"
    )
    found = dry_run(str(path), world=8, on="hgx-h100", steps=3)  # which end it
    step = [part.call.nbytes for part in found.step_of(0) if part.call]
    assert sum(step) == 4 * layers * (width * width + width)
    assert [*found.exposed_ps.values()] == [found.prediction.exposed_ps]  # of the only group
    (tmp_path / "plan.yaml").write_text(found.plan)
    assert predict(str(tmp_path / "plan.yaml")).time_ps == found.prediction.time_ps


MODELS = {
    "ddp": "layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)\n"
    "model = torch.nn.parallel.DistributedDataParallel(layer)\n",
    "tp": "from torch.distributed.tensor.parallel import *\n"
    "model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))\n"
    "mesh = dist.init_device_mesh('cuda', (8,))\n"
    "parallelize_module(model, mesh, {'0': ColwiseParallel(), '2': RowwiseParallel()})\n",
}


@torch_needed
@pytest.mark.ranks
@pytest.mark.parametrize("kind", MODELS)
def test_a_step_without_memory_is_the_same(kind: str, tmp_path: Path) -> None:
    """A large tensor that nobody reads makes the script run without memory. Its operations are the same, attention with
    dropout and what waits for calls, too. With tensor parallelism nothing runs beside a call."""
    path, found = tmp_path / "train.py", []
    for first in ("", "large = torch.empty(2**26)\n"):
        path.write_text(
            f"{BEGIN}{first}{MODELS[kind]}optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "for _ in range(2):\n    model(torch.randn(2, 16, 64)).sum().backward()\n    optimizer.step()\n"
        )
        found.append(dry_run(str(path), world=8, on="hgx-h100"))
    assert found[0].scenario["workload"] == found[1].scenario["workload"]
    if kind == "tp":
        operations = found[1].scenario["workload"]["operations"]
        assert all([each["name"]] == after["after"] for each, after in pairwise(operations) if "time" not in each)


@torch_needed
@pytest.mark.ranks
def test_a_job_of_a_part_of_a_node_sees_its_gpus(tmp_path: Path) -> None:
    """torch forms groups of a node's GPUs, which are the job's if it has fewer ranks than the machine has."""
    path = tmp_path / "groups.py"
    path.write_text(BEGIN + "group, _ = dist.new_subgroups()\ndist.all_reduce(torch.ones(4), group=group)\n")
    assert [call["ranks"] for call in dry_run(str(path), world=4, on="hgx-h100").collectives()] == [[0, 1, 2, 3]]


@torch_needed
@pytest.mark.ranks
@pytest.mark.filterwarnings("default")  # torch's own
def test_each_message_of_a_pipeline_is_sent_once() -> None:
    """Stages send and receive in batches, each in an order of its own: a message is one operation of both."""
    found = dry_run(str(SCRIPT), ["pp"], world=2, on="hgx-h100")
    sent = [
        call for rank in (0, 1) for part in found.step_of(rank) if (call := part.call) and call.collective == "send"
    ]
    calls = [each for each in found.scenario["workload"]["operations"] if "collective" in each]
    assert len(calls) == len(sent) > 0


@torch_needed
@pytest.mark.ranks
def test_memory_is_that_of_the_peak(tmp_path: Path) -> None:
    """Where the backward pass begins, a rank holds parameters, Adam's two moments, a gradient, DDP's bucket, the input
    and what each layer returns, and the last layer's gradient; also without memory."""
    width, batch, path = 64, 4096, tmp_path / "train.py"
    weights, rows = 4 * width * width, 4 * width * batch
    for layers, first in ((4, ""), (6, "large = torch.empty(2**26)\n")):
        path.write_text(
            BEGIN + first + f"pair = lambda: [torch.nn.Linear({width}, {width}, bias=False), torch.nn.ReLU()]\n"
            f"blocks = torch.nn.Sequential(*(each for _ in range({layers}) for each in pair()))\n"
            "model = torch.nn.parallel.DistributedDataParallel(blocks)\n"
            "optimizer = torch.optim.Adam(model.parameters())\n"
            f"for _ in range(3):\n    model(torch.randn({batch}, {width})).sum().backward()\n"
            "    optimizer.step()\n    optimizer.zero_grad()\n"
        )
        found = dry_run(str(path), world=8, on="hgx-h100").memory
        assert found["parameters"] == layers * weights == found["buffers"] - CONTEXT
        assert found["gradients"] == weights
        assert found["optimizer"] - 4 * layers == 2 * layers * weights  # and a number of steps for each
        assert found["activations"] // rows == layers + 2


@torch_needed
@pytest.mark.ranks
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int64", "complex64"])
def test_an_unknown_value_of_any_type_is_one(dtype: str, tmp_path: Path) -> None:
    """A script may ask for, compare, list and print values that a tensor without memory does not have."""
    path = tmp_path / "values.py"
    path.write_text(
        f"{BEGIN}torch.empty(2**27)\nt = torch.randn(2**13).to(torch.{dtype}).sum()\n"
        "assert t.item() == t.tolist() == t[None].tolist()[0] == 1 and f'{t:.1f}'[:1] == '1'\n"
        "dist.all_reduce(torch.ones(4) if t != 1 else torch.ones(8))\n"
    )
    found = dry_run(str(path), world=8, on="hgx-h100")
    assert any("taken as 1" in note for note in found.notes)


LARGE = f"{BEGIN}torch.empty(2**27)\n"


@torch_needed
@pytest.mark.ranks
def test_tensors_without_memory_have_addresses_of_their_own(tmp_path: Path) -> None:
    """A library may tell parameters apart by them, as accelerate does; views have the address of what they show."""
    path = tmp_path / "train.py"
    path.write_text(
        f"{LARGE}a, b = torch.randn(4096), torch.randn(4096)\n"
        "assert a.data_ptr() == a.view(64, 64).data_ptr() != b.data_ptr()\ndist.barrier()\n"
    )
    assert [call["collective"] for call in dry_run(str(path), world=8, on="hgx-h100").collectives()] == ["barrier"]


@torch_needed
@pytest.mark.ranks
def test_a_hook_of_ddp_may_send_fewer_bytes(tmp_path: Path) -> None:
    """Compressed to bf16, gradients have half their bytes."""
    path = tmp_path / "train.py"
    path.write_text(
        f"{BEGIN}from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, bias=False))\n"
        "model.register_comm_hook(None, bf16_compress_hook)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(2):\n    model(torch.randn(2, 64)).sum().backward()\n    optimizer.step()\n"
    )
    found = dry_run(str(path), world=8, on="hgx-h100")
    assert [part.call.nbytes for part in found.step_of(0) if part.call][-1] == 2 * 64 * 64


@torch_needed
@pytest.mark.ranks
def test_calls_of_the_last_rank_of_a_large_job_are_compared(tmp_path: Path) -> None:
    """A call that rank 0 alone makes would hang the job, also one that is too large to compute for real."""
    path = tmp_path / "hangs.py"
    path.write_text(f"{LARGE}dist.barrier()\nif dist.get_rank() == 0:\n    dist.all_reduce(torch.ones(4))\n")
    with pytest.raises(InputError, match=r"hangs.py:6: call 1 .*rank 7 makes no further one: the job would hang"):
        dry_run(str(path), world=8, on="hgx-h100")


@torch_needed
@pytest.mark.ranks
def test_a_large_pipeline_of_many_replicas_is_recorded_once(tmp_path: Path) -> None:
    """Of a job too large to compute for real, the ranks with which rank 0 exchanges messages are recorded."""
    path = tmp_path / "stages.py"
    path.write_text(
        f"{LARGE}mesh = dist.init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'pp'))\n"
        "group, stage = mesh.get_group('pp'), mesh.get_local_rank('pp')\nt = torch.ones(4)\n"
        "if stage:\n    dist.recv(t, group=group, group_src=stage - 1)\n"
        "if stage < 3:\n    dist.send(t, group=group, group_dst=stage + 1)\n"
    )
    assert [*dry_run(str(path), world=8, on="hgx-h100").records] == [0, 1, 2, 3]


ALL = "dist.all_reduce(torch.ones(2**20))\n"


@torch_needed
@pytest.mark.ranks
def test_ranks_that_do_not_fill_nodes_are_refused_before_the_script_runs(tmp_path: Path) -> None:
    """Nodes have equally many ranks; the script, which would say otherwise, is not there."""
    for keys in ({"world": 12}, {"world": 13, "nodes": 2}):
        with pytest.raises(InputError, match=r"1[23] ranks do not fill whole nodes of [78]; take a multiple of [78]"):
            dry_run(str(tmp_path / "none.py"), on="hgx-h100", **keys)


@torch_needed
@pytest.mark.ranks
@pytest.mark.parametrize(("world", "nodes"), [(4, None), (16, 4), (16, None)])
def test_a_plan_has_the_ranks_of_its_job_on_any_machine(world: int, nodes: int | None, tmp_path: Path) -> None:
    """The plan takes as long as the call alone on so many ranks, and is refused where they do not fit."""
    path, plan = tmp_path / "train.py", tmp_path / "plan.yaml"
    path.write_text(BEGIN + ALL)
    found = dry_run(str(path), world=world, on="hgx-h100", nodes=nodes)
    plan.write_text(found.plan)
    assert (found.prediction.n, found.prediction.nodes) == (world, nodes or -(-world // 8))
    assert predict(str(plan), on="dgx-a100", nodes=nodes or -(-world // 8)).n == world
    if world > 8:
        with pytest.raises(RefusedError, match=f"16 ranks do not fit .* or more nodes: {nodes or 2} hold them"):
            predict(str(plan), on="dgx-a100")


@torch_needed
@pytest.mark.ranks
def test_calls_of_all_groups_of_a_dimension_are_one_operation(tmp_path: Path) -> None:
    """The ranks that are recorded are in several groups, whose names in torch differ; the plan says how far apart the
    ranks of a group are, and does not list them."""
    path = tmp_path / "train.py"
    path.write_text(
        f"{BEGIN}mesh = dist.init_device_mesh('cuda', (4, 2, 8), mesh_dim_names=('outer', 'inner', 'tp'))\n"
        "for name in mesh.mesh_dim_names:\n    dist.all_reduce(torch.ones(4), group=mesh[name].get_group())\n"
    )
    operations = dry_run(str(path), world=64, on="hgx-h100").scenario["workload"]["operations"]
    groups = [each["groups"] for each in operations if "collective" in each]
    assert groups == [{"size": 4, "apart": 16}, {"size": 2, "apart": 8}, {"size": 8, "apart": 1}]


@torch_needed
@pytest.mark.ranks
def test_a_machine_may_be_keys_of_a_topology(tmp_path: Path) -> None:
    """The plan has the keys; nodes follow from the ranks, and are no key."""
    path = tmp_path / "train.py"
    path.write_text(BEGIN + ALL)
    found = dry_run(str(path), world=8, on="{system: hgx-h100, gpus: 4}")
    assert found.scenario["topology"] == {"system": "hgx-h100", "gpus": 4, "nodes": 2}
    assert found.prediction.nodes == 2
    for keys in ("{system: hgx-h100, nodes: 2}", "{fabric: ring, hosts: 8}"):
        with pytest.raises(InputError, match="a dry run takes a `system`"):
            dry_run(str(path), world=8, on=keys)


@torch_needed
@pytest.mark.ranks
@pytest.mark.filterwarnings("default")  # torch's own
def test_the_table_has_whole_buffers(tmp_path: Path) -> None:
    """MB are those of nccl-tests: an all_gather and a reduce_scatter of the same buffer have the same."""
    path = tmp_path / "train.py"
    path.write_text(
        f"{BEGIN}whole, part = torch.ones(2**20), torch.ones(2**17)\n"
        "dist.all_gather_into_tensor(whole, part)\ndist.reduce_scatter_tensor(part, whole)\n"
    )
    lines = text(dry_run(str(path), world=8, on="hgx-h100")).splitlines()
    assert [line.split()[-2] for line in lines[-2:]] == ["4.194", "4.194"]
