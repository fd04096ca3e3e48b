import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.gate.decide import confirm, decide, needs_confirmation
from perfgate.gate.noise import SESSIONS, pool_sessions, steadiest_figure
from perfgate.gate.stats import Component
from perfgate.model import Baseline, Case, Launch, Measurement, Outcome, Policy, Session, WorldSpec

CASE = Case(test="suites/a.py::t[4KiB]", op="all_reduce", world=WorldSpec(), size_bytes=4096)
POLICY = Policy(alpha=0.01 / 30)
TRACES = json.loads((Path(__file__).parent / "data" / "launches.json").read_text())["cases"]


def launch(p25_s):
    return Launch(p10_s=p25_s * 0.9, p25_s=p25_s, p50_s=p25_s * 1.2, p95_s=p25_s * 9, calls=100)


def measured(times_s, *, case=CASE, environment="here", problems=()):
    launches = tuple(launch(float(t)) for t in times_s)
    return Measurement(case=case, environment=environment, launches=launches, problems=problems)


def baseline(*sessions, case_id=CASE.id, environment="here"):
    return Baseline(
        case_id=case_id,
        environment=environment,
        sessions=tuple(
            Session(
                commit=f"c{number}",
                date="2026-01-31T12:00:00Z",
                launches=tuple(launch(float(t)) for t in times_s),
            )
            for number, times_s in enumerate(sessions)
        ),
    )


def noisy(seed, count=8, spread=0.05, centre=3e-4):
    return centre * np.exp(np.random.default_rng(seed).normal(0, spread, count))


times = st.lists(st.floats(-0.4, 0.4), min_size=2, max_size=16).map(lambda x: 3e-4 * np.exp(x))
histories = st.lists(times, min_size=1, max_size=7)
factors = st.floats(0.05, 20)


def test_the_same_code_passes():
    verdict = decide(measured(noisy(1)), baseline(noisy(2)), POLICY)
    assert verdict.outcome is Outcome.PASS
    assert abs(verdict.change) < 0.10
    assert verdict.lower < verdict.change < verdict.upper
    assert verdict.mde < 0.50
    assert (verdict.baseline_commit, verdict.baseline_sessions, verdict.launches) == ("c0", 1, 8)
    assert verdict.time_s == pytest.approx(3e-4, rel=0.1)
    assert not needs_confirmation(verdict)


def test_half_as_slow_again_fails_and_says_by_how_much_at_least():
    verdict = decide(measured(1.5 * noisy(1)), baseline(noisy(2)), POLICY)
    assert verdict.outcome is Outcome.REGRESSION
    assert 0 < verdict.lower < verdict.change < verdict.upper
    assert verdict.change == pytest.approx(0.5, abs=0.1)
    assert f"at least +{verdict.lower * 100:.1f}% against 1 session up to c0" in verdict.line
    assert needs_confirmation(verdict)


def test_twice_as_fast_is_an_improvement_and_asks_to_be_stored():
    verdict = decide(measured(0.5 * noisy(1)), baseline(noisy(2)), POLICY)
    assert verdict.outcome is Outcome.IMPROVEMENT
    assert verdict.next_step == "pytest --perfgate --perfgate-refresh 'suites/a.py::t[4KiB]'"
    assert not needs_confirmation(verdict)


def test_a_certain_slowdown_below_the_limit_is_no_regression():
    quiet = replace(POLICY, max_regression=0.10)
    many = [noisy(seed, 30, 0.01) for seed in range(20)]
    verdict = decide(measured(1.08 * noisy(99, 30, 0.01)), baseline(*many), quiet)
    assert verdict.lower > 0
    assert verdict.outcome is Outcome.PASS


