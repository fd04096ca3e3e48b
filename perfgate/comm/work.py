"""Asynchronous calls: torch's handles, timed from the call to its end."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any

import torch
from torch.distributed import Work

from perfgate.comm.device import DeviceCall
from perfgate.comm.records import Records
from perfgate.comm.watch import watch

Write = Callable[..., "int | None"]
"""Logs a call that is done, from its latency, enqueue and wait in seconds; returns its index."""


class Span:
    """One call that returned handles, until the last of them is done.

    :param records: where ``write`` puts the call.
    :param device: where the call runs on a GPU, its events; their time then counts.
    """

    def __init__(
        self,
        records: Records,
        write: Write,
        enter_ns: int,
        leave_ns: int,
        handles: int,
        device: DeviceCall | None,
    ) -> None:
        self._records = records
        self._write = write
        self._enter_ns = enter_ns
        self._enqueue_s = (leave_ns - enter_ns) * 1e-9
        self._wait_s = math.nan
        self._left = handles
        self._device = device
        self._lock = threading.Lock()
        self._index: int | None = None

    def done(self, now_ns: int) -> None:
        """Count one handle as done; the last logs the call."""
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
            if self._device is not None:
                self._device.end(self._log)
            else:
                self._log((now_ns - self._enter_ns) * 1e-9)

    def _log(self, latency_s: float) -> None:
        self._index = self._write(latency_s, self._enqueue_s, self._wait_s)

    def waited(self, wait_s: float) -> None:
        """Add how long a handle's wait blocked."""
        with self._lock:
            self._wait_s = wait_s + (0.0 if math.isnan(self._wait_s) else self._wait_s)
            if self._index is not None:
                self._records.set_wait(self._index, self._wait_s)


class End:
    """The end of one handle's call, which may be seen from several sides and counts once."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._unseen = [True]  # pop is atomic

    def seen(self) -> None:
        """Count the handle as done."""
        now_ns = monotonic_ns()
        with contextlib.suppress(IndexError):  # seen before
            self._unseen.pop()
            self._span.done(now_ns)


class LoggedWork(Work):
    """torch's handle with a clock on it. Everything else is the handle's own.

    :param notified: whether the backend tells the end of a call by a future; if not, a call is
        done when its wait returns, or when ``is_completed`` first says so.
    """

    def __init__(self, work: Work, span: Span, *, notified: bool) -> None:
        super().__init__()
        self._work = work
        self._span = span
        self._end = End(span)
        if notified:
            with contextlib.suppress(RuntimeError):  # a backend without futures
                watch.follow(work.get_future(), self._end.seen)

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        """Wait as torch's handle does, and log how long that took."""
        begin_ns = monotonic_ns()
        result = self._work.wait(*args, **kwargs)
        end_ns = monotonic_ns()
        self._span.waited((end_ns - begin_ns) * 1e-9)
        self._end.seen()
        return result

    def is_completed(self) -> bool:
        """Ask torch's handle."""
        completed = self._work.is_completed()
        if completed:
            self._end.seen()
        return completed


def _delegate(name: str) -> Callable[..., Any]:
    def call(self: LoggedWork, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    call.__name__ = name
    call.__doc__ = getattr(Work, name).__doc__
    return call


_NOT_OF_AN_INSTANCE = ("__", "_pybind11", "unbox")

for _name in dir(Work):
    if not _name.startswith(_NOT_OF_AN_INSTANCE) and _name not in vars(LoggedWork):
        setattr(LoggedWork, _name, _delegate(_name))


def timed(
    result: Any,
    records: Records,
    write: Write,
    times: tuple[int, int],
    *,
    notified: bool,
    device: DeviceCall | None = None,
) -> Any:
    """Log a call now, or when the handles that it returned are done; return what it returned.

    :param times: when the call began, by ``time.monotonic_ns``, and when it returned.
    """
    enter_ns, leave_ns = times
    span = partial(Span, records, write, enter_ns, leave_ns)
    notified = notified and device is None
    if isinstance(result, Work):
        return LoggedWork(result, span(1, device), notified=notified)
    if isinstance(result, list) and result and isinstance(result[0], Work):
        shared = span(len(result), device)
        return [LoggedWork(work, shared, notified=notified) for work in result]
    if isinstance(result, torch._C.Future):
        watch.follow(result, End(span(1, device)).seen)
    elif device is not None:
        device.end(write)
    else:
        write((leave_ns - enter_ns) * 1e-9)
    return result
