"""A process's place, from what launchers say of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import UsageError
from perfgate.world.discovery import discover, expand_counts, first_host

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "123.1", "PMIX_RANK": "1",
}  # fmt: skip
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "0",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "node0",
}  # fmt: skip
INTEL_MPI = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}
SLURM = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-09,12]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "launcher", "place", "master"),
    [
        (TORCHRUN, "torchrun", (3, 4, 1, 2), ("node0", 29501)),
        (OPEN_MPI, "Open MPI", (1, 4, 1, 4), None),
        (MVAPICH, "MVAPICH", (2, 4, 0, 2), ("node0", 29501)),
        (INTEL_MPI, "MPICH or Intel MPI", (2, 4, 2, 4), None),
        (SLURM, "Slurm", (5, 7, 1, 2), ("gpu07", 29501)),
        (SLURM | {"PERFGATE_PORT": "4000"}, "Slurm", (5, 7, 1, 2), ("gpu07", 4000)),
        (SLURM | TORCHRUN, "torchrun", (3, 4, 1, 2), ("node0", 29501)),
        (SLURM | OPEN_MPI, "Open MPI", (1, 4, 1, 4), None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "MPICH or Intel MPI", (1, 2, 1, 2), None),
    ],
    ids=["torchrun", "openmpi", "mvapich", "intel-mpi", "slurm", "slurm-port", "torchrun-in-slurm",
         "openmpi-in-slurm", "mpich-silent-of-machines"],
)  # fmt: skip
def test_place_is_found(environ, launcher, place, master) -> None:
    found = discover(environ)
    assert found.launcher == launcher
    assert (found.rank, found.size, found.local_rank, found.local_size) == place
    assert found.master == master
    assert found.spans_machines == (found.local_size < found.size)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "4"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"},
        OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        TORCHRUN | {"PERFGATE_LAUNCHER": "none"},
    ],
    ids=["nothing", "left-over-rank", "sbatch-without-srun", "one-process", "told-not-to"],
)
def test_a_process_alone_has_no_place(environ) -> None:
    assert discover(environ) is None


@pytest.mark.parametrize(
    ("environ", "explanation"),
    [
        (OPEN_MPI | {"RANK": "0"}, "RANK=0 contradicts OMPI_COMM_WORLD_RANK=1, by which Open MPI"),
        (OPEN_MPI | {"WORLD_SIZE": "8"}, "WORLD_SIZE=8 contradicts OMPI_COMM_WORLD_SIZE=4"),
        (OPEN_MPI | INTEL_MPI, "Open MPI says rank 1 of 4 and MPICH or Intel MPI says rank 2 of 4"),
        (TORCHRUN | {"RANK": "4"}, "RANK=4 must be below WORLD_SIZE=4"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, "LOCAL_RANK=2 must be below LOCAL_WORLD_SIZE=2"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "torchrun says 9 processes here and 4 in all"),
        (TORCHRUN | {"RANK": "three"}, "RANK is 'three', no whole number"),
        ({k: v for k, v in TORCHRUN.items() if k != "LOCAL_RANK"}, None),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_ADDR"}, "MASTER_ADDR is not set"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "two"}, "does not read as 2(x3),1"),
    ],
)
def test_contradictions_are_explained(environ, explanation) -> None:
    if explanation is None:  # not told of machines: taken for one
        assert discover(environ).local_size == 4
        return
    with pytest.raises(UsageError, match=re.escape(explanation)):
        discover(environ)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 5)), min_size=1))
def test_tasks_a_node_expand(runs) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert expand_counts(text) == [count for count, times in runs for _ in range(times)]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[07-09,12],login", "gpu07"), ("a,b", "a"), ("solo", "solo"), ("n[3]", "n3"), ("", "")],
)
def test_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
