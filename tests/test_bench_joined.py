import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.bench.joined import DEFAULT_PORT, Place, discover
from perfgate.errors import UsageError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "node7", "MASTER_PORT": "1234"}  # fmt: skip
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}  # fmt: skip
MVAPICH = {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2",
           "MV2_COMM_WORLD_LOCAL_RANK": "0", "MV2_COMM_WORLD_LOCAL_SIZE": "2"}  # fmt: skip
SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1",
         "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
         "SLURM_STEP_NODELIST": "node[07-09],other1"}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (TORCHRUN, Place("torchrun", 3, 4, 1, 2, "node7", 1234)),
        (OPEN_MPI, Place("Open MPI", 3, 4, 1, 2, None, DEFAULT_PORT)),
        (OPEN_MPI | {"MASTER_ADDR": "a"}, Place("Open MPI", 3, 4, 1, 2, "a", DEFAULT_PORT)),
        (MVAPICH, Place("MVAPICH2", 0, 2, 0, 2, "127.0.0.1", DEFAULT_PORT)),
        (SLURM, Place("Slurm", 5, 6, 1, 2, "node07", DEFAULT_PORT)),
        (MPICH, Place("MPICH", 1, 2, 1, 2, "127.0.0.1", DEFAULT_PORT)),
        (TORCHRUN | SLURM, Place("torchrun", 3, 4, 1, 2, "node7", 1234)),
    ],
    ids=["torchrun", "mpirun", "mpirun with address", "mvapich", "srun", "mpich", "both"],
)
def test_a_launcher_is_found(environ, place):
    assert discover(environ) == place


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "16"},
        SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"},
    ],
    ids=["nothing", "half of it", "a batch script", "an interactive shell"],
)
def test_no_launcher_is_found(environ):
    assert discover(environ) is None


@pytest.mark.parametrize(("nodes", "host"), [
    ("node7", "node7"), ("node[07-09,12]", "node07"), ("a,b", "a"), ("gpu-[3,5]", "gpu-3"),
])  # fmt: skip
def test_the_first_of_slurms_nodes(nodes, host):
    assert discover(SLURM | {"SLURM_STEP_NODELIST": nodes}).master_addr == host


def test_variables_that_contradict_each_other_are_told():
    with pytest.raises(UsageError, match=r"torchrun says rank 4 of 4.*Unset RANK"):
        discover(TORCHRUN | {"RANK": "4"})
    with pytest.raises(UsageError, match="WORLD_SIZE='many' is no number"):
        discover(TORCHRUN | {"WORLD_SIZE": "many"})


@given(world_size=st.integers(1, 64), data=st.data())
def test_every_rank_of_torchrun_finds_its_own_place(world_size, data):
    rank = data.draw(st.integers(0, world_size - 1))
    place = discover({"RANK": str(rank), "WORLD_SIZE": str(world_size)})
    assert (place.rank, place.world_size) == (rank, world_size)
    assert place.master_addr == "127.0.0.1"
