"""Measuring a case: fresh launches, one after the other, each one replicate.

Ranks that are timed run ahead of all other processes, where that is permitted, and processors
are kept awake meanwhile: on an idle two-core virtual machine the spread between launches of
identical code then is 0.01 to 0.06 in log time, in place of 0.05 to 0.40.
"""

from __future__ import annotations

import contextlib
import getpass
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from perfgate.bench.sample import Extent, Timed, slowest, slowest_pair
from perfgate.errors import LaunchError, UsageError
from perfgate.gate.conditions import Conditions, others_share
from perfgate.gate.ratio import paired_ratios
from perfgate.gate.stats import summarise
from perfgate.model import Case, Launch, Measurement, WorldSpec
from perfgate.scheduling import REAL_TIME, permitted
from perfgate.world.awake import Awake
from perfgate.world.controller import RankFailure, World
from perfgate.world.crossing import OnRank
from perfgate.world.machine import chosen
from perfgate.world.pool import Worlds

LAUNCH_OVERHEAD_S = 0.09
MIN_LAUNCH_S, MAX_LAUNCH_S = 0.05, 0.8
#: Launches take turns among so many memory layouts, so that none makes the whole session.
LAYOUTS = 4
TURN_DEADLINE_S = 600.0
_TRIAL_CALLS = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure: fresh launches, and the time each spends in calls."""

    launches: int
    launch_s: float

    @classmethod
    def share(cls, budget_s: float, cases: int, launches: int) -> Effort:
        """Divide a run's time among its cases and their launches."""
        launch_s = budget_s / max(cases, 1) / launches - LAUNCH_OVERHEAD_S
        return cls(launches, min(max(launch_s, MIN_LAUNCH_S), MAX_LAUNCH_S))

    def times(self, factor: int) -> Effort:
        """Return the same with so many times the launches."""
        return Effort(self.launches * factor, self.launch_s)


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
    tell: Callable[[int], None],
) -> Measurement:
    """Measure a case in fresh launches.

    :param tell: is told the number of each launch before it, from 1.
    """
    __tracebackhide__ = True
    launches: list[Launch] = []
    problems: tuple[str, ...] = ()
    extent = Extent(budget_s=effort.launch_s, probed=True)
    before = Conditions.read()
    with undisturbed(case.world):
        for number in range(1, effort.launches + 1):
            tell(number)
            timed = _launch(case.world, timing, worlds, extent, number)
            if problem := _problem(timed):
                problems = (problem,)
                break
            launches.append(timing.launch(timed))
            extent = replace(extent, calls=timed.times_ns.shape[-1], seed=number)
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
    helps = permitted() == REAL_TIME and spec.device == "cpu" and chosen() is None
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
    with worlds.fresh(spec, scheduling=permitted(), place=number % LAYOUTS) as world:
        return timing.once(world, extent)


def _problem(timed: Timed) -> str:
    if not timed.problem and (timed.times_ns <= 0).any():
        return "a call took no time: below the clock's resolution"
    return timed.problem or ""
