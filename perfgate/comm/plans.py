"""What an op is on one rank: its buffers, its call and the result it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed

from perfgate.comm.pattern import Segment
from perfgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Member:
    """A rank as a member of the group that communicates: who and where it is.

    :param comm: the provider's module.
    :param group: what its calls take; None is the world.
    :param ranks: the members' global ranks, in the group's order.
    :param index: this rank's place among them.
    """

    comm: ModuleType
    group: Any
    ranks: tuple[int, ...]
    index: int

    @classmethod
    def of(cls, comm: ModuleType, group: Any = None) -> Member:
        """Find this rank among the group's.

        :raises UsageError: when this rank is not in the group.
        """
        rank = torch.distributed.get_rank()
        if group is torch.distributed.GroupMember.NON_GROUP_MEMBER:
            raise UsageError(f"rank {rank} is not in the group that it was to communicate in")
        ranks = tuple(
            torch.distributed.get_process_group_ranks(group or torch.distributed.group.WORLD)
        )
        if rank not in ranks:
            raise UsageError(f"rank {rank} is not in the group of ranks {ranks}")
        return cls(comm, group, ranks, ranks.index(rank))

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.ranks)

    @property
    def everyone(self) -> tuple[int, ...]:
        """The members by their place in the group."""
        return tuple(range(self.size))

    @property
    def is_root(self) -> bool:
        """Whether this is the group's first rank, the root of the rooted ops."""
        return self.index == 0


@dataclass(frozen=True, slots=True)
class Message:
    """What an op is to move: ``count`` elements of nccl-tests' size, in or out of place."""

    count: int
    dtype: torch.dtype
    device: torch.device
    in_place: bool

    def new(self, count: int) -> torch.Tensor:
        """Allocate a flat buffer; zeros, which no message holds."""
        return torch.zeros(count, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Plan:
    """A collective, ready to be called over and over on one rank.

    :param send: filled before each call; None where this rank sends nothing.
    :param start: enters the collective with ``async_op`` and returns its handles, if any.
    :param receive: where the result lands; None where this rank has none to check.
    :param expected: the result, stretch by stretch; together as long as ``receive``.
    """

    send: torch.Tensor | None
    start: Callable[[bool], Any]
    receive: torch.Tensor | None
    expected: tuple[Segment, ...] = ()