def test_too_noisy_to_tell_is_inconclusive_with_the_size_that_could_pass():
    verdict = decide(measured(noisy(1, 6, 0.5)), baseline(noisy(2, 6, 0.5)), POLICY)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.mde > 0.25
    assert "a slowdown of 25.0% is not excluded" in verdict.reason
    assert "limit 10.0% lies below" in verdict.reason
    assert verdict.next_step == "pytest --perfgate --perfgate-refresh 'suites/a.py::t[4KiB]'"


def test_with_sessions_enough_the_way_out_is_a_wider_limit_that_passes():
    spread = [noisy(seed, 8, 0.4) for seed in range(6)]
    verdict = decide(measured(noisy(9, 8, 0.4)), baseline(*spread), POLICY)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    words = shlex.split(verdict.next_step)
    percent = float(words[words.index("--perfgate-max-regression") + 1])
    wider = replace(POLICY, max_regression=percent / 100, must_catch=percent / 100)
    assert decide(measured(noisy(9, 8, 0.4)), baseline(*spread), wider).outcome is Outcome.PASS


def test_noise_without_end_still_has_a_sentence_and_a_command():
    wild = [np.array([1e-9, 1e9]) for _ in range(6)]
    verdict = decide(measured([1e-9, 1e9]), baseline(*wild), POLICY)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "--perfgate-launches 4" in verdict.next_step
    json.dumps(verdict.as_json(), allow_nan=False)
    assert verdict.line


def test_no_baseline_names_the_command_that_makes_one():
    verdict = decide(measured(noisy(1)), None, POLICY)
    assert verdict.outcome is Outcome.NO_BASELINE
    assert shlex.split(verdict.next_step)[-1] == CASE.test
    assert "--perfgate-refresh" in verdict.next_step
    assert verdict.time_s > 0
    assert math.isnan(verdict.change)


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (baseline(noisy(1), environment="there"), "another environment: there"),
        (
            baseline(noisy(1), case_id=replace(CASE, world=WorldSpec(size=4)).id),
            "the stored case is another: .*x4",
        ),
        (baseline(), "holds no launch"),
        (baseline([]), "holds no launch"),
    ],
    ids=["other environment", "other world size", "no session", "empty session"],
)
def test_a_baseline_that_does_not_fit_is_never_compared_with(stored, told):
    verdict = decide(measured(5 * noisy(1)), stored, POLICY)
    assert verdict.outcome is Outcome.NO_BASELINE
    assert re.search(told, verdict.reason)
    assert math.isnan(verdict.change)


@pytest.mark.parametrize("launches", [[], [3e-4]], ids=["none", "one"])
def test_fewer_than_two_launches_are_invalid(launches):
    verdict = decide(measured(launches), baseline(noisy(1)), POLICY)
    assert verdict.outcome is Outcome.INVALID
    assert "launch" in verdict.reason


def test_a_measurement_with_problems_is_invalid_whatever_its_figures_say():
    spoilt = measured(noisy(1), problems=("rank 1 returned NaN", "the clock jumped"))
    verdict = decide(spoilt, baseline(noisy(2)), POLICY)
    assert verdict.outcome is Outcome.INVALID
    assert "rank 1 returned NaN; the clock jumped" in verdict.line
    assert not needs_confirmation(verdict)


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -1.0])
def test_no_launch_can_carry_a_time_that_is_none(bad):
    with pytest.raises(ValueError, match="finite and above zero"):
        launch(bad)


@pytest.mark.parametrize("stored", [[3e-4] * 8, [3e-4], [3e-4] * 2])
def test_equal_values_are_no_proof_of_certainty(stored):
    verdict = decide(measured([3.3e-4] * 2), baseline(stored), POLICY)
    assert verdict.lower < 0 < verdict.change < verdict.upper
    assert verdict.outcome is not Outcome.REGRESSION
    assert decide(measured([3e-4] * 8), baseline([3e-4] * 8), POLICY).outcome is Outcome.PASS


