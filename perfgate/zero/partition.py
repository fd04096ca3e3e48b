"""Who owns what: parameters laid end to end, padded, and cut into one equal partition a rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Slice:
    """A run of one parameter's elements that one rank owns.

    :param param: the parameter's index, in the order in which parameters were registered.
    :param owner: the owner's rank within the process group.
    :param start: the first element's index in the parameter, read flat.
    :param numel: how many elements; 1 or more.
    :param flat: the first element's index in the whole layout.
    """

    param: int
    owner: int
    start: int
    numel: int
    flat: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A flat layout of parameters over ``partitions`` ranks. Make one with :meth:`plan`.

    Rank ``r`` owns elements ``r * partition_numel`` up to ``(r + 1) * partition_numel``. Padding
    stands between parameters (where they are aligned) and at the tail, where it may fill whole
    partitions: there are more ranks than elements, or none at all.

    :param numels: elements of each parameter, in the order of registration.
    :param order: parameters in the order in which they lie in the layout.
    :param offsets: where each parameter starts in the layout, in the order of registration.
    """

    numels: tuple[int, ...]
    partitions: int
    partition_numel: int
    order: tuple[int, ...]
    offsets: tuple[int, ...]

    @classmethod
    def plan(
        cls,
        numels: Sequence[int],
        partitions: int,
        *,
        alignment: int = 2,
        parameter_alignment: int = 1,
        round_robin: bool = False,
    ) -> Layout:
        """Lay parameters of ``numels`` elements over ``partitions`` ranks.

        :param alignment: a partition's length is a multiple of this many elements. DeepSpeed
            pads to twice the number of ranks, which is an alignment of 2.
        :param parameter_alignment: each parameter starts at a multiple of this many elements.
        :param round_robin: deal the parameters to the ranks like cards, so that gradients that
            become ready together have different owners.
        :raises UsageError: on a count below one or a negative number of elements.
        """
        _refuse_bad_counts(numels, partitions, alignment, parameter_alignment)
        order = dealt(len(numels), partitions) if round_robin else tuple(range(len(numels)))
        offsets, end = [0] * len(numels), 0
        for param in order:
            offsets[param] = _round_up(end, parameter_alignment)
            end = offsets[param] + numels[param]
        partition_numel = _round_up(-(-end // partitions), alignment)
        return cls(tuple(numels), partitions, partition_numel, order, tuple(offsets))

    @property
    def numel(self) -> int:
        """Elements of the whole layout, padding included."""
        return self.partition_numel * self.partitions

    def slices(self, param: int) -> Iterator[Slice]:
        """Yield the slices of one parameter, first element first; none if it has no element."""
        start, offset = 0, self.offsets[param]
        while start < self.numels[param]:
            owner, within = divmod(offset + start, self.partition_numel)
            numel = min(self.numels[param] - start, self.partition_numel - within)
            yield Slice(param, owner, start, numel, offset + start)
            start += numel

    def owned(self, rank: int) -> list[Slice]:
        """Return what ``rank`` owns, in the order of the layout.

        :raises UsageError: when there is no such rank.
        """
        if not 0 <= rank < self.partitions:
            raise UsageError(f"rank {rank} has no partition; there are {self.partitions}, from 0")
        every = (piece for param in self.order for piece in self.slices(param))
        return [piece for piece in every if piece.owner == rank]

    def range_of(self, rank: int) -> slice:
        """Return the part of the flat layout that ``rank`` owns, padding included."""
        return slice(rank * self.partition_numel, (rank + 1) * self.partition_numel)


def dealt(count: int, hands: int) -> tuple[int, ...]:
    """Deal 0 up to ``count`` to ``hands`` hands and lay the hands down one after the other."""
    return tuple(item for hand in range(hands) for item in range(hand, count, hands))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _refuse_bad_counts(
    numels: Sequence[int], partitions: int, alignment: int, parameter_alignment: int
) -> None:
    counts = {
        "partitions": partitions,
        "alignment": alignment,
        "parameter_alignment": parameter_alignment,
    }
    for name, value in counts.items():
        if value < 1:
            raise UsageError(f"{name}={value}; a layout needs 1 or more")
    for param, numel in enumerate(numels):
        if numel < 0:
            raise UsageError(f"parameter {param} has {numel} elements; it needs 0 or more")
