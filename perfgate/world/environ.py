"""The environment that a rank is given: who it is, and what keeps gloo and OpenMP quiet."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

from perfgate.model import WorldSpec
from perfgate.world.cover import coverage_environ

_PSEUDO_TERMINALS = range(136, 144)


def rank_environ(
    spec: WorldSpec,
    rank: int,
    *,
    local_rank: int | None = None,
    local_size: int | None = None,
    master: tuple[str, int] = ("127.0.0.1", 29500),
    interface: str = "lo",
) -> dict[str, str]:
    """Return this process's environment, made over for a rank.

    :param interface: the network interface that gloo is to use, unless the user chose one.
    """
    defaults = {"OMP_NUM_THREADS": "1"}
    if spec.backend == "gloo" and sys.platform == "linux" and interface:
        # A host name that does not resolve is the usual reason that gloo does not come up.
        defaults["GLOO_SOCKET_IFNAME"] = interface
    local_rank = rank if local_rank is None else local_rank
    local_size = local_size or spec.size
    identity = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(spec.size),
        "LOCAL_WORLD_SIZE": str(local_size),
        "LOCAL_SIZE": str(local_size),
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        "PERFGATE_FIRST_GPU": str(_neighbour() * local_size),
    }
    return defaults | dict(os.environ) | coverage_environ() | identity


def terminal() -> str:
    """Return the device of the terminal that this process was started from, or nothing.

    Asked of the kernel: pytest's capturing has other files where the terminal was.
    """
    with contextlib.suppress(OSError):
        number = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[4])
        major, minor = os.major(number), os.minor(number)
        if major in _PSEUDO_TERMINALS:
            return f"/dev/pts/{(major - _PSEUDO_TERMINALS[0]) * 256 + minor}"
        if number:
            return os.path.realpath(f"/dev/char/{major}:{minor}")
    return ""


def _neighbour() -> int:
    """Return which of xdist's workers this is, so that neighbours use other GPUs."""
    match = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    return int(match[1]) if match else 0
