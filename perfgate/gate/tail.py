"""The tail: a slowdown that lives in one call of ten leaves the typical call as it was.

The 95th percentile of a launch's calls is compared like the typical call is, with a looser limit
and its own share of the error. It only ever adds a REGRESSION: a tail too noisy to judge leaves
the typical call's verdict alone, since on a shared machine a fifth of all calls may stall.
"""

from __future__ import annotations

from dataclasses import replace

from perfgate.gate.decide import decide
from perfgate.gate.supposed import Supposed
from perfgate.model import Baseline, Measurement, Outcome, Policy, Verdict
from perfgate.units import format_duration, format_percent

QUANTILE = "p95_s"
ERROR_SHARE = 0.2
"""Of a case's error; the typical call has the rest."""


def split(policy: Policy, limit: float) -> tuple[Policy, Policy]:
    """Return what a case's error leaves to the typical call and to the tail.

    :param limit: by how much the tail may grow at least.
    """
    limit = max(limit, policy.max_regression)
    tail = Policy(
        max_regression=limit,
        must_catch=max(limit, policy.must_catch),
        alpha=policy.alpha * ERROR_SHARE,
    )
    return replace(policy, alpha=policy.alpha * (1 - ERROR_SHARE)), tail


def decide_tail(
    measurement: Measurement, baseline: Baseline | None, policy: Policy, supposed: Supposed
) -> Verdict:
    """Return the verdict on the 95th percentile; ``policy`` is :func:`split`'s second."""
    return decide(
        measurement,
        baseline,
        policy,
        sessions=supposed.tail_sessions,
        launches=supposed.tail_launches,
        quantile=QUANTILE,
        climate=supposed.climate,
    )


def with_tail(typical: Verdict, tail: Verdict) -> Verdict:
    """Return the typical call's verdict, or the REGRESSION that only the tail shows."""
    if tail.outcome is not Outcome.REGRESSION or typical.outcome.fails:
        return typical
    told = (
        f"the slowest twentieth takes {format_duration(tail.time_s)} and more, "
        f"{format_percent(tail.change)} (limit {format_percent(tail.limit)}, noise "
        f"{format_percent(tail.mde).lstrip('+')})"
    )
    reason = f"{told}: {tail.reason}; the typical call {format_percent(typical.change)}"
    return replace(tail, time_s=typical.time_s, reason=reason)
