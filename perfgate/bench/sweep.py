"""From what is asked to rows: which ops, which sizes, one after the other on living ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from perfgate.bench.request import Request, Sample, on_rank
from perfgate.bench.row import Row
from perfgate.bench.shared import SharedRow
from perfgate.errors import UsageError

_RANKS = "perfgate.bench.ranks"


class Ranks(Protocol):
    """What the sweep needs of a world."""

    def run(self, function: Callable[..., Any], *args: Any, deadline_s: float) -> list[Any]:
        """Run a function on every rank; return the results by rank."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What to measure.

    :param ops: names, in order.
    :param sizes_bytes: nccl-tests' sizes, each rounded to what divides; empty takes the largest
        message that fits.
    :param template: a request whose op and size are filled in.
    :param deadline_s: the time that one row may take.
    """

    ops: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    template: Request
    mem_factor: float = 0.3
    deadline_s: float = 600.0

    def rows(
        self, ranks: Ranks, world_size: int, tell: Callable[[Request], None]
    ) -> Iterator[Row | SharedRow]:
        """Measure and yield rows, op by op. What an op cannot is a row that says so.

        :param tell: is told what comes next.
        :raises UsageError: for what cannot be, whatever the op.
        """
        from perfgate.comm.dtypes import parse_dtype
        from perfgate.comm.ops import get_op

        group_size = self.group_size(world_size)
        itemsize = parse_dtype(self.template.dtype).itemsize
        for name in self.ops:
            op = get_op(name)
            sizes = [op.round_size(size, itemsize, group_size) for size in self.sizes_bytes]
            if not sizes:
                sizes = [self._largest(ranks, name, itemsize, group_size)]
            for size_bytes in dict.fromkeys(sizes):
                request = self._request(name, op.placements, size_bytes)
                tell(request)
                yield self._row(ranks, request, itemsize)

    def group_size(self, world_size: int) -> int:
        """Return how many ranks one group has.

        :raises UsageError: when the world does not divide into the groups asked for.
        """
        groups = self.template.groups
        if groups < 1 or world_size % groups:
            raise UsageError(f"{world_size} ranks do not make {groups} groups of equal size")
        return world_size // groups

    def _request(self, op: str, placements: tuple[str, ...], size_bytes: int) -> Request:
        asked = self.template.placement
        placement = asked if asked in placements else placements[0]
        return replace(self.template, op=op, size_bytes=size_bytes, placement=placement)

    def _row(self, ranks: Ranks, request: Request, itemsize: int) -> Row | SharedRow:
        function = "measure" if request.groups == 1 else "share"
        samples = ranks.run(on_rank, _RANKS, function, request, deadline_s=self.deadline_s)
        if any(isinstance(sample, Sample) for sample in samples):
            return Row.of(request, itemsize, samples)
        return SharedRow.of(request, samples)

    def _largest(self, ranks: Ranks, name: str, itemsize: int, group_size: int) -> int:
        from perfgate.bench.memory import largest_size
        from perfgate.comm.ops import get_op

        free = ranks.run(
            on_rank, _RANKS, "free_here", self.template.device, deadline_s=self.deadline_s
        )
        return largest_size(get_op(name), min(free), self.mem_factor, itemsize, group_size)
