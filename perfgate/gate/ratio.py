"""Two arms in one world: how much of the reference's time an arm takes.

Single calls of both arms alternate in random order, and each pair gives one ratio, in which the
weather of the moment cancels. The median of a launch's paired ratios varies by about 1 % between
launches where the arms' own times vary by 2 to 10 %, and it carries over between machines, so
that its baselines are portable.

A launch of ratios is kept in a :class:`~perfgate.model.Launch` like any other: its fields hold
quantiles of the paired ratios, without unit, and ``calls`` the number of pairs.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from perfgate.errors import UsageError
from perfgate.gate.decide import PASS_ALPHA, decide, invalidity, judge
from perfgate.gate.environment import Environment
from perfgate.gate.noise import launch_variance
from perfgate.gate.phrase import repeat_command, told_again
from perfgate.gate.stats import Component, Contrast, expm1, log_figures, summarise, trimmed_mean
from perfgate.gate.weather import NONE
from perfgate.model import Baseline, Launch, Measurement, Outcome, Policy, Verdict
from perfgate.scheduling import permitted
from perfgate.units import format_percent

FIGURE = "p50_s"

SESSIONS = Component(variance=0.005**2, dof=12.0)
"""Prior of the variance of a ratio between sessions on one machine. Between identical arms none
was found beyond the launches' (0.000 to 0.004); different arms may feel the weather differently."""

LAUNCHES = Component(variance=0.01**2, dof=4.0)
"""Prior of the variance of a launch's median ratio: 0.007 to 0.013 up to 256 KiB with 300 pairs
and more, 0.05 to 0.07 at 4 MiB with 60 pairs (identical arms, shared two-core machine)."""

WORLDS = Component(variance=0.03**2, dof=4.0)
"""Prior of the variance of a launch's median ratio between two worlds that live at once, as two
commits need them: 0.03 to 0.10 up to 256 KiB, 0.07 to 0.13 at 4 MiB (identical code)."""

MACHINES = Component(variance=0.03**2, dof=12.0)
"""Prior of the variance of a ratio between sessions of any machine, for portable baselines."""


@functools.cache
def portable() -> Environment:
    """Return where ratios that hold on every machine are kept: ``baselines/portable-real-time``.

    How ranks are scheduled matters to them all the same: what a layer adds to a call is a larger
    part of a call that does not wait for the scheduler.
    """
    return Environment(hard={"portable": "ratios", "scheduling": permitted()})


def paired_ratios(arm_s: npt.ArrayLike, reference_s: npt.ArrayLike) -> Launch:
    """Return a launch of ratios from the times of its pairs, both of shape ``(pairs,)``.

    :raises ValueError: when the arms have different numbers of calls, or a time is not finite
        or not above zero.
    """
    arm, reference = np.asarray(arm_s, np.float64), np.asarray(reference_s, np.float64)
    if arm.shape != reference.shape:
        raise ValueError(f"pairs need as many calls of each arm, got {arm.shape} {reference.shape}")
    summarise(arm), summarise(reference)
    return summarise(arm / reference)


def decide_ratio(measurement: Measurement, *, at_most: float, alpha: float) -> Verdict:
    """Return whether an arm takes at most ``at_most`` of the reference's time.

    REGRESSION when the lower bound at ``alpha`` lies above ``at_most``, PASS when the upper
    bound at 95 % lies below it, INCONCLUSIVE between. ``change``, ``lower``, ``upper`` and
    ``limit`` of the verdict are ratios less one: ``-0.4`` is an arm that takes 0.6. ``mde`` is
    by how much the limit must be passed to be found in 95 % of runs.

    :param measurement: launches of :func:`paired_ratios`.
    :raises UsageError: when ``at_most`` is not above zero and finite.
    """
    if not (at_most > 0 and math.isfinite(at_most)):
        raise UsageError(f"at_most={at_most!r} must be above zero; 0.60 is six tenths of the time")
    known = Verdict(
        outcome=Outcome.INVALID,
        case=measurement.case,
        environment=measurement.environment,
        limit=at_most - 1,
        launches=len(measurement.launches),
    )
    problem = invalidity(measurement)
    if problem:
        return replace(known, reason=problem, next_step=repeat_command(measurement.case))
    mean = trimmed_mean(log_figures(measurement.launches, FIGURE))
    spread = launch_variance([mean], LAUNCHES)
    return _judged(known, Contrast.of(mean.value, [SESSIONS, spread]), at_most, alpha)


