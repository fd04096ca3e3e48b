"""Measuring a case: fresh launches, one after the other, each one replicate.

Ranks that are timed run ahead of all other processes, where that is permitted, and processors
are kept awake meanwhile: on an idle two-core virtual machine the spread between launches of
identical code then is 0.01 to 0.06 in log time, in place of 0.05 to 0.40.
"""

from __future__ import annotations

import contextlib
import getpass
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from perfgate.bench.sample import Extent, Timed, slowest, slowest_pair
from perfgate.errors import LaunchError, UsageError
from perfgate.gate.allocate import (
    MOST,
    Cost,
    calls_per_launch,
    launches_within,
    variance_of_p25,
)
from perfgate.gate.conditions import Conditions, others_share
from perfgate.gate.ratio import paired_ratios
from perfgate.gate.stats import summarise
from perfgate.model import Case, Launch, Measurement, WorldSpec
from perfgate.scheduling import REAL_TIME, class_for
from perfgate.world.awake import Awake
from perfgate.world.controller import RankFailure, World
from perfgate.world.crossing import OnRank
from perfgate.world.machine import chosen
from perfgate.world.pool import Worlds

LAUNCH_OVERHEAD_S = 0.055
MIN_LAUNCH_S, MAX_LAUNCH_S = 0.05, 0.8
LEAST_LAUNCHES = 6
#: What launches of a case usually differ by, beyond what their few calls explain, in log time.
USUAL_SPREAD = 0.03
#: Launches take turns among so many memory layouts, so that none makes the whole session.
LAYOUTS = 4
TURN_DEADLINE_S = 600.0
_TRIAL_CALLS = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure: fresh launches, and the time each spends in calls, or their number."""

    launches: int
    launch_s: float
    calls: int | None = None

    @classmethod
    def share(cls, budget_s: float, cases: int, launches: int) -> Effort:
        """Divide a run's time among its cases and their launches."""
        launch_s = budget_s / max(cases, 1) / launches - LAUNCH_OVERHEAD_S
        return cls(launches, min(max(launch_s, MIN_LAUNCH_S), MAX_LAUNCH_S))

    def times(self, factor: float) -> Effort:
        """Return the same with so many times the launches."""
        return replace(self, launches=max(round(self.launches * factor), 2))

    def fitted(self, first: Launch, took_s: float) -> Effort:
        """Return the planned time spent best, given a first launch that took ``took_s`` in all.

        As many calls a launch as they differ among themselves, and as many launches as the time
        then pays for (:mod:`perfgate.gate.allocate`).
        """
        cost = Cost(
            launch_s=max(took_s - self.launch_s, LAUNCH_OVERHEAD_S),
            call_s=self.launch_s / first.calls,
            calls_variance=variance_of_p25(first),
            launches_variance=USUAL_SPREAD**2,
        )
        calls = min(calls_per_launch(cost), MOST * first.calls)
        budget_s = self.launches * (LAUNCH_OVERHEAD_S + self.launch_s)
        launches = min(launches_within(cost, calls, budget_s), MOST * self.launches)
        least = min(self.launches, LEAST_LAUNCHES)
        return Effort(max(launches, least), self.launch_s, calls)

    def at_least(self, launches: int) -> Effort:
        """Return the same with so many launches or more."""
        return replace(self, launches=max(self.launches, launches))


@dataclass(frozen=True, slots=True)
class Timing:
    """What to time: a function of :mod:`perfgate.bench.timing` and its arguments but the last.

    ``slowdown`` is planted in every call.
    """

    function: str
    args: tuple[Any, ...]
    slowdown: float = 0.0

    def once(self, world: World, extent: Extent) -> Timed:
        """Time it on a world and return the slowest rank's time of each call.

        :raises UsageError: when a rank says that what is asked cannot be.
        :raises RankFailure: when a rank fails otherwise.
        """
        __tracebackhide__ = True
        return slowest(self._on(world, extent))

    def launch(self, timed: Timed) -> Launch:
        """Return a launch's figures."""
        probed = bool((timed.probes_ns > 0).all())
        return summarise(timed.times_ns / 1e9, timed.probes_ns / 1e9 if probed else None)

    def fitted(self, effort: Effort, first: Launch, took_s: float) -> Effort:
        """Return the effort for the launches that follow a first one."""
        return effort.fitted(first, took_s)

    def _on(self, world: World, extent: Extent) -> list[Any]:
        __tracebackhide__ = True
        call = OnRank("perfgate.bench.timing", self.function)
        extent = replace(extent, slowdown=self.slowdown)
        deadline_s = world.spec.deadline_s + extent.budget_s
        try:
            return world.run(call, *self.args, extent, deadline_s=deadline_s)
        except RankFailure as failure:
            if isinstance(failure.__cause__, UsageError):
                raise failure.__cause__ from None
            raise


