"""The figures that a comms logger gives of calls: times, sizes and bandwidths."""

import copy
import math
import uuid

import logger_ranks as on_ranks
import pytest
import torch
import torch.distributed
from faults import PROPERTY, deepspeed_fault
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.world(size=2), pytest.mark.filterwarnings("ignore")]
ELEMENTS = st.sampled_from([1, 2, 7, 64, 1000])
ROUNDING = 1e-5
TIMED = ["all_reduce", "broadcast", "all_gather", "reduce_scatter_tensor", "barrier"]
CUMULATIVE = "elapsed(reset=False) adds up all earlier calls of the name"


# times


@deepspeed_fault(CUMULATIVE)
@PROPERTY
@given(calls=st.lists(st.tuples(st.sampled_from(TIMED), ELEMENTS), min_size=5, max_size=20))
def test_no_call_took_longer_than_the_clock_on_the_wall(world, logger_of, calls):
    for pairs in world.run(on_ranks.walls_and_latencies, logger_of, calls):
        for wall_ms, latency_ms in pairs:
            assert latency_ms <= wall_ms * (1 + ROUNDING)


@deepspeed_fault(CUMULATIVE)
@pytest.mark.parametrize("op", TIMED)
def test_equal_calls_add_up_to_no_more_than_the_time_that_passed(world, logger_of, op):
    for pairs in world.run(on_ranks.walls_and_latencies, logger_of, [(op, 64)] * 30):
        assert sum(latency for _, latency in pairs) <= sum(wall for wall, _ in pairs)


@deepspeed_fault("times the call that enqueues, and never the end")
def test_an_asynchronous_call_lasts_until_the_last_rank_has_called(world, logger_of):
    (called, returned, latency_s), late = world.run(on_ranks.late_peer, logger_of, uuid.uuid4().hex)
    assert returned < late, "the call blocked until its peer came"
    assert called + latency_s * (1 + ROUNDING) >= late


# sizes and bandwidths

FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_reduce_coalesced": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(
        ["all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor",
         "all_to_all", "all_to_all_single", "gather", "scatter"],
        lambda n: (n - 1) / n,
    ),
    **dict.fromkeys(["broadcast", "reduce", "send", "isend", "batch_isend_irecv"], lambda _: 1),
}  # fmt: skip
"""busbw over algbw in a group of n, nccl-tests' doc/PERFORMANCE.md."""


def _each_call(raws, op, ranks):
    """Name, size, latency, algbw and busbw of every call of an op, over all ranks."""
    for rank, raw in enumerate(raws):
        name = on_ranks.logged_as(op, rank)
        if name is not None and rank < ranks:
            for size, (_, latencies, algbws, busbws) in raw[name].items():
                for figures in zip(latencies, algbws, busbws, strict=True):
                    yield size, *figures


def _assert_figures(raws, op, elements, ranks):
    checked = 0
    for size, latency_ms, algbw_gbps, busbw_gbps in _each_call(raws, op, ranks):
        message_bits = on_ranks.size_bytes(op, elements, ranks) * 8
        assert size * 8 == message_bits
        assert algbw_gbps * latency_ms * 1e6 == pytest.approx(message_bits, rel=ROUNDING)
        assert busbw_gbps == pytest.approx(algbw_gbps * FACTORS[op](ranks), rel=ROUNDING)
        checked += 1
    assert checked >= 1


@pytest.mark.parametrize(
    "ranks", [pytest.param(n, marks=pytest.mark.world(size=n)) for n in (2, 3)]
)
@pytest.mark.parametrize("op", sorted(FACTORS))
@deepspeed_fault("counts an all_reduce's buffer twice", op=["all_reduce", "all_reduce_coalesced"])
@deepspeed_fault("takes the shard for the size", op=["all_gather", "all_gather_into_tensor"])
@deepspeed_fault("multiplies the whole input by the ranks",
                 op=["reduce_scatter", "reduce_scatter_tensor"])  # fmt: skip
@deepspeed_fault("takes the shard for the size, and no factor", op=["gather", "scatter"])
@deepspeed_fault("adds what is sent to what is received", op=["batch_isend_irecv"])
@settings(PROPERTY, max_examples=3)
@given(elements=ELEMENTS)
def test_bandwidth_follows_the_one_table(world, logger_of, op, ranks, elements):
    raws = world.run(on_ranks.log_calls, logger_of, [(op, elements)], 3)
    _assert_figures(raws, op, elements, ranks)


def _on_subgroup(provider, op, elements, members):
    layer = on_ranks.layer_of(provider)
    group = torch.distributed.new_group(members)
    if torch.distributed.get_rank() in members:
        on_ranks.call(layer.comm, op, elements, group)
        torch.distributed.destroy_process_group(group)
    return layer.logger.get_raw_data()


@pytest.mark.world(size=3)
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all_single", "broadcast"])
@deepspeed_fault("computes with the ranks of the job, not of the group",
                 op=["all_reduce", "all_gather", "all_to_all_single"])  # fmt: skip
@settings(PROPERTY, max_examples=8)
@given(
    elements=ELEMENTS,
    members=st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True).map(sorted),
)
def test_a_groups_bandwidth_has_the_groups_size(world, logger_of, op, elements, members):
    raws = world.run(_on_subgroup, logger_of, op, elements, members)
    _assert_figures([raws[member] for member in members], op, elements, len(members))
    assert [rank for rank in range(3) if raws[rank]] == members


def _uneven_all_to_all(provider):
    layer = on_ranks.layer_of(provider)
    rank = torch.distributed.get_rank()
    splits = [1, 3] if rank == 0 else [2, 2]  # rank 0 sends 4 and gets 3, rank 1 sends 4, gets 5
    received = [1, 2] if rank == 0 else [3, 2]
    layer.comm.all_to_all_single(
        torch.empty(sum(received)), torch.ones(sum(splits)), received, splits
    )
    return layer.logger.get_raw_data()


