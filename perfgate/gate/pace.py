"""The pace at which a machine passes messages, and how far a case follows it.

Measured with :mod:`perfgate.bench.probe` on a two-core virtual machine, twelve cases of identical
code, 40 to 110 launches each: where the host moved the processors the probe changed by a tenth to
a half, within seconds, and log times with it, by 0.6 to 1.0 of that up to 256 KiB (correlation
0.6 to 0.99) and by 0.2 to 1.1 at 4 MiB, where copying is half of the work. Counted in round trips,
launches of up to 256 KiB differed by half to an eighth of what they did in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfgate.gate.stats import Component, expm1, log_probes
from perfgate.model import Case, Launch

LARGE_BYTES = 2**20
SMALL_FOLLOWS, LARGE_FOLLOWS = 0.75, 0.5
UNSURE = Component(variance=0.25**2, dof=12.0)
"""How much what a case really follows may differ from the above."""


def follows(case: Case) -> float:
    """Return how much of a change of pace a case's log time takes on; 0 for what is no message."""
    if case.size_bytes is None:
        return 0.0
    return SMALL_FOLLOWS if case.size_bytes < LARGE_BYTES else LARGE_FOLLOWS


@dataclass(frozen=True, slots=True)
class Pace:
    """By how much the probe's log time is longer now than for the baseline; NaN without probes."""

    shift: float

    @classmethod
    def between(cls, head: Sequence[Launch], base: Sequence[Launch]) -> Pace:
        """Compare the launches of both sides."""
        return cls(float(np.mean(log_probes(head)) - np.mean(log_probes(base))))

    @property
    def change(self) -> float:
        """The same as a ratio less one."""
        return expm1(self.shift)

    @property
    def variance(self) -> Component:
        """What allowing for it adds to the variance of a log ratio."""
        return UNSURE * (0.0 if math.isnan(self.shift) else self.shift**2)

    def __str__(self) -> str:
        return f"the machine passes messages {self.change:+.0%} slower than for the baseline"


STEADY = Pace(0.0)
"""A machine whose pace is the baseline's."""
