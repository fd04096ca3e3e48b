"""How to spend a budget: calls in a launch, launches of a case, launches among cases.

The optimum at two levels is Kalibera and Jones' ("Rigorous Benchmarking in Reasonable Time",
ISMM 2013): as many calls in a launch as ``sqrt(cost of a launch / cost of a call * variance
between calls / variance between launches)``, and as many launches as the budget then pays for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

from perfgate.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a case takes and how it varies.

    :param launch_s: what a fresh world costs before its first timed call.
    :param call_s: one timed call with all that surrounds it.
    :param calls_variance: of the log of one call within a launch. For a quantile at ``q`` of a
        density ``f`` there, ``q (1 - q) / f**2`` in place of it.
    :param launches_variance: of a launch's figure beyond what its finite calls explain.
    """

    launch_s: float
    call_s: float
    calls_variance: float
    launches_variance: float

    def __post_init__(self) -> None:
        if not (self.launch_s > 0 and self.call_s > 0):
            raise UsageError(
                f"launch {self.launch_s} s and call {self.call_s} s must be above zero"
            )
        if not (self.calls_variance >= 0 and self.launches_variance >= 0):
            raise UsageError("variances are not below zero")


def calls_per_launch(cost: Cost, *, least: int = 20, most: int = 1000) -> int:
    """Return how many calls a launch is worth, between ``least`` and ``most``."""
    if cost.launches_variance == 0:
        return most
    ratio = cost.launch_s / cost.call_s * cost.calls_variance / cost.launches_variance
    return min(max(math.ceil(math.sqrt(ratio)), least), most)


def launches_within(cost: Cost, calls: int, budget_s: float, *, least: int = 2) -> int:
    """Return how many launches of so many calls a case's budget pays for, ``least`` at least.

    :raises UsageError: when there is no budget.
    """
    if not budget_s > 0:
        raise UsageError(f"a budget of {budget_s:g} s measures nothing; give --perfgate-budget")
    return max(int(budget_s / (cost.launch_s + calls * cost.call_s)), least)


def spend(
    errors: Mapping[str, float],
    launches: Mapping[str, int],
    launch_s: Mapping[str, float],
    budget_s: float,
    *,
    wanted: float,
) -> dict[str, int]:
    """Return further launches by case: the widest interval first, until the budget is spent.

    A case's standard error is taken to fall with the square root of its launches. Nothing is
    spent on a case whose error is ``wanted`` or less.

    :param errors: the standard error of each case's log time after its ``launches`` so far.
    :param launch_s: what one more launch of each case takes.
    """
    extra = dict.fromkeys(errors, 0)
    queue = [(-error, case) for case, error in errors.items() if error > wanted]
    heapq.heapify(queue)
    left_s = budget_s
    while queue:
        _, case = heapq.heappop(queue)
        if launch_s[case] > left_s:
            continue
        left_s -= launch_s[case]
        extra[case] += 1
        error = errors[case] * math.sqrt(launches[case] / (launches[case] + extra[case]))
        if error > wanted:
            heapq.heappush(queue, (-error, case))
    return extra
