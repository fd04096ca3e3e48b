"""The values that cross seams check themselves and speak for themselves."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate import Case, Launch, Outcome, Policy, Verdict, WorldSpec
from perfgate.comm.bandwidth import busbw_gbps, factor
from perfgate.errors import UsageError

CASE = Case(
    test="suites/comm/test_ops.py::test_all_reduce[256KiB]",
    op="all_reduce",
    world=WorldSpec(size=4),
    size_bytes=2**18,
    dtype="float32",
    busbw_factor=1.5,
)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"size": 0}, "1 or more"),
        ({"size": 2.0}, "whole number"),
        ({"size": True}, "whole number"),
        ({"backend": "mpi"}, "one of gloo, nccl"),
        ({"device": "tpu"}, "one of cpu, cuda"),
        ({"provider": "horovod"}, "one of torch, perfgate, deepspeed"),
        ({"backend": "nccl"}, "GPU memory only"),
        ({"deadline_s": 0}, "above zero"),
        ({"deadline_s": math.nan}, "above zero"),
    ],
)
def test_a_world_that_cannot_be(values, told):
    with pytest.raises(UsageError, match=told):
        WorldSpec(**values)


def test_a_deadline_makes_no_other_world():
    assert WorldSpec(deadline_s=1) == WorldSpec(deadline_s=9)
    assert hash(WorldSpec(deadline_s=1)) == hash(WorldSpec(deadline_s=9))


@pytest.mark.parametrize(
    "values",
    [
        {"max_regression": 0}, {"max_regression": -0.1}, {"must_catch": math.inf},
        {"max_regression": 0.3, "must_catch": 0.2}, {"alpha": 0}, {"alpha": 0.5},
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be(values):
    with pytest.raises(UsageError):
        Policy(**values)


@pytest.mark.parametrize(
    "figures", [(1, 1, 1, 0), (2, 1, 3, 4), (1, 2, 3, math.inf), (math.nan, 1, 2, 3)]
)
def test_a_launch_holds_rising_finite_times(figures):
    with pytest.raises(ValueError, match="must"):
        Launch(**dict(zip(("p10_s", "p25_s", "p50_s", "p95_s"), figures, strict=True)), calls=1)


@given(st.floats(1e-7, 10), st.integers(2, 16))
def test_a_case_gives_the_bandwidth_that_the_table_gives(time_s, ranks):
    case = Case(
        test="t", op="all_gather", world=WorldSpec(size=ranks), size_bytes=2**20, dtype="float32",
        busbw_factor=factor("all_gather", ranks),
    )  # fmt: skip
    assert case.busbw_gbps(time_s) == pytest.approx(busbw_gbps("all_gather", 2**20, time_s, ranks))


def test_what_has_no_message_has_no_bandwidth():
    step = Case(test="t", op="step", world=WorldSpec(), items=32, unit="samples")
    assert step.busbw_gbps(1.0) is None
    assert step.items_per_s(0.5) == 64
    assert CASE.busbw_gbps(0.0) is None


def test_ids_differ_wherever_figures_may():
    worlds = [WorldSpec(), WorldSpec(size=3), WorldSpec(provider="perfgate"),
              WorldSpec(device="cuda"), WorldSpec(device="cuda", backend="nccl")]  # fmt: skip
    cases = [
        Case(test=test, op=op, world=world, size_bytes=size, dtype=dtype)
        for test in ("a", "b")
        for op in ("all_reduce", "reduce")
        for size in (1024, 2048)
        for dtype in ("float32", "bfloat16")
        for world in worlds
    ]
    assert len({case.id for case in cases}) == len(cases)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_line_starts_with_verdict_and_case(outcome):
    verdict = Verdict(outcome=outcome, case=CASE, environment="e", reason="why", next_step="do")
    assert verdict.line == f"{outcome} all_reduce 256KiB float32 x4: why; next: do"
    assert "\n" not in verdict.line
    json.dumps(verdict.as_json(), allow_nan=False)


def test_the_line_has_the_figures_in_the_order_they_are_read():
    verdict = Verdict(
        outcome=Outcome.REGRESSION, case=CASE, environment="e", time_s=672e-6, change=0.54,
        limit=0.1, mde=0.176,
    )  # fmt: skip
    assert verdict.line == (
        "REGRESSION all_reduce 256KiB float32 x4: 672us, busbw 4.68 Gb/s, "
        "+54.0% (limit +10.0%, noise 17.6%)"
    )
    assert verdict.properties()["busbw_gbps"] == "4.68114"


def test_figures_that_do_not_exist_are_no_properties():
    properties = Verdict(outcome=Outcome.NO_BASELINE, case=CASE, environment="e").properties()
    assert set(properties) == {"verdict", "environment", "case"}
