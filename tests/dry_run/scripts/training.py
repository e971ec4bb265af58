"""Training scripts of many kinds, as under torchrun: `training.py KIND`. Models are tiny."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, STEPS = 64, 4, 3
kind = sys.argv[1]
gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
dist.init_process_group("nccl" if gpu else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


class Mlp(nn.Module):
    """A norm and two layers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        """Return the output, of the shape of `x`."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


def train(model, optimizer=None, clip=False):
    """Train for some steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        loss = model(torch.randn(BATCH, WIDTH, device=device)).square().mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG if gpu else dist.ReduceOp.SUM)
        if rank == 0:
            print(f"loss {mean.item():.3f}")


blocks = nn.Sequential(*(Mlp() for _ in range(4))).to(device)
if kind == "ddp":
    train(DistributedDataParallel(blocks, bucket_cap_mb=0.1))
elif kind == "zero":
    wrapped = DistributedDataParallel(blocks)
    train(wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=1e-3))
elif kind == "fsdp1":
    train(FullyShardedDataParallel(blocks, device_id=device))
elif kind in ("fsdp2", "hsdp", "tp", "tp_fsdp"):
    inner = world if kind in ("fsdp2", "tp") else 2
    mesh = init_device_mesh(device.type, (world // inner, inner), mesh_dim_names=("outer", "inner"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in blocks:
        if kind.startswith("tp"):
            rows = Shard(0)
            ways = {"up": ColwiseParallel(input_layouts=rows), "down": RowwiseParallel(output_layouts=rows)}
            parallelize_module(block, mesh["inner"], {"norm": SequenceParallel(sequence_dim=0), **ways})
        if kind != "tp":
            part = {"fsdp2": mesh["inner"], "hsdp": mesh, "tp_fsdp": mesh["outer"]}[kind]
            fully_shard(block, mesh=part, mp_policy=policy)
    train(blocks, clip=kind == "fsdp2")
elif kind == "pp":
    chunk = len(blocks) // world
    stage = PipelineStage(blocks[rank * chunk : (rank + 1) * chunk], rank, world, device)
    schedule = Schedule1F1B(stage, 2 * world, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
    for _ in range(STEPS):
        batch = torch.randn(2 * world * BATCH, WIDTH, device=device)
        if rank == 0:
            schedule.step(batch)
        elif rank == world - 1:
            schedule.step(target=batch)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
elif kind == "moe":
    for _ in range(STEPS):
        x = torch.randn(8 * world, WIDTH, device=device, requires_grad=True)
        there = dist_nn.all_to_all_single(torch.empty_like(x), x)
        back = dist_nn.all_to_all_single(torch.empty_like(x), blocks(there))
        back.sum().backward()
        for parameter in blocks.parameters():
            dist.all_reduce(parameter.grad)
elif kind == "mixed":
    pairs = [dist.new_group([i, i + 1]) for i in range(0, world, 2)]
    own, _ = dist.new_subgroups(2)
    x = torch.ones(world * 3)
    dist.reduce(x, 0)
    dist.reduce_scatter(torch.empty(3), list(x.chunk(world)))
    dist.all_gather([torch.empty(5) for _ in range(world)], torch.ones(5), async_op=True).wait()
    dist.gather(x, [torch.empty_like(x) for _ in range(world)] if rank == 1 else None, dst=1)
    dist.scatter(torch.empty(2), [torch.ones(2)] * world if rank == 0 else None)
    dist.all_reduce(x, group=pairs[rank // 2])
    dist.broadcast(x, dist.get_process_group_ranks(own)[1], group=own)
    dist.all_to_all(list(torch.empty(world, 2)), list(torch.ones(world, 2)))
    ring = [dist.P2POp(dist.isend, x, (rank + 1) % world), dist.P2POp(dist.irecv, x.clone(), (rank - 1) % world)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    names = [None] * world
    dist.all_gather_object(names, f"rank {rank}")
    chosen = [{"width": WIDTH} if rank == 0 else None]
    dist.broadcast_object_list(chosen, src=0)
    dist.all_reduce(torch.empty(chosen[0]["width"]))
    dist_nn.all_reduce(torch.ones(7, requires_grad=True)).sum().backward()
    dist.barrier()
else:
    sys.exit(f"{kind} is unknown")
dist.destroy_process_group()
