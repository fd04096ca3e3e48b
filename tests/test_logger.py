"""CommsLogger without ranks: switches, records and figures."""

import math
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.comm.logger import CommsLogger
from perfgate.comm.records import OTHER, RECORD, Key, Records
from perfgate.comm.straggler import RankCalls, analyse
from perfgate.comm.summary import readable_size, rows, table, trim_mean
from perfgate.errors import UsageError

OPS = ["all_reduce", "broadcast", "mine"]


def key_of(name, ranks=2, op="all_reduce", group="0"):
    return Key(name, op, group, ranks, False)


def add(logger, name, size_bytes=64, latency_s=1e-3, ranks=2, enter_ns=0, sequence=0, **kwargs):
    key = key_of(name, ranks, **kwargs)
    return logger.add(logger.records, name, key, size_bytes, enter_ns, sequence, latency_s)


def started(**switches):
    logger = CommsLogger()
    logger.configure({"enabled": True, **switches})
    return logger


# imports


@pytest.mark.parametrize(
    "code",
    [
        "import perfgate.comm",
        "import perfgate.comm.bandwidth",
        "from perfgate.comm import bandwidth; bandwidth.factor",
        "import perfgate.comm as dist; dist.bandwidth.busbw_gbps",
        "import perfgate.comm.logger, perfgate.comm.summary, perfgate.comm.straggler",
    ],
)
def test_formulas_and_records_need_no_torch(code):
    program = f"import sys; {code}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# switches


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from(["start", "stop"]), st.none() | st.lists(st.sampled_from(OPS))
            ),
            st.tuples(st.just("enabled"), st.booleans()),
            st.tuples(st.just("prof_all"), st.booleans()),
            st.tuples(st.just("prof_ops"), st.lists(st.sampled_from(OPS))),
        )
    )
)
def test_the_last_word_on_an_op_counts(steps):
    logger, enabled, on = CommsLogger(), False, dict.fromkeys(OPS, True)
    prof_all, named = True, []
    for what, value in steps:
        if what == "enabled":
            logger.enabled = enabled = value
        elif what in ("prof_all", "prof_ops"):
            setattr(logger, what, value)
            prof_all, named = (value, named) if what == "prof_all" else (prof_all, value)
            on = {op: prof_all or op in named for op in OPS}
        elif value is None:
            getattr(logger, f"{what}_profiling_comms")()
            on, prof_all = dict.fromkeys(OPS, what == "start"), what == "start"
        else:
            getattr(logger, f"{what}_profiling_op")(value)
            on |= dict.fromkeys(value, what == "start")
        assert {op: logger.selects(op) for op in OPS} == {op: enabled and on[op] for op in OPS}


def test_named_ops_count_again_once_prof_all_is_off():
    logger = started(prof_all=True, prof_ops=["broadcast"])
    assert logger.selects("all_reduce")
    logger.prof_all = False
    assert logger.prof_ops == ["broadcast"]
    assert not logger.selects("all_reduce")


def test_prof_true_is_logged_whatever_is_selected_but_not_when_disabled():
    logger = started(prof_all=False)
    logger.add(logger.records, None, key_of("all_reduce"), 64, 0, 0, 1e-3)
    logger.enabled = False
    logger.add(logger.records, None, key_of("all_reduce"), 64, 0, 0, 1e-3)
    assert logger.get_total_operations() == 1


def test_a_call_that_began_before_a_reset_is_not_logged():
    logger = started()
    records = logger.records
    logger.reset_data()
    assert logger.add(records, "all_reduce", key_of("all_reduce"), 64, 0, 0, 1e-3) is None
    assert not logger.has_data()


