"""What the controller asks of a measured rank and what it gets back; free of torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Extent:
    """How many calls: a fixed number, or as many as fit into a time, agreed by the ranks.

    ``warmups`` calls go before them, verified and not counted.
    """

    calls: int | None = None
    budget_s: float = 0.0
    warmups: int = 5


@dataclass(frozen=True, slots=True)
class Timed:
    """One rank's times of one arm, ``(calls,)``, and what was wrong with its data."""

    times_ns: npt.NDArray[np.int64]
    problem: str | None = None


def slowest_s(ranks: list[Timed]) -> npt.NDArray[np.float64]:
    """Return each call's time in seconds, the maximum over the ranks: ``(calls,)``."""
    slowest_ns: npt.NDArray[np.int64] = np.max([timed.times_ns for timed in ranks], axis=0)
    return slowest_ns / 1e9


def problems_of(ranks: list[Timed]) -> tuple[str, ...]:
    """Return what ranks found wrong with their data."""
    return tuple(timed.problem for timed in ranks if timed.problem)
