from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import UsageError
from perfgate.gate.allocate import (
    Cost,
    Design,
    calls_per_launch,
    launches_within,
    share_out,
    spend,
    to_detect,
    variance_of_p25,
)
from perfgate.gate.stats import Component, summarise

positive = st.floats(1e-3, 1e3)


def variance(cost, calls, budget_s):
    """The variance of a case's mean, launches taken as a fraction."""
    launches = budget_s / (cost.launch_s + calls * cost.call_s)
    return (cost.launches_variance + cost.calls_variance / calls) / launches


@given(positive, positive, positive, positive)
def test_no_other_number_of_calls_gives_a_smaller_variance(launch_s, call_s, within, between):
    cost = Cost(launch_s=launch_s, call_s=call_s, calls_variance=within, launches_variance=between)
    best = calls_per_launch(cost, least=1, most=10**9)
    least = min(variance(cost, calls, 60.0) for calls in (best, max(best - 1, 1)))
    others = np.unique(np.geomspace(1, 10 * best + 10, 50).astype(int))
    assert least <= min(variance(cost, calls, 60.0) for calls in others) * (1 + 1e-9)


def test_calls_that_never_differ_between_launches_are_all_made_in_one():
    cost = Cost(launch_s=0.05, call_s=1e-3, calls_variance=1.0, launches_variance=0.0)
    assert calls_per_launch(cost) == 1000
    steady = Cost(launch_s=0.05, call_s=1e-3, calls_variance=0.0, launches_variance=1.0)
    assert calls_per_launch(steady) == 20


def test_launches_are_what_the_budget_pays_for_and_never_one():
    cost = Cost(launch_s=0.5, call_s=0.005, calls_variance=1.0, launches_variance=1.0)
    assert launches_within(cost, 100, 10.0) == 10
    assert launches_within(cost, 100, 0.1) == 2


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan")])
def test_a_budget_of_nothing_is_refused(budget_s):
    cost = Cost(launch_s=0.5, call_s=0.005, calls_variance=1.0, launches_variance=1.0)
    with pytest.raises(UsageError, match="measures nothing"):
        launches_within(cost, 100, budget_s)


def test_costs_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="above zero"):
        Cost(launch_s=0.0, call_s=1.0, calls_variance=1.0, launches_variance=1.0)
    with pytest.raises(UsageError, match="not below zero"):
        Cost(launch_s=1.0, call_s=1.0, calls_variance=-1.0, launches_variance=1.0)


cases = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.floats(1e-3, 1), st.integers(2, 20)), min_size=1
)


@given(cases, st.floats(0, 60))
def test_the_budget_is_never_passed_and_goes_to_the_widest_first(given_cases, budget_s):
    errors = {case: error for case, (error, _) in given_cases.items()}
    launches = {case: count for case, (_, count) in given_cases.items()}
    extra = spend(errors, launches, dict.fromkeys(errors, 1.0), budget_s, wanted=0.02)
    assert sum(extra.values()) <= budget_s
    assert all(extra[case] == 0 for case, error in errors.items() if error <= 0.02)
    if int(budget_s) and max(errors.values()) > 0.02:
        assert max(errors[case] for case in errors if extra[case]) == max(errors.values())


def test_what_a_design_finds_grows_with_its_launches_and_sessions():
    small = Design(spread=0.08)
    sizes = [
        replace(small, launches=launches, sessions=sessions).detectable(alpha=0.001)
        for launches, sessions in ((4, 1), (8, 1), (8, 3), (16, 5))
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_the_design_that_sees_ten_percent_is_named_and_does():
    calm = Component(variance=0.01**2, dof=40.0)
    found = to_detect(0.10, Design(spread=0.04, between=calm), alpha=0.001)
    assert found.detectable(alpha=0.001, limit=0.05) <= 0.10
    assert found.sessions > 1 or found.launches > 8


def test_what_no_design_sees_is_said():
    assert to_detect(0.02, Design(spread=0.5), alpha=0.001) is None


spreads = st.dictionaries(
    st.sampled_from("abcdefgh"), st.none() | st.floats(0.001, 1.0), min_size=1, max_size=8
)


@given(spreads, st.integers(2, 32))
def test_launches_are_shared_out_by_what_they_differ_by_within_the_same_total(given_spreads, count):
    launches = share_out(given_spreads, count)
    assert launches.keys() == given_spreads.keys()
    assert sum(launches.values()) <= count * len(launches)
    assert all(2 <= one <= 4 * count for one in launches.values())
    known = sorted((spread, launches[case]) for case, spread in given_spreads.items() if spread)
    assert [one for _, one in known] == sorted(one for _, one in known)
    assert all(launches[case] == count for case, spread in given_spreads.items() if spread is None)


def test_a_case_that_varies_four_times_as_much_gets_most_of_the_launches():
    launches = share_out({"calm": 0.02, "calmer": 0.01, "wild": 0.08}, 16)
    assert launches["wild"] > 24
    assert launches["calm"] >= launches["calmer"] >= 8


def test_what_a_call_adds_to_a_quartile_is_what_resampling_shows():
    rng = np.random.default_rng(0)
    drawn = np.exp(rng.normal(0, 0.3, (4000, 400)))
    seen = np.var(np.log(np.quantile(drawn, 0.25, axis=1)))
    assert variance_of_p25(summarise(drawn[0])) / 400 == pytest.approx(seen, rel=0.35)
