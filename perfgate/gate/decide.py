"""One measurement, one baseline, one policy: one verdict.

The change is the log ratio T of the head's typical call to the baseline's, less what the pace of
the machine explains (:mod:`perfgate.gate.pace`). Its variance is
``tau**2 (1 + 1/K) + v_head + v_base/K``: the head is one session and the baseline ``K``, and
each is seen through a few launches (:mod:`perfgate.gate.noise`). T over its standard error
follows a t distribution (:class:`perfgate.gate.stats.Contrast`). A changed pace, and other
processes that kept the machine busy (:mod:`perfgate.gate.weather`), widen all bounds by what they
may do.

- REGRESSION: the lower bound at ``policy.alpha`` is above 0 and T above ``max_regression``.
- IMPROVEMENT: the mirror of it.
- PASS: the upper bound at 95 % lies below ``must_catch``: a slowdown of that size is excluded.
- INCONCLUSIVE: neither, with the smallest change that would have been found.

Why the error over a run is held
    ``policy.alpha`` is the run's 1 % divided by the number of gated cases, fixed before
    anything is measured. A case is flagged at its estimate alone (:func:`needs_confirmation`)
    and becomes a REGRESSION only when :func:`confirm` finds it again, at ``policy.alpha``, in
    launches made after the flag. Flagged and confirmed is never likelier than confirmed, which
    by itself happens to unchanged code with probability ``policy.alpha`` at most, whatever was
    flagged, in whatever order and however the cases depend on each other; summed over the cases
    that is 1 % a run (Bonferroni). The flag can only make false alarms fewer. Dividing by the
    flagged cases alone would be wrong: both looks share one baseline and one session. The
    promise is as good as what is supposed of sessions, which is why that is in the open and
    gives way to stored sessions; tests and ``benchmarks/gate`` hold it against recorded noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfgate.gate.noise import (
    LAUNCHES,
    SESSIONS,
    figure_of,
    launch_variance,
    session_means,
    session_variance,
)
from perfgate.gate.pace import STEADY, Pace
from perfgate.gate.phrase import (
    improvement,
    inconclusive,
    regression,
    repeat_command,
    told_again,
)
from perfgate.gate.stats import (
    Component,
    Contrast,
    Figure,
    Mean,
    expm1,
    launches_of,
    log_figures,
    trimmed_mean,
)
from perfgate.gate.weather import CHANGEABLE, STILL, Climate, Weather
from perfgate.model import Baseline, Measurement, Outcome, Policy, Session, Verdict

PASS_ALPHA = 0.05
WORTH_TELLING = 0.02
MIN_LAUNCHES = 2


def decide(
    measurement: Measurement,
    baseline: Baseline | None,
    policy: Policy,
    *,
    sessions: Component = SESSIONS,
    launches: Component = LAUNCHES,
    quantile: str = "",
    climate: Climate = CHANGEABLE,
) -> Verdict:
    """Return the verdict on ``measurement``.

    :param sessions: variance between sessions to start from, in log time squared; the file's
        pooled one (:func:`perfgate.gate.noise.pool_sessions`) once it holds several sessions.
    :param launches: the variance below which the spread between launches is not believed.
    :param quantile: of a launch's calls, what is compared instead of the baseline's own.
    :param climate: how far other processes move the figures (:mod:`perfgate.gate.weather`).
    """
    known = Verdict(
        outcome=Outcome.INVALID,
        case=measurement.case,
        environment=measurement.environment,
        limit=policy.max_regression,
        must_catch=policy.must_catch,
        launches=len(measurement.launches),
    )
    problem = invalidity(measurement)
    if problem:
        return replace(known, reason=problem, next_step=repeat_command(measurement.case))
    figure = _figure(baseline, quantile)
    seconds = trimmed_mean(log_figures(measurement.launches, figure.quantile))
    known = replace(known, time_s=math.exp(seconds.value))
    if baseline is None or (absence := _absence(measurement, baseline)):
        return replace(
            known,
            outcome=Outcome.NO_BASELINE,
            reason="" if baseline is None else absence,
            next_step=repeat_command(measurement.case, "--perfgate-refresh"),
        )
    used = [session for session in baseline.sessions if session.launches]
    known = replace(known, baseline_commit=used[-1].commit, baseline_sessions=len(used))
    surroundings = Surroundings.of(measurement, used, climate)
    known = replace(known, pace=surroundings.pace.change)
    figure = figure.known_of([*measurement.launches, *launches_of(used)])
    head = trimmed_mean(figure.logs(measurement.launches))
    change = contrast(
        head,
        session_means(used, figure),
        sessions,
        launches,
        surroundings if figure.follows else replace(surroundings, pace=STEADY),
    )
    return surroundings.told(judge(known, change, policy))


def _figure(baseline: Baseline | None, quantile: str) -> Figure:
    figure = figure_of(baseline) if baseline else Figure()
    return replace(figure, quantile=quantile) if quantile else figure


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What differs between the machine now and for the baseline: who else used it, its pace."""

    weather: Weather
    pace: Pace

    @classmethod
    def of(
        cls, measurement: Measurement, sessions: Sequence[Session], climate: Climate
    ) -> Surroundings:
        """Compare a measurement's with the sessions'."""
        then = [session.others_share for session in sessions]
        weather = Weather(measurement.others_share, then, climate)
        return cls(weather, Pace.between(measurement.launches, launches_of(sessions)))

    def told(self, verdict: Verdict) -> Verdict:
        """Return an open question with what of the surroundings made it so."""
        if verdict.outcome is not Outcome.INCONCLUSIVE or self.weather.bias <= WORTH_TELLING:
            return verdict
        return replace(verdict, reason=f"{verdict.reason}; {self.weather}")


