"""The pace at which a machine passes messages, and how far a case follows it.

Where the host of a virtual machine has put its processors changes the probe of
:mod:`perfgate.bench.probe` by up to 30 % within a minute, and every collective with it. On such a
machine with two cores, nine runs of thirty cases of identical code against a stored session, the
probe between 24 % faster and 31 % slower: log times changed by 0.75 (4 KiB), 0.80 (256 KiB) and
0.65 (4 MiB) of the change of the probe's, and what that left had a standard deviation of 0.020,
0.029 and 0.040, in place of 0.087, 0.089 and 0.086.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfgate.gate.stats import Component, expm1, log_probes
from perfgate.model import Case, Launch

FOLLOWS = 0.75
UNSURE = Component(variance=0.15**2, dof=12.0)
"""How much what a case really follows may differ from that."""


def follows(case: Case) -> float:
    """Return how much of a change of pace a case's log time takes on; 0 for what is no message."""
    return 0.0 if case.size_bytes is None else FOLLOWS


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


STEADY = Pace(0.0)
"""A machine whose pace is the baseline's."""
