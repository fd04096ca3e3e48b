"""Figures that cannot be are told, not shown as bandwidth."""

import numpy as np
import pytest

from perfgate.bench.request import Request, Sample, Shared
from perfgate.bench.row import Row
from perfgate.bench.shared import SharedRow
from perfgate.bench.table import Table

FASTER = "is faster than memory: copying what it brings takes"
LONGER = "together, more than the"
REQUEST = Request(op="all_reduce", size_bytes=2**20, placement="in_place")


def sample(times_us, **fields):
    times_ns = (np.array(times_us) * 1000).astype(np.int64)
    defaults = {"wall_ns": int(times_ns.sum()) * 2, "tick_ns": 50, "copy_ns": 40_000}
    return Sample(times_ns=times_ns, **{**defaults, **fields})


def row_of(*samples):
    return Row.of(REQUEST, 4, samples)


def test_a_call_takes_as_long_as_its_slowest_rank():
    row = row_of(sample([100, 200, 300]), sample([250, 150, 350]))
    assert row.times_s.tolist() == pytest.approx([250e-6, 200e-6, 350e-6])
    assert row.time_s == pytest.approx(250e-6)
    assert row.problems == ()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tick_ns": 200_000}, "a call of 100000ns is below the clock's step of 200000ns"),
        ({"copy_ns": 500_000}, f"a call of 100us {FASTER} 500us"),
        ({"wall_ns": 300_000}, f"rank 0's calls take 400us {LONGER} 300us that passed"),
        ({"problem": "element 3 is 4, expected 5"}, "element 3 is 4, expected 5"),
    ],
    ids=["clock", "memory", "wall time", "data"],
)  # fmt: skip
def test_impossible_figures_are_invalid(fields, told):
    row = row_of(sample([100, 300], **fields), sample([100, 300], copy_ns=fields.get("copy_ns", 0)))
    assert row.problems == (told,)
    assert row.as_json()["valid"] is False
    line = Table(unit="Gbps", raw=False, asynchronous=False).line(row)
    assert line.endswith(f"\n  INVALID: {told}")


def test_no_time_is_invalid_and_has_no_bandwidth():
    row = row_of(sample([0, 0], copy_ns=0))
    assert row.problems
    assert row.as_json()["nccl_tests"]["busbw_gbps"] is None


def test_a_rank_that_receives_nothing_sets_no_limit():
    row = row_of(sample([100], copy_ns=0), sample([100], copy_ns=0))
    assert row.problems == ()


def test_groups_are_compared_with_themselves_alone():
    request = Request(op="all_reduce", size_bytes=125_000, groups=2)

    def stamps(*pairs_us):
        return np.array(pairs_us, dtype=np.int64) * 1000

    samples = [
        Shared(group=0, alone_ns=stamps((0, 100)), together_ns=stamps((0, 150))),
        Shared(group=0, alone_ns=stamps((10, 90)), together_ns=stamps((20, 140))),
        Shared(group=1, alone_ns=stamps((0, 100)), together_ns=stamps((50, 250))),
        Shared(group=1, alone_ns=stamps((0, 50)), together_ns=stamps((50, 100))),
    ]
    row = SharedRow.of(request, samples)
    assert row.alone_s == pytest.approx(100e-6)
    assert row.together_s == pytest.approx(250e-6)  # from the first entering to the last leaving
    assert row.contention == pytest.approx(2.0)  # the second group's
    assert row.aggregate_busbw_gbps == pytest.approx(2 * 1e6 / 250e-6 / 1e9)
