"""Four ways to bring each rank the sum of its slice.

Each takes a message, grouped by owner, and gives the owner the sum over the ranks of its part.
They differ in what they move and in how they round:

=============== ========================================= ==================== ==================
strategy        collective                                sent by a rank       order of the sum
=============== ========================================= ==================== ==================
all_reduce      ``all_reduce``                            2(n-1)/n of S        the backend's
reduce          ``reduce`` to each owner                  (n-1)/n of S         the backend's
reduce_scatter  ``reduce_scatter_tensor``, or the list    (n-1)/n of S [1]_    the backend's
                form where owners get unequal parts
exchange        ``all_to_all_single``, on gloo ``isend``  (n-1)/n of S         by rank, in fp32 or
                and ``irecv`` for long parts; local sum                        wider
=============== ========================================= ==================== ==================

.. [1] gloo's reduce-scatter is an all-reduce inside and moves twice as much.

Only ``exchange`` gives the same bits whatever bucket an element travels in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist

from perfgate.errors import UsageError
from perfgate.zero.exchange import Exchange
from perfgate.zero.message import Message, Pending, Strategy


class AllReduce:
    """Sum everything everywhere and keep the own part: simple, and twice the traffic."""

    name: ClassVar[str] = "all_reduce"

    def start(self, message: Message) -> Pending:
        """Enter one ``all_reduce`` over the whole message."""
        work = message.comm.all_reduce(message.data, group=message.group, async_op=True)
        return _after([work], message.mine)


class Reduce:
    """One ``reduce`` for each owner that has a part.

    Backends may leave partial sums in the buffers of other ranks; those parts of the message are
    never read again.
    """

    name: ClassVar[str] = "reduce"

    def start(self, message: Message) -> Pending:
        """Enter one ``reduce`` for each owner, in the order of ranks."""
        works = [
            message.comm.reduce(part, message.peer(owner), group=message.group, async_op=True)
            for owner, part in enumerate(message.parts)
            if part.numel()
        ]
        return _after(works, message.mine)


class ReduceScatter:
    """The collective made for it; as good as its implementation in the backend."""

    name: ClassVar[str] = "reduce_scatter"

    def start(self, message: Message) -> Pending:
        """Enter one ``reduce_scatter_tensor``; ``reduce_scatter`` where parts are unequal.

        torch 2.13 calls the former ``reduce_scatter_single``.
        """
        mine = message.mine
        out = message.scratch.take("sum", mine.numel(), mine.dtype, mine.device)
        comm, group = message.comm, message.group
        if len(set(message.counts)) == 1:
            scatter = getattr(comm, "reduce_scatter_single", None) or comm.reduce_scatter_tensor
            work = scatter(out, message.data, group=group, async_op=True)
        else:
            work = comm.reduce_scatter(out, list(message.parts), group=group, async_op=True)
        return _after([work], out)


def _after(works: Sequence[dist.Work], mine: torch.Tensor) -> Pending:
    def pending() -> torch.Tensor:
        for work in works:
            work.wait()
        return mine

    return pending


STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (AllReduce, Reduce, ReduceScatter, Exchange)
}

AUTO = "auto"
"""The name that stands for the fastest of them, see :mod:`perfgate.zero.auto`."""


def strategy_named(name: str) -> Strategy:
    """Return the strategy of this name.

    :raises UsageError: when there is none.
    """
    if name not in STRATEGIES:
        known = ", ".join([*STRATEGIES, AUTO])
        raise UsageError(f"strategy {name!r} is not known; choose one of {known}")
    return STRATEGIES[name]()