@deepspeed_fault("looks at what is received only")
def test_the_size_is_the_larger_of_sent_and_received(world, logger_of):
    sizes = [list(raw["all_to_all_single"]) for raw in world.run(_uneven_all_to_all, logger_of)]
    assert sizes == [[4 * on_ranks.BYTES], [5 * on_ranks.BYTES]]


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "all_gather_into_tensor", "barrier"])
def test_no_bytes_have_no_bandwidth(world, logger_of, op):
    for raw in world.run(on_ranks.log_calls, logger_of, [(op, 0)]):
        assert list(raw[op]) == [0]
        assert raw[op][0][2:] == [[0.0], [0.0]]


def _append(provider, latencies_ms, size):
    layer = on_ranks.layer_of(provider)
    for latency_ms in latencies_ms:
        layer.logger.append("all_reduce", "all_reduce", latency_ms, size)
    return layer.logger.get_raw_data(), layer.logger.get_operation_summary("all_reduce")


@deepspeed_fault("ZeroDivisionError out of a call that was too short for the clock")
def test_a_call_shorter_than_the_clocks_tick_has_no_bandwidth(world, logger_of):
    raw, _ = world.run(_append, logger_of, [0.0], 64)[0]
    assert not math.isfinite(raw["all_reduce"][64][2][0])


# means

LATENCY = st.integers(1, 2**20).map(lambda ticks: ticks / 1024)  # exact as a float32
LATENCIES = st.lists(LATENCY, min_size=1, max_size=40)


def _trim(provider, data, fraction):
    layer = on_ranks.layer_of(provider)
    mine = list(data)
    return layer.trim_mean(mine, fraction), layer.trim_mean(sorted(mine), fraction), mine


@PROPERTY
@given(data=LATENCIES, fraction=st.sampled_from([0.0, 0.1, 0.25]))
def test_trim_mean_leaves_its_argument_alone_and_does_not_see_its_order(
    world, logger_of, data, fraction
):
    for mean, of_sorted, afterwards in world.run(_trim, logger_of, data, fraction):
        assert afterwards == data
        assert mean == pytest.approx(of_sorted)
        assert min(data) * (1 - ROUNDING) <= mean <= max(data) * (1 + ROUNDING)


@PROPERTY
@given(data=st.lists(LATENCY, min_size=10, max_size=10))
def test_a_tenth_is_trimmed_at_either_end(world, logger_of, data):
    mean, _, _ = world.run(_trim, logger_of, data, 0.1)[0]
    assert mean == pytest.approx(sum(sorted(data)[1:-1]) / 8)


@pytest.mark.parametrize(("data", "fraction"), [([1.0, 9.0], 0.4), ([1.0, 2.0, 9.0], 1.0)])
@deepspeed_fault("the mean of nothing left is NaN")
def test_trimming_everything_still_gives_a_number(world, logger_of, data, fraction):
    mean, _, _ = world.run(_trim, logger_of, data, fraction)[0]
    assert 1.0 <= mean <= 9.0


@deepspeed_fault("the trimmed means of latencies and of bandwidths leave out different calls")
@PROPERTY
@given(latencies_ms=LATENCIES, size=st.sampled_from([4, 1000, 2**20]))
def test_a_summary_agrees_with_itself(world, logger_of, latencies_ms, size):
    raw, summary = world.run(_append, logger_of, latencies_ms, size)[0]
    figures = summary[size]
    _, latencies, algbws, busbws = raw["all_reduce"][size]
    per_ms = algbws[0] * latencies[0]  # this logger's own bandwidth of one call
    assert figures["count"] == len(latencies_ms)
    assert figures["total_latency_ms"] == pytest.approx(sum(latencies), rel=ROUNDING)
    assert figures["tput_avg_gbps"] * figures["avg_latency_ms"] == pytest.approx(
        per_ms, rel=ROUNDING
    )
    assert figures["busbw_avg_gbps"] * algbws[0] == pytest.approx(
        figures["tput_avg_gbps"] * busbws[0], rel=ROUNDING
    )


@PROPERTY
@given(latencies_ms=LATENCIES)
def test_summaries_leave_the_records_as_they_were(world, logger_of, latencies_ms):
    before, after = world.run(_records_around_summaries, logger_of, latencies_ms)[0]
    assert after == before
    assert before["all_reduce"][64][1] == pytest.approx(latencies_ms)


def _records_around_summaries(provider, latencies_ms):
    layer = on_ranks.layer_of(provider)
    for latency_ms in latencies_ms:
        layer.logger.append("all_reduce", "all_reduce", latency_ms, 64)
    before = copy.deepcopy(layer.logger.get_raw_data())
    layer.logger.get_operation_summary("all_reduce")
    layer.comm.log_summary(show_straggler=False, return_dict=True)
    after = layer.logger.get_raw_data()
    return before, {"all_reduce": after["all_reduce"]}


def _spoil_what_was_read(provider):
    layer = on_ranks.layer_of(provider)
    on_ranks.call(layer.comm, "all_reduce", 8)
    before = copy.deepcopy(layer.logger.get_raw_data())
    raw = layer.logger.get_raw_data()
    for entry in raw["all_reduce"].values():
        entry[0] = 99
        entry[1].append(1e9)
    raw["all_reduce"].clear()
    layer.logger.get_operation_summary("all_reduce").clear()
    layer.logger.get_operation_names().clear()
    return before, layer.logger.get_raw_data()


@deepspeed_fault("the copy is shallow")
def test_readers_get_copies(world, logger_of):
    for before, after in world.run(_spoil_what_was_read, logger_of):
        assert after == before
