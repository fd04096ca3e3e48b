"""Direct exchange: ranks send each other their parts, and each owner adds up what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist

from perfgate.zero.message import Message, Pending, spans, wide

_CHUNK_NUMEL = 1 << 16
"""Elements summed at a time: small enough that the running sum stays in the cache."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Send each owner its part as it is; the owner adds the parts up by rank, in fp32 or wider.

    One ``all_to_all_single``, but on gloo for parts longer than a segment: those go from rank to
    rank in segments, and a segment is added up while the next ones travel.

    :param segment_bytes: what travels at a time on gloo.
    """

    segment_bytes: int = 8 << 20

    name: ClassVar[str] = "exchange"

    def start(self, message: Message) -> Pending:
        """Enter the exchange."""
        length = max(1, self.segment_bytes // message.data.element_size())
        long = max(message.counts) > length
        if long and dist.get_backend(message.group) == "gloo":
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
