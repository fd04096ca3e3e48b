"""Turns: what is timed stays bound on its rank, which makes one call whenever it is told to.

So two worlds that live at once alternate call by call, in whatever order their controller draws.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from perfgate.bench.inject import Plant
from perfgate.bench.timing import Arm, CollectiveArm, FunctionArm, clock_here, take_turn


class Turns:
    """The arms that are bound on this rank, and how many calls each has made."""

    def __init__(self, arms: list[Arm], slowdown: float) -> None:
        self._arms = arms
        self._clock = clock_here()
        self._calls = 0
        for arm in arms if slowdown else ():
            arm.plant = Plant(op="*", slowdown=slowdown)

    def take(self, order: Sequence[int]) -> tuple[list[int], str | None]:
        """Make a call of each arm in this order; see :func:`take`."""
        problems: list[str | None] = [None] * len(self._arms)
        times_ns = take_turn(self._arms, order, self._calls, self._clock, problems)
        self._calls += 1
        return times_ns, next((problem for problem in problems if problem), None)


_bound: list[Turns] = []


def bind(function: str, args: tuple[Any, ...], slowdown: float, warmups: int) -> str | None:
    """Make ready what a function of :mod:`perfgate.bench.timing` times; call it a few times.

    Garbage collection stays off from then on; the rank lives for this alone.

    :param args: the function's arguments but the last.
    :param slowdown: planted in every call.
    :returns: what was wrong with a result.
    :raises UsageError: for an op, dtype or size that cannot be.
    """
    arms = _ARMS[function](*args)
    turns = Turns(arms, slowdown)
    problems = [turns.take(range(len(arms)))[1] for _ in range(warmups)]
    _bound[:] = [turns]
    gc.collect()
    gc.disable()
    return next((problem for problem in problems if problem), None)


def take(order: Sequence[int]) -> tuple[list[int], str | None]:
    """Make one call of each bound arm, a barrier before it.

    :param order: the arms' indices, the same on every rank.
    :returns: their times in nanoseconds, by arm, and what was wrong with a result.
    """
    return _bound[0].take(order)


def _collective(op: str, size_bytes: int, dtype: str, source: str, device: str) -> list[Arm]:
    return [CollectiveArm(op, size_bytes, dtype, source, torch.device(device))]


def _function(function: Callable[..., Any], setup: Callable[[], Any] | None) -> list[Arm]:
    return [FunctionArm(function, setup)]


def _pair(
    first: Callable[..., Any], second: Callable[..., Any], setup: Callable[[], Any] | None
) -> list[Arm]:
    return [FunctionArm(function, setup) for function in (first, second)]


_ARMS: dict[str, Callable[..., list[Arm]]] = {
    "time_collective": _collective,
    "time_function": _function,
    "time_pair": _pair,
}


def loaded_below(folder: str) -> list[tuple[str, str]]:
    """Return the modules that this rank has loaded from below a folder, by name and file."""
    files = [(name, getattr(module, "__file__", None)) for name, module in [*sys.modules.items()]]
    real = [  # some name a file that never was: torch.ops
        (name, os.path.realpath(file))
        for name, file in files
        if isinstance(file, str) and os.path.isabs(file)
    ]
    return [(name, file) for name, file in real if file.startswith(folder + os.sep)]
