"""A world that this process was started into, by torchrun, mpirun or srun."""

from __future__ import annotations

import datetime
import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from perfgate.errors import UsageError

DEFAULT_PORT = 29500
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "MVAPICH2": (
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    # A batch script has SLURM_PROCID and SLURM_NTASKS too, with nobody beside it; only a step
    # that srun started has the step's own count.
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A process among those that one launcher started.

    :param master_addr: the host of rank 0, or None where the environment does not tell.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_size: int
    master_addr: str | None
    master_port: int


def discover(environ: Mapping[str, str]) -> Place | None:
    """Return this process's place, or None where no launcher started it.

    :raises UsageError: when the launcher's variables contradict each other.
    """
    for launcher, names in _LAUNCHERS.items():
        if names[0] not in environ or names[1] not in environ:
            continue
        rank, world_size = (_number(environ, name) for name in names[:2])
        if launcher == "Slurm" and world_size == 1:  # an interactive shell
            continue
        local_rank = _number(environ, names[2]) if names[2] in environ else rank
        local_size = _number(environ, names[3]) if names[3] in environ else world_size
        if not (0 <= rank < world_size and 0 <= local_rank < local_size <= world_size):
            raise UsageError(
                f"{launcher} says rank {rank} of {world_size}, {local_rank} of {local_size} on "
                f"this host; that cannot be. Unset {names[0]} to run without a launcher"
            )
        address = environ.get("MASTER_ADDR") or _first_host(environ, local_size == world_size)
        port = _number(environ, "MASTER_PORT") if "MASTER_PORT" in environ else DEFAULT_PORT
        return Place(launcher, rank, world_size, local_rank, local_size, address, port)
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    """Return the variable's leading number; Slurm writes ``2(x3)`` for three nodes of two."""
    match = re.match(r"\d+", environ[name])
    if match is None:
        raise UsageError(f"{name}={environ[name]!r} is no number; unset it or start under torchrun")
    return int(match[0])


def _first_host(environ: Mapping[str, str], one_host: bool) -> str | None:
    """Return rank 0's host: this one, or the first of Slurm's ``node[07-09,12]``."""
    if one_host:
        return "127.0.0.1"
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    match = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    return match[1] + (match[2] or "") if match else None


class JoinedWorld:
    """The ranks of a launcher's world, of which this process is one.

    It runs a function here while every other process does the same, and returns all results to
    each; so every process must go the same way.
    """

    def __init__(self, place: Place, backend: str, device: str, timeout_s: float) -> None:
        self.place, self.backend, self.device, self.timeout_s = place, backend, device, timeout_s

    def __enter__(self) -> JoinedWorld:
        import torch
        import torch.distributed as dist

        place = self.place
        address = place.master_addr or _address_by_mpi()
        settings = {
            "RANK": place.rank, "WORLD_SIZE": place.world_size, "LOCAL_RANK": place.local_rank,
            "LOCAL_WORLD_SIZE": place.local_size, "LOCAL_SIZE": place.local_size,
            "MASTER_ADDR": address, "MASTER_PORT": place.master_port,
        }  # fmt: skip
        if place.local_size == place.world_size:
            settings["GLOO_SOCKET_IFNAME"] = "lo"
        for name, value in settings.items():
            os.environ.setdefault(name, str(value))
        if self.device == "cuda":
            torch.cuda.set_device(place.local_rank)
        dist.init_process_group(self.backend, timeout=datetime.timedelta(seconds=self.timeout_s))
        return self

    def run(self, function: Callable[..., Any], *args: Any, deadline_s: float = 0.0) -> list[Any]:  # noqa: ARG002 - as World.run
        """Run it on this rank and return what it returned on every rank."""
        import torch.distributed as dist

        results: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(results, function(*args))
        return results

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        import torch.distributed as dist

        if kind is None:
            dist.barrier()
            dist.destroy_process_group()


def _address_by_mpi() -> str:
    """Ask MPI where rank 0 is.

    :raises UsageError: when mpi4py is not there to ask.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise UsageError(
            "the launcher does not say which host rank 0 is on; set MASTER_ADDR to it, "
            "or install mpi4py"
        )
    import socket

    comm = importlib.import_module("mpi4py.MPI").COMM_WORLD
    return str(comm.bcast(socket.gethostbyname(socket.gethostname()), root=0))
