"""Dumps of PyTorch's flight recorder, made without PyTorch: a script says what each rank calls."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

START_NS = 1_795_874_844_000_000_000


class Recorder:
    """What one rank records; `groups` maps names to their ranks, and `clock_ns` is how far its clock is ahead."""

    def __init__(self, rank: int, n: int, groups: dict[str, Sequence[int]] | None = None, clock_ns: int = 0):
        self.rank, self.now, self.clock_ns = rank, START_NS, clock_ns
        self.groups: dict[str, Sequence[int]] = {"0": range(n), **(groups or {})}
        self.entries: list[dict[str, Any]] = []
        self.numbers: Counter[tuple[str, bool]] = Counter()
        self.ops: Counter[str] = Counter()

    def call(
        self,
        name: str,
        count: int = 1000,
        *,
        group: str = "0",
        done: bool = True,
        dtype: str = "Float",
        line: int = 7,
        took_ms: float = 0.0,
        after_ms: float = 1.0,
        again: bool = False,
        **more: Any,
    ) -> None:
        """Record a call, `after_ms` after the former one; `again`: a further part of a coalesced call."""
        p2p = name.startswith(("send", "recv")) or more.get("is_p2p", False)
        self.numbers[group, p2p] += 0 if again else 1
        self.ops[group] += 1
        self.now += round(after_ms * 1e6)
        created = self.now + self.clock_ns
        ended = created + round(took_ms * 1e6) if done else None
        inputs, outputs = self._sizes(name, count, group)
        library = {"filename": "/opt/site-packages/torch/distributed/distributed_c10d.py", "line": 3, "name": name}
        user = {"filename": "train.py", "line": line, "name": "step"}
        self.entries.append(
            {
                "frames": [library, user], "record_id": len(self.entries), "pg_id": list(self.groups).index(group),
                "process_group": (group, "default_pg" if group == "0" else "tp"), "is_p2p": p2p,
                "collective_seq_id": self.numbers[group, False], "p2p_seq_id": self.numbers[group, True],
                "op_id": self.ops[group], "profiling_name": f"nccl:{name}",
                "input_sizes": inputs, "output_sizes": outputs,
                "input_dtypes": [dtype] * len(inputs), "output_dtypes": [dtype] * len(outputs),
                "state": "completed" if done else "started", "retired": done, "time_created_ns": created,
                "time_discovered_started_ns": created, "time_discovered_completed_ns": ended,
                "timeout_ms": 600_000, **({"duration_ms": took_ms} if took_ms and done else {}), **more,
            }
        )  # fmt: skip

    def _sizes(self, name: str, count: int, group: str) -> tuple[list[list[int]], list[list[int]]]:
        n = len(self.groups[group])
        many = {"_all_gather_base": ([[count]], [[n, count]]), "_reduce_scatter_base": ([[n, count]], [[count]])}
        return many.get(name, ([[count]], [[count]]))

    def dump(self, buffer: int = 2000) -> dict[str, Any]:
        """Return the dump of the last `buffer` calls."""
        status = {}
        for name in self.groups:
            mine = [e for e in self.entries if e["process_group"][0] == name and not e["is_p2p"]]
            done = [e["collective_seq_id"] for e in mine if e["retired"]]
            last = mine[-1]["collective_seq_id"] if mine else -1
            status[str(list(self.groups).index(name))] = {
                "last_enqueued_collective": last, "last_started_collective": last,
                "last_completed_collective": done[-1] if done else -1,
            }  # fmt: skip
        config = {
            name: {"name": name, "desc": "default_pg" if name == "0" else "tp", "ranks": str(list(ranks))}
            for name, ranks in self.groups.items()
        }
        return {"version": "2.10", "pg_config": config, "pg_status": status, "entries": self.entries[-buffer:]}


def write(folder: Path, n: int, script: Callable[[Recorder], None], **how: Any) -> Path:
    """Write the dumps of `n` ranks that run `script`; return the folder. `how`: `groups`, `buffer`, `as_json`, `skip`
    (ranks without a dump), `clock_ns` (of each rank)."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(n):
        if rank in how.get("skip", ()):
            continue
        groups = {name: ranks for name, ranks in how.get("groups", {}).items() if rank in ranks}
        recorder = Recorder(rank, n, groups, how.get("clock_ns", [0] * n)[rank])
        script(recorder)
        dump = recorder.dump(how.get("buffer", 2000))
        if how.get("as_json"):
            (folder / f"trace_{rank}.json").write_text(json.dumps(dump))
        else:
            (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, 2))
    return folder
