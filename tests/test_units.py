"""Sizes, rates and durations as people write and read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import BadUnit, UsageError
from perfgate.units import (
    format_duration,
    format_figure,
    format_percent,
    format_size,
    parse_duration,
    parse_fraction,
    parse_size,
)


@given(st.integers(0, 2**50))
def test_a_printed_size_reads_back_exactly(size_bytes):
    assert parse_size(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4KiB", 4096), ("4 KB", 4000), ("4k", 4000), ("1.5MiB", 3 << 19), ("17", 17),
        ("2GiB", 2 << 30), ("0", 0), (12, 12),
    ],
)  # fmt: skip
def test_sizes_are_binary_with_an_i_and_decimal_without(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "KiB", "4QiB", "-4KiB", "0.3B", "4 KiB KiB", "1e3", -1])
def test_what_is_no_size_is_told_with_the_way_out(text):
    with pytest.raises(BadUnit, match=r"write it like|whole number"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("250ms", 0.25), ("2min", 120), ("1.5h", 5400), (3, 3)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", math.inf, 0, "1 fortnight"])
def test_what_is_no_duration(text):
    with pytest.raises(BadUnit):
        parse_duration(text)


@given(st.floats(1e-8, 1e5))
def test_a_printed_duration_is_right_to_three_figures(seconds):
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.06)


@pytest.mark.parametrize(
    ("given_", "fraction"), [("10", 0.1), ("10%", 0.1), (0.1, 0.1), ("2.5 %", 0.025), (4, 4.0)]
)
def test_text_counts_in_percent_and_numbers_as_fractions(given_, fraction):
    assert parse_fraction(given_, name="limit") == pytest.approx(fraction)


@pytest.mark.parametrize("bad", ["ten", "-5", "0", 0, -0.1, math.nan, math.inf, ""])
def test_a_fraction_that_cannot_be_names_what_it_is_of(bad):
    with pytest.raises(UsageError, match="limit="):
        parse_fraction(bad, name="limit")


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.125, "+12.5%"), (-0.4, "-40.0%"), (2.5, "+250%"), (1e6, ">9999%"), (math.nan, "-")],
)
def test_percent(fraction, text):
    assert format_percent(fraction) == text


@pytest.mark.parametrize(
    ("value", "text"), [(18.84, "18.8"), (0.0953, "0.095"), (3.4, "3.40"), (672, "672")]
)
def test_figures(value, text):
    assert format_figure(value) == text
