import json
from pathlib import Path

import numpy as np
import pytest

from perfgate.gate.decide import decide, needs_confirmation
from perfgate.gate.stats import summarise
from perfgate.gate.supposed import AHEAD, AMONG_OTHERS
from perfgate.gate.tail import decide_tail, split, with_tail
from perfgate.judgement import AgainstBaseline
from perfgate.model import Baseline, Case, Launch, Measurement, Outcome, Policy, Session, WorldSpec

CASE = Case(test="suites/a.py::t", op="all_reduce", world=WorldSpec(), size_bytes=4096)
TYPICAL, TAIL = split(Policy(alpha=0.01 / 30), AMONG_OTHERS.tail_limit)
TRACES = json.loads((Path(__file__).parent / "data" / "launches.json").read_text())["cases"]


def launches(seed, *, slow_share=0.0, factor=1.0, count=8):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        times_s = 3e-4 * np.exp(rng.normal(rng.normal(0, 0.03), 0.1, 400))
        times_s[rng.random(400) < 0.02] *= 12
        times_s[rng.random(400) < slow_share] *= factor
        found.append(summarise(times_s))
    return tuple(found)


def stored(found):
    session = Session(commit="c0", date="2026-01-31T12:00:00Z", launches=found)
    return Baseline(case_id=CASE.id, environment="here", sessions=(session,))


def judged(head, base):
    measurement = Measurement(case=CASE, environment="here", launches=head)
    typical = decide(measurement, stored(base), TYPICAL)
    tail = decide_tail(measurement, stored(base), TAIL, AMONG_OTHERS)
    return typical, tail, with_tail(typical, tail)


def test_the_error_is_shared_between_the_typical_call_and_the_tail():
    assert TYPICAL.alpha + TAIL.alpha == pytest.approx(0.01 / 30)
    assert TAIL.max_regression > TYPICAL.max_regression


def test_the_same_code_passes_with_its_tail():
    typical, tail, verdict = judged(launches(1), launches(2))
    assert verdict == typical
    assert verdict.outcome is Outcome.PASS
    assert not needs_confirmation(tail)


def test_a_tenth_of_the_calls_ten_times_as_slow_is_found_in_the_tail_alone():
    typical, tail, verdict = judged(launches(1, slow_share=0.10, factor=10.0), launches(2))
    assert typical.outcome is Outcome.PASS
    assert needs_confirmation(tail)
    assert verdict.outcome is Outcome.REGRESSION
    assert "the slowest twentieth takes" in verdict.line
    assert verdict.time_s == typical.time_s


def test_a_regression_of_the_typical_call_is_told_as_such():
    typical, tail, verdict = judged(launches(1, slow_share=1.0, factor=30.0), launches(2))
    assert typical.outcome is tail.outcome is Outcome.REGRESSION
    assert verdict == typical


def test_a_tail_without_a_baseline_adds_nothing():
    measurement = Measurement(case=CASE, environment="here", launches=launches(1))
    typical = decide(measurement, None, TYPICAL)
    assert with_tail(typical, decide_tail(measurement, None, TAIL, AMONG_OTHERS)) == typical


@pytest.mark.parametrize("case", TRACES)
def test_on_recorded_noise_no_tail_is_a_false_alarm(case):
    rows = np.array(TRACES[case]) * 1e-6
    rng = np.random.default_rng(3)
    for _ in range(60):
        drawn = [
            Launch(p10_s=p10, p25_s=p25, p50_s=p50, p95_s=p95, calls=100)
            for p10, p25, p50, p95 in rng.permutation(rows).tolist()
        ]
        _, tail, _ = judged(tuple(drawn[:10]), tuple(drawn[10:20]))
        assert tail.outcome is not Outcome.REGRESSION


def test_where_no_call_stalls_a_few_that_take_twice_as_long_are_found():
    def calm(seed, slow_share=0.0):
        rng = np.random.default_rng(seed)
        found = []
        for _ in range(16):
            times_s = 3e-4 * np.exp(rng.normal(rng.normal(0, 0.02), 0.1, 60))
            times_s[rng.random(60) < slow_share] *= 2
            found.append(summarise(times_s))
        return tuple(found)

    policy = Policy(alpha=0.01 / 30)
    judge = AgainstBaseline(stored(calm(2)), policy, AHEAD)
    now = Measurement(case=CASE, environment="here", launches=calm(1, slow_share=0.15))
    verdict = judge.decide(now)
    assert verdict.outcome is Outcome.REGRESSION
    assert "the slowest twentieth" in verdict.line
    same = Measurement(case=CASE, environment="here", launches=calm(1))
    assert judge.decide(same).outcome is Outcome.PASS
