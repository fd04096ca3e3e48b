"""One measurement, one baseline, one policy: one verdict.

The change is the log ratio T of the head's typical call to the baseline's, both counted in round
trips of the machine's probe where there is one (:mod:`perfgate.bench.probe`). Its variance is
``tau**2 (1 + 1/K) + v_head + v_base/K``: the head is one session and the baseline ``K``, and
each is seen through a few launches (:mod:`perfgate.gate.noise`). T over its standard error
follows a t distribution (:class:`perfgate.gate.stats.Contrast`). Other processes that kept the
machine busy widen all bounds by what that does (:mod:`perfgate.gate.weather`).

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
from dataclasses import replace

import numpy as np

from perfgate.gate.noise import (
    LAUNCHES,
    SESSIONS,
    launch_variance,
    session_means,
    session_variance,
)
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
    Mean,
    comparable,
    expm1,
    in_seconds,
    launches_of,
    log_figures,
    trimmed_mean,
)
from perfgate.gate.weather import STILL, Weather
from perfgate.model import Baseline, Launch, Measurement, Outcome, Policy, Session, Verdict

DEFAULT_FIGURE = "p25_s"
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
    figure: str = "",
    feels_weather: bool = True,
) -> Verdict:
    """Return the verdict on ``measurement``.

    :param sessions: variance between sessions to start from, in log time squared; the file's
        pooled one (:func:`perfgate.gate.noise.pool_sessions`) once it holds several sessions.
    :param launches: the variance below which the spread between launches is not believed.
    :param figure: the figure of a launch that is compared instead of the baseline's own.
    :param feels_weather: whether other processes move the figures (:mod:`perfgate.gate.weather`).
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
    figure = figure or (baseline.figure if baseline else DEFAULT_FIGURE)
    known = replace(known, time_s=_time_s(measurement, figure))
    if baseline is None or (absence := _absence(measurement, baseline)):
        return replace(
            known,
            outcome=Outcome.NO_BASELINE,
            reason="" if baseline is None else absence,
            next_step=repeat_command(measurement.case, "--perfgate-refresh"),
        )
    used = [session for session in baseline.sessions if session.launches]
    stored = launches_of(used)
    known = replace(
        known,
        baseline_commit=used[-1].commit,
        baseline_sessions=len(used),
        pace=_pace(measurement.launches, stored),
    )
    figure = comparable(figure, [*measurement.launches, *stored])
    head = trimmed_mean(log_figures(measurement.launches, figure))
    weather = _weather(measurement, used) if feels_weather else STILL
    change = contrast(head, session_means(used, figure), sessions, launches, weather)
    verdict = judge(known, change, policy)
    if verdict.outcome is Outcome.INCONCLUSIVE and weather.bias > WORTH_TELLING:
        return replace(verdict, reason=f"{verdict.reason}; {weather}")
    return verdict


def _time_s(measurement: Measurement, figure: str) -> float:
    return math.exp(trimmed_mean(log_figures(measurement.launches, in_seconds(figure))).value)


def _pace(head: Sequence[Launch], base: Sequence[Launch]) -> float:
    """Return how much longer the machine's probe takes now, a ratio less one."""
    now_s, then_s = ([launch.probe_s or math.nan for launch in side] for side in (head, base))
    return expm1(float(np.mean(np.log(now_s)) - np.mean(np.log(then_s))))


def _weather(measurement: Measurement, sessions: Sequence[Session]) -> Weather:
    return Weather(measurement.others_share, [session.others_share for session in sessions])


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
    weather: Weather = STILL,
) -> Contrast:
    """Return the log ratio of ``head`` to the mean of the ``base`` sessions."""
    count = len(base)
    value = head.value - float(np.mean([mean.value for mean in base]))
    between = session_variance(base, sessions) * (1 + 1 / count)
    ours, theirs = launch_variance([head], launches), launch_variance(base, launches)
    return Contrast.of(value, [between, ours, theirs * (1 / count), weather.variance], weather.bias)


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
    baseline: Baseline,
    policy: Policy,
    *,
    sessions: Component = SESSIONS,
) -> Verdict:
    """Return the verdict on launches made after ``flagged``; the first launches no longer count.

    Measure twice as many fresh launches as at first: what is flagged is rare, and the launches'
    share of the noise halves.
    """
    return told_again(flagged, decide(fresh, baseline, policy, sessions=sessions))
