"""Two commits side by side: the exact test and its promises, by simulation with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.gate.commits import confirm_beside, decide_beside, least_launches, sign_rank
from perfgate.gate.decide import needs_confirmation
from perfgate.model import Case, Launch, Measurement, Outcome, Policy, WorldSpec

CASE = Case(test="t.py::t", op="all_reduce", world=WorldSpec())
AGAIN = "--perfgate-base venv/bin/python"


def measured(log_ratios):
    launches = tuple(
        Launch(p10_s=r * 0.9, p25_s=r * 0.95, p50_s=r, p95_s=r * 2, calls=100)
        for r in np.exp(log_ratios).tolist()
    )
    return Measurement(case=CASE, environment="here", launches=launches, time_s=3e-4)


def judged(first, fresh, policy):
    """Return the verdict as a run reaches it: flagged at first, then confirmed or not."""
    verdict = decide_beside(measured(first), policy, base="c0ffee", again=AGAIN)
    if not needs_confirmation(verdict):
        return verdict
    return confirm_beside(verdict, measured(fresh), policy, base="c0ffee", again=AGAIN)


def by_counting(values):
    """Return the p value by going through all ways of giving the launches their signs."""
    ranks = np.argsort(np.argsort(np.abs(values))) + 1
    signs = (np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1
    return float(((signs * ranks).sum(1) >= ranks[np.asarray(values) > 0].sum()).mean())


@given(st.lists(st.floats(-1, 1).filter(bool), min_size=1, max_size=8, unique_by=abs))
def test_the_exact_test_is_what_counting_all_signs_gives(values):
    assert sign_rank(values) == pytest.approx(by_counting(values))


def test_launches_that_say_nothing_are_no_evidence():
    assert sign_rank([0.0] * 9) == 1
    assert sign_rank([0.0] * 9 + [0.1]) == 0.5


@pytest.mark.parametrize("alpha", [0.01, 0.005, 0.01 / 30, 0.01 / 1000, 2.0**-9])
def test_so_many_launches_reach_the_level_when_all_say_the_same(alpha):
    n = least_launches(alpha)
    assert sign_rank(np.linspace(0.1, 0.2, n)) < alpha / 2
    assert sign_rank(np.linspace(0.1, 0.2, n - 1)) >= alpha / 2


# Noise as it may be: long tails, two modes, launches that trend; all that is left is that the
# order was random, so that each launch's sign is.
def normal(rng, n):
    return rng.normal(0, 0.05, n)


def stalling(rng, n):
    return rng.standard_t(1.5, n) * 0.03


def two_modes(rng, n):
    return rng.choice([-0.3, 0.3], n) * (rng.random(n) < 0.3) + rng.normal(0, 0.01, n)


def drifting(rng, n):
    return np.linspace(0.01, 0.3, n) * rng.choice([-1, 1], n)


@pytest.mark.parametrize("noise", [normal, stalling, two_modes, drifting])
def test_the_same_code_is_no_regression_whatever_the_noise(noise):
    runs, alpha = 600, 0.05
    policy = Policy(alpha=alpha, max_regression=1e-6, must_catch=0.25)
    rng = np.random.default_rng(2026)
    n = max(16, least_launches(alpha))
    failed = 0
    for _ in range(runs):
        fresh = noise(rng, n)
        failed += judged(np.full(8, 0.01), fresh, policy).outcome is Outcome.REGRESSION
    assert failed <= runs * alpha + 2.6 * math.sqrt(runs * alpha * (1 - alpha))


def test_a_run_of_thirty_cases_of_the_same_code_hardly_ever_fails():
    policy = Policy(alpha=0.01 / 30)
    rng = np.random.default_rng(30)
    spreads = (0.03, 0.06, 0.10)
    failed = 0
    for _ in range(30 * 60):
        spread, layout = rng.choice(spreads), rng.normal(0, 0.01)
        first, fresh = (rng.normal(layout, spread, n) for n in (8, 16))
        failed += judged(first, fresh, policy).outcome is Outcome.REGRESSION
    assert failed == 0


@pytest.mark.parametrize(
    ("slower", "spread", "least"), [(0.25, 0.03, 0.95), (0.25, 0.06, 0.95), (0.50, 0.10, 0.95)]
)
def test_a_slower_head_is_found(slower, spread, least):
    policy = Policy(alpha=0.01 / 30)
    rng = np.random.default_rng(int(slower * 1e4 + spread * 1e2))
    runs, found = 200, 0
    for _ in range(runs):
        first, fresh = (rng.normal(math.log1p(slower), spread, n) for n in (8, 16))
        found += judged(first, fresh, policy).outcome is Outcome.REGRESSION
    assert found >= least * runs


def test_what_chance_may_have_made_is_left_open_with_the_way_on():
    fresh = [0.5] * 13 + [-0.6, -0.61, 0.51]
    policy = Policy(alpha=1e-3, max_regression=0.1)
    verdict = judged([0.5, 0.51] * 4, np.array(fresh) + np.linspace(0, 0.01, 16), policy)
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        pytest.fail(verdict.line)
    assert "14 of 16 launches are slower" in verdict.reason
    assert verdict.next_step.startswith(f"pytest --perfgate {AGAIN} --perfgate-launches 32")


def test_every_way_on_compares_with_the_base_and_stores_nothing():
    policy = Policy(alpha=0.01 / 30)
    noisy = np.random.default_rng(1).normal(0, 0.5, 16)
    for log_ratio in (0.0, 0.5, -0.5):
        for spread in (0.01, 1.0):
            verdict = judged(log_ratio + noisy[:8] * spread, log_ratio + noisy * spread, policy)
            assert verdict.baseline_commit == "c0ffee"
            assert "refresh" not in verdict.line
            assert "accept" not in verdict.line
            if verdict.outcome not in (Outcome.PASS, Outcome.IMPROVEMENT):
                assert f"pytest --perfgate {AGAIN}" in verdict.next_step
