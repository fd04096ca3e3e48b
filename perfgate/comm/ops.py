"""The collectives that perfgate calls: one :class:`Op` each, checked against the right answer.

::

    bound = get_op("all_reduce").bind(2**20, torch.float32, device, torch.distributed)
    for call in range(calls):
        bound.fill(call)
        bound.run()                 # the call to time; complete on return on a CPU
        problem = bound.check(call)

``bind`` is itself collective: every rank of the group must call it, alike.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from perfgate.comm import collectives, pairs
from perfgate.comm.bandwidth import factor, nearest
from perfgate.comm.dtypes import dtype_name
from perfgate.comm.pattern import Pattern, Segment
from perfgate.comm.plans import Member, Message, Plan
from perfgate.errors import UnsupportedOp, UsageError
from perfgate.units import format_size

OUT_OF_PLACE, IN_PLACE = "out_of_place", "in_place"
_REFUSALS = re.compile(
    r"unsupported|(does not|not) (implement|support)|scalar type|invalid .*type", re.IGNORECASE
)
_RENAMED = ".*torch.distributed.(all|reduce).* deprecated"


def _undivided(_world_size: int) -> int:
    return 1


def _one_a_rank(world_size: int) -> int:
    return world_size


@dataclass(frozen=True, slots=True)
class Op:
    """A collective.

    :param name: as in torch.distributed; ``send_recv`` is a ring of isend and irecv.
    :param plan: sets it up on one rank.
    :param shares: how many equal shares, by the group's size, a message is cut into.
    :param sums: whether it adds up over the ranks.
    :param placements: the forms it has, the usual one first. Where one buffer serves as input
        and output that is in place, as nccl-tests has it.
    """

    name: str
    plan: Callable[[Member, Message], Plan]
    shares: Callable[[int], int] = _undivided
    sums: bool = False
    placements: tuple[str, ...] = (OUT_OF_PLACE,)

    def busbw_factor(self, world_size: int) -> float:
        """Return busbw over algbw, see :mod:`perfgate.comm.bandwidth`."""
        return factor(self.name, world_size)

    def unit_bytes(self, itemsize: int, world_size: int) -> int:
        """Return what a message size must be a multiple of."""
        return itemsize * self.shares(world_size)

    def round_size(self, size_bytes: int, itemsize: int, world_size: int) -> int:
        """Return the nearest size above zero that divides; halves go up."""
        unit = self.unit_bytes(itemsize, world_size)
        return max(1, (2 * size_bytes + unit) // (2 * unit)) * unit

    def bind(
        self,
        size_bytes: int,
        dtype: torch.dtype,
        device: torch.device | str,
        comm: ModuleType,
        group: Any = None,
        *,
        placement: str | None = None,
    ) -> BoundOp:
        """Allocate this rank's buffers and try the op once on a message of the smallest size.

        :param size_bytes: nccl-tests' size, a whole number of elements or of shards.
        :param comm: the provider's module.
        :param group: the group to communicate in; None is the world.
        :param placement: ``in_place`` or ``out_of_place``; None takes the usual one.
        :raises UsageError: for a size that does not divide (names the nearest), a form the op
            lacks, a rank outside the group, or a dtype too narrow for the group.
        :raises UnsupportedOp: when the backend or the provider lacks the op for the dtype.
        """
        _ignore_renaming()
        member = Member.of(comm, group)
        placement = self._placement(placement)
        self._check_size(size_bytes, dtype, member.size)
        device = torch.device(device)
        pattern = Pattern(dtype, device, member.size, sums=self.sums)

        def bound(size_bytes: int) -> BoundOp:
            count = size_bytes // dtype.itemsize
            message = Message(count, dtype, device, placement == IN_PLACE)
            return BoundOp(self, self.plan(member, message), pattern, member, size_bytes)

        self._probe(bound(self.unit_bytes(dtype.itemsize, member.size)), dtype)
        return bound(size_bytes)

    def _placement(self, placement: str | None) -> str:
        if placement is not None and placement not in self.placements:
            raise UsageError(
                f"{self.name} has no form {placement!r}; {nearest(placement, self.placements)}"
            )
        return placement or self.placements[0]

    def _check_size(self, size_bytes: int, dtype: torch.dtype, world_size: int) -> None:
        unit = self.unit_bytes(dtype.itemsize, world_size)
        if size_bytes > 0 and size_bytes % unit == 0:
            return
        a_unit = f"{self.shares(world_size)} {dtype_name(dtype)}"
        better = self.round_size(size_bytes, dtype.itemsize, world_size)
        raise UsageError(
            f"{self.name} cannot move {size_bytes} bytes: the size must be a multiple of {unit}, "
            f"{a_unit} on {world_size} ranks, and above 0; the nearest is {better} "
            f"({format_size(better)})"
        )

    def _probe(self, smallest: BoundOp, dtype: torch.dtype) -> None:
        member = smallest.member
        backend = torch.distributed.get_backend(member.group)
        refusal = f"{self.name} of {dtype_name(dtype)} does not work on {backend} by way of "
        smallest.fill(0)
        try:
            smallest.run()
        except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
            raise UnsupportedOp(f"{refusal}{member.comm.__name__}: {error}") from error
        except RuntimeError as error:
            if not _REFUSALS.search(str(error)):
                raise
            raise UnsupportedOp(f"{refusal}{member.comm.__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class BoundOp:
    """An op with its buffers on one rank, to be called over and over."""

    op: Op
    plan: Plan
    pattern: Pattern
    member: Member
    size_bytes: int

    def fill(self, call: int) -> None:
        """Write this call's values into the send buffer. Before each call, untimed."""
        if self.plan.send is not None:
            self.pattern.fill(self.plan.send, self.member.index, call)

    def run(self) -> None:
        """Communicate, and wait for it. On a GPU the work is in the stream on return."""
        started = self.plan.start(False)
        if started is not None:  # what blocks leaves nothing to wait for; this is timed
            for handle in _handles(started):
                handle.wait()

    def start(self) -> list[Any]:
        """Communicate asynchronously; the handles must be waited for, each once."""
        return _handles(self.plan.start(True))

    def check(self, call: int) -> str | None:
        """Return None, or the first wrong element of this call's result. After each, untimed."""
        if self.plan.receive is None:
            return None
        start = 0
        for segment in self.plan.expected:
            stretch = self.plan.receive[start : start + segment.length]
            wrong = self.pattern.first_wrong(stretch, segment, call)
            if wrong is not None:
                return self._describe(wrong, segment, start, call)
            start += segment.length
        return None

    def _describe(self, wrong: str, segment: Segment, start: int, call: int) -> str:
        source = f"from rank {segment.ranks[0]}" if len(segment.ranks) == 1 else "summed"
        stretch = f"[{start}:{start + segment.length}], {source}"
        return (
            f"{self.op.name}, rank {self.member.index} of {self.member.size}, call {call}: "
            f"of the result's {stretch}, {wrong}"
        )


