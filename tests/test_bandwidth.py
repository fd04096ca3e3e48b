import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.comm import bandwidth
from perfgate.comm.bandwidth import (
    FACTORS,
    algbw_gbps,
    busbw_gbps,
    deepspeed_convention,
    factor,
    nearest,
)
from perfgate.errors import UsageError

MIB = 2**20
SHARDED = ("all_gather", "reduce_scatter_tensor", "gather", "scatter", "all_to_all_single")
ONE_WAY = ("broadcast", "reduce", "send_recv", "isend", "irecv")


# nccl-tests' doc/PERFORMANCE.md: all_reduce 2(n-1)/n; reduce_scatter, all_gather, all-to-all,
# gather and scatter (n-1)/n; broadcast, reduce and sendrecv 1.
@pytest.mark.parametrize(
    ("op", "world_size", "expected"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_reduce", 8, 1.75),
        *[(op, 2, 0.5) for op in SHARDED],
        *[(op, 8, 0.875) for op in SHARDED],
        *[(op, 8, 1.0) for op in ONE_WAY],
        ("barrier", 8, 0.0),
    ],
)
def test_factor_is_that_of_nccl_tests(op, world_size, expected):
    assert factor(op, world_size) == pytest.approx(expected)


# A 1 MiB shard on 4 ranks in 1 ms, by DeepSpeed's own functions and by nccl-tests' definition.
# DeepSpeed's logger shows 100.7 Gb/s for reduce_scatter and 8.4 for gather; both are wrong.
@pytest.mark.parametrize(
    ("op", "tput_gbps", "busbw"),
    [
        ("all_gather_into_tensor", 33.6, 25.2),
        ("reduce_scatter_tensor", 33.6, 25.2),
        ("gather", 33.6, 25.2),
        ("scatter", 33.6, 25.2),
        ("all_to_all_single", 33.6, 25.2),
        ("all_reduce", 67.1, 50.3),
        ("broadcast", 33.6, 33.6),
    ],
)
def test_documented_values(op, tput_gbps, busbw):
    figures = deepspeed_convention(op, 4 * MIB, 1e-3, 4)
    assert figures.tput_gbps == pytest.approx(tput_gbps, abs=0.05)
    assert figures.busbw_gbps == pytest.approx(busbw, abs=0.05)
    assert busbw_gbps(op, 4 * MIB, 1e-3, 4) == pytest.approx(busbw, abs=0.05)


def test_deepspeed_counts_an_all_reduce_twice_and_shows_the_shard_of_an_all_gather():
    all_reduce = deepspeed_convention("all_reduce", MIB, 1e-3, 4)
    all_gather = deepspeed_convention("all_gather", 4 * MIB, 1e-3, 4)
    assert all_reduce.tput_gbps == 2 * algbw_gbps(MIB, 1e-3)
    assert all_reduce.size_bytes == MIB
    assert all_gather.size_bytes == MIB


@given(
    op=st.sampled_from(sorted(FACTORS)),
    size_bytes=st.integers(0, 2**40),
    time_s=st.floats(1e-9, 1e3),
    world_size=st.integers(1, 4096),
)
def test_conventions_agree_on_the_bus(op, size_bytes, time_s, world_size):
    busbw = busbw_gbps(op, size_bytes, time_s, world_size)
    figures = deepspeed_convention(op, size_bytes, time_s, world_size)
    assert figures.busbw_gbps == busbw
    assert 0 <= busbw <= 2 * algbw_gbps(size_bytes, time_s)


@pytest.mark.parametrize("op", ["all_reduce", *SHARDED])
def test_one_rank_loads_no_bus(op):
    assert busbw_gbps(op, MIB, 1e-3, 1) == 0.0


@pytest.mark.parametrize("time_s", [0.0, -0.0, -1.0, math.nan])
def test_no_time_has_no_bandwidth(time_s):
    assert math.isnan(algbw_gbps(MIB, time_s))
    assert math.isnan(busbw_gbps("all_reduce", MIB, time_s, 2))
    assert math.isnan(deepspeed_convention("all_reduce", MIB, time_s, 2).tput_gbps)


def test_a_gigabit_is_ten_to_the_nine_bits():
    assert algbw_gbps(125_000_000, 1.0) == 1.0


def test_unknown_op_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'all_reduce'"):
        factor("allreduce", 2)
    assert nearest("xyzzy", ["gloo", "nccl"]) == "choose one of gloo, nccl"


def test_a_group_has_ranks():
    with pytest.raises(UsageError, match="world size is 0"):
        factor("all_reduce", 0)


def test_the_table_loads_without_torch():
    code = (
        f"import sys, runpy; runpy.run_path({bandwidth.__file__!r}); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
