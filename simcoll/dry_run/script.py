"""Run a script once for each of some ranks, each in a process of its own, and collect what the ranks do."""

from __future__ import annotations

import contextlib
import os
import pickle
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from simcoll.dry_run import devices, torch_private
from simcoll.dry_run.recorder import RECORDER, Mailbox, RankRecord, Recording, TooLargeError, flat
from simcoll.errors import InputError

LONG: Final = 20  # steps, after which a script may be without end
CURES: Final = (  # words of an error of torch -> what to change
    ("not linked with support for cuda", "take the device from the data, or write torch.device('cpu')"),
    ("not compiled with cuda", "guard the line with `if torch.cuda.is_available():`"),
    ("libcudart", "guard the import, or take an implementation in PyTorch: a dry run has no GPU"),
    ("data_ptr", "custom kernels need data: call PyTorch's operations in a dry run"),
    ("cannot access data pointer", "custom kernels need data: call PyTorch's operations in a dry run"),
    ("data-dependent", "the shape follows from data: give it a fixed size, or make the model smaller"),
    ("datadependent", "the shape follows from data: give it a fixed size, or make the model smaller"),
    ("dynamicoutputshape", "the shape follows from data: give it a fixed size, or make the model smaller"),
    ("multiprocessing.spawn", "let the command start the ranks, as torchrun does: read RANK from the environment"),
    ("wait in a circle", "let one of the ranks send before it receives"),
    ("no module named", "install the module, or guard its import"),
    ("triton", "call PyTorch's operations in a dry run: Triton needs a GPU"),
)  # fmt: skip


class StepsDoneError(BaseException):
    """The script made as many steps as are asked for; no `except Exception` stops it."""


@dataclass(frozen=True)
class Job:
    """A script with its arguments, on `world` ranks of which `local` share a node. `steps`: after how many it ends.
    `changes`: keys of DDP and of `fully_shard` that are other than the script says."""

    script: str
    args: tuple[str, ...]
    world: int
    local: int
    gpu: devices.Told
    steps: int | None = None
    changes: tuple[tuple[str, Any], ...] = ()


def record(job: Job, ranks: Sequence[int], fake: bool) -> tuple[dict[int, RankRecord], InputError | None]:
    """Return what some ranks do, and the error of a script that fails, with the line of the script. `fake`: with
    tensors that have no memory. Raises InputError if there is no script."""
    if not Path(job.script).is_file():
        raise InputError(f"{job.script}: there is no such file", "give the path of a training script")
    with tempfile.TemporaryDirectory() as folder:
        found = _all(job, ranks, fake, Path(folder))
    failed = [each for each in found.values() if each.failed]
    if not failed:
        return found, None
    first = min(failed, key=lambda each: each.ended)  # others may lack what it did not send
    place, problem, cure = first.failed or ("", "", "")
    return found, InputError(f"{place}: rank {first.rank}: {problem}", cure)