def _ignore_renaming() -> None:
    """Keep torch's notices that ops have newer names out of the calls that are timed."""
    warnings.filterwarnings("ignore", message=_RENAMED, category=FutureWarning)


def _handles(started: Any) -> list[Any]:
    if started is None:
        return []
    return list(started) if isinstance(started, (list, tuple)) else [started]


_BOTH, _INSIDE = (OUT_OF_PLACE, IN_PLACE), (IN_PLACE,)
_OPS = (
    Op("all_reduce", collectives.all_reduce, sums=True, placements=_INSIDE),
    Op("all_reduce_coalesced", collectives.all_reduce_coalesced, sums=True, placements=_INSIDE),
    Op("all_gather", collectives.all_gather, _one_a_rank, placements=_BOTH),
    Op("all_gather_into_tensor", collectives.all_gather_into_tensor, _one_a_rank, placements=_BOTH),
    Op("all_gather_coalesced", collectives.all_gather_coalesced, _one_a_rank, placements=_BOTH),
    Op("reduce_scatter", collectives.reduce_scatter, _one_a_rank, True, _BOTH),
    Op("reduce_scatter_tensor", collectives.reduce_scatter_tensor, _one_a_rank, True, _BOTH),
    Op("all_to_all_single", collectives.all_to_all_single, _one_a_rank),
    Op("all_to_all_single_uneven", collectives.all_to_all_single_uneven, collectives.uneven_shares),
    Op("broadcast", collectives.broadcast, placements=_INSIDE),
    Op("reduce", collectives.reduce, sums=True, placements=_INSIDE),
    Op("gather", collectives.gather, _one_a_rank, placements=_BOTH),
    Op("scatter", collectives.scatter, _one_a_rank, placements=_BOTH),
    Op("send_recv", pairs.send_recv),
    Op("pt2pt", pairs.pt2pt),
    Op("pt2pt_bidirectional", pairs.pt2pt_bidirectional),
)
OPS: Mapping[str, Op] = MappingProxyType({op.name: op for op in _OPS})
"""Every op by name."""


def get_op(name: str) -> Op:
    """Return the op of this name.

    :raises UsageError: for an unknown one; names the nearest.
    """
    if name not in OPS:
        raise UsageError(f"op {name!r} is not known; {nearest(name, OPS)}")
    return OPS[name]