def _judged(known: Verdict, ratio: Contrast, at_most: float, alpha: float) -> Verdict:
    limit, lower, upper = math.log(at_most), ratio.lower(alpha), ratio.upper(alpha)
    above = ratio.detectable(alpha=alpha, limit=0.0)
    if lower > limit:
        outcome, bound = Outcome.REGRESSION, f"at least {math.exp(lower):.3g}"
    elif ratio.upper(PASS_ALPHA) < limit:
        outcome, bound = Outcome.PASS, f"at most {math.exp(ratio.upper(PASS_ALPHA)):.3g}"
    else:
        outcome, bound = Outcome.INCONCLUSIVE, f"{math.exp(lower):.3g} to {math.exp(upper):.3g}"
    open_question = outcome is Outcome.INCONCLUSIVE
    return replace(
        known,
        outcome=outcome,
        change=expm1(ratio.value),
        lower=expm1(lower),
        upper=expm1(upper),
        mde=expm1(above),
        reason=f"{math.exp(ratio.value):.3g} of the reference's time, {bound}; limit {at_most:g}"
        + (f", decidable from {_next_limit(ratio):.3g} on" if open_question else ""),
        next_step="" if outcome is Outcome.PASS else repeat_command(known.case),
    )


def _next_limit(ratio: Contrast) -> float:
    """The smallest ``at_most`` that this ratio would pass at this noise in 95 % of runs."""
    return math.exp(ratio.value + 2 * ratio.reach(PASS_ALPHA))


def decide_commits(measurement: Measurement, policy: Policy, *, base: str = "") -> Verdict:
    """Return the verdict on a head against a base that ran beside it, each in its own world.

    Nothing stored is needed: one launch is a pair of fresh worlds whose calls alternated in
    random order. Confirm a flagged case on fresh launches, as ever.

    :param measurement: launches of :func:`paired_ratios`, head over base.
    :param base: the commit that is compared with.
    """
    known = Verdict(
        outcome=Outcome.INVALID,
        case=measurement.case,
        environment=measurement.environment,
        limit=policy.max_regression,
        must_catch=policy.must_catch,
        launches=len(measurement.launches),
        baseline_commit=base,
        time_s=measurement.time_s,
    )
    problem = invalidity(measurement)
    if problem:
        return replace(known, reason=problem, next_step=repeat_command(measurement.case))
    mean = trimmed_mean(log_figures(measurement.launches, FIGURE))
    spread = launch_variance([mean], WORLDS)
    return judge(known, Contrast.of(mean.value, [SESSIONS, spread]), policy)


def decide_portable(
    measurement: Measurement,
    baseline: Baseline | None,
    policy: Policy,
    *,
    flagged: Verdict | None = None,
) -> Verdict:
    """Return the verdict on a ratio against its portable baseline, which any machine may store.

    :param measurement: launches of :func:`paired_ratios`, with ``portable().key`` as environment.
    :param flagged: the verdict that asked for these launches, when they are the confirmation.
    """
    verdict = decide(
        measurement,
        baseline,
        policy,
        sessions=MACHINES,
        launches=LAUNCHES,
        quantile=FIGURE,
        climate=NONE,
    )
    if flagged is not None:
        verdict = told_again(flagged, verdict)
    if not math.isfinite(verdict.time_s):
        return verdict
    share = f"{verdict.time_s:.3g} of the reference's time"
    if math.isfinite(verdict.change):
        stored = verdict.time_s / (1 + verdict.change)
        share += f", {format_percent(verdict.change)} against {stored:.3g} stored"
    reason = f"{share}; {verdict.reason}" if verdict.reason else share
    return replace(verdict, time_s=math.nan, reason=reason)
