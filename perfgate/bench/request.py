"""What ``perfgate bench`` asks of a rank and what it gets back; free of torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One row of the benchmark: an op at one size.

    :param size_bytes: nccl-tests' size.
    :param placement: ``in_place`` or ``out_of_place``; None takes the op's usual form.
    :param row_s: take fewer trials and warm-ups, at least three and one, where all would take
        longer than this; None takes all.
    :param asynchronous: call with ``async_op``, and tell entering from waiting.
    :param groups: cut the world into so many groups of equal size; 1 is the world itself.
    :param strided: whether a group takes every ``groups``-th rank rather than neighbours.
    :param link_gbps: what one link can carry, where the user says; more busbw is not believed.
    :param debug: bring back the first values sent and received.
    """

    op: str
    size_bytes: int
    dtype: str = "float32"
    provider: str = "torch"
    device: str = "cpu"
    placement: str | None = None
    trials: int = 50
    warmups: int = 5
    row_s: float | None = None
    asynchronous: bool = False
    groups: int = 1
    strided: bool = False
    link_gbps: float | None = None
    debug: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One rank's part of a row. Times are ``[trials]``, in nanoseconds.

    :param times_ns: each call, from entering it to its result.
    :param enqueue_ns: of each asynchronous call, until it returned its handle.
    :param wall_ns: the whole loop, of which the calls are a part.
    :param tick_ns: the clock's resolution.
    :param copy_ns: a plain copy of the bytes that this rank cannot have had before; 0 for none.
    :param problem: what was wrong with the data.
    :param skipped: why this rank could not call the op: memory, or support, was lacking.
    :param debug: the first values sent and received.
    """

    times_ns: Nanoseconds = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    enqueue_ns: Nanoseconds | None = None
    wall_ns: int = 0
    tick_ns: int = 0
    copy_ns: int = 0
    problem: str | None = None
    skipped: str | None = None
    debug: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One rank's part of a row on several groups, first each alone, then all at once.

    Stamps are ``[trials, 2]``, entering and leaving a call, on the host's monotonic clock.
    """

    group: int
    alone_ns: Nanoseconds
    together_ns: Nanoseconds
    problem: str | None = None


def on_rank(module: str, function: str, *args: Any) -> Any:
    """Call a function of a module that only ranks import, because it needs torch."""
    return getattr(importlib.import_module(module), function)(*args)
