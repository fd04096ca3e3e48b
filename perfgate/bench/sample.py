"""What the controller asks of a measured rank and what it gets back; free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Extent:
    """How many calls: a fixed number, or as many as fit into a time, agreed by the ranks.

    ``warmups`` calls go before them, verified and not counted. ``seed`` orders the arms, where
    there are several. ``slowdown`` is planted in every call, for the gate's proof of itself.
    ``probed`` asks for a probe of the machine after each turn (:mod:`perfgate.bench.probe`).
    """

    calls: int | None = None
    budget_s: float = 0.0
    warmups: int = 5
    seed: int = 0
    slowdown: float = 0.0
    probed: bool = False


@dataclass(frozen=True, slots=True)
class Timed:
    """One rank's times of one arm, ``(calls,)``, and what was wrong with its data.

    ``probes_ns`` are round trips of the machine's probe, one a call; zeros where there is none.
    """

    times_ns: npt.NDArray[np.int64]
    problem: str | None = None
    probes_ns: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))


def slowest(ranks: list[Timed]) -> Timed:
    """Return each call's time as the maximum over the ranks, and the first problem of any."""
    problem = next((timed.problem for timed in ranks if timed.problem), None)
    times_ns, probes_ns = (
        np.max([getattr(timed, name) for timed in ranks], axis=0)
        for name in ("times_ns", "probes_ns")
    )
    return Timed(times_ns, problem, probes_ns)


def slowest_pair(ranks: list[list[Timed]]) -> Timed:
    """Return the same for two arms that were timed together, ``(2, calls)``."""
    arms = [slowest(list(arm)) for arm in zip(*ranks, strict=True)]
    problem = next((arm.problem for arm in arms if arm.problem), None)
    return Timed(np.stack([arm.times_ns for arm in arms]), problem)
