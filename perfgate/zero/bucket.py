"""Gradients into buckets: which travel in one message, and where each slice lies in it.

Buckets are planned before the backward pass instead of being filled as gradients come: all ranks
then enter the same collectives with the same contents, whatever order their gradients become
ready in, and each gradient is copied once, straight to its place in the message. The plan follows
the order in which gradients became ready before, so a bucket is full as early as it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from perfgate.errors import UsageError
from perfgate.zero.partition import Layout, Slice


@dataclass(frozen=True, slots=True)
class Run:
    """Elements that lie side by side both in a message and in the flat layout."""

    position: int
    flat: int
    numel: int


@dataclass(frozen=True)
class Bucket:
    """One message: its parameters and the place of their slices, grouped by owner.

    :param group: which of the reduce groups (layout and process group) it belongs to.
    :param params: indices into that group's layout, in ready order.
    :param slices: what travels, in the order of the message: by owner, then by place in the
        layout, so that neighbours there are neighbours here.
    :param counts: elements for each owner, in the order of ranks.
    """

    group: int
    params: tuple[int, ...]
    slices: tuple[Slice, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, group: int, layout: Layout, params: Iterable[int]) -> Bucket:
        """Plan the message that carries ``params`` of ``layout``."""
        chosen = tuple(params)
        slices = sorted((s for p in chosen for s in layout.slices(p)), key=lambda s: s.flat)
        counts = [0] * layout.partitions
        for piece in slices:
            counts[piece.owner] += piece.numel
        return cls(group, chosen, tuple(slices), tuple(counts))

    @property
    def numel(self) -> int:
        """Elements of the message; padding never travels."""
        return sum(self.counts)

    @cached_property
    def places(self) -> dict[int, list[tuple[Slice, int]]]:
        """For each parameter its slices, and where in the message each of them starts."""
        starts = accumulate((s.numel for s in self.slices), initial=0)
        places: dict[int, list[tuple[Slice, int]]] = {param: [] for param in self.params}
        for piece, start in zip(self.slices, starts, strict=False):
            places[piece.param].append((piece, start))
        return places

    def runs(self, owner: int) -> list[Run]:
        """Return what ``owner`` receives as merged runs; ``position`` counts from its own part."""
        runs: list[Run] = []
        position = 0
        for piece in (s for s in self.slices if s.owner == owner):
            last = runs[-1] if runs else None
            if last and last.flat + last.numel == piece.flat:
                runs[-1] = Run(last.position, last.flat, last.numel + piece.numel)
            else:
                runs.append(Run(position, piece.flat, piece.numel))
            position += piece.numel
        return runs


def plan_buckets(
    layouts: Sequence[Layout], order: Iterable[tuple[int, int]], bucket_numel: int
) -> list[Bucket]:
    """Cut ``order`` into buckets of at most ``bucket_numel`` elements, one process group in each.

    :param order: (group, parameter in that group's layout) as their gradients become ready.
    :param bucket_numel: ``reduce_bucket_size``, in elements. A larger parameter travels alone.
    :return: buckets in the order in which their last gradient becomes ready.
    :raises UsageError: when ``bucket_numel`` is below one.
    """
    if bucket_numel < 1:
        raise UsageError(f"reduce_bucket_size={bucket_numel}; a bucket holds 1 element or more")
    open_params: list[list[int]] = [[] for _ in layouts]
    filled = [0] * len(layouts)
    last_ready = [0] * len(layouts)
    buckets: list[tuple[int, Bucket]] = []

    def close(group: int) -> None:
        if open_params[group]:
            bucket = Bucket.of(group, layouts[group], open_params[group])
            buckets.append((last_ready[group], bucket))
        open_params[group], filled[group] = [], 0

    for time, (group, param) in enumerate(order):
        numel = layouts[group].numels[param]
        if filled[group] + numel > bucket_numel:
            close(group)
        open_params[group].append(param)
        filled[group] += numel
        last_ready[group] = time
    for group in range(len(layouts)):
        close(group)
    return [bucket for _, bucket in sorted(buckets, key=lambda closed: closed[0])]