class PairTiming(Timing):
    """Two functions whose calls alternate; a launch's figures are those of their ratios."""

    def once(self, world: World, extent: Extent) -> Timed:
        """Time both; the times of the first, then of the second, shape ``(2, calls)``."""
        __tracebackhide__ = True
        return slowest_pair(self._on(world, extent))

    def launch(self, timed: Timed) -> Launch:
        """Return the quantiles of the paired ratios."""
        return paired_ratios(*timed.times_ns)

    def fitted(self, effort: Effort, first: Launch, took_s: float) -> Effort:  # noqa: ARG002
        """Return the effort with as many pairs each time: a ratio needs all it can get."""
        return replace(effort, calls=first.calls)


def try_once(case: Case, timing: Timing, worlds: Worlds) -> tuple[str, ...]:
    """Run a case a few times on a living world, verified and not timed; return its problems."""
    __tracebackhide__ = True
    problem = timing.once(worlds.get(case.world), Extent(_TRIAL_CALLS)).problem
    return (problem,) if problem else ()


def measure(
    case: Case,
    environment: str,
    timing: Timing,
    worlds: Worlds,
    effort: Effort,
    tell: Callable[[int, int], None],
) -> Measurement:
    """Measure a case in fresh launches.

    :param tell: is told the number of each launch before it, from 1, and of how many.
    """
    __tracebackhide__ = True
    launches: list[Launch] = []
    problems: tuple[str, ...] = ()
    before = Conditions.read()
    with undisturbed(case.world):
        while len(launches) < effort.launches and not problems:
            number = len(launches) + 1
            tell(number, effort.launches)
            began_s = time.monotonic()
            extent = Extent(effort.calls, budget_s=effort.launch_s, seed=number, probed=True)
            timed = _launch(case.world, timing, worlds, extent, number)
            if problem := _problem(timed):
                problems = (problem,)
                break
            launches.append(timing.launch(timed))
            if effort.calls is None:
                effort = timing.fitted(effort, launches[0], time.monotonic() - began_s)
    return Measurement(
        case=case,
        environment=environment,
        launches=tuple(launches),
        problems=problems,
        others_share=others_share(before, Conditions.read()),
    )


@contextlib.contextmanager
def undisturbed(spec: WorldSpec) -> Iterator[None]:
    """Have the machine for oneself, among runs of perfgate, and its processors awake.

    Two runs whose ranks both come before everything else would only measure each other.

    :raises LaunchError: when another run measures for :data:`TURN_DEADLINE_S` on end.
    """
    helps = class_for(spec.size) == REAL_TIME and spec.device == "cpu" and chosen() is None
    with _turn(), Awake() if helps else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f"perfgate-{getpass.getuser()}.lock"
    try:
        with FileLock(path, timeout=TURN_DEADLINE_S):
            yield
    except Timeout as error:
        raise LaunchError(
            f"another run of perfgate has measured on this machine for {TURN_DEADLINE_S:g} s "
            f"({path}); let it end, then run again"
        ) from error


def _launch(spec: WorldSpec, timing: Timing, worlds: Worlds, extent: Extent, number: int) -> Timed:
    __tracebackhide__ = True
    with worlds.fresh(spec, scheduling=class_for(spec.size), place=number % LAYOUTS) as world:
        return timing.once(world, extent)


def _problem(timed: Timed) -> str:
    if not timed.problem and (timed.times_ns <= 0).any():
        return "a call took no time: below the clock's resolution"
    return timed.problem or ""