def test_threads_may_log_read_reset_and_switch_at_once():
    logger, stop, failures = started(), threading.Event(), []

    def work(act):
        try:
            while not stop.is_set():
                act()
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    acts = [
        lambda: add(logger, "all_reduce"),
        lambda: add(logger, f"name {len(logger.records) % 50}"),
        lambda: [list(logger.get_raw_data()), logger.get_operation_summary("all_reduce")],
        lambda: [logger.stop_profiling_comms(), logger.start_profiling_comms()],
        logger.reset_data,
    ]
    threads = [threading.Thread(target=work, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for _ in range(200):
        logger.stop_profiling_comms()
        snapshot = logger.snapshot()
        assert len(snapshot.rows) == sum(row.count for row in rows(snapshot))
        logger.start_profiling_comms()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_after_stop_returns_nothing_is_added():
    logger, go_on = started(), threading.Event()

    def log_until_told():
        while not go_on.is_set():
            add(logger, "all_reduce")

    thread = threading.Thread(target=log_until_told)
    thread.start()
    while not logger.has_data():
        pass
    logger.stop_profiling_comms()
    counts = {logger.get_total_operations() for _ in range(1000)}
    go_on.set()
    thread.join()
    assert counts == {logger.get_total_operations()}


# records


def test_a_record_takes_at_most_32_bytes():
    logger, calls = started(), 200_000
    add(logger, "all_reduce")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(calls):  # a size of its own each: sizes must not cost more either
            add(logger, "all_reduce", size_bytes=number, enter_ns=number)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held / calls <= 32
    assert logger.get_total_operations() == calls + 1


@settings(deadline=None)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(OPS),
            st.sampled_from([0, 1, 4096, 2**40]),
            st.integers(1, 2**20).map(lambda ticks: ticks / 2**20),
        )
    )
)
def test_what_goes_in_comes_out_in_order(calls):
    logger, expected = started(), {}
    for name, size, latency_s in calls:
        add(logger, name, size, latency_s)
        entry = expected.setdefault(name, {}).setdefault(size, [])
        entry.append(latency_s * 1e3)
    raw = logger.get_raw_data()
    assert {n: {s: entry[1] for s, entry in sizes.items()} for n, sizes in raw.items()} == expected
    assert all(e[0] == len(e[1]) == len(e[2]) for sizes in raw.values() for e in sizes.values())
    assert logger.get_operation_names() == list(expected)
    assert logger.get_total_operations() == len(calls)
    assert logger.has_data() is bool(calls)


def test_records_grow_over_many_chunks():
    logger = started()
    for number in range(10_000):
        add(logger, "all_reduce", size_bytes=number, enter_ns=number, sequence=number)
    found = logger.snapshot()
    assert found.rows["enter_ns"].tolist() == list(range(10_000))
    assert found.sizes_bytes.tolist() == list(range(10_000))
    assert set(found.key_ids.tolist()) == {0}


@pytest.mark.parametrize("calls", [1, 10_000])
def test_a_snapshot_changes_no_more(calls):
    logger = started()
    for _ in range(calls):
        add(logger, "all_reduce")
    before = logger.snapshot()
    logger.records.set_wait(calls - 1, 0.5)
    add(logger, "broadcast")
    assert math.isnan(before.rows["wait_s"][calls - 1])
    assert len(before.rows) == calls
    assert logger.snapshot().rows["wait_s"][calls - 1] == 0.5


def test_an_endless_supply_of_names_ends_in_one():
    records = Records()
    for number in range(70_000):
        records.append(key_of(f"step {number}"), 64, 0, 0, 1e-3)
    found = records.view().copy()
    assert len(found.keys) == 65_536
    assert found.keys[-1] == OTHER
    assert sum(row.count for row in rows(found)) == 70_000


# figures


@given(
    data=st.lists(st.floats(-1e6, 1e6), min_size=1),
    fraction=st.floats(0, 0.49),
)
def test_trim_mean_is_scipys(data, fraction):
    unchanged = list(data)
    assert trim_mean(data, fraction) == pytest.approx(scipy.stats.trim_mean(unchanged, fraction))
    assert data == unchanged


