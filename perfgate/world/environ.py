"""The environment that a rank is given: who it is, and what keeps gloo and OpenMP quiet."""

from __future__ import annotations

import contextlib
import os
import re
import sys

from perfgate.model import WorldSpec


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
    return defaults | dict(os.environ) | identity


def terminal() -> str:
    """Return the device of the terminal that this process was started from, or nothing."""
    with contextlib.suppress(OSError), open("/dev/tty") as tty:
        return os.ttyname(tty.fileno())
    return ""


def _neighbour() -> int:
    """Return which of xdist's workers this is, so that neighbours use other GPUs."""
    match = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    return int(match[1]) if match else 0
