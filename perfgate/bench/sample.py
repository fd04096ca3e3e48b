"""What the controller asks of a measured rank and what it gets back; free of torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Extent:
    """How many calls: a fixed number, or as many as fit into a time, agreed by the ranks.

    ``warmups`` calls go before them, verified and not counted. ``seed`` orders the arms, where
    there are several. ``slowdown`` is planted in every call, for the gate's proof of itself.
    """

    calls: int | None = None
    budget_s: float = 0.0
    warmups: int = 5
    seed: int = 0
    slowdown: float = 0.0


@dataclass(frozen=True, slots=True)
class Timed:
    """One rank's times of one arm, ``(calls,)``, and what was wrong with its data."""

    times_ns: npt.NDArray[np.int64]
    problem: str | None = None


def slowest(ranks: list[Timed]) -> Timed:
    """Return each call's time as the maximum over the ranks, and the first problem of any."""
    times_ns: npt.NDArray[np.int64] = np.max([timed.times_ns for timed in ranks], axis=0)
    return Timed(times_ns, next((timed.problem for timed in ranks if timed.problem), None))


def slowest_pair(ranks: list[list[Timed]]) -> Timed:
    """Return the same for two arms that were timed together, ``(2, calls)``."""
    arms = [slowest(list(arm)) for arm in zip(*ranks, strict=True)]
    problem = next((arm.problem for arm in arms if arm.problem), None)
    return Timed(np.stack([arm.times_ns for arm in arms]), problem)
