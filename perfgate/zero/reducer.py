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
exchange        ``all_to_all_single`` (gloo: ``isend``    (n-1)/n of S         by rank, in fp32 or
                and ``irecv``), then a local sum                               wider
=============== ========================================= ==================== ==================

.. [1] gloo's reduce-scatter is an all-reduce inside and moves twice as much.

Only ``exchange`` gives the same bits whatever bucket an element travels in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import ModuleType
from typing import ClassVar, Protocol

import torch
import torch.distributed as dist

from perfgate.errors import UsageError
from perfgate.zero.scratch import Scratch

_CHUNK_NUMEL = 1 << 16
"""Elements summed at a time: small enough that the running sum stays in the cache."""


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
        group = message.group or dist.group.WORLD
        assert group is not None  # a default group exists wherever collectives are called
        works = [
            message.comm.reduce(
                part, dist.get_global_rank(group, owner), group=group, async_op=True
            )
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


@dataclass(frozen=True, slots=True)
class Exchange:
    """Send each owner its part as it is; the owner adds the parts up by rank, in fp32 or wider.

    On gloo the parts go from rank to rank in segments, and a segment is added up while the next
    ones travel. Elsewhere it is one ``all_to_all_single``.

    :param segment_bytes: what travels at a time on gloo.
    """

    segment_bytes: int = 4 << 20

    name: ClassVar[str] = "exchange"

    def start(self, message: Message) -> Pending:
        """Enter the exchange."""
        if dist.get_backend(message.group) == "gloo":
            length = max(1, self.segment_bytes // message.data.element_size())
            rows, segments = _send_segments(message, length)
        else:
            rows, segments = _send_at_once(message)

        def pending() -> torch.Tensor:
            data, numel = message.data, message.counts[message.rank]
            total = message.scratch.take("sum", numel, wide(data.dtype), data.device)
            for span, works in segments:
                for work in works:
                    work.wait()
                sum_by_rank([row[span] for row in rows], total[span])
            return total

        return pending


_Segments = list[tuple[slice, Sequence[dist.Work]]]
"""Which elements of the own part have come once these works are done."""


def _send_at_once(message: Message) -> tuple[Sequence[torch.Tensor], _Segments]:
    """Start one ``all_to_all_single``; return each rank's contribution and when it is here."""
    ranks, numel = len(message.counts), message.counts[message.rank]
    data = message.data
    received = message.scratch.take("received", ranks * numel, data.dtype, data.device)
    work = message.comm.all_to_all_single(
        received, data, [numel] * ranks, list(message.counts), group=message.group, async_op=True
    )
    return received.view(ranks, numel).unbind(), [(slice(0, numel), [work])]


def _send_segments(message: Message, length: int) -> tuple[Sequence[torch.Tensor], _Segments]:
    """Start all sends and receives; return each rank's contribution and when segments are here.

    The last entry holds the sends: once they are done, the message may be overwritten.
    """
    rank, ranks, numel = message.rank, len(message.counts), message.counts[message.rank]
    data, comm, group, parts = message.data, message.comm, message.group, message.parts
    received = message.scratch.take("received", (ranks - 1) * numel, data.dtype, data.device)
    rows = list(received.view(ranks - 1, numel).unbind())
    rows.insert(rank, parts[rank])
    segments: _Segments = []
    sends: list[dist.Work] = []
    for tag, span in enumerate(spans(max(message.counts), length)):
        receives = []
        for distance in range(1, ranks):
            to, source = (rank + distance) % ranks, (rank - distance) % ranks
            if rows[source][span].numel():
                receives.append(comm.irecv(rows[source][span], message.peer(source), group, tag))
            if parts[to][span].numel():
                sends.append(comm.isend(parts[to][span], message.peer(to), group, tag))
        segments.append((span, receives))
    return rows, [*segments, (slice(0, 0), sends)]


def spans(numel: int, at_most: int) -> Iterator[slice]:
    """Cut 0 up to ``numel`` into slices of ``at_most`` elements, the last one shorter."""
    for start in range(0, numel, at_most):
        yield slice(start, min(start + at_most, numel))


def sum_by_rank(rows: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Add ``rows`` in their order and in the dtype of ``out``.

    :param rows: 1-D each, as long as ``out`` and no wider.
    """
    in_one_go = len(rows) > 1 and rows[0].dtype == out.dtype
    for span in spans(out.numel(), _CHUNK_NUMEL):
        chunk = out[span]
        if in_one_go:
            torch.add(rows[0][span], rows[1][span], out=chunk)
        else:
            chunk.copy_(rows[0][span])
        for row in rows[2 if in_one_go else 1 :]:
            chunk.add_(row[span])


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of ``dtype`` are added up: fp32, or fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


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