def test_two_launches_that_agree_by_luck_promise_less_than_many():
    few = decide(measured([3e-4] * 2), baseline([3e-4] * 2), POLICY)
    many = decide(measured([3e-4] * 64), baseline([3e-4] * 64), POLICY)
    assert few.mde > 1.2 * many.mde


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e-9, 1e4, 1e300])
def test_times_at_the_ends_of_the_range_give_finite_verdicts(scale):
    times_s = np.full(8, scale)
    flat = [Launch(p10_s=t, p25_s=t, p50_s=t, p95_s=t, calls=1) for t in times_s]
    head = Measurement(case=CASE, environment="here", launches=tuple(flat))
    verdict = decide(head, baseline([1e-3] * 8), POLICY)
    assert verdict.outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT)
    assert verdict.line
    json.dumps(verdict.as_json(), allow_nan=False)


def test_one_wild_launch_on_either_side_decides_nothing():
    head, base = noisy(1), noisy(2)
    wild = head.copy()
    wild[3] *= 30
    assert decide(measured(wild), baseline(base), POLICY).outcome is Outcome.PASS
    assert decide(measured(head), baseline(wild), POLICY).outcome is Outcome.PASS


@given(times, histories, factors, factors)
def test_a_slower_head_is_never_judged_milder(head, history, first, second):
    severity = [Outcome.IMPROVEMENT, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.REGRESSION]
    fast, slow = sorted((first, second))
    milder = decide(measured(head * fast), baseline(*history), POLICY)
    harder = decide(measured(head * slow), baseline(*history), POLICY)
    if Outcome.IMPROVEMENT not in (milder.outcome, harder.outcome):
        assert severity.index(milder.outcome) <= severity.index(harder.outcome)
    assert harder.outcome is not Outcome.IMPROVEMENT or milder.outcome is Outcome.IMPROVEMENT
    assert milder.change <= harder.change
    assert milder.lower <= harder.lower + 1e-9


@given(times, times)
def test_head_and_baseline_are_mirror_images(head, base):
    there = decide(measured(head), baseline(base), POLICY)
    back = decide(measured(base), baseline(head), POLICY)
    assert 1 + there.change == pytest.approx(1 / (1 + back.change))
    assert 1 + there.lower == pytest.approx(1 / (1 + back.upper), abs=1e-9)
    assert (there.outcome is Outcome.REGRESSION) == (back.outcome is Outcome.IMPROVEMENT)


@given(times, histories, st.sampled_from([1e-3, 0.25, 7.0, 1e4]))
def test_the_unit_of_time_is_immaterial(head, history, unit):
    here = decide(measured(head), baseline(*history), POLICY)
    there = decide(measured(head * unit), baseline(*(one * unit for one in history)), POLICY)
    assert there.change == pytest.approx(here.change, rel=1e-6, abs=1e-9)
    assert there.mde == pytest.approx(here.mde, rel=1e-6, abs=1e-9)


@given(times, histories, factors)
def test_every_verdict_keeps_its_word(head, history, factor):
    verdict = decide(measured(head * factor), baseline(*history), POLICY)
    assert verdict.lower <= verdict.change <= verdict.upper
    assert verdict.mde >= verdict.limit
    if verdict.outcome is Outcome.REGRESSION:
        assert verdict.lower > 0
        assert verdict.change > verdict.limit
        assert needs_confirmation(verdict)
    if verdict.outcome is Outcome.PASS:
        assert verdict.change < verdict.must_catch
    assert verdict.next_step or verdict.outcome is Outcome.PASS


@given(times, histories, st.floats(1e-6, 0.4), st.floats(1e-6, 0.4))
def test_a_stricter_alpha_never_finds_more(head, history, one, other):
    strict, loose = sorted((one, other))
    found = decide(measured(1.4 * head), baseline(*history), replace(POLICY, alpha=strict))
    if found.outcome is Outcome.REGRESSION:
        again = decide(measured(1.4 * head), baseline(*history), replace(POLICY, alpha=loose))
        assert again.outcome is Outcome.REGRESSION


