import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.gate.history import change_points, latest
from perfgate.gate.stats import summarise
from perfgate.model import Baseline, Session


def history(levels, spread=0.05, seed=0):
    rng = np.random.default_rng(seed)
    return Baseline(
        case_id="t.py::t | f",
        environment="here",
        sessions=tuple(
            Session(
                commit=f"c{number}",
                date=f"2026-01-{number + 1:02}T00:00:00Z",
                launches=tuple(
                    summarise([t, t]) for t in 1e-3 * np.exp(level + rng.normal(0, spread, 6))
                ),
            )
            for number, level in enumerate(levels)
        ),
    )


def test_a_step_is_found_where_it_is_and_by_how_much():
    (point,) = change_points(history([0.0] * 12 + [0.15] * 12))
    assert point.index == 12
    assert (point.commit, point.date[:10]) == ("c12", "2026-01-13")
    assert point.change == pytest.approx(math.expm1(0.15), abs=0.03)
    assert point.p < 0.01
    assert latest([point]).startswith("+1")
    assert latest([point]).endswith("since c12 of 2026-01-13")


def test_two_steps_are_two():
    points = change_points(history([0.0] * 10 + [0.3] * 10 + [0.1] * 10))
    assert [point.index for point in points] == [10, 20]
    assert points[0].change > 0 > points[1].change


def test_a_slow_drift_that_no_single_run_shows_is_seen():
    points = change_points(history(np.linspace(0, 0.3, 30)))
    assert points
    assert all(point.change > 0 for point in points)


def test_one_wild_session_is_no_lasting_change():
    assert change_points(history([0.0] * 10 + [1.0] + [0.0] * 10)) == []


def test_a_change_shows_once_three_sessions_have_it():
    assert change_points(history([0.0] * 29 + [0.5])) == []
    assert [point.index for point in change_points(history([0.0] * 27 + [0.5] * 3))] == [27]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_short_history_has_no_change(count):
    assert change_points(history([0.0, 1.0, 0.0, 1.0, 0.0][:count])) == []
    assert latest([]) == ""


def test_equal_sessions_have_no_change():
    assert change_points(history([0.0] * 12, spread=0.0)) == []


def test_noise_alone_is_seldom_taken_for_a_change():
    rng = np.random.default_rng(1)
    found = sum(bool(change_points(history(rng.normal(0, 0.05, 20), seed=k))) for k in range(200))
    assert found <= 200 * 0.01 + 2.6 * math.sqrt(200 * 0.01)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=6, max_size=31), st.sampled_from([1e-3, 7.0]))
def test_the_same_history_gives_the_same_answer_in_any_unit(levels, unit):
    first = [point.index for point in change_points(history(levels))]
    shifted = history(np.array(levels) + math.log(unit))
    assert [point.index for point in change_points(shifted)] == first
