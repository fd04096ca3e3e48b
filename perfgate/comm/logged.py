"""One call under the logger's eyes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import Any

import torch
from torch.distributed import GroupMember

from perfgate.comm.calls import Call, Sizer
from perfgate.comm.coalescing import coalesces, join_batch
from perfgate.comm.device import begin_if_on_gpu
from perfgate.comm.logger import DECIDED
from perfgate.comm.process import comms_logger
from perfgate.comm.sequence import collective_number, point_to_point
from perfgate.comm.work import timed

_GPUS_EXIST = torch.version.cuda is not None or torch.version.hip is not None
_CALLERS_FRAME = 2  # above logged() and the drop-in function


@dataclass(frozen=True, slots=True)
class Target:
    """A function of torch.distributed as the logger sees it.

    :param size: computes the message size from the arguments.
    :param group_at: where the group stands among them; None for a batch, whose first operation
        has it.
    """

    name: str
    op: str
    collective: bool
    size: Sizer
    group_at: int | None

    @classmethod
    def of(cls, call: Call, parameters: Sequence[str]) -> Target:
        """Return the target of a call whose arguments come in this order."""
        group_at = parameters.index("group") if "group" in parameters else None
        return cls(call.name, call.op, call.collective, call.sizer(parameters), group_at)

    def group(self, arguments: tuple[Any, ...]) -> Any:
        """Return the group that a call is made on, whatever was given for it."""
        at = self.group_at
        group = _batch_group(arguments[0]) if at is None else arguments[at]
        return GroupMember.WORLD if group is None else group


def _batch_group(operations: Any) -> Any:
    first = operations[0] if isinstance(operations, list) and operations else None
    return getattr(first, "group", None)


class _LastGroup:
    """Name and size of the group that was called on last, which are slow to ask torch for."""

    def __init__(self) -> None:
        self._known: tuple[Callable[[], object], str, int] = (lambda: None, "", 0)

    def __call__(self, group: Any) -> tuple[str, int]:
        known, name, size = self._known  # one read: threads may call on different groups
        if known() is not group:
            name, size = group.group_name, group.size()
            self._known = (weakref.ref(group), name, size)
        return name, size


_name_and_size = _LastGroup()


def logged(
    target: Target,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    prof: bool,
    log_name: str | None,
) -> Any:
    """Call torch's function, and log the call if it is selected and succeeds.

    Nothing is looked at before torch has accepted the arguments, so that what is wrong with
    them is said by torch.
    """
    selector = None if prof else log_name or target.name
    if not target.collective:
        function = partial(point_to_point, target.group(arguments), function)
    if selector is not None and not comms_logger.selects(selector):
        return function(*arguments)
    records = comms_logger.records
    device = begin_if_on_gpu(arguments, records, selector) if _GPUS_EXIST else None
    enter_ns = monotonic_ns()
    result = function(*arguments)
    leave_ns = monotonic_ns()
    group = target.group(arguments)
    if group == GroupMember.NON_GROUP_MEMBER:
        return result
    group_name, world_size = _name_and_size(group)
    size_bytes = target.size(arguments, world_size)
    if coalesces(group):
        join_batch(group, target.op, log_name, selector, size_bytes, arguments)
        return result
    name = log_name or target.name
    if comms_logger.debug:
        name = f"{name} | [Caller Func: {sys._getframe(_CALLERS_FRAME).f_code.co_name}]"
    key = (name, target.op, group_name, world_size, device is not None)
    sequence = collective_number(group) if target.collective else 0
    if result is None and device is None:
        latency_s = (leave_ns - enter_ns) * 1e-9
        comms_logger.add(records, selector, key, size_bytes, enter_ns, sequence, latency_s)
        return None
    if device is not None:
        selector = DECIDED
    write = partial(comms_logger.add, records, selector, key, size_bytes, enter_ns, sequence)
    return timed(
        result, records, write, (enter_ns, leave_ns), notified=target.collective, device=device
    )
