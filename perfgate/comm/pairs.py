"""How sends and receives between two ranks are set up, one way, both ways and around a ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from perfgate.comm.pattern import Segment
from perfgate.comm.plans import Member, Message, Plan
from perfgate.errors import UsageError


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


def pt2pt(member: Member, message: Message) -> Plan:
    """Even ranks send to the odd ones after them; the last of an odd group sits out.

    :raises UsageError: for one rank, which has no other to send to.
    """
    peer = _peer(member, "pt2pt")
    if peer is None:
        return Plan(None, lambda _async_op: None, None)
    buffer = message.new(message.count)
    if member.index < peer:
        return Plan(buffer, _exchange(member, [], [(buffer, member.ranks[peer])]), None)
    start = _exchange(member, [(buffer, member.ranks[peer])], [])
    return Plan(None, start, buffer, (Segment((peer,), 0, message.count),))


def pt2pt_bidirectional(member: Member, message: Message) -> Plan:
    """Even ranks and the odd ones after them send to each other; the size is that of one way.

    :raises UsageError: for one rank, which has no other to send to.
    """
    peer = _peer(member, "pt2pt_bidirectional")
    if peer is None:
        return Plan(None, lambda _async_op: None, None)
    send, receive = message.new(message.count), message.new(message.count)
    rank = member.ranks[peer]
    start = _exchange(member, [(receive, rank)], [(send, rank)])
    return Plan(send, start, receive, (Segment((peer,), 0, message.count),))


def _peer(member: Member, op: str) -> int | None:
    if member.size < 2:
        raise UsageError(f"{op} needs 2 ranks or more: a rank cannot send to itself")
    peer = member.index ^ 1
    return peer if peer < member.size else None


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