def test_the_confirmation_alone_decides():
    stored = baseline(noisy(2))
    flagged = decide(measured(1.6 * noisy(1)), stored, POLICY)
    cleared = confirm(flagged, measured(noisy(3, 16)), stored, POLICY)
    assert cleared.outcome is Outcome.PASS
    assert cleared.launches == 16
    assert "first measured +" in cleared.reason
    kept = confirm(flagged, measured(1.6 * noisy(3, 16)), stored, POLICY)
    assert kept.outcome is Outcome.REGRESSION
    assert "then again: at least +" in kept.reason


def test_more_sessions_narrow_the_interval():
    head = measured(noisy(50))
    sizes = [
        decide(head, baseline(*(noisy(seed) for seed in range(count))), POLICY).mde
        for count in (1, 3, 10)
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_sessions_that_differ_widen_the_interval():
    calm = [noisy(seed) for seed in range(6)]
    moody = [one * math.exp(shift) for one, shift in zip(calm, (-2, 2, -1, 1, 2, -2), strict=True)]
    head = measured(noisy(50))
    assert (
        decide(head, baseline(*moody), POLICY).mde > decide(head, baseline(*calm), POLICY).mde * 3
    )


def test_a_baseline_of_a_busier_hour_is_compared_with_that_in_mind():
    quiet, busy = baseline(noisy(2)), baseline(noisy(2))
    busy = replace(busy, sessions=(replace(busy.sessions[0], others_share=0.45),))
    slower = measured(1.30 * noisy(1, spread=0.02))
    assert decide(slower, quiet, POLICY).lower > 0
    verdict = decide(slower, busy, POLICY)
    assert verdict.lower < 0
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "others used 0% of the processor, 45% for the baseline" in verdict.line
    assert verdict.mde > decide(slower, quiet, POLICY).mde * 1.5
    alike = decide(replace(slower, others_share=0.70), busy, POLICY)
    assert verdict.lower < alike.lower < decide(slower, quiet, POLICY).lower
    assert "others used" not in alike.line


def test_sessions_are_pooled_over_the_cases_of_a_file():
    one = [baseline(noisy(seed)) for seed in range(9)]
    assert pool_sessions(one) == SESSIONS
    assert pool_sessions([]) == SESSIONS
    rng = np.random.default_rng(3)
    moody = [
        baseline(*(noisy(rng.integers(1 << 30), centre=3e-4 * math.exp(s)) for s in row))
        for row in rng.normal(0, 0.2, (9, 8))
    ]
    found = pool_sessions(moody)
    assert found.dof > SESSIONS.dof
    assert 0.10 < math.sqrt(found.variance) < 0.20
    head, lone = measured(noisy(1)), baseline(noisy(2))
    assert decide(head, lone, POLICY, sessions=found).mde > decide(head, lone, POLICY).mde


def test_the_baseline_says_which_figure_is_compared():
    stored = baseline(noisy(2))
    median = replace(stored, figure="p50_s")
    head = measured(noisy(1))
    assert decide(head, median, POLICY).time_s == pytest.approx(
        1.2 * decide(head, stored, POLICY).time_s
    )


def test_the_steadiest_figure_is_chosen_and_ties_keep_the_first():
    def session(p10, p25):
        launches = tuple(
            Launch(p10_s=a, p25_s=a * b, p50_s=a * b * 2, p95_s=1.0, calls=100)
            for a, b in zip(p10, p25, strict=True)
        )
        return Session(commit="c", date="2026-01-31T12:00:00Z", launches=launches)

    steady, shaky = noisy(1, spread=0.01), 1 + noisy(2, spread=0.2, centre=1.0)
    order = ("p25_s", "p10_s", "p50_s")
    assert steadiest_figure([session(steady, shaky)], order) == "p10_s"
    assert steadiest_figure([session(steady, np.full(8, 1.5))], order) == "p25_s"


def simulate(rng, *, sessions, spread, between, factor=1.0, launches=8):
    def session():
        return 3e-4 * np.exp(rng.normal(rng.normal(0, between), spread, launches))

    return measured(factor * session()), baseline(*(session() for _ in range(sessions)))


@pytest.mark.parametrize("sessions", [1, 4])
@pytest.mark.parametrize("spread", [0.02, 0.06, 0.12])
def test_the_chance_of_a_false_alarm_is_the_one_asked_for(sessions, spread):
    rng = np.random.default_rng([sessions, int(1000 * spread)])
    policy = Policy(alpha=0.02, max_regression=1e-6, must_catch=0.25)
    runs = 1500
    alarms = sum(
        decide(*simulate(rng, sessions=sessions, spread=spread, between=0.03), policy).outcome
        is Outcome.REGRESSION
        for _ in range(runs)
    )
    assert alarms <= runs * 0.02 + 2.6 * math.sqrt(runs * 0.02 * 0.98)


@pytest.mark.parametrize("case", TRACES)
def test_on_recorded_noise_the_same_code_never_fails_and_nearly_always_passes(case):
    p25_s = np.array(TRACES[case])[:, 1] * 1e-6
    outcomes = [decide(*draw, POLICY).outcome for draw in replays(p25_s, 1.0, 100)]
    assert Outcome.REGRESSION not in outcomes
    assert outcomes.count(Outcome.PASS) >= 95


@pytest.mark.parametrize("case", TRACES)
def test_on_recorded_noise_half_as_slow_again_is_found(case):
    p25_s = np.array(TRACES[case])[:, 1] * 1e-6
    found = [
        decide(*draw, POLICY).outcome is Outcome.REGRESSION for draw in replays(p25_s, 1.5, 50)
    ]
    assert sum(found) >= 49


def replays(p25_s, factor, count):
    rng = np.random.default_rng(11)
    for _ in range(count):
        drawn = rng.permutation(p25_s)
        yield measured(factor * drawn[:10]), baseline(drawn[10:20])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_component_of_sessions_is_never_negative(seed):
    rng = np.random.default_rng(seed)
    same = [baseline(*(noisy(int(rng.integers(1 << 30))) for _ in range(5))) for _ in range(3)]
    found = pool_sessions(same)
    assert isinstance(found, Component)
    assert found.variance > 0


def probed(measurement, probe_s):
    launches = tuple(replace(launch, probe_s=probe_s) for launch in measurement.launches)
    return replace(measurement, launches=launches)


def probed_baseline(stored, probe_s):
    sessions = tuple(
        replace(session, launches=tuple(replace(one, probe_s=probe_s) for one in session.launches))
        for session in stored.sessions
    )
    return replace(stored, sessions=sessions, follows=1.0)


@given(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5))
def test_a_machine_that_answers_slower_is_allowed_for(pace, slowdown):
    there = probed_baseline(baseline(noisy(2)), 40e-6)
    factor = math.exp(pace + slowdown)
    verdict = decide(probed(measured(noisy(1) * factor), 40e-6 * math.exp(pace)), there, POLICY)
    calm = decide(probed(measured(noisy(1)), 40e-6), there, POLICY)
    assert math.log1p(verdict.change) == pytest.approx(math.log1p(calm.change) + slowdown)
    assert math.log1p(verdict.pace) == pytest.approx(pace)
    assert verdict.time_s == pytest.approx(calm.time_s * factor)


def test_without_a_probe_on_either_side_seconds_are_compared():
    there = probed_baseline(baseline(noisy(2)), 40e-6)
    now = measured(noisy(1))
    bare = decide(now, baseline(noisy(2)), POLICY)
    assert decide(now, there, POLICY).change == pytest.approx(bare.change)
    unprobed = replace(baseline(noisy(2)), follows=1.0)
    assert decide(probed(now, 9e-6), unprobed, POLICY).change == pytest.approx(bare.change)
    assert math.isnan(bare.pace)
