"""The scenario's key `measure`: settings for running a point on real hardware."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt

from simcoll.config.yaml_tree import Model


class MeasureSpec(Model):
    """Settings for running a point on real hardware."""

    harness: Literal["p2p", "library", "nccl-tests", "graph"] = "p2p"
    """`p2p` runs the schedule by send and receive, `library` calls the library's own collective, one call at a time.
    `nccl-tests` makes such calls back to back and gives their mean, as nccl-tests does; `graph` the same from a CUDA
    graph. `launch.registered` then registers the buffers with NCCL."""
    calls: Annotated[StrictInt, Field(ge=1)] = 20
    """Calls of a timed run of `nccl-tests` and `graph`."""
    warmup: Annotated[StrictInt, Field(ge=0)] = 3
    """Runs before timing begins."""
    repeats: Annotated[StrictInt, Field(ge=1)] = 20
    """Timed runs, over all launches."""
    launches: Annotated[StrictInt, Field(ge=1)] = 1
    """Starts of the ranks over which the timed runs are spread."""
    verify: StrictBool = True
    """Whether every element is checked before timing."""
    buckets: Annotated[StrictInt, Field(ge=1)] = 1
    """Equal calls into which the library's collective is cut."""
    async_op: StrictBool = False
    """Whether these calls are all under way at once, or one after another."""
    compute: Literal["sleep", "real"] = "sleep"
    """What the layers of a workload do: sleep, or multiply matrices."""
