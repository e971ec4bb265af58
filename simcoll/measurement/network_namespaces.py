"""Build a topology on this machine as `_network_wiring` plans it, and take it down. Needs Linux and root.

Names begin with `simcoll-` and the mark of the process, so that leftovers of a killed run differ from networks in use.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from simcoll.errors import InputError, SimcollError
from simcoll.measurement._network_wiring import WiringPlan
from simcoll.measurement.launcher import PREFIX, handling, is_alive, own_mark
from simcoll.topology.graph import Topology

NAMES: Final = Path("/run/netns")
ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # their bits, from linux/capability.h


def why_not() -> str | None:
    """Return the reason why namespaces cannot be made here; None if they can."""
    if sys.platform != "linux":
        return f"network namespaces need Linux, this is {sys.platform}"
    if missing := [tool for tool in ("ip", "tc", "sysctl") if shutil.which(tool) is None]:
        return f"{' and '.join(missing)} cannot be found (packages iproute2 and procps)"
    if os.geteuid():
        return "network namespaces need root"
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    held = int(effective[1], 16) if effective else 0
    if lost := [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]:
        return f"network namespaces need {' and '.join(lost)}, which root lacks here (a container?)"
    return None


class BuiltNetwork:
    """A network that stands: `with BuiltNetwork(topology) as network:` builds it, and takes everything down again."""

    def __init__(self, topology: Topology):
        if reason := why_not():
            raise InputError(f"the lab cannot be built: {reason}", "run it as root on Linux")
        self.plan = WiringPlan(topology)
        self.hosts = self.plan.hosts

    @cached_property
    def names(self) -> dict[str, str]:
        """The namespace of each device."""
        return {device: f"{PREFIX}{own_mark()}-{device}" for device in self.plan.devices}

    def inside(self, device: str) -> list[str]:
        """Return the words that run a command inside a device's namespace."""
        return ["ip", "netns", "exec", self.names[device]]

    def sent(self) -> dict[str, int]:
        """Return the bytes that each link (`host0->switch`) has carried so far, headers included."""
        carried = {}
        for cable in self.plan.cables:
            for (device, peer), port in zip((cable.ends, cable.ends[::-1]), cable.ports, strict=True):
                statistics = run("tc", "-n", self.names[device], "-s", "class", "show", "dev", f"port{port}")
                carried[f"{device}->{peer}"] = int(re.findall(r"Sent (\d+) bytes", statistics)[0])
        return carried

    def __enter__(self) -> BuiltNetwork:
        remove_stale()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _build(self) -> None:
        for name in self.names.values():
            run("ip", "netns", "add", name)
        run("ip", "-batch", "-", lines=self.plan.wiring(self.names))
        for device, name in self.names.items():
            run(*self.inside(device), "sysctl", "-qew", *self.plan.settings(device))
            run("ip", "-n", name, "-batch", "-", lines=self.plan.setup(device))
            run("tc", "-n", name, "-batch", "-", lines=self.plan.shapers(device))

    def _remove(self) -> None:
        # Ctrl-C and `kill` are ignored meanwhile: half of a network would stay otherwise.
        with handling(ENDINGS, signal.SIG_IGN), contextlib.ExitStack() as everything:
            for name in self.names.values():
                everything.callback(remove, name)  # also after one that failed


def remove_stale() -> list[str]:
    """Remove the namespaces of runs that have ended; return their names."""
    stale = [path.name for path in NAMES.glob(f"{PREFIX}*") if not is_alive(_owner(path.name))]
    for name in stale:
        remove(name)
    return stale


def _owner(name: str) -> str:
    return name.removeprefix(PREFIX).partition("-")[0]


def remove(name: str) -> None:
    """End the processes in a namespace and remove it with its interfaces; do nothing if it is gone."""
    try:
        if os.path.ismount(NAMES / name):  # else its maker was killed half way, and nothing runs in it
            for process in run("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        if (NAMES / name).exists():
            run("ip", "netns", "delete", name)
    except SimcollError:
        if (NAMES / name).exists():  # nobody else has removed it meanwhile
            raise


def run(*words: str, lines: Sequence[str] = ()) -> str:
    """Run a command with lines on stdin; return its output. Raises SimcollError with its complaint.

    The command has a separate session: Ctrl-C at the terminal is for this process, which cleans up with such commands.
    """
    done = subprocess.run(words, input="\n".join(lines), text=True, capture_output=True, start_new_session=True)
    if done.returncode:
        raise SimcollError(f"`{' '.join(words)}` failed: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout
