"""log_summary and the straggler analysis, over ranks that differ."""

import time
import uuid

import logger_ranks as on_ranks
import pytest
import torch
import torch.distributed
from faults import FATAL, deepspeed_fault
from hypothesis import given
from hypothesis import strategies as st

pytestmark = [pytest.mark.world(size=2), pytest.mark.filterwarnings("ignore")]


def _summaries(provider, show_straggler):
    layer = on_ranks.layer_of(provider)
    for op, elements in (("all_reduce", 8), ("all_reduce", 64), ("broadcast", 8)):
        for _ in range(12):
            on_ranks.call(layer.comm, op, elements)
    count = layer.logger.get_total_operations()
    first, second = (
        layer.comm.log_summary(show_straggler=show_straggler, return_dict=True) for _ in range(2)
    )
    return count, layer.logger.get_total_operations(), first, second


@deepspeed_fault("logs the barriers of log_summary itself")
def test_a_summary_is_not_logged_itself(world, logger_of):
    for before, after, _, _ in world.run(_summaries, logger_of, False):
        assert after == before


@deepspeed_fault("logs the barriers of log_summary itself")
def test_a_summary_repeated_says_the_same(world, logger_of):
    for _, _, first, second in world.run(_summaries, logger_of, False):
        assert second["summary"] == first["summary"]


@deepspeed_fault("logs the all_reduces of the analysis itself")
def test_a_straggler_analysis_is_not_logged_itself(world, logger_of):
    for before, after, first, second in world.run(_summaries, logger_of, True):
        assert after == before
        assert second["straggler_analysis"] == first["straggler_analysis"]


@deepspeed_fault("each rank returns its own figures")
def test_all_ranks_return_the_same_summary(world, logger_of):
    (_, _, mine, _), (_, _, others, _) = world.run(_summaries, logger_of, True)
    assert mine["summary"] == others["summary"]
    assert mine["straggler_analysis"] == others["straggler_analysis"]


def test_a_summary_has_the_documented_keys(world, logger_of):
    for rank, (_, _, stats, _) in enumerate(world.run(_summaries, logger_of, True)):
        assert stats["summary"]["all_reduce"][32].keys() >= {
            "count", "total_latency_ms", "avg_latency_ms", "tput_avg_gbps", "busbw_avg_gbps",
            "msg_size_bytes", "msg_size_str",
        }  # fmt: skip
        assert stats["straggler_analysis"]["all_reduce"][32].keys() >= {
            "count", "total_comm_lat_ms", "total_straggler_ms", "avg_comm_lat_ms",
            "avg_straggler_ms", "msg_size_bytes", "msg_size_str",
        }  # fmt: skip
        assert stats["summary"]["all_reduce"][32]["count"] == 12
        assert stats["metadata"]["world_size"] == 2
        assert stats["metadata"]["rank"] == rank
        assert stats["metadata"]["timestamp"]


def test_only_rank_0_prints(world, logger_of):
    printed = world.run(_printed, logger_of)
    assert "all_reduce" in printed[0]
    assert "busbw_avg (Gbps)" in printed[0]
    assert printed[1] == ""


def _printed(provider):
    import contextlib
    import io

    layer = on_ranks.layer_of(provider)
    on_ranks.call(layer.comm, "all_reduce", 8)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        layer.comm.log_summary(show_straggler=False, return_dict=False)
    return out.getvalue()


def _with_unequal_logs(provider, calls):
    layer = on_ranks.layer_of(provider)
    rank = torch.distributed.get_rank()
    for op, logged_by_rank in calls:
        if not logged_by_rank[rank]:
            layer.logger.stop_profiling_comms()
        on_ranks.call(layer.comm, op, 8)
        layer.logger.start_profiling_comms()
    return layer.comm.log_summary(show_straggler=True, return_dict=True)["straggler_analysis"]


@pytest.mark.world(size=2, deadline="6s")
@deepspeed_fault("hangs: the analysis reduces key by key, in each rank's own order")
@FATAL
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["all_reduce", "broadcast", "all_gather"]),
            st.tuples(st.booleans(), st.booleans()),
        ),
        max_size=8,
    )
)
def test_an_analysis_of_unequal_logs_ends(world, logger_of, calls):
    assert len(world.run(_with_unequal_logs, logger_of, calls)) == 2


def _wait_for_rank_1(provider, key, calls, delay_s):
    """Call together, rank 1 so much later; return when each call began, and the analysis."""
    layer = on_ranks.layer_of(provider)
    rank, tensor, began = torch.distributed.get_rank(), torch.ones(8), []
    for number in range(calls):
        torch.distributed.barrier()
        if rank == 0:
            on_ranks.store().set(f"{key}{number}", "0 is about to call")
        if rank == 1:
            on_ranks.store().wait([f"{key}{number}"])
            end = time.monotonic() + delay_s
            while time.monotonic() < end:
                pass
        began.append(time.monotonic())
        layer.comm.all_reduce(tensor)
    stats = layer.comm.log_summary(show_straggler=True, return_dict=True)
    return began, stats["straggler_analysis"]


@deepspeed_fault("the latencies that it compares are sums over all earlier calls")
def test_who_waits_for_a_late_rank_is_told_by_how_much(world, logger_of):
    calls, delay_s = 5, 0.02
    key = uuid.uuid4().hex
    (began, analysis), (began_late, _) = world.run(_wait_for_rank_1, logger_of, key, calls, delay_s)
    row = analysis["all_reduce"][32]
    assert row["count"] == calls
    late_ms = (sum(began_late) - sum(began)) * 1e3
    assert row["total_straggler_ms"] == pytest.approx(late_ms, rel=0.5)


def test_the_late_rank_is_named(world, logger_of):
    if logger_of != "perfgate":
        pytest.skip(f"{logger_of} has no analysis of arrivals")
    calls, delay_s = 5, 0.02
    key = uuid.uuid4().hex
    for _, analysis in world.run(_wait_for_rank_1, logger_of, key, calls, delay_s):
        skew = analysis["all_reduce"][32]["skew"]
        assert skew["late_rank"] == 1
        assert skew["late_share"] == 1.0
        assert skew["mean_ms"] >= delay_s * 1e3 / 2
        assert skew["transfer_ms"] < skew["mean_ms"]
