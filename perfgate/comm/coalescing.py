"""Calls inside of a coalescing manager: nothing moves until it closes, as one operation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns
from typing import Any

import torch
import torch.distributed
from torch.distributed import GroupMember, ProcessGroup, distributed_c10d

from perfgate.comm.calls import COALESCED, POINT_TO_POINT_BATCH
from perfgate.comm.device import DeviceCall, begin_if_on_gpu
from perfgate.comm.logger import DECIDED
from perfgate.comm.process import comms_logger
from perfgate.comm.records import Records
from perfgate.comm.sequence import collective_number
from perfgate.comm.work import timed


@dataclass
class Batch:
    """What was called inside of one manager."""

    records: Records
    op: str = ""
    name: str = ""
    selector: str | None = None
    sizes_bytes: list[int] = field(default_factory=list)
    device: DeviceCall | None = None


_open: dict[ProcessGroup, Batch] = {}


def coalesces(group: ProcessGroup) -> bool:
    """Whether calls on this group are being collected by a manager, torch's or ours."""
    states = distributed_c10d._world.pg_coalesce_state
    return bool(states) and group in states


def join_batch(
    group: ProcessGroup,
    op: str,
    name: str | None,
    selector: str | None,
    size_bytes: int,
    arguments: tuple[Any, ...],
) -> None:
    """Count a call in with what its manager collects; torch's own manager is not logged."""
    batch = _open.get(group)
    if batch is None:
        return
    if not batch.sizes_bytes:  # the first call gives the batch its name
        batch.op = COALESCED.get(op, op)
        batch.name = name or batch.op
        batch.selector = selector
        batch.device = begin_if_on_gpu(arguments, batch.records, selector)
    batch.sizes_bytes.append(size_bytes)


@contextlib.contextmanager
def coalescing_manager(
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    async_ops: bool = False,
) -> Iterator[Any]:
    """Coalesce calls as ``torch.distributed._coalescing_manager`` does, and log them as one.

    The size is the sum of the calls inside, the time that of the one operation at the end.
    """
    pg: Any = group or GroupMember.WORLD
    batch = Batch(comms_logger.records)
    with distributed_c10d._coalescing_manager(group, device, async_ops) as manager:
        _open[pg] = batch
        try:
            yield manager
        finally:
            del _open[pg]
            enter_ns = monotonic_ns()
    if batch.sizes_bytes:
        _log(batch, pg, manager, enter_ns)


def _log(batch: Batch, group: ProcessGroup, manager: Any, enter_ns: int) -> None:
    leave_ns = monotonic_ns()
    collective = batch.op != POINT_TO_POINT_BATCH
    key = (batch.name, batch.op, group.group_name, group.size(), batch.device is not None)
    selector = batch.selector if batch.device is None else DECIDED
    write = partial(
        comms_logger.add, batch.records, selector, key, sum(batch.sizes_bytes), enter_ns,
        collective_number(group) if collective else 0,
    )  # fmt: skip
    handles = [work for work in manager.works if work is not None]
    result = timed(
        handles,
        batch.records,
        write,
        (enter_ns, leave_ns),
        notified=collective,
        device=batch.device,
    )
    if handles:
        manager.works[:] = result
