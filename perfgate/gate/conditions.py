"""Live readings of the machine, and whether they spoil a measurement.

They are taken before and after a measurement and judged without looking at its figures, so that
throwing a run away can never favour one side.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

MAX_STEAL = 0.10
"""The share of processor time that the host may have given to others."""
MAX_THROTTLED = 0.05
"""The share of wall time that the cgroup may have held us back."""
MAX_CLOCK_JUMP_S = 1.0
"""How far the wall clock may move against the monotonic one: a suspended or migrated machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """One reading. Times are totals since boot, in seconds, over all cores."""

    monotonic_s: float
    wall_s: float
    cpu_s: float = 0.0
    busy_s: float = 0.0
    own_s: float = 0.0
    steal_s: float = 0.0
    throttled_s: float = 0.0
    load: float = 0.0

    @classmethod
    def read(cls) -> Conditions:
        """Read now; what this machine does not tell counts as zero."""
        cores = psutil.cpu_times()
        idle_s = cores.idle + getattr(cores, "iowait", 0.0)
        steal_s = getattr(cores, "steal", 0.0)
        guests_s = getattr(cores, "guest", 0.0) + getattr(cores, "guest_nice", 0.0)
        cpu_s = sum(cores) - guests_s  # a guest's time is counted as its host's user time too
        return cls(
            monotonic_s=time.monotonic(),
            wall_s=time.time(),
            cpu_s=cpu_s,
            busy_s=cpu_s - idle_s - steal_s,
            own_s=_own_s(),
            steal_s=steal_s,
            throttled_s=_throttled_s(Path("/sys/fs/cgroup/cpu.stat")),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        )


def problems(before: Conditions, after: Conditions) -> tuple[str, ...]:
    """Return why what was measured between two readings is not to be believed, if so.

    Load is recorded and not judged: a busy machine is noisy, and noise widens the interval.
    """
    elapsed_s = after.monotonic_s - before.monotonic_s
    found = []
    steal = _share(after.steal_s - before.steal_s, after.cpu_s - before.cpu_s)
    if steal > MAX_STEAL:
        found.append(f"the host took {steal:.0%} of the processor time, over {MAX_STEAL:.0%}")
    throttled = _share(after.throttled_s - before.throttled_s, elapsed_s)
    if throttled > MAX_THROTTLED:
        found.append(f"throttled for {throttled:.0%} of the time, over {MAX_THROTTLED:.0%}")
    jump_s = after.wall_s - before.wall_s - elapsed_s
    if abs(jump_s) > MAX_CLOCK_JUMP_S:
        found.append(f"the wall clock jumped by {jump_s:+.1f} s against the monotonic clock")
    return tuple(found)


def others_share(before: Conditions, after: Conditions) -> float:
    """Return the share of the machine's processor time that other processes used, 0 to 1."""
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(max(_share(others_s, after.cpu_s - before.cpu_s), 0.0), 1.0)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _own_s() -> float:
    """Return the processor time of this process and all below it, the ended ones included."""
    total_s = 0.0
    ours = psutil.Process()
    for process in (ours, *ours.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total_s += sum(process.cpu_times()[:4])
    return total_s


def _throttled_s(stat: Path) -> float:
    try:
        fields = dict(line.split() for line in stat.read_text().splitlines())
        return int(fields.get("throttled_usec", 0)) / 1e6
    except (OSError, ValueError):
        return 0.0
