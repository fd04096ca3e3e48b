"""The error bounds: equal to the closed forms where those exist, and met by real arithmetic."""

from fractions import Fraction
from math import fsum

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import UsageError
from perfgate.zero.bounds import Schedule, gamma, smallest_subnormal, unit_roundoff
from perfgate.zero.scaling import Scaling

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def bound(ranks, dtype, magnitude, **scaling):
    plan = Scaling.plan(ranks=ranks, **scaling)
    schedule = Schedule(
        ranks=ranks, scaling=plan, gradient=dtype, comm=dtype, sum=dtype, kept=torch.float32
    )
    return schedule.bound(Fraction(magnitude))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_roundoff_and_subnormals_are_those_of_the_dtype(dtype):
    info = torch.finfo(dtype)
    assert unit_roundoff(dtype) == Fraction(info.eps) / 2
    assert smallest_subnormal(dtype) == Fraction(info.smallest_normal) * Fraction(info.eps)


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_has_the_bound_of_the_book(ranks, dtype):
    """gamma(n - 1) times the sum of magnitudes."""
    assert bound(ranks, dtype, 3, mean=False) == gamma(ranks - 1, dtype) * 3


@pytest.mark.parametrize("ranks", range(2, 9))
def test_a_mean_has_no_wider_bound_than_the_closed_forms(ranks):
    """To second order: the book rounds gamma(a) + u + gamma(a) u up to gamma(a + 1)."""
    u, eta = unit_roundoff(torch.float32), smallest_subnormal(torch.float32)
    divisor = Fraction(1, 2**50)  # the divisor is a double
    closed = gamma(ranks, torch.float32)
    after = bound(ranks, torch.float32, ranks)
    assert closed - u * u * ranks**2 <= after <= closed + divisor + eta
    first = bound(ranks, torch.float32, ranks, prescale=True)
    assert first <= closed + divisor + ranks * eta / 2 * (1 + closed)


@given(
    values=st.lists(st.integers(-(2**10), 2**10), min_size=2, max_size=8),
    shift=st.integers(-150, 20),
    dtype=st.sampled_from(DTYPES),
    prescale=st.booleans(),
)
def test_real_arithmetic_stays_within(values, shift, dtype, prescale):
    """Down to subnormal numbers, one operation at a time in the dtype itself."""
    exact = [torch.tensor(float(value) * 2.0**shift).to(dtype) for value in values]
    ranks = len(exact)
    terms = [value / ranks for value in exact] if prescale else exact
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    mean = total.float() if prescale else total.float() / ranks
    if not torch.isfinite(total):
        return
    true = Fraction(fsum(value.item() for value in exact)) / ranks
    magnitude = Fraction(fsum(abs(value.item()) for value in exact))
    error = abs(Fraction(mean.item()) - true)
    assert error <= bound(ranks, dtype, magnitude, prescale=prescale)


def test_the_bound_is_not_empty_talk():
    """Some sums come within half of it: a bound ten times too wide would hide faults."""
    u = 2.0**-11
    ones = torch.tensor([1.0, u, u, u], dtype=torch.float16)
    total = ones[0]
    for term in ones[1:]:
        total = total + term
    error = abs(total.item() - fsum(ones.tolist()))
    assert 0.3 < error / float(bound(4, torch.float16, fsum(ones.tolist()), mean=False)) <= 1


@given(ranks=st.integers(2, 5), micro_batches=st.integers(1, 4))
def test_more_rounding_is_never_allowed_less(ranks, micro_batches):
    def allowed(**changes):
        steps = {"comm": torch.float32, "sum": torch.float32, "kept": torch.float32} | changes
        schedule = Schedule(
            ranks=ranks,
            scaling=Scaling.plan(ranks=ranks),
            gradient=torch.float32,
            micro_batches=micro_batches,
            **steps,
        )
        return schedule.bound(Fraction(1))

    exact = allowed()
    assert exact < allowed(comm=torch.bfloat16)
    assert allowed(comm=torch.bfloat16) < allowed(comm=torch.bfloat16, sum=torch.bfloat16)
    assert exact < allowed(kept=torch.bfloat16)


def test_what_has_no_bound_is_refused():
    with pytest.raises(UsageError, match=r"no error bound for torch\.int32; .* one for float16"):
        unit_roundoff(torch.int32)
    with pytest.raises(UsageError, match="leave no digit"):
        gamma(256, torch.bfloat16)


def test_two_schedules_at_once_are_refused():
    with pytest.raises(UsageError, match="leaves nothing to gradient_predivide_factor=2"):
        Scaling.plan(ranks=4, prescale=True, predivide_factor=2.0)
    with pytest.raises(UsageError, match="sequence_parallel_size=3 does not divide 4"):
        Scaling.plan(ranks=4, sequence_parallel_size=3)
