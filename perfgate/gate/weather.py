"""What other processes on the machine do to a session, and to two sessions compared.

Measured on a shared two-core machine, nine cases of identical code, sessions of eight launches
two to six minutes apart, two while the machine was idle and twenty while others kept it 30 to
77 % busy. Between idle and busy the small messages became up to 25 % faster (cores that never
sleep answer at once) and the large ones up to 50 % slower, at 30 % about half of that, and from
45 % on it made no difference how busy. Among busy sessions the means differed by a standard
deviation of 0.081 more than their launches explain, among idle ones by 0.012. A ratio of two
arms in one world feels none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfgate.gate.stats import Component

SATURATED = 0.45
"""The share of the processor used by others from which on more of it changes nothing."""


@dataclass(frozen=True, slots=True)
class Climate:
    """What a saturated machine does.

    :param shift: how far log times may move, either way, against an idle machine.
    :param spread: what the variance between sessions grows by.
    """

    shift: float
    spread: Component


CHANGEABLE = Climate(0.40, Component(variance=0.075**2, dof=20.0))
"""Of ordinary ranks."""
SHELTERED = Climate(0.05, Component(variance=0.03**2, dof=12.0))
"""Of ranks in a real-time class. Eleven runs of thirty cases against one session, others using 2 to
46 % of the processor: the cases' mean moved by 0.013 at most, and by 0.020 where two processes kept
both cores busy throughout."""
NONE = Climate(0.0, Component(variance=0.0, dof=12.0))
"""Of figures that do not feel what others do."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How busy others kept the machine, as shares of its processor time: now, and then.

    :param now: for the head.
    :param then: for each session of the baseline.
    """

    now: float
    then: Sequence[float]
    climate: Climate = CHANGEABLE

    @property
    def bias(self) -> float:
        """By how much the log ratio may be off because one side was busier."""
        then = float(np.mean([_busy(share) for share in self.then]))
        return self.climate.shift * abs(_busy(self.now) - then)

    @property
    def variance(self) -> Component:
        """What busy sessions add to the variance of the log ratio."""
        there = float(np.mean([_busy(share) ** 2 for share in self.then])) / len(self.then)
        return self.climate.spread * (_busy(self.now) ** 2 + there)

    def __str__(self) -> str:
        then = float(np.mean(self.then))
        return f"others used {self.now:.0%} of the processor, {then:.0%} for the baseline"


STILL = Weather(0.0, (0.0,))
"""No other process."""


def _busy(share: float) -> float:
    return min(max(share, 0.0), SATURATED) / SATURATED