def test_trim_mean_at_the_edges():
    assert trim_mean([], 0.1) == 0.0
    assert trim_mean([1, 2, 90], 1.0) == 2.0
    assert trim_mean(np.array([1.0, 3.0]), 0.5) == 2.0
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(UsageError, match="within 0 to 1"):
            trim_mean([1.0], wrong)


def test_calls_of_groups_of_different_sizes_share_a_row_truthfully():
    logger = started()
    add(logger, "all_reduce", 1000, 1e-3, ranks=2)
    for _ in range(3):
        add(logger, "all_reduce", 1000, 1e-3, ranks=8)
    figures = logger.get_operation_summary("all_reduce")[1000]
    assert figures["ranks"] == {2: 1, 8: 3}
    mean_factor = (1 * 1.0 + 3 * 1.75) / 4
    assert figures["busbw_avg_gbps"] == pytest.approx(figures["tput_avg_gbps"] * mean_factor)
    assert figures["tput_avg_gbps"] == pytest.approx(1000 * 8 / 1e-3 / 1e9, rel=1e-6)


@pytest.mark.parametrize("sizes", [1, 10, 300])
def test_rows_are_the_same_however_many_there_are(sizes):
    logger = started()
    for number in range(900):
        add(logger, "all_reduce", number % sizes, (1 + number) ** 2 * 1e-6)
    summary = logger.get_operation_summary("all_reduce")
    assert list(summary) == list(range(sizes))
    for size, figures in summary.items():
        expected_ms = [(1 + number) ** 2 * 1e-3 for number in range(900) if number % sizes == size]
        assert figures["count"] == len(expected_ms)
        assert figures["total_latency_ms"] == pytest.approx(sum(expected_ms), rel=1e-5)
        assert figures["avg_latency_ms"] == pytest.approx(trim_mean(expected_ms, 0.1), rel=1e-5)


def test_a_call_without_time_or_size_has_a_row():
    logger = started()
    logger.append("all_reduce", "all_reduce", 0.0, 64)
    logger.append("barrier", "barrier", 1.0, 0)
    assert math.isnan(logger.get_operation_summary("all_reduce")[64]["busbw_avg_gbps"])
    assert logger.get_operation_summary("barrier")[0]["busbw_avg_gbps"] == 0.0
    assert logger.get_operation_summary("broadcast") is None
    assert "nan" in table(rows(logger.snapshot()))


def test_an_op_without_a_formula_is_refused():
    with pytest.raises(UsageError, match="did you mean 'all_reduce'"):
        started().append("all_reduc", "x", 1.0, 64)


def test_sizes_are_printed_in_units():
    assert [readable_size(s) for s in (0, 1023, 2048, 711_845_396, 2**30, 2**45)] == [
        "0 B", "1023 B", "2 KiB", "678.87 MiB", "1 GiB", "32 TiB",
    ]  # fmt: skip


def test_a_verbose_line_tells_each_call_on_rank_0(capsys):
    for rank in (0, 1):
        logger = CommsLogger(lambda rank=rank: (rank, 2))
        logger.configure({"enabled": True, "verbose": True})
        add(logger, "all_reduce", 2**20, 1e-3)
        printed = capsys.readouterr().out
        if rank == 1:
            assert printed == ""
    add(logger, "all_reduce")
    logger = CommsLogger()
    logger.configure({"enabled": True, "verbose": True})
    add(logger, "all_reduce", 2**20, 1e-3)
    assert capsys.readouterr().out.split("] ", 3)[-1] == (
        "rank0 | comm op: all_reduce | time (ms): 1.00 | msg size: 1 MiB"
        " | algbw (Gbps): 8.39 | busbw (Gbps): 8.39\n"
    )


# stragglers

MS = 1_000_000


def calls_of(rank, calls, host="here", members=()):
    """A rank's log of (sequence, enter in ms, latency in ms, group, ranks)."""
    logger = started()
    for sequence, enter_ms, latency_ms, group, ranks in calls:
        add(logger, "all_reduce", 64, latency_ms * 1e-3, ranks, int(enter_ms * MS), sequence,
            group=group)  # fmt: skip
    return RankCalls(rank, host, logger.snapshot(), {"0": members})


