"""The promises about error, tested by simulation with fixed seeds.

Launches and sessions are drawn as the gate supposes them: normal in log time. Recorded noise is
replayed in ``benchmarks/gate``.
"""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from perfgate.gate.decide import confirm, decide, needs_confirmation
from perfgate.gate.noise import SESSIONS
from perfgate.gate.schema import parse
from perfgate.gate.weather import CHANGEABLE, NONE
from perfgate.model import Baseline, Case, Launch, Measurement, Outcome, Policy, Session, WorldSpec

TAU = math.sqrt(SESSIONS.variance)


class Draws:
    """Sessions of one case: its own spread, and a weather that all cases of a session share."""

    def __init__(self, rng, number, spread):
        self.rng, self.spread = rng, spread
        self.case = Case(test=f"t.py::t[{number}]", op="all_reduce", world=WorldSpec())

    def level(self, weather):
        return (weather + self.rng.normal()) / math.sqrt(2) * TAU

    def launches(self, level, count, change=0.0):
        times_s = 3e-4 * np.exp(change + level + self.rng.normal(0, self.spread, count))
        return tuple(
            Launch(p10_s=t * 0.9, p25_s=t, p50_s=t * 1.2, p95_s=t * 9, calls=100)
            for t in times_s.tolist()
        )

    def baseline(self, weathers):
        sessions = tuple(
            Session(commit="c", date="2026-01-31", launches=self.launches(self.level(w), 8))
            for w in weathers
        )
        return Baseline(case_id=self.case.id, environment="here", sessions=sessions)

    def measured(self, launches):
        return Measurement(case=self.case, environment="here", launches=launches)


def regressions(rng, cases, policy, *, sessions, change=0.0, spreads=(0.02, 0.05, 0.10)):
    """Return how many cases of one run end as REGRESSION, flagged and then confirmed."""
    found = 0
    weathers, now = rng.normal(size=sessions), rng.normal()
    for number in range(cases):
        draws = Draws(rng, number, spread=rng.choice(spreads))
        baseline, level = draws.baseline(weathers), draws.level(now)
        verdict = decide(draws.measured(draws.launches(level, 8, change)), baseline, policy)
        if needs_confirmation(verdict):
            fresh = draws.measured(draws.launches(level, 16, change))
            found += confirm(verdict, fresh, baseline, policy).outcome is Outcome.REGRESSION
    return found


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_run_of_unchanged_code_fails_no_more_often_than_promised(sessions):
    runs, cases, error = 200, 10, 0.10
    policy = Policy(alpha=error / cases, max_regression=1e-6, must_catch=0.25)
    rng = np.random.default_rng([2026, sessions])
    failed = sum(regressions(rng, cases, policy, sessions=sessions) > 0 for _ in range(runs))
    assert failed <= runs * error + 2.6 * math.sqrt(runs * error * (1 - error))


def test_the_promise_would_be_broken_without_sharing_it_out():
    runs, cases, error = 150, 10, 0.10
    policy = Policy(alpha=error, max_regression=1e-6, must_catch=0.25)
    rng = np.random.default_rng(2026)
    failed = sum(regressions(rng, cases, policy, sessions=1) > 0 for _ in range(runs))
    assert failed > runs * error * 2


def test_half_as_slow_again_is_found_in_thirty_cases_with_one_stored_session():
    rng = np.random.default_rng(50)
    policy = Policy(alpha=0.01 / 30)
    found = [
        regressions(rng, 30, policy, sessions=1, change=math.log(1.5), spreads=(0.02, 0.05, 0.07))
        for _ in range(5)
    ]
    assert sum(found) >= 148


@pytest.mark.parametrize("sessions", [1, 4])
@pytest.mark.parametrize("spread", [0.05, 0.10])
def test_the_minimum_detectable_change_is_right_within_a_quarter(sessions, spread):
    rng = np.random.default_rng([sessions, int(spread * 100)])
    policy = Policy(alpha=0.01 / 30)
    draws = Draws(rng, 0, spread)

    def verdict(change):
        baseline = draws.baseline(rng.normal(size=sessions))
        head = draws.launches(draws.level(rng.normal()), 8, change)
        return decide(draws.measured(head), baseline, policy)

    def power(change, runs=300):
        return sum(verdict(change).outcome is Outcome.REGRESSION for _ in range(runs)) / runs

    reported = math.log1p(float(np.median([verdict(0.0).mde for _ in range(100)])))
    assert power(reported * 1.25) >= 0.95
    assert power(reported * 0.75) <= 0.95


def test_the_interval_covers_the_planted_change():
    rng = np.random.default_rng(95)
    policy = Policy(alpha=0.025)
    runs, change, covered = 600, 0.2, 0
    for number in range(runs):
        draws = Draws(rng, number, spread=rng.choice([0.05, 0.10]))
        baseline = draws.baseline(rng.normal(size=2))
        head = draws.launches(draws.level(rng.normal()), 8, change)
        verdict = decide(draws.measured(head), baseline, policy)
        covered += math.log1p(verdict.lower) < change < math.log1p(verdict.upper)
    assert 0.93 <= covered / runs <= 0.985


def recorded():
    content = parse((Path(__file__).parent / "data" / "sessions.json").read_text(), "sessions.json")
    count = len(next(iter(content.cases.values())).sessions)
    return [
        {name: case.sessions[k].session() for name, case in content.cases.items()}
        for k in range(count)
    ]


@pytest.mark.parametrize(("knowing", "least", "most"), [(True, 0.0, 0.01), (False, 0.1, 1.0)])
def test_sessions_of_the_same_code_in_any_weather_are_no_regression(knowing, least, most):
    """Real sessions, idle and busy: without the weather one run in five would fail."""
    runs = failed = 0
    for head, base in list(itertools.permutations(recorded(), 2))[::2]:
        outcomes = set()
        for name, session in head.items():
            case = Case(test=name, op=name, world=WorldSpec())
            measurement = Measurement(
                case=case,
                environment="recorded",
                launches=session.launches,
                others_share=session.others_share,
            )
            stored = Baseline(case_id=case.id, environment="recorded", sessions=(base[name],))
            policy = Policy(alpha=0.01 / len(head))
            climate = CHANGEABLE if knowing else NONE
            outcomes.add(decide(measurement, stored, policy, climate=climate).outcome)
        runs += 1
        failed += Outcome.REGRESSION in outcomes
    assert least <= failed / runs <= most