def _all(job: Job, ranks: Sequence[int], fake: bool, folder: Path) -> dict[int, RankRecord]:
    """Run the script for all ranks at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    torch.set_num_threads(1)
    children = {}
    for rank in ranks:
        (folder / f"runs {rank}").touch()
    for rank in ranks:
        pid = os.fork()
        if not pid:
            _child(job, rank, fake, folder)
        children[rank] = pid
    found = {}
    for rank, pid in children.items():
        _, status = os.waitpid(pid, 0)
        path = folder / f"rank {rank}"
        if path.exists():
            found[rank] = pickle.loads(path.read_bytes())
        else:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
            problem = (job.script, f"the process ended with {how}", "see torch's words above; --steps N ends it before")
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and not fake  # out of memory
            found[rank] = RankRecord(rank, too_large=killed, failed=problem)
    return found


def _child(job: Job, rank: int, fake: bool, folder: Path) -> None:
    """Run the script in a process of its own, write what it did, and end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word
    status = 1
    try:
        os.dup2(2, 1)  # what the script prints goes to stderr
        sys.stdout = sys.stderr
        RECORDER.mail = Mailbox(folder, rank)
        found = run_rank(job, rank, fake)
        path = folder / f"rank {rank}.part"
        path.write_bytes(pickle.dumps(found))
        path.rename(folder / f"rank {rank}")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def run_rank(job: Job, rank: int, fake: bool) -> RankRecord:
    """Run the script as one rank, in this process."""
    sys.argv = [job.script, *job.args]
    sys.path.insert(0, str(Path(job.script).resolve().parent))
    torch_private.change(**dict(job.changes))
    with recording(rank, job.world, job.local, job.gpu, fake, job.steps):
        try:
            runpy.run_path(job.script, run_name="__main__")
        except TooLargeError:
            RECORDER.too_large = True
        except StepsDoneError:
            pass
        except SystemExit as end:
            if end.code not in (None, 0):
                RECORDER.failed = _failed(job, end, f"the script calls sys.exit({end.code!r})")
        except BaseException as error:
            RECORDER.too_large = "can't allocate memory" in str(error)
            RECORDER.failed = _failed(job, error, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    if not RECORDER.failed and not torch.distributed.is_initialized() and not RECORDER.initialized:
        problem = "the script never calls torch.distributed.init_process_group"
        RECORDER.failed = (job.script, problem, "call it as under torchrun, e.g. init_process_group('nccl')")
    return recorded()


def recorded() -> RankRecord:
    """Return what was recorded in this process."""
    own = {each.name: getattr(RECORDER, each.name) for each in fields(RankRecord)}
    return RankRecord(**{**own, "ended": time.monotonic()})


@contextlib.contextmanager
def recording(
    rank: int, world: int, local: int, gpu: devices.Told, fake: bool, steps: int | None = None
) -> Iterator[None]:
    """Record what runs inside as one rank of a job. `local`: the ranks of a whole node."""
    local = min(local, world)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local), "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
        "GROUP_RANK": str(rank // local),
    }  # fmt: skip
    RECORDER.rank, RECORDER.fake = rank, fake
    RECORDER.start()
    optimizers: list[Any] = []
    models: list[Any] = []  # that are called as a whole, and are not parts of others

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:  # on GPUs torch updates all parameters of a kind at once
            if group.get("foreach", 0) is None and not group.get("fused"):
                group["foreach"] = True
        RECORDER.stream.closed()
        RECORDER.in_optimizer = True

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        RECORDER.stream.closed()
        RECORDER.in_optimizer = False
        if optimizer not in optimizers:
            optimizers.append(optimizer)
        if optimizers[0] is optimizer:
            RECORDER.mark()
            RECORDER.memory = RECORDER.allocations.peak(_held(models, optimizers))
            if steps and len(RECORDER.marks) >= steps:
                raise StepsDoneError
            if rank == 0 and len(RECORDER.marks) == LONG:
                print(f"{LONG} steps of the optimizer so far; --steps N ends the script", file=sys.stderr)

    parts = set[Any]()

    def begins(module: Any, args: Any) -> None:
        if not models:
            RECORDER.stream.closed()
            RECORDER.begin = len(RECORDER.parts)
            RECORDER.allocations.changes.clear()
        if module not in parts:
            models.append(module)
            parts.update(module.modules())
        if RECORDER.marks:
            forward.remove()

    before_all, compile_ = torch_private.patched(), torch.compile
    torch.compile = RECORDER.compiles(compile_)
    torch_private.pretend(rank, world, RECORDER.starts)
    devices.install(rank % local, local, gpu)
    torch_private.watch_sizes(RECORDER.allocations.resized)
    if fake:
        torch_private.convert_without_memory()
    forward = register_module_forward_pre_hook(begins)
    hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    try:
        with devices.OnCpu(), Recording():
            yield
    finally:
        for hook in (*hooks, forward):
            hook.remove()
        for stream in RECORDER.streams:
            stream.closed()
        torch_private.restore(before_all)
        torch.compile = compile_


def _held(models: Sequence[Any], optimizers: Sequence[Any]) -> dict[str, list[torch.Tensor]]:
    """Return the tensors that a rank keeps between steps, by kind. Of a distributed tensor this rank's part counts."""
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    parameters = [*(each for group in groups for each in group), *(each for one in models for each in one.parameters())]
    kinds = {
        "parameters": [*parameters, *(each for one in models for each in one.buffers())],
        "gradients": [each.grad for each in parameters],
        "optimizer": [value for one in optimizers for state in one.state.values() for value in state.values()],
    }
    local = {name: [*map(torch_private.local, tensors)] for name, tensors in kinds.items()}
    return {name: [each for each in flat(tensors) if each.device.type != "meta"] for name, tensors in local.items()}


def _failed(job: Job, error: BaseException, problem: str) -> tuple[str, str, str]:
    """Return the line of the script at which it failed, the problem, and what to change."""
    frames = traceback.extract_tb(error.__traceback__)
    home = str(Path(job.script).resolve().parent)
    own = [each for each in frames if str(Path(each.filename).resolve()).startswith(home)]
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else job.script
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    words = problem.casefold()
    cure = next(
        (cure for sign, cure in CURES if sign in words), "if it runs under torchrun, a dry run lacks what it asks for"
    )
    return place, problem, cure
