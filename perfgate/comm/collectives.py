"""How each collective is set up on a rank.

Each function takes the rank as a :class:`Member` and the message, and allocates flat buffers once,
so that the timed call does nothing but communicate.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import torch

from perfgate.comm.pattern import Segment
from perfgate.comm.plans import Member, Message, Plan
from perfgate.errors import UnsupportedOp


def all_reduce(member: Member, message: Message) -> Plan:
    """One buffer, summed over the ranks where it lies."""
    buffer = message.new(message.count)

    def start(async_op: bool) -> Any:
        return member.comm.all_reduce(buffer, group=member.group, async_op=async_op)

    return Plan(buffer, start, buffer, (Segment(member.everyone, 0, message.count),))


COALESCED = 4
"""Tensors that one coalesced call takes."""


def _pieces(buffer: torch.Tensor) -> list[torch.Tensor]:
    return [piece for piece in buffer.tensor_split(COALESCED) if piece.numel()]


def all_reduce_coalesced(member: Member, message: Message) -> Plan:
    """One buffer cut into four tensors, summed over the ranks by one call."""
    buffer = message.new(message.count)
    pieces = _pieces(buffer)

    def start(async_op: bool) -> Any:
        return member.comm.all_reduce_coalesced(pieces, group=member.group, async_op=async_op)

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


def all_gather_coalesced(member: Member, message: Message) -> Plan:
    """Every rank's shard, cut into four tensors, to all by one call.

    :raises UnsupportedOp: when the provider's function of that name is another one.
    """
    _check_takes_lists(member.comm)
    own, whole, expected = _gathered(member, message)
    pieces, lists = _pieces(own), [_pieces(shard) for shard in whole.chunk(member.size)]

    def start(async_op: bool) -> Any:
        return member.comm.all_gather_coalesced(
            lists, pieces, group=member.group, async_op=async_op
        )

    return Plan(own, start, whole, expected)


def _check_takes_lists(comm: ModuleType) -> None:
    """Tell apart beforehand: a call that torch's coalescing refuses leaves the group unusable."""
    function = getattr(comm, "all_gather_coalesced", None)
    first = next(iter(inspect.signature(function).parameters)) if function else "no such function"
    if first != "output_tensor_lists":
        raise UnsupportedOp(
            f"{comm.__name__}.all_gather_coalesced is not torch's: it takes {first} where "
            "torch.distributed takes output_tensor_lists; use another provider or op"
        )


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


def uneven_shares(world_size: int) -> int:
    """Return how many shares an uneven exchange's buffer has: 1 + 2 + … + world_size."""
    return world_size * (world_size + 1) // 2


def all_to_all_single_uneven(member: Member, message: Message) -> Plan:
    """One tensor cut unevenly: to the i-th rank after itself go i + 1 shares.

    So every rank sends and receives as much as every other, the size.
    """
    size, me = member.size, member.index
    share = message.count // uneven_shares(size)
    shares = torch.tensor([[1 + (to - of) % size for to in range(size)] for of in range(size)])
    starts = (shares.cumsum(1) - shares).tolist()
    to, of = (shares[me] * share).tolist(), (shares[:, me] * share).tolist()
    send, receive = message.new(message.count), message.new(message.count)

    def start(async_op: bool) -> Any:
        return member.comm.all_to_all_single(
            receive, send, of, to, group=member.group, async_op=async_op
        )

    expected = tuple(
        Segment((rank,), starts[rank][me] * share, of[rank]) for rank in member.everyone
    )
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
