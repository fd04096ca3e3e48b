import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as reference

from perfgate.gate.stats import (
    Component,
    Contrast,
    lifted,
    log_figures,
    pooled,
    summarise,
    trimmed_mean,
)

times = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=200)
logs = st.lists(st.floats(-20, 10), min_size=5, max_size=40).map(np.array)


@given(times)
def test_a_launch_is_summarised_by_the_quantiles_of_its_calls(values):
    launch = summarise(values)
    assert launch.calls == len(values)
    assert launch.p25_s == pytest.approx(np.percentile(values, 25))
    assert min(values) <= launch.p10_s <= launch.p25_s <= launch.p50_s <= launch.p95_s
    assert launch.p95_s <= max(values)


@given(times, st.sampled_from([0.001, 0.5, 2.0, 1000.0]))
def test_a_slower_clock_scales_every_figure_alike(values, factor):
    slow = summarise(np.array(values) * factor)
    fast = summarise(values)
    assert [slow.p10_s, slow.p25_s, slow.p50_s, slow.p95_s] == pytest.approx(
        [factor * fast.p10_s, factor * fast.p25_s, factor * fast.p50_s, factor * fast.p95_s]
    )


@pytest.mark.parametrize("bad", [0.0, -1e-6, math.nan, math.inf, -math.inf])
def test_a_time_that_is_none_is_refused_with_its_place(bad):
    with pytest.raises(ValueError, match=r"1 of 3 calls .* call 1 with"):
        summarise([1e-3, bad, 1e-3])


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], 3.0])
def test_what_is_no_row_of_calls_is_refused(bad):
    with pytest.raises(ValueError, match="one row of calls"):
        summarise(bad)


@given(logs)
def test_the_trimmed_mean_is_scipys(values):
    assert trimmed_mean(values).value == pytest.approx(reference.trim_mean(values, 0.2), abs=1e-9)


@given(logs, logs)
def test_trimmed_means_and_their_variances_make_yuens_test(head, base):
    one, other = trimmed_mean(head), trimmed_mean(base)
    assume(one.variance > 1e-12 and other.variance > 1e-12)
    change = Contrast.of(
        one.value - other.value,
        [Component(one.variance, one.dof), Component(other.variance, other.dof)],
    )
    expected = reference.ttest_ind(head, base, equal_var=False, trim=0.2)
    assert change.value / change.error == pytest.approx(expected.statistic, rel=1e-6)
    assert change.dof == pytest.approx(expected.df, rel=1e-6)


@given(logs.filter(lambda values: values.size >= 6), st.floats(-1e6, 1e6))
def test_one_wild_launch_moves_the_mean_no_further_than_its_neighbours_lie(values, wild):
    ordered = np.sort(values)
    spoilt = trimmed_mean(np.append(values, wild))
    assert ordered[0] <= spoilt.value <= ordered[-1]
    assert math.sqrt(spoilt.variance) <= (ordered[-1] - ordered[0])


def test_few_values():
    assert trimmed_mean(np.array([1.0])).variance == 0
    assert trimmed_mean(np.array([1.0])).dof == 0
    two = trimmed_mean(np.array([1.0, 3.0]))
    assert (two.value, two.variance, two.dof) == (2.0, 1.0, 1.0)


def test_a_lucky_draw_is_lifted_and_a_noisy_one_stands():
    prior = Component(0.01, 4)
    assert lifted(Component(0.0, 1), prior) == Component(0.008, 5)
    assert lifted(Component(0.5, 1), prior) == Component(0.5, 1)
    assert lifted(Component(0.0, 0), prior) == prior
    assert pooled(Component(1.0, 0), Component(3.0, 0)) == Component(3.0, 0)


@given(
    st.floats(-2, 2),
    st.floats(1e-6, 1),
    st.floats(1.5, 1e3),
    st.floats(1e-5, 0.2),
)
def test_bounds_are_student_ts(value, error, dof, alpha):
    change = Contrast(value, error, dof)
    low, high = reference.t.interval(1 - 2 * alpha, dof, value, error)
    assert change.lower(alpha) == pytest.approx(low, rel=1e-6, abs=1e-9)
    assert change.upper(alpha) == pytest.approx(high, rel=1e-6, abs=1e-9)


def test_without_variance_the_interval_is_a_point():
    change = Contrast.of(0.25, [Component(0.0, 3)])
    assert (change.lower(0.001), change.upper(0.001)) == (0.25, 0.25)
    assert change.detectable(alpha=0.001, limit=0.1) == 0.1


@pytest.mark.parametrize("dof", [1.1, 2, 5, 12, 40, 1e3, math.inf])
@pytest.mark.parametrize("alpha", [0.01, 0.0003])
def test_the_detectable_change_is_found_in_95_percent_of_draws(dof, alpha):
    rng = np.random.default_rng(7)
    change = Contrast(0.0, 0.05, dof)
    size = change.detectable(alpha=alpha, limit=0.0)
    chi = 1.0 if math.isinf(dof) else np.sqrt(rng.chisquare(dof, 40_000) / dof)
    found = rng.normal(size, 0.05, 40_000) > change.t(alpha) * 0.05 * chi
    assert found.mean() == pytest.approx(0.95, abs=0.005)


def test_the_figure_of_each_launch_is_taken_by_name():
    launches = [summarise([1.0, 1.0]), summarise([math.e, math.e])]
    assert log_figures(launches, "p50_s") == pytest.approx([0.0, 1.0])
