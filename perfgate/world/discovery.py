"""Who this process is among those that a launcher started: torchrun, an MPI, Slurm.

Pure: environment variables in, a place out. What contradicts itself is explained, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perfgate.errors import UsageError

#: The port of the control channel between machines, when nothing says otherwise.
DEFAULT_PORT = 29501


@dataclass(frozen=True, slots=True)
class _Launcher:
    """The variables by which a launcher tells a process its place; the first two are required."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    run: tuple[str, ...]
    mark: str = ""


_TORCHRUN = _Launcher(
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("MASTER_PORT",),
    mark="TORCHELASTIC_RUN_ID",
)  # fmt: skip
_MPI = (
    _Launcher(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", ("PMIX_NAMESPACE",),
    ),
    _Launcher(
        "MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE", (),
    ),
    _Launcher(
        "MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
        (),
    ),
)  # fmt: skip
# SLURM_STEP_NUM_TASKS, not SLURM_NTASKS: that one is also set where srun has started nothing.
_SLURM = _Launcher(
    "Slurm",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "",
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One process among those that a launcher started, one for each rank.

    :param run: tells this run from others of the same user on this machine.
    :param master: host and port of the control channel, where the run spans machines.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    run: str
    master: tuple[str, int] | None

    @property
    def spans_machines(self) -> bool:
        """Whether some ranks are on other machines, or told apart as if they were."""
        return self.local_size < self.size

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} of {self.launcher}"


def discover(environ: Mapping[str, str]) -> Place | None:
    """Return this process's place, or None where it is alone.

    :raises UsageError: when the variables contradict each other, or do not suffice.
    """
    launcher = _launcher(environ)
    if launcher is None or environ.get("PERFGATE_LAUNCHER") == "none":
        return None
    rank, size = _number(environ, launcher.rank), _number(environ, launcher.size)
    if size == 1:
        return None
    local_rank, local_size = _local(environ, launcher, rank, size)
    _check_range(launcher.rank, rank, launcher.size, size)
    _check_range(launcher.local_rank, local_rank, launcher.local_size or "tasks a node", local_size)
    _check_generic(environ, launcher, rank, size)
    if local_size > size:
        raise UsageError(f"{launcher.name} says {local_size} processes here and {size} in all")
    spans = local_size < size
    return Place(
        launcher=launcher.name,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        run="-".join(
            [launcher.name.split()[0].lower(), *filter(None, map(environ.get, launcher.run))]
        ),
        master=_master(environ, launcher) if spans else None,
    )


def _launcher(environ: Mapping[str, str]) -> _Launcher | None:
    """Return the innermost launcher: torchrun may run below srun, an MPI too."""
    if _TORCHRUN.mark in environ:
        return _TORCHRUN
    found = [one for one in _MPI if one.rank in environ and one.size in environ]
    told = {(environ[one.rank], environ[one.size]) for one in found}
    if len(told) > 1:
        says = " and ".join(
            f"{one.name} says rank {environ[one.rank]} of {environ[one.size]}" for one in found
        )
        raise UsageError(f"{says}; unset the variables of the one that did not start this process")
    if found:
        return found[0]
    return _SLURM if _SLURM.rank in environ and _SLURM.size in environ else None


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None or not re.fullmatch(r"\d+", text):
        said = "is not set" if text is None else f"is {text!r}, no whole number"
        raise UsageError(f"{name} {said}; set PERFGATE_LAUNCHER=none to run on this machine alone")
    return int(text)


def _local(
    environ: Mapping[str, str], launcher: _Launcher, rank: int, size: int
) -> tuple[int, int]:
    if launcher is _SLURM:
        tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
        counts = expand_counts(tasks) or [size]
        node = int(environ.get("SLURM_NODEID", "0"))
        return _number(environ, launcher.local_rank), counts[min(node, len(counts) - 1)]
    if launcher.local_rank not in environ:
        return rank, size  # nothing said of machines: one
    return _number(environ, launcher.local_rank), _number(environ, launcher.local_size)


def expand_counts(text: str) -> list[int]:
    """Return Slurm's tasks a node, ``2(x3),1``, as ``[2, 2, 2, 1]``."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise UsageError(f"SLURM_STEP_TASKS_PER_NODE={text!r} does not read as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(text: str) -> str:
    """Return the first host of Slurm's list: ``gpu[07-09,12],login`` begins with ``gpu07``."""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?", text)
    return f"{match[1]}{match[2] or ''}" if match else ""


def _check_range(name: str, value: int, size_name: str, size: int) -> None:
    if value >= size:
        raise UsageError(f"{name}={value} must be below {size_name}={size}")


def _check_generic(environ: Mapping[str, str], launcher: _Launcher, rank: int, size: int) -> None:
    """Refuse a RANK or WORLD_SIZE that says otherwise: frameworks would believe it."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        said = environ.get(name)
        if said is not None and said != str(value):
            own = launcher.rank if name == "RANK" else launcher.size
            raise UsageError(
                f"{name}={said} contradicts {own}={value}, by which {launcher.name} started this "
                f"process; unset {name}"
            )


def _master(environ: Mapping[str, str], launcher: _Launcher) -> tuple[str, int]:
    host = environ.get("MASTER_ADDR", "")
    if not host and launcher is _SLURM:
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
        host = first_host(nodes)
    if not host:
        raise UsageError(
            f"{launcher.name} started ranks on several machines and MASTER_ADDR is not set; set "
            "it to the address of rank 0's"
        )
    if "PERFGATE_PORT" in environ:
        return host, _number(environ, "PERFGATE_PORT")
    if "MASTER_PORT" in environ:
        return host, _number(environ, "MASTER_PORT") + 1
    return host, DEFAULT_PORT