UNCHANGED = Surroundings(STILL, STEADY)


def invalidity(measurement: Measurement) -> str:
    """Return why a measurement is not to be believed; empty when it is."""
    if measurement.problems:
        return "; ".join(measurement.problems)
    count = len(measurement.launches)
    if count < MIN_LAUNCHES:
        return (
            f"{count} launch{'' if count == 1 else 'es'} measured; no spread without {MIN_LAUNCHES}"
        )
    return ""


def _absence(measurement: Measurement, baseline: Baseline) -> str:
    if baseline.case_id != measurement.case.id:
        return f"the stored case is another: {baseline.case_id}"
    if baseline.environment != measurement.environment:
        return f"the baseline is of another environment: {baseline.environment}"
    if not any(session.launches for session in baseline.sessions):
        return "the baseline holds no launch"
    return ""


def contrast(
    head: Mean,
    base: Sequence[Mean],
    sessions: Component = SESSIONS,
    launches: Component = LAUNCHES,
    surroundings: Surroundings = UNCHANGED,
) -> Contrast:
    """Return the log ratio of ``head`` to the mean of the ``base`` sessions."""
    weather, pace = surroundings.weather, surroundings.pace
    count = len(base)
    value = head.value - float(np.mean([mean.value for mean in base]))
    between = session_variance(base, sessions) * (1 + 1 / count)
    ours, theirs = launch_variance([head], launches), launch_variance(base, launches)
    parts = [between, ours, theirs * (1 / count), weather.variance, pace.variance]
    return Contrast.of(value, parts, weather.bias)


def judge(known: Verdict, change: Contrast, policy: Policy) -> Verdict:
    """Return ``known`` with its outcome, by the rule at the head of this module."""
    limit, caught = math.log1p(policy.max_regression), math.log1p(policy.must_catch)
    lower, upper = change.lower(policy.alpha), change.upper(policy.alpha)
    judged = replace(
        known,
        change=expm1(change.value),
        lower=expm1(lower),
        upper=expm1(upper),
        mde=expm1(change.detectable(alpha=policy.alpha, limit=limit)),
    )
    if lower > 0 and change.value > limit:
        return regression(judged)
    if upper < 0 and change.value < -limit:
        return improvement(judged)
    excluded = change.upper(PASS_ALPHA)
    if excluded < caught:
        return replace(judged, outcome=Outcome.PASS)
    return inconclusive(judged, expm1(excluded), expm1(2 * change.reach(PASS_ALPHA)))


def needs_confirmation(verdict: Verdict) -> bool:
    """Whether the case must be measured again before it may fail: it looks slower than its limit.

    Cheap to say yes to, see the module's docstring: unchanged code is flagged whenever noise
    carries the estimate over the limit, and the confirmation decides.
    """
    return verdict.outcome is not Outcome.INVALID and verdict.change > verdict.limit


def confirm(
    flagged: Verdict,
    fresh: Measurement,
    baseline: Baseline | None,
    policy: Policy,
    *,
    sessions: Component = SESSIONS,
    climate: Climate = CHANGEABLE,
) -> Verdict:
    """Return the verdict on launches made after ``flagged``; the first launches no longer count.

    Measure twice as many fresh launches as at first: what is flagged is rare, and the launches'
    share of the noise halves.
    """
    verdict = decide(fresh, baseline, policy, sessions=sessions, climate=climate)
    return told_again(flagged, verdict)
