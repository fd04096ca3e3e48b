"""What a case is held against: the recent sessions, its tail, and a pinned release."""

import numpy as np
import pytest

from perfgate.gate.supposed import AHEAD
from perfgate.judgement import AgainstBaseline
from perfgate.model import Baseline, Case, Launch, Measurement, Outcome, Policy, Session, WorldSpec

CASE = Case(test="a.py::t", op="all_reduce", world=WorldSpec())
POLICY = Policy(alpha=0.01 / 30)


def launches(seed, scale=1.0, count=8):
    times_s = 1e-3 * scale * np.exp(np.random.default_rng(seed).normal(0, 0.02, count))
    return tuple(
        Launch(p10_s=t * 0.9, p25_s=t, p50_s=t * 1.1, p95_s=t * 1.5, calls=100) for t in times_s
    )


def baseline(*scales, first=0):
    sessions = tuple(
        Session(commit=f"c{first + k}", date="2026-01-31T12:00:00Z", launches=launches(k, scale))
        for k, scale in enumerate(scales)
    )
    return Baseline(case_id=CASE.id, environment="here", sessions=sessions)


def measured(scale, seed=100):
    return Measurement(case=CASE, environment="here", launches=launches(seed, scale, 16))


CREPT = [1.03**step for step in range(10, 16)]


def test_a_slow_creep_fails_against_the_pin_alone():
    now = measured(1.03**16)
    without = AgainstBaseline(baseline(*CREPT, first=10), POLICY, AHEAD)
    assert without.decide(now).outcome is Outcome.PASS
    pinned = AgainstBaseline(baseline(*CREPT, first=10), POLICY, AHEAD, baseline(1.0))
    verdict = pinned.decide(now)
    assert verdict.outcome is Outcome.REGRESSION
    assert "since c0, which is pinned" in verdict.line
    assert verdict.change == pytest.approx(1.03**16 - 1, rel=0.1)
    assert pinned.flags(verdict)
    assert pinned.confirm(verdict, measured(1.03**16, seed=7)).outcome is Outcome.REGRESSION
    assert pinned.confirm(verdict, measured(1.0, seed=7)).outcome is not Outcome.REGRESSION


def test_a_pin_that_holds_changes_nothing():
    now = measured(1.0)
    judged = AgainstBaseline(baseline(1.0), POLICY, AHEAD, baseline(1.0)).decide(now)
    assert judged.outcome is Outcome.PASS


def test_a_plain_regression_is_told_against_the_last_session():
    judged = AgainstBaseline(baseline(1.0, first=4), POLICY, AHEAD, baseline(1.0))
    verdict = judged.decide(measured(2.0))
    assert verdict.outcome is Outcome.REGRESSION
    assert "pinned" not in verdict.line