def test_arrivals_tell_who_was_late_and_by_how_much():
    early = calls_of(0, [(1, 0, 11, "0", 2), (2, 100, 31, "0", 2)])
    late = calls_of(1, [(1, 10, 1, "0", 2), (2, 130, 1, "0", 2)])
    row = analyse([early, late])["all_reduce"][64]
    assert row["count"] == 2
    assert row["total_comm_lat_ms"] == pytest.approx(2)
    assert row["total_straggler_ms"] == pytest.approx(10 + 30)
    assert row["straggler_by_rank_ms"] == pytest.approx({0: 40, 1: 0})
    skew = row["skew"]
    assert (skew["late_rank"], skew["late_share"]) == (1, 1.0)
    assert skew["mean_ms"] == pytest.approx(20)
    assert skew["max_ms"] == pytest.approx(30)
    assert skew["transfer_ms"] == pytest.approx(1)
    assert skew["lateness_by_rank_ms"] == pytest.approx({0: 0, 1: 20})


def test_a_call_is_matched_by_its_number_and_not_by_its_place():
    """Rank 1 did not log the first call, rank 0 not the last."""
    first = calls_of(0, [(1, 0, 1, "0", 2), (2, 10, 5, "0", 2)])
    second = calls_of(1, [(2, 14, 1, "0", 2), (3, 20, 1, "0", 2)])
    row = analyse([first, second])["all_reduce"][64]
    assert row["count"] == 1
    assert row["unmatched"] == 2
    assert row["skew"]["mean_ms"] == pytest.approx(4)


def test_groups_are_kept_apart_and_a_group_made_anew_counts_anew():
    ranks = [
        calls_of(0, [(1, 0, 5, "a", 2), (1, 100, 3, "a", 2)]),
        calls_of(1, [(1, 4, 1, "a", 2), (1, 102, 1, "a", 2)]),
        calls_of(2, [(1, 7, 9, "b", 2)]),
        calls_of(3, [(1, 8, 8, "b", 2)]),
    ]
    row = analyse(ranks)["all_reduce"][64]
    assert row["straggler_by_rank_ms"] == pytest.approx({0: 2, 1: 0, 2: 1, 3: 0})


def test_groups_of_one_name_are_told_apart_by_their_ranks():
    ranks = [
        calls_of(rank, [(1, rank, 5 - rank, "0", 2)], members=members)
        for members in ((0, 1), (2, 3))
        for rank in members
    ]
    row = analyse(ranks)["all_reduce"][64]
    assert row["straggler_by_rank_ms"] == pytest.approx({0: 1, 1: 0, 2: 1, 3: 0})
    assert row["unmatched"] == 0


def test_clocks_of_different_hosts_are_not_compared():
    ranks = [
        calls_of(0, [(1, 0, 5, "0", 4)], "a"),
        calls_of(1, [(1, 4, 1, "0", 4)], "a"),
        calls_of(2, [(1, 9000, 3, "0", 4)], "b"),
        calls_of(3, [(1, 9002, 1, "0", 4)], "b"),
    ]
    skew = analyse(ranks)["all_reduce"][64]["skew"]
    assert skew["max_ms"] == pytest.approx(4)
    assert skew["late_rank"] == 1
    alone = [calls_of(0, [(1, 0, 5, "0", 2)], "a"), calls_of(1, [(1, 9, 5, "0", 2)], "b")]
    assert analyse(alone)["all_reduce"][64]["skew"] is None


def test_nothing_in_common_is_no_analysis():
    assert analyse([calls_of(0, []), calls_of(1, [])]) == {}
    assert analyse([calls_of(0, [(1, 0, 1, "0", 2)]), calls_of(1, [])]) == {}


def test_a_record_is_30_bytes():
    assert RECORD.itemsize == 30
