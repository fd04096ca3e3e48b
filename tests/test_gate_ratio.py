import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import UsageError
from perfgate.gate.baseline import BaselineStore
from perfgate.gate.decide import needs_confirmation
from perfgate.gate.ratio import (
    decide_commits,
    decide_portable,
    decide_ratio,
    paired_ratios,
    portable,
)
from perfgate.model import Case, Measurement, Outcome, Policy, Session, WorldSpec

ANYWHERE = portable().key
CASE = Case(test="suites/zero/test_arms.py::t", op="reduce_scatter_step", world=WorldSpec())
ALPHA = 0.01 / 30
POLICY = Policy(alpha=ALPHA)


def arms(seed, ratio, pairs=300, stalls=0.2):
    """Return the times of both arms of one launch: the weather of the moment hits both alike."""
    rng = np.random.default_rng(seed)
    weather = np.exp(rng.normal(0, 0.3, pairs)) * 3e-4
    arm, reference = (weather * np.exp(rng.normal(0, 0.1, pairs)) for _ in range(2))
    for one in (arm, reference):
        one[rng.random(pairs) < stalls] += 4e-3
    return ratio * arm, reference


def measured(ratio, seed=0, launches=8, environment=ANYWHERE):
    return Measurement(
        case=CASE,
        environment=environment,
        launches=tuple(paired_ratios(*arms([seed, k], ratio)) for k in range(launches)),
    )


@given(st.lists(st.floats(1e-6, 1e2), min_size=1, max_size=50), st.floats(0.01, 100))
def test_an_arm_that_takes_a_fixed_share_has_that_ratio_in_any_weather(times, ratio):
    launch = paired_ratios(np.array(times) * ratio, times)
    assert launch.p10_s == pytest.approx(ratio)
    assert launch.p95_s == pytest.approx(ratio)
    assert launch.calls == len(times)


@given(st.lists(st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)), min_size=1, max_size=50))
def test_swapped_arms_have_the_inverse_median(pairs):
    arm, reference = np.array(pairs).T
    if len(pairs) % 2:
        there = paired_ratios(arm, reference).p50_s
        assert paired_ratios(reference, arm).p50_s == pytest.approx(1 / there)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused_in_either_arm(bad):
    with pytest.raises(ValueError, match="no usable time"):
        paired_ratios([1.0, bad], [1.0, 1.0])
    with pytest.raises(ValueError, match="no usable time"):
        paired_ratios([1.0, 1.0], [1.0, bad])


def test_arms_of_different_length_make_no_pairs():
    with pytest.raises(ValueError, match="as many calls of each arm"):
        paired_ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [(0.50, Outcome.PASS), (0.70, Outcome.REGRESSION), (0.60, Outcome.INCONCLUSIVE)],
)
def test_an_arm_may_take_six_tenths_of_the_reference(ratio, outcome):
    verdict = decide_ratio(measured(ratio), at_most=0.60, alpha=ALPHA)
    assert verdict.outcome is outcome
    assert 1 + verdict.change == pytest.approx(ratio, rel=0.03)
    assert verdict.lower < verdict.change < verdict.upper
    assert verdict.limit == pytest.approx(-0.40)
    assert verdict.mde < 0.10
    assert "of the reference's time" in verdict.line
    assert needs_confirmation(verdict) == (1 + verdict.change > 0.60)


def test_an_open_question_names_the_limit_that_would_pass():
    verdict = decide_ratio(measured(0.60), at_most=0.60, alpha=ALPHA)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    limit = float(verdict.reason.split("decidable from ")[1].split(" on")[0])
    again = decide_ratio(measured(0.60), at_most=limit, alpha=ALPHA)
    assert again.outcome is Outcome.PASS


@pytest.mark.parametrize("bad", [0.0, -0.5, math.nan, math.inf])
def test_a_limit_that_cannot_be_is_refused(bad):
    with pytest.raises(UsageError, match="at_most="):
        decide_ratio(measured(1.0), at_most=bad, alpha=ALPHA)


def test_one_launch_is_invalid():
    verdict = decide_ratio(measured(0.5, launches=1), at_most=0.6, alpha=ALPHA)
    assert verdict.outcome is Outcome.INVALID


@pytest.mark.parametrize("launches", [4, 8])
def test_an_arm_at_its_limit_is_failed_as_rarely_as_asked(launches):
    runs, alpha = 400, 0.05
    failed = sum(
        decide_ratio(measured(1.0, seed=seed, launches=launches), at_most=1.0, alpha=alpha).outcome
        is Outcome.REGRESSION
        for seed in range(runs)
    )
    assert failed <= runs * alpha + 2.6 * math.sqrt(runs * alpha)


def test_five_percent_more_is_found_nearly_always():
    found = sum(
        decide_ratio(measured(0.63, seed=seed), at_most=0.60, alpha=ALPHA).outcome
        is Outcome.REGRESSION
        for seed in range(100)
    )
    assert found >= 95


def test_a_portable_baseline_is_kept_without_a_unit_and_compared_on_any_machine(tmp_path):
    store = BaselineStore(tmp_path)
    session = Session(commit="c0", date="2026-01-31T12:00:00Z", launches=measured(0.55).launches)
    path = store.add(portable(), "zero", {CASE.id: session})
    assert path == tmp_path / portable().key / "zero.json"
    assert path.parent.name.startswith("portable-")
    assert '"columns": ["p10", "p25", "p50", "p95", "pairs"]' in path.read_text()
    (baseline,) = store.load(portable(), "zero").values()
    assert baseline.sessions[0].launches[0].p50_s == pytest.approx(0.55, rel=0.05)

    same = decide_portable(measured(0.55, seed=1), baseline, POLICY)
    assert same.outcome is Outcome.PASS
    assert "of the reference's time" in same.reason
    worse = decide_portable(measured(0.80, seed=2), baseline, POLICY)
    assert worse.outcome is Outcome.REGRESSION
    assert worse.change == pytest.approx(0.8 / 0.55 - 1, abs=0.05)
    assert needs_confirmation(worse)
    cleared = decide_portable(measured(0.55, seed=3), baseline, POLICY, flagged=worse)
    assert cleared.outcome is Outcome.PASS
    assert decide_portable(measured(0.55), None, POLICY).outcome is Outcome.NO_BASELINE


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [
        (1.00, Outcome.PASS),
        (1.25, Outcome.REGRESSION),
        (0.70, Outcome.IMPROVEMENT),
    ],
)
def test_two_commits_side_by_side_need_no_baseline(ratio, outcome):
    verdict = decide_commits(measured(ratio, launches=10), POLICY, base="c0ffee")
    assert verdict.outcome is outcome
    assert verdict.change == pytest.approx(ratio - 1, abs=0.04)
    assert verdict.baseline_commit == "c0ffee"
    if verdict.outcome is Outcome.REGRESSION:
        assert "against c0ffee, measured beside it" in verdict.line
        assert needs_confirmation(verdict)


def test_two_commits_in_one_launch_are_invalid():
    assert decide_commits(measured(1.5, launches=1), POLICY).outcome is Outcome.INVALID
