"""How to spend a budget, and what it buys: calls in a launch, launches of a case, cases.

The optimum at two levels is Kalibera and Jones' ("Rigorous Benchmarking in Reasonable Time",
ISMM 2013): as many calls in a launch as ``sqrt(cost of a launch / cost of a call * variance
between calls / variance between launches)``, and as many launches as the budget then pays for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfgate.errors import UsageError
from perfgate.gate.noise import LAUNCHES, SESSIONS
from perfgate.gate.stats import Component, Contrast, lifted
from perfgate.model import Launch


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


def variance_of_p25(launch: Launch) -> float:
    """Return the variance that one call contributes to a launch's log p25.

    ``q (1 - q) / f**2``, the density f at the quartile taken from p10 and p50.
    """
    return 0.25 * 0.75 * (math.log(launch.p50_s / launch.p10_s) / (0.50 - 0.10)) ** 2


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
    most: float = math.inf,
) -> dict[str, int]:
    """Return further launches by case: the widest interval first, until the budget is spent.

    A case's standard error is taken to fall with the square root of its launches. Nothing is
    spent on a case whose error is ``wanted`` or less, or that has got ``most``.

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
        if error > wanted and extra[case] < most:
            heapq.heappush(queue, (-error, case))
    return extra


WANTED_ERROR = 0.005
"""Below this standard error of log time, sessions and not launches make the interval."""
MOST = 4
"""A case gets at most so many times the launches that it would get if all got as many."""


def share_out(spreads: Mapping[str, float | None], launches: int) -> dict[str, int]:
    """Return launches by case, ``launches`` on average, more where they differ more.

    Each gets half, and the rest goes to the widest interval first. A case whose spread is not
    known gets the average.

    :param spreads: standard deviation of log figures between launches, as stored; None if unknown.
    """
    known = {case: spread for case, spread in spreads.items() if spread is not None}
    if not known:
        return dict.fromkeys(spreads, launches)
    least = max(launches // 2, 2)
    extra = spend(
        {case: spread / math.sqrt(least) for case, spread in known.items()},
        dict.fromkeys(known, least),
        dict.fromkeys(known, 1.0),
        float((launches - least) * len(known)),
        wanted=WANTED_ERROR,
        most=MOST * launches - least,
    )
    return {case: least + extra[case] if case in extra else launches for case in spreads}


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How a case is compared: so many launches of the head against so many stored sessions.

    :param spread: standard deviation of log figures between launches, as calibrated.
    :param between: variance between sessions, as supposed or pooled.
    """

    spread: float
    launches: int = 8
    sessions: int = 1
    stored_launches: int = 8
    between: Component = SESSIONS

    def detectable(self, *, alpha: float, limit: float = 0.10) -> float:
        """Return the smallest slowdown that it finds in 95 % of runs, a ratio less one."""
        ours = self._launches(self.launches)
        theirs = self._launches(self.stored_launches) * (1 / self.sessions)
        between = Component(self.between.variance, self.between.dof + self.sessions - 1)
        change = Contrast.of(0.0, [between * (1 + 1 / self.sessions), ours, theirs])
        return math.expm1(change.detectable(alpha=alpha, limit=math.log1p(limit)))

    def _launches(self, count: int) -> Component:
        seen = Component(self.spread**2 / count, max(count - 1.0, 0.0))
        return lifted(seen, LAUNCHES * (1 / count))


def to_detect(
    size: float, design: Design, *, alpha: float, most_launches: int = 64, most_sessions: int = 30
) -> Design | None:
    """Return the cheapest design that finds a slowdown of ``size``, None where none does.

    Sessions cost patience and launches cost time, so that sessions are added first, up to five;
    then launches, then further sessions. The limit is set to half of ``size``.
    """
    tried = [
        (sessions, launches)
        for most in (5, most_sessions)
        for launches in (design.launches, *range(design.launches + 2, most_launches + 1, 2))
        for sessions in range(design.sessions, most + 1)
    ]
    for sessions, launches in tried:
        wanted = replace(design, sessions=sessions, launches=launches)
        if wanted.detectable(alpha=alpha, limit=size / 2) <= size:
            return wanted
    return None
