"""How each collective is set up on a rank: its buffers, its call and the result it must give.

A plan's function takes this rank as a :class:`Member` and the message; it allocates flat buffers
once, so that the timed call does nothing but communicate.
"""

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
        ranks = tuple(torch.distributed.get_process_group_ranks(group))
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


def all_reduce(member: Member, message: Message) -> Plan:
    """One buffer, summed over the ranks where it lies."""
    buffer = message.new(message.count)

    def start(async_op: bool) -> Any:
        return member.comm.all_reduce(buffer, group=member.group, async_op=async_op)

    return Plan(buffer, start, buffer, (Segment(member.everyone, 0, message.count),))


def _gathered(member: Member, message: Message) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return a shard to send, a buffer for all shards, and what must be in it."""
    shard = message.count // member.size
    whole = message.new(message.count)
    own = whole[member.index * shard :][:shard] if message.in_place else message.new(shard)
    return own, whole, tuple(Segment((rank,), 0, shard) for rank in member.everyone)


def _scattered(member: Member, message: Message) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return a buffer of all shards to send, one for this rank's shard, and its start."""
    shard = message.count // member.size
    whole, start = message.new(message.count), member.index * shard
    return whole, whole[start:][:shard] if message.in_place else message.new(shard), start


def all_gather(member: Member, message: Message) -> Plan:
    """Every rank's shard into a list of tensors, here views of one buffer."""
    own, whole, expected = _gathered(member, message)
    pieces = list(whole.chunk(member.size))

    def start(async_op: bool) -> Any:
        return member.comm.all_gather(pieces, own, group=member.group, async_op=async_op)

    return Plan(own, start, whole, expected)


def all_gather_into_tensor(member: Member, message: Message) -> Plan:
    """Every rank's shard into one tensor."""
    own, whole, expected = _gathered(member, message)

    def start(async_op: bool) -> Any:
        return member.comm.all_gather_into_tensor(whole, own, group=member.group, async_op=async_op)

    return Plan(own, start, whole, expected)


def reduce_scatter(member: Member, message: Message) -> Plan:
    """A list of shards, here views of one buffer; each rank keeps the sum of its own."""
    whole, own, first = _scattered(member, message)
    pieces = list(whole.chunk(member.size))

    def start(async_op: bool) -> Any:
        return member.comm.reduce_scatter(own, pieces, group=member.group, async_op=async_op)

    return Plan(whole, start, own, (Segment(member.everyone, first, own.numel()),))


def reduce_scatter_tensor(member: Member, message: Message) -> Plan:
    """One tensor of all shards; each rank keeps the sum of its own."""
    whole, own, first = _scattered(member, message)

    def start(async_op: bool) -> Any:
        return member.comm.reduce_scatter_tensor(own, whole, group=member.group, async_op=async_op)

    return Plan(whole, start, own, (Segment(member.everyone, first, own.numel()),))


def all_to_all_single(member: Member, message: Message) -> Plan:
    """One tensor of shards, the i-th for rank i; as many come back."""
    send, receive = message.new(message.count), message.new(message.count)
    shard = message.count // member.size

    def start(async_op: bool) -> Any:
        return member.comm.all_to_all_single(receive, send, group=member.group, async_op=async_op)

    expected = tuple(Segment((rank,), member.index * shard, shard) for rank in member.everyone)
    return Plan(send, start, receive, expected)


def broadcast(member: Member, message: Message) -> Plan:
    """The first rank's buffer to all."""
    buffer, root = message.new(message.count), member.ranks[0]

    def start(async_op: bool) -> Any:
        return member.comm.broadcast(buffer, src=root, group=member.group, async_op=async_op)

    return Plan(buffer, start, buffer, (Segment((0,), 0, message.count),))


def reduce(member: Member, message: Message) -> Plan:
    """One buffer, summed into the first rank's."""
    buffer, root = message.new(message.count), member.ranks[0]

    def start(async_op: bool) -> Any:
        return member.comm.reduce(buffer, dst=root, group=member.group, async_op=async_op)

    # Elsewhere than on the root gloo leaves partial sums, which nobody promised anything about.
    if not member.is_root:
        return Plan(buffer, start, None)
    return Plan(buffer, start, buffer, (Segment(member.everyone, 0, message.count),))


def gather(member: Member, message: Message) -> Plan:
    """Every rank's shard to the first rank."""
    root = member.ranks[0]
    if member.is_root:
        own, whole, expected = _gathered(member, message)
        pieces: list[torch.Tensor] | None = list(whole.chunk(member.size))
    else:
        own, pieces = message.new(message.count // member.size), None

    def start(async_op: bool) -> Any:
        return member.comm.gather(own, pieces, dst=root, group=member.group, async_op=async_op)

    return Plan(own, start, whole, expected) if member.is_root else Plan(own, start, None)


def scatter(member: Member, message: Message) -> Plan:
    """The first rank's shards, one to each rank."""
    root = member.ranks[0]
    if member.is_root:
        whole, own, first = _scattered(member, message)
        pieces: list[torch.Tensor] | None = list(whole.chunk(member.size))
    else:
        own, pieces = message.new(message.count // member.size), None
        first = member.index * own.numel()

    def start(async_op: bool) -> Any:
        return member.comm.scatter(own, pieces, src=root, group=member.group, async_op=async_op)

    expected = (Segment((0,), first, own.numel()),)
    return Plan(whole if member.is_root else None, start, own, expected)


def send_recv(member: Member, message: Message) -> Plan:
    """Send to the next rank and receive from the one before, in a ring, as nccl-tests does.

    :raises UsageError: for one rank, which has no other to send to.
    """
    if member.size < 2:
        raise UsageError("send_recv needs 2 ranks or more: a rank cannot send to itself")
    send, receive = message.new(message.count), message.new(message.count)
    before = (member.index - 1) % member.size
    source, target = member.ranks[before], member.ranks[(member.index + 1) % member.size]
    start = _exchange(member, [(receive, source)], [(send, target)])
    return Plan(send, start, receive, (Segment((before,), 0, message.count),))


def _exchange(
    member: Member,
    receives: list[tuple[torch.Tensor, int]],
    sends: list[tuple[torch.Tensor, int]],
) -> Callable[[bool], Any]:
    comm, group = member.comm, member.group

    def start(_async_op: bool) -> Any:
        handles = [comm.irecv(buffer, src=rank, group=group) for buffer, rank in receives]
        handles += [comm.isend(buffer, dst=rank, group=group) for buffer, rank in sends]
        return handles

    def start_batch(_async_op: bool) -> Any:
        calls = [comm.P2POp(comm.irecv, buffer, rank, group) for buffer, rank in receives]
        calls += [comm.P2POp(comm.isend, buffer, rank, group) for buffer, rank in sends]
        return comm.batch_isend_irecv(calls)

    # On NCCL single sends and receives run one after the other and a ring would lock up.
    return start_batch if torch.distributed.get_backend(group) == "nccl" else start
