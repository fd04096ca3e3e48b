"""What travels: a bucket's gradients, grouped by owner, and what a strategy makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import ModuleType
from typing import ClassVar, Protocol

import torch
import torch.distributed as dist

from perfgate.zero.scratch import Scratch


@dataclass(frozen=True, slots=True)
class Message:
    """One bucket's gradients on this rank, ready to be reduced.

    :param data: 1-D, in the communication dtype, ``sum(counts)`` elements grouped by owner. A
        strategy may overwrite it.
    :param counts: elements for each rank of the group.
    :param rank: this rank within the group.
    :param scratch: buffers that are this message's own until it has been waited for.
    :param comm: the module whose collectives are called, ``torch.distributed`` or a drop-in.
    """

    data: torch.Tensor
    counts: tuple[int, ...]
    rank: int
    scratch: Scratch
    group: dist.ProcessGroup | None = None
    comm: ModuleType = field(default=dist)

    @property
    def parts(self) -> Sequence[torch.Tensor]:
        """The message cut by owner: views, some of which may be empty."""
        starts = list(accumulate(self.counts, initial=0))
        return [self.data[start : start + n] for start, n in zip(starts, self.counts, strict=False)]

    def peer(self, rank: int) -> int:
        """Return the global rank of a rank of the group."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    @property
    def mine(self) -> torch.Tensor:
        """What this rank will own: a view."""
        starts = list(accumulate(self.counts, initial=0))
        return self.data[starts[self.rank] : starts[self.rank + 1]]


Pending = Callable[[], torch.Tensor]
"""Waits, and returns the sum of this rank's part: 1-D, ``counts[rank]`` elements, in the
communication dtype or wider. It is a view of the message's buffers and free to be overwritten."""


class Strategy(Protocol):
    """A way to reduce a message."""

    name: ClassVar[str]

    def start(self, message: Message) -> Pending:
        """Enter the collective; every rank of the group must."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of ``dtype`` are added up: fp32, or fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def spans(numel: int, at_most: int) -> Iterator[slice]:
    """Cut 0 up to ``numel`` into slices of ``at_most`` elements, the last one shorter."""
    for start in range(0, numel, at_most):
        yield slice(start, min(start + at_most, numel))
