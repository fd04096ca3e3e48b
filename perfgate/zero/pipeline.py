"""Buckets on their way: filled as gradients arrive, sent in the planned order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from perfgate.zero.bucket import Bucket, plan_buckets
from perfgate.zero.groups import ReduceGroup
from perfgate.zero.message import Strategy
from perfgate.zero.slot import Slot

TakeGradient = Callable[[int, int], torch.Tensor | None]
"""Hands over the gradient of (group, parameter) and forgets it, or None for zeros."""


class Pipeline:
    """Sends buckets in one order on all ranks, each as soon as its last gradient has arrived.

    Gradients of the bucket that is next are packed as they arrive (``contiguous``), or when the
    bucket is complete; those of later buckets wait where they are. With one slot a bucket has
    been reduced before the backward pass goes on; with two, it travels meanwhile.
    """

    def __init__(
        self,
        groups: Sequence[ReduceGroup],
        slots: Sequence[Slot],
        strategy: Strategy,
        take: TakeGradient,
        *,
        bucket_numel: int,
        contiguous: bool,
    ) -> None:
        self._groups = groups
        self._slots = slots
        self._strategy = strategy
        self._take = take
        self._bucket_numel = bucket_numel
        self._contiguous = contiguous
        self.buckets: list[Bucket] = []

    def plan(self, order: Sequence[tuple[int, int]]) -> None:
        """Cut buckets from ``order``, (group, parameter) as gradients are expected to arrive."""
        layouts = [group.layout for group in self._groups]
        self.buckets = plan_buckets(layouts, order, self._bucket_numel)
        self._bucket_of = {
            (bucket.group, param): number
            for number, bucket in enumerate(self.buckets)
            for param in bucket.params
        }

    def begin(self, *, add: bool) -> None:
        """Start a round over all buckets.

        :param add: add to what the owners hold already.
        """
        self._add = add
        self._missing = [len(bucket.params) for bucket in self.buckets]
        self._arrived: set[tuple[int, int]] = set()
        self._next = 0
        self._open()

    def arrive(self, group: int, param: int) -> None:
        """Note that a gradient can be taken, and send every bucket that this completes."""
        number = self._bucket_of[group, param]
        self._arrived.add((group, param))
        self._missing[number] -= 1
        if number == self._next and self._contiguous:
            self._pack(group, param)
        while self._next < len(self.buckets) and not self._missing[self._next]:
            self._send()

    def finish(self) -> None:
        """Wait until every bucket sent has been put down; all gradients have arrived."""
        for slot in self._slots:
            slot.settle()

    @property
    def size_bytes(self) -> int:
        """Bytes of the buffers that buckets travel in."""
        return sum(slot.size_bytes for slot in self._slots)

    @property
    def _slot(self) -> Slot:
        return self._slots[self._next % len(self._slots)]

    def _open(self) -> None:
        if self._next == len(self.buckets):
            return
        bucket = self.buckets[self._next]
        self._slot.open(bucket, self._groups[bucket.group], add=self._add)
        if self._contiguous:
            for param in bucket.params:
                if (bucket.group, param) in self._arrived:
                    self._pack(bucket.group, param)

    def _pack(self, group: int, param: int) -> None:
        self._slot.pack(param, self._take(group, param))

    def _send(self) -> None:
        bucket = self.buckets[self._next]
        if not self._contiguous:
            for param in bucket.params:
                self._pack(bucket.group, param)
        self._slot.launch(self._strategy)
        if len(self._slots) == 1:
            self._slot.settle()
        self._next += 1
        self._open()
