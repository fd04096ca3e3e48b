"""What is supposed of a machine's noise until stored sessions show it, by how ranks are scheduled.

All figures are of log times, measured with identical code on a shared two-core virtual machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.gate.noise import SESSIONS
from perfgate.gate.stats import Component
from perfgate.gate.weather import CHANGEABLE, SHELTERED, Climate
from perfgate.scheduling import REAL_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """Priors of the variances, and what others' load does.

    :param sessions: between sessions, of the typical call.
    :param tail_sessions: the same of the slowest twentieth, ``tail_launches`` between launches.
    :param tail_limit: by how much the tail may grow at least before it is a regression.
    """

    sessions: Component
    tail_sessions: Component
    tail_launches: Component
    tail_limit: float
    climate: Climate


AHEAD = Supposed(
    sessions=SESSIONS,
    tail_sessions=Component(variance=0.045**2, dof=12.0),
    tail_launches=Component(variance=0.06**2, dof=4.0),
    tail_limit=0.25,
    climate=SHELTERED,
)
"""Ranks in a real-time class on awake processors. Thirty cases, eleven sessions within an hour, the
pace allowed for: between sessions 0.014 (4 KiB), 0.020 (256 KiB) and 0.028 (4 MiB), of p95 0.029;
between launches 0.008 to 0.04, of p95 0.02 to 0.07. The prior allows for other hours and days; with
it, 95 % intervals held 94 % of the slowdowns that ``benchmarks/gate/power.py`` planted."""

AMONG_OTHERS = Supposed(
    sessions=SESSIONS,
    tail_sessions=Component(variance=0.2**2, dof=20.0),
    tail_launches=Component(variance=0.2**2, dof=4.0),
    tail_limit=1.0,
    climate=CHANGEABLE,
)
"""Ordinary ranks, of whose calls up to half stall. Nine cases: the tail differs by 0.2 to 0.7
between sessions, and between launches by 0.01 to 0.07 where fewer or many more than one call in
twenty stalls, by 0.4 to 0.7 where it is about one in twenty."""


def supposed(scheduling: str) -> Supposed:
    """Return what is supposed where ranks are scheduled so."""
    return AHEAD if scheduling == REAL_TIME else AMONG_OTHERS
