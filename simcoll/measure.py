"""Real runs: the points of a scenario executed with torch.distributed, as rows of a measured table.

    run(points, launcher=LOCAL, *, backend="gloo", timeout_s=60.0, tell=None) -> list[Row]

* `points`: what `scenario.load` gives. `scenario.ranks` says how many ranks, by default every place of the topology;
  one launch per rank count serves all points of it.
* `launcher`: how rank r is started, a `launch.Launcher(prefix, environment)`: `prefix(rank)` gives the words before the
  command (`["ip", "netns", "exec", f"host{rank}"]`), `environment(rank)` what is added to the environment
  (`{"GLOO_SOCKET_IFNAME": "eth0"}`). The ranks meet through a file in a folder that all of them see; if the
  environment holds MASTER_ADDR and MASTER_PORT they meet there.
* `backend`: `gloo` or `nccl`. `timeout_s`: how long any one transfer may take.
* `tell`: called with a line of progress now and then.

Each row is a mapping with the columns of measured tables. Raises InputError for what the user can mend, RefusedError
for what no backend serves, MeasureError when a rank dies, hangs or computes something wrong.
"""

from __future__ import annotations
