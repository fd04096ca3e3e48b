"""How far a reduced gradient may lie from the exact one, derived and not guessed.

The standard model of floating-point arithmetic (Higham, *Accuracy and Stability of Numerical
Algorithms*, 2nd ed., section 2.2, with underflow as in his equation 2.8): one operation rounds its
exact result ``x`` to ``x (1 + d) + e`` with ``|d| <= u`` and ``|e| <= eta / 2``, where ``u`` is the
unit roundoff and ``eta`` the smallest subnormal number. Additions make no ``e``: a sum of two
floating-point numbers that is subnormal is exact. A sum of ``n`` terms in any order is off by at
most ``gamma(n - 1)`` times the sum of magnitudes, ``gamma(k) = k u / (1 - k u)`` (section 4.2), as
long as no partial sum overflows. Everything here follows by carrying a magnitude and an error
through the operations of a schedule, in exact rational arithmetic.

The closed forms that this gives, with ``A`` the sum of magnitudes over ``n``, are
``gamma(n-1) n A`` for a sum, ``gamma(n) A + eta/2`` for a sum that is then divided, and
``gamma(n) A + (n eta / 2)(1 + gamma(n))`` for terms that are divided first.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch

from perfgate.errors import UsageError
from perfgate.zero.scaling import Scaling

_PRECISION_BITS = {
    torch.float16: 11,
    torch.bfloat16: 8,
    torch.float32: 24,
    torch.float64: 53,
}


def unit_roundoff(dtype: torch.dtype) -> Fraction:
    """Return ``u``: half the distance from 1 to the next number.

    :raises UsageError: when the dtype has no bound here.
    """
    if dtype not in _PRECISION_BITS:
        known = ", ".join(str(known).removeprefix("torch.") for known in _PRECISION_BITS)
        raise UsageError(f"there is no error bound for {dtype}; there is one for {known}")
    return Fraction(1, 2 ** _PRECISION_BITS[dtype])


def smallest_subnormal(dtype: torch.dtype) -> Fraction:
    """Return ``eta``, the distance between subnormal numbers."""
    return Fraction(torch.finfo(dtype).tiny) * 2 * unit_roundoff(dtype)


def gamma(operations: int, dtype: torch.dtype) -> Fraction:
    """Return ``k u / (1 - k u)`` for ``k`` operations in ``dtype``."""
    product = operations * unit_roundoff(dtype)
    if product >= 1:
        raise UsageError(f"{operations} operations in {dtype} leave no digit; there is no bound")
    return product / (1 - product)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Numbers that are to be added up: the sum of their magnitudes, and of their errors."""

    magnitude: Fraction
    error: Fraction = Fraction(0)

    def rounded(self, dtype: torch.dtype, numbers: int) -> Bounded:
        """Round each of ``numbers`` numbers once to ``dtype``: a cast, or a division's rounding."""
        u, eta = unit_roundoff(dtype), smallest_subnormal(dtype)
        error = self.error * (1 + u) + u * self.magnitude + numbers * eta / 2
        return Bounded(self.magnitude, error)

    def divided(self, by: float, dtype: torch.dtype, numbers: int) -> Bounded:
        """Divide each of ``numbers`` numbers in ``dtype``; by 1 is exact.

        The divisor is a double, itself off by at most ``2**-53`` of its value, or by the rounding
        of one quotient.
        """
        if by == 1:
            return self
        magnitude, error = self.magnitude / Fraction(by), self.error / Fraction(by)
        divisor = Fraction(1, 2**52) * (magnitude + error)
        return Bounded(magnitude, error + divisor).rounded(dtype, numbers)

    def summed(self, terms: int, dtype: torch.dtype) -> Bounded:
        """Add up ``terms`` numbers a sum, in any order, in ``dtype``."""
        growth = gamma(max(terms - 1, 0), dtype)
        return Bounded(self.magnitude, self.error * (1 + growth) + growth * self.magnitude)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What happens to a gradient on its way, in order; see :class:`~perfgate.zero.scaling.Scaling`.

    :param gradient: the gradients' dtype.
    :param comm: the dtype that travels.
    :param sum: the dtype in which ranks are added: ``comm`` where the backend adds, fp32 or wider
        for the ``exchange`` strategy.
    :param kept: the accumulation dtype of the owner.
    :param micro_batches: reductions that the owner adds.
    """

    ranks: int
    scaling: Scaling
    gradient: torch.dtype
    comm: torch.dtype
    sum: torch.dtype
    kept: torch.dtype
    micro_batches: int = 1

    def bound(self, magnitude: Fraction) -> Fraction:
        """Return the largest error of one element of the reduced gradient.

        :param magnitude: the sum of its terms' magnitudes, over ranks and micro-batches.
        """
        terms, sums = self.ranks * self.micro_batches, self.micro_batches
        packing = torch.promote_types(self.gradient, self.comm)
        dividing = torch.promote_types(torch.promote_types(torch.float32, self.comm), self.kept)
        value = Bounded(magnitude).divided(self.scaling.before, packing, terms)
        if packing != self.comm:
            value = value.rounded(self.comm, terms)
        value = value.summed(self.ranks, self.sum)
        value = value.divided(self.scaling.after, dividing, sums)
        if dividing != self.kept:
            value = value.rounded(self.kept, sums)
        return value.summed(self.micro_batches, self.kept).error
