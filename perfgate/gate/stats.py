"""Estimators and intervals. One launch is one replicate; everything is in log time.

The typical call of a launch is its 25th percentile: a call either runs through or stalls in the
scheduler for milliseconds, and a low quantile varies least between fresh launches of identical
code. Launches are averaged by a 20 % trimmed mean, so that one wild launch a side counts for
nothing, and its variance is Yuen's (K. Yuen, "The two-sample trimmed t for unequal population
variances", Biometrika 61, 1974). Variances of different origin add up in one t interval whose
degrees of freedom are Satterthwaite's (Biometrics Bulletin 2, 1946).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from perfgate.model import Launch, Session

TRIM = 0.2
FIGURES = ("p10_s", "p25_s", "p50_s", "p95_s")
Floats = npt.NDArray[np.float64]


def summarise(times_s: npt.ArrayLike, probes_s: npt.ArrayLike | None = None) -> Launch:
    """Return a launch's figures from its calls' times in seconds, shape ``(calls,)``.

    :param probes_s: the machine's probe beside them; its 25th percentile is kept.

    Quantiles are interpolated linearly between order statistics (Hyndman and Fan's type 7).

    :raises ValueError: when there is no call, or a time is not finite or not above zero.
    """
    times = np.asarray(times_s, dtype=np.float64)
    if times.ndim != 1 or times.size == 0:
        raise ValueError(f"a launch's times are one row of calls, got shape {times.shape}")
    wrong = np.flatnonzero(~(np.isfinite(times) & (times > 0)))
    if wrong.size:
        raise ValueError(
            f"{wrong.size} of {times.size} calls have no usable time; the first is call "
            f"{wrong[0]} with {times[wrong[0]]!r} s"
        )
    p10, p25, p50, p95 = (float(q) for q in np.quantile(times, (0.10, 0.25, 0.50, 0.95)))
    probe_s = None if probes_s is None else float(np.quantile(np.asarray(probes_s), 0.25))
    return Launch(
        p10_s=p10, p25_s=p25, p50_s=p50, p95_s=p95, calls=int(times.size), probe_s=probe_s
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """What of a launch is compared: a quantile, and how far it follows the machine's pace.

    :param follows: 0 compares seconds, 1 round trips of the launch's own probe; the log of the
        probe counts by so much.
    """

    quantile: str = "p25_s"
    follows: float = 0.0

    def logs(self, launches: Sequence[Launch]) -> Floats:
        """Return the figure's log of each launch, shape ``(launches,)``."""
        times = log_figures(launches, self.quantile)
        return times - self.follows * log_probes(launches) if self.follows else times

    def known_of(self, launches: Iterable[Launch]) -> Figure:
        """Return this figure, or the same in seconds where a launch was not probed."""
        every = all(launch.probe_s is not None for launch in launches)
        return self if every else Figure(self.quantile)


def log_figures(launches: Sequence[Launch], quantile: str = "p25_s") -> Floats:
    """Return the log of one quantile of each launch, shape ``(launches,)``."""
    return np.log([getattr(launch, quantile) for launch in launches])


def log_probes(launches: Sequence[Launch]) -> Floats:
    """Return the log of each launch's probe, NaN where there was none."""
    return np.log([launch.probe_s or math.nan for launch in launches])


def launches_of(sessions: Iterable[Session]) -> list[Launch]:
    """Return the launches of all sessions."""
    return [launch for session in sessions for launch in session.launches]


@dataclass(frozen=True, slots=True)
class Component:
    """One share of a variance, and how many degrees of freedom it was estimated with."""

    variance: float
    dof: float

    def __mul__(self, factor: float) -> Component:
        return Component(self.variance * factor, self.dof)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of log times, with the variance of that mean."""

    value: float
    variance: float
    dof: float
    launches: int


def trimmed_mean(values: Floats) -> Mean:
    """Return the 20 % trimmed mean of ``values`` (shape ``(n,)``) and Yuen's variance of it.

    Below five values nothing is trimmed; a single value has variance 0 with no degrees of
    freedom, which only a prior can make into an interval.
    """
    ordered = np.sort(values)
    cut = int(TRIM * ordered.size)
    kept = ordered[cut : ordered.size - cut]
    if kept.size < 2:
        return Mean(float(kept.mean()), 0.0, 0.0, ordered.size)
    winsorised = np.clip(ordered, kept[0], kept[-1])
    squares = float(np.square(winsorised - winsorised.mean()).sum())
    variance = squares / (kept.size * (kept.size - 1))
    return Mean(float(kept.mean()), variance, kept.size - 1.0, ordered.size)


def lifted(component: Component, prior: Component) -> Component:
    """Return a variance that a lucky draw of few values cannot make too small.

    Below the prior it is the mean of both, weighted by their degrees of freedom; above it the
    data stand alone, so that a noisy machine is never made to look quieter than it is.
    """
    if component.variance >= prior.variance and component.dof > 0:
        return component
    return pooled(component, prior)


def pooled(first: Component, second: Component) -> Component:
    """Return the mean of two estimates of one variance, weighted by degrees of freedom."""
    dof = first.dof + second.dof
    if dof == 0:
        return Component(max(first.variance, second.variance), 0.0)
    return Component((first.variance * first.dof + second.variance * second.dof) / dof, dof)


@dataclass(frozen=True, slots=True)
class Contrast:
    """An estimated log ratio, its standard error and degrees of freedom.

    ``bias`` is by how much, either way, the estimate may be off for a reason that no repetition
    averages out.
    """

    value: float
    error: float
    dof: float
    bias: float = 0.0

    @classmethod
    def of(cls, value: float, components: Iterable[Component], bias: float = 0.0) -> Contrast:
        """Add independent variances up, with Satterthwaite's degrees of freedom."""
        parts = [part for part in components if part.variance > 0]
        total = sum(part.variance for part in parts)
        if not parts:
            return cls(value, 0.0, math.inf, bias)
        spread = sum(part.variance**2 / part.dof for part in parts)
        dof = total**2 / spread if spread > 0 else math.inf
        return cls(value, math.sqrt(total), dof, bias)

    def t(self, alpha: float) -> float:
        """The one-sided t quantile that is exceeded with probability ``alpha``."""
        if math.isinf(self.dof):
            return float(-special.ndtri(alpha))
        return float(-special.stdtrit(self.dof, alpha))

    def reach(self, alpha: float) -> float:
        """How far a one-sided bound at confidence ``1 - alpha`` lies from the estimate."""
        return self.t(alpha) * self.error + self.bias

    def lower(self, alpha: float) -> float:
        """The one-sided lower bound at confidence ``1 - alpha``."""
        return self.value - self.reach(alpha)

    def upper(self, alpha: float) -> float:
        """The one-sided upper bound at confidence ``1 - alpha``."""
        return self.value + self.reach(alpha)

    def detectable(self, *, alpha: float, limit: float, power: float = 0.95) -> float:
        """Return the smallest true log ratio that is found with probability ``power``.

        Found means that the lower bound at ``alpha`` is above 0 (a noncentral t distribution)
        and that the estimate is above ``limit``.
        """
        significant = self.error * noncentrality(self.dof, self.t(alpha), power) + self.bias
        above = limit + self.t(1 - power) * self.error
        return max(significant, above)


def noncentrality(dof: float, critical: float, power: float) -> float:
    """Return the shift, in standard errors, at which t exceeds ``critical`` with ``power``.

    The noncentral t distribution, and its limits where solving for it is slow: the normal for
    many degrees of freedom, and the spread of the standard error alone for a large shift.
    """
    if dof > 1e4:
        return critical + float(special.ndtri(power))
    if critical > 50:
        return critical * math.sqrt(float(special.chdtri(dof, 1 - power)) / dof)
    return float(special.nctdtrinc(dof, 1 - power, critical))


def expm1(value: float) -> float:
    """Return a log ratio as a ratio less one; infinite where it is past all numbers."""
    return math.inf if value > 700 else math.expm1(value)
