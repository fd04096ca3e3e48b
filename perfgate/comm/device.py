"""Calls on a GPU: timed by events on its stream, and read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from perfgate.comm.process import comms_logger
from perfgate.comm.records import Records


class DeviceCall:
    """A call between two events on the current stream.

    A blocking call on a GPU returns once it is queued. The host is not made to wait: the time
    is read when the second event has passed.

    :param later: takes a call whose time is to be read once it is known.
    """

    def __init__(self, later: Callable[[DeviceCall], None]) -> None:
        self._later = later
        self._begin = self._record()
        self._end: Any = None
        self._write: Callable[[float], object] = float

    @staticmethod
    def _record() -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def end(self, write: Callable[[float], object]) -> None:
        """Mark the end; ``write`` will get the latency in seconds."""
        self._end = self._record()
        self._write = write
        self._later(self)

    def settle(self, block: bool) -> bool:
        """Write the latency if the end has passed, waiting for it if ``block``."""
        if block:
            self._end.synchronize()
        elif not self._end.query():
            return False
        self._write(self._begin.elapsed_time(self._end) * 1e-3)
        return True


def begin_if_on_gpu(
    arguments: tuple[Any, ...], records: Records, selector: str | None
) -> DeviceCall | None:
    """Return a begun :class:`DeviceCall` where the first tensor lies on a GPU.

    :param records: see :meth:`perfgate.comm.logger.CommsLogger.later`, which keeps the call.
    """
    for value in arguments:
        while isinstance(value, (list, tuple)) and value:
            value = value[0]
        value = getattr(value, "tensor", value)
        if isinstance(value, torch.Tensor):
            return (
                DeviceCall(partial(comms_logger.later, records, selector))
                if value.is_cuda
                else None
            )
    return None
