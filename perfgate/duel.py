"""Two commits measured: two worlds that live at once, head and base, whose calls alternate.

A launch is a fresh pair of worlds, started in random order from the places of their zygotes in
turn. In each pair of calls both worlds make one, again in random order; a call's time is the
slowest rank's, and the launch's figure is the median of the pairs' ratios, in which what befalls
the machine cancels (:func:`perfgate.gate.ratio.paired_ratios`).
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfgate.base import Base, blamed_on, is_its_own
from perfgate.errors import UsageError
from perfgate.gate.conditions import Conditions, others_share
from perfgate.gate.ratio import paired_ratios
from perfgate.measure import (
    LAUNCH_OVERHEAD_S,
    LAYOUTS,
    MIN_LAUNCH_S,
    Effort,
    PairTiming,
    Timing,
    undisturbed,
)
from perfgate.model import Case, Launch, Measurement
from perfgate.scheduling import class_for
from perfgate.world.controller import RankFailure, World
from perfgate.world.crossing import OnRank
from perfgate.world.local import host
from perfgate.world.pool import Worlds

MIN_PAIRS, MAX_PAIRS = 20, 1000
_WARMUPS = 5
_TURNS = "perfgate.bench.turns"
_BIND, _TAKE, _LOADED = (OnRank(_TURNS, name) for name in ("bind", "take", "loaded_below"))
Times = npt.NDArray[np.int64]
_NONE: Times = np.empty((0, 0), np.int64)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two worlds."""

    world: World
    timing: Timing
    base: Base | None = None

    def bind(self) -> str | None:
        """Make it ready; return what was wrong with a result."""
        slowdown = 0.0 if self.base else self.timing.slowdown
        with self._blamed():
            found = self.world.run(
                _BIND, self.timing.function, self.timing.args, slowdown, _WARMUPS
            )
        return next((problem for problem in found if problem), None)

    def take(self, order: Sequence[int]) -> tuple[list[int], str | None]:
        """Make one turn; return each arm's time in ns and what was wrong with a result."""
        with self._blamed():
            turns = self.world.run(_TAKE, order)
        times_ns = [max(arm) for arm in zip(*(times for times, _ in turns), strict=True)]
        return times_ns, next((problem for _, problem in turns if problem), None)

    def check_origin(self) -> None:
        """Refuse to go on where the base runs the head's code.

        :raises UsageError: naming the module and its file.
        """
        if self.base is None:
            return
        with self._blamed():
            found = self.world.run(_LOADED, os.path.realpath(self.base.checkout))[0]
        for name, file in found:
            if not is_its_own(file, self.base):
                raise UsageError(
                    f"the base imported {name} from the head's checkout, {file}; "
                    f"install the base's own into {self.base.interpreter.python}"
                )

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Say of a failure of the base that it is the base's."""
        __tracebackhide__ = True
        try:
            yield
        except RankFailure as failure:
            if isinstance(failure.__cause__, UsageError):
                raise failure.__cause__ from None
            if self.base is None:
                raise
            raise blamed_on(self.base, failure) from failure


@dataclass(frozen=True, slots=True)
class _Pairs:
    """What one launch gave: times in ns, shape ``(arms, pairs)``, and the first problem."""

    head: Times
    base: Times
    problem: str = ""

    def launch(self) -> Launch:
        """Return the ratios; of two arms in each world, the ratios of their ratios."""
        head, base = (side[0] if len(side) == 1 else side[0] / side[1] for side in self._both)
        return paired_ratios(head, base)

    @property
    def _both(self) -> tuple[Times, Times]:
        return self.head, self.base


def measure_beside(
    case: Case,
    environment: str,
    timing: Timing,
    worlds: Worlds,
    effort: Effort,
    tell: Callable[[int, int], None],
    *,
    base: Base,
    attempt: str,
) -> Measurement:
    """Measure a case on head and base side by side.

    :param effort: of its time for each launch, what starting a second world takes is left out.
    :param tell: is told the number of each launch before it, from 1, and of how many.
    :param attempt: makes the random orders others than those of another attempt.
    :raises NotInBase: when the base lacks what is measured.
    :raises UsageError: when the base has not its own package under test.
    :raises WorldError: when the base fails otherwise.
    """
    __tracebackhide__ = True
    order = random.Random(f"{base.seed} {case.id} {attempt}")
    launches, times_s = [], []
    problem = ""
    launch_s = max(effort.launch_s - LAUNCH_OVERHEAD_S, MIN_LAUNCH_S)
    before = Conditions.read()
    with undisturbed(case.world):
        for number in range(1, effort.launches + 1):
            tell(number, effort.launches)
            pairs = _launch(case, timing, worlds, launch_s, number, base, order)
            if problem := pairs.problem:
                break
            launches.append(pairs.launch())
            times_s.append(float(np.quantile(pairs.head[0], 0.25)) / 1e9)
    single = times_s and not isinstance(timing, PairTiming)
    return Measurement(
        case=case,
        environment=environment,
        launches=tuple(launches),
        problems=(problem,) if problem else (),
        others_share=others_share(before, Conditions.read()),
        time_s=float(np.exp(np.mean(np.log(times_s)))) if single else math.nan,
    )


def _launch(
    case: Case,
    timing: Timing,
    worlds: Worlds,
    launch_s: float,
    number: int,
    base: Base,
    order: random.Random,
) -> _Pairs:
    __tracebackhide__ = True
    with ExitStack() as living:
        sides = _start(case, timing, worlds, number, base, order, living)
        for side in order.sample(sides, 2):
            if problem := side.bind():
                return _Pairs(_NONE, _NONE, problem)
        pairs = _alternate(sides, 2 if isinstance(timing, PairTiming) else 1, launch_s, order)
        if number == 1:
            sides[1].check_origin()
    return pairs


def _start(
    case: Case,
    timing: Timing,
    worlds: Worlds,
    number: int,
    base: Base,
    order: random.Random,
    living: ExitStack,
) -> list[_Side]:
    """Return head and base, started in random order."""
    theirs = (number + number // LAYOUTS) % LAYOUTS  # meets each of ours in turn
    machines = host(number % LAYOUTS), host(theirs, base.interpreter)
    started = {}
    for which in order.sample((0, 1), 2):
        started[which] = living.enter_context(
            worlds.fresh(case.world, scheduling=class_for(case.world.size), machine=machines[which])
        )
    return [_Side(started[0], timing), _Side(started[1], timing, base)]


def _alternate(sides: list[_Side], arms: int, launch_s: float, order: random.Random) -> _Pairs:
    times: list[list[list[int]]] = [[], []]
    until = time.monotonic() + launch_s
    problem = ""
    while len(times[0]) < MIN_PAIRS or (time.monotonic() < until and len(times[0]) < MAX_PAIRS):
        within = order.sample(range(arms), arms)
        for which in order.sample((0, 1), 2):
            times_ns, found = sides[which].take(within)
            times[which].append(times_ns)
            problem = problem or found or ""
        if problem:
            break
    head, base = (np.asarray(side).T for side in times)
    if not problem and min(head.min(), base.min()) <= 0:
        problem = "a call took no time: below the clock's resolution"
    return _Pairs(head, base, problem)
