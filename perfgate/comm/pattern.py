"""Message values that tell rank, index and call apart, and the check that they arrived.

Element ``i`` of what rank ``r`` of ``n`` sends in call ``c`` is::

    1 + (i¹¹ mod 65521 + r + n·c) mod M

``M`` is the largest prime not above 65521 whose n-fold sum the dtype still holds exactly, so that
a reduction has one right answer, bit for bit, in whatever order it adds. Then

- ``i¹¹ mod 65521`` visits its 65521 residues in a scattered order, each once, so that a shift of
  the data by any distance but a multiple of 65521 elements shows;
- another rank's value, or an earlier call's (but for each M-th), differs at every index, and so
  does any sum that holds it, because ``r + n·c`` differs modulo a prime above n;
- no value is 0, so that what was never written, was left out or came twice shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from perfgate.comm.dtypes import dtype_name, exact_limit
from perfgate.errors import UsageError

PERIOD = 65521
"""The largest prime below 2¹⁶: indices that differ by a multiple of it carry equal values."""
_SLAB = 128 * PERIOD


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a receive buffer: the sum of what these ranks sent, from ``start`` on.

    :param ranks: ranks in the group; one for an op that only moves data.
    :param start: the index of the stretch's first element in the senders' buffers.
    :param length: elements.
    """

    ranks: tuple[int, ...]
    start: int
    length: int


class Pattern:
    """The values of one dtype, device and group size.

    :raises UsageError: when the dtype is too narrow to tell so many ranks apart.
    """

    def __init__(
        self, dtype: torch.dtype, device: torch.device, world_size: int, *, sums: bool
    ) -> None:
        terms = world_size if sums else 1
        self.modulus = _largest_prime(min(PERIOD, exact_limit(dtype) // terms))
        if self.modulus <= world_size:
            raise UsageError(
                f"{dtype_name(dtype)} holds whole numbers exactly up to {exact_limit(dtype)} only, "
                f"too few to tell {world_size} ranks apart{' in a sum' if sums else ''}; "
                "use a wider dtype or fewer ranks"
            )
        self.dtype = dtype
        self.device = device
        self.world_size = world_size
        index = torch.arange(PERIOD, dtype=torch.int64, device=device)
        square = index * index % PERIOD
        eighth = (square * square % PERIOD) ** 2 % PERIOD
        scattered = eighth * square % PERIOD * index % PERIOD
        self._scattered = (scattered % self.modulus).to(torch.int32)

    def row(self, segment: Segment, call: int) -> torch.Tensor:
        """Return the segment's values, cut to one period: ``[min(length, PERIOD)]``."""
        start = segment.start % PERIOD
        length = min(segment.length, PERIOD)
        base = self._scattered[start : start + length]
        if base.numel() < length:
            base = torch.cat((base, self._scattered[: length - base.numel()]))
        values = torch.full_like(base, len(segment.ranks))
        for rank in segment.ranks:
            values += self._turned(base, (rank + self.world_size * call) % self.modulus)
        return values.to(self.dtype)

    def _turned(self, base: torch.Tensor, by: int) -> torch.Tensor:
        """Return ``(base + by) mod M``; both lie below M, so that one subtraction does it."""
        turned = base + by
        return turned.sub_((turned >= self.modulus).to(torch.int32), alpha=self.modulus)

    def fill(self, buffer: torch.Tensor, rank: int, call: int) -> None:
        """Write what this rank sends in this call into a flat buffer."""
        row = self.row(Segment((rank,), 0, buffer.numel()), call)
        for piece in _periods(buffer):
            piece.copy_(row[: piece.shape[-1]])

    def first_wrong(self, buffer: torch.Tensor, segment: Segment, call: int) -> str | None:
        """Return None, or where a flat buffer first differs, with the values got and expected."""
        row = self.row(segment, call)
        if all(torch.equal(piece, row[: piece.numel()]) for piece in torch.split(buffer, PERIOD)):
            return None
        first, count, offset = None, 0, 0
        for piece in _periods(buffer):
            wrong = (piece != row[: piece.shape[-1]]).flatten()
            if bool(wrong.any()):
                first = offset + int(wrong.nonzero()[0]) if first is None else first
                count += int(wrong.sum())
            offset += piece.numel()
        if first is None:
            return None
        got, expected = buffer[first].item(), row[first % PERIOD].item()
        return (
            f"element {first} is {got:g}, expected {expected:g} ({count} of {segment.length} wrong)"
        )


def _periods(buffer: torch.Tensor) -> Iterator[torch.Tensor]:
    """Cut a flat buffer into matrices of whole periods, none large, and what is left over."""
    whole = buffer.numel() // PERIOD * PERIOD
    for start in range(0, whole, _SLAB):
        yield buffer[start : min(start + _SLAB, whole)].view(-1, PERIOD)
    if whole < buffer.numel():
        yield buffer[whole:]


def _largest_prime(limit: int) -> int:
    """Return the largest prime not above the limit, or 1 when there is none."""
    for candidate in range(limit, 1, -1):
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            return candidate
    return 1
