"""A message buffer that bucket after bucket travels in."""

from __future__ import annotations

import contextlib
from types import ModuleType

import torch

from perfgate.zero.bucket import Bucket
from perfgate.zero.groups import ReduceGroup
from perfgate.zero.message import Message, Pending, Strategy
from perfgate.zero.scratch import Scratch


class Slot:
    """One bucket on its way: packed, under way, and put down in its owner's partition.

    With a side ``stream`` (overlap on a GPU), gradients are packed on the streams that made them;
    the collective and all that follows run on the side stream once it has waited for those, and
    the next bucket is packed once the side stream is done with this slot. Two slots then let one
    bucket travel while the other is packed.
    """

    def __init__(self, comm: ModuleType, stream: torch.cuda.Stream | None = None) -> None:
        self._comm = comm
        self._stream = stream
        self._scratch = Scratch()
        self._pending: Pending | None = None
        self._producers: set[torch.cuda.Stream] = set()
        self._done: torch.cuda.Event | None = None

    def open(self, bucket: Bucket, group: ReduceGroup, *, add: bool) -> None:
        """Make room for ``bucket``; what was under way here is put down first.

        :param add: add to what the owner holds already (a later micro-batch of the step).
        """
        self.settle()
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)
        self._bucket, self._group, self._add = bucket, group, add
        self._data = self._scratch.take(
            "message", bucket.numel, group.comm_dtype, group.owned.device
        )

    def pack(self, param: int, gradient: torch.Tensor | None) -> None:
        """Copy one parameter's gradient to its place; None is a gradient of zeros."""
        if self._stream is not None:
            self._producers.add(torch.cuda.current_stream())
        flat = None if gradient is None else gradient.reshape(-1)
        for piece, position in self._bucket.places[param]:
            place = self._data[position : position + piece.numel]
            if flat is None:
                place.zero_()
            else:
                self._group.scaling.pack(flat[piece.start : piece.start + piece.numel], place)

    def launch(self, strategy: Strategy) -> None:
        """Send the bucket off; every parameter in it has been packed."""
        if not self._bucket.numel:
            return
        message = Message(
            data=self._data,
            counts=self._bucket.counts,
            rank=self._group.rank,
            scratch=self._scratch,
            group=self._group.process_group,
            comm=self._comm,
        )
        if self._stream is not None:
            for producer in self._producers:
                self._stream.wait_stream(producer)
            self._producers.clear()
        with self._side():
            alone = len(message.counts) == 1
            self._pending = (lambda: message.data) if alone else strategy.start(message)

    def settle(self) -> None:
        """Wait for what is under way and put this rank's part down in its partition."""
        if self._pending is None:
            return
        with self._side():
            self._put_down(self._pending())
            if self._stream is not None:
                self._done = self._stream.record_event(self._done)
        self._pending = None

    def _put_down(self, total: torch.Tensor) -> None:
        group = self._group
        total = total.to(group.sum_dtype)
        base = group.rank * group.layout.partition_numel
        for run in self._bucket.runs(group.rank):
            share = group.owned[run.flat - base : run.flat - base + run.numel]
            part = total[run.position : run.position + run.numel]
            if self._add:
                share.add_(group.scaling.finish(part))
            else:
                group.scaling.finish(part, out=share)

    def _side(self) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext()

    @property
    def size_bytes(self) -> int:
        """Bytes of buffers held."""
        return self._scratch.size_bytes
