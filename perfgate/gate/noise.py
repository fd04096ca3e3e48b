"""What two sessions of identical code differ by, beyond the spread between their launches.

A session is one run: its launches share the minute, the neighbours, the host's mood. However
many launches it has, two sessions of the same code differ by a further amount, of standard
deviation ``tau`` in log time. One stored session cannot show it, so a prior in the open stands
in until sessions are there: :data:`SESSIONS`. The same holds, in a small way, for the spread
between few launches: :data:`LAUNCHES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from perfgate.gate.stats import (
    Component,
    Figure,
    Mean,
    launches_of,
    lifted,
    pooled,
    trimmed_mean,
)
from perfgate.model import Baseline, Session

SESSIONS = Component(variance=0.03**2, dof=12.0)
"""Prior of the variance between sessions. On an idle shared two-core machine nine cases showed
0.012 within a quarter of an hour; the prior allows for other hours and days, which stored
sessions then replace. What other processes add is :mod:`perfgate.gate.weather`'s."""

LAUNCHES = Component(variance=0.05**2, dof=4.0)
"""Prior of the variance between launches of one session: the middle of the spreads of nine
cases on a shared two-core machine, 0.02 to 0.10 (collectives of 4 KiB to 4 MiB, gloo)."""

POOL_WEIGHT = 4.0
"""How many cases' worth of evidence a whole file of cases counts for. Cases of one session share
its weather, so that thirty of them are not thirty independent looks at it."""


def session_means(sessions: Sequence[Session], figure: Figure) -> list[Mean]:
    """Return each session's mean log figure over its launches."""
    return [trimmed_mean(figure.logs(session.launches)) for session in sessions]


def baseline_means(baseline: Baseline) -> list[Mean]:
    """Return the means of a baseline's sessions, by the figure that it is compared by."""
    figure = figure_of(baseline).known_of(launches_of(baseline.sessions))
    return session_means(baseline.sessions, figure)


def figure_of(baseline: Baseline) -> Figure:
    """Return what a baseline is compared by."""
    return Figure(baseline.figure, baseline.follows)


def between(means: Sequence[Mean]) -> Component:
    """Return the variance between sessions by the method of moments; it may be below zero.

    The variance of the sessions' means holds ``tau**2`` and the launches' share, which is
    subtracted.
    """
    if len(means) < 2:
        return Component(0.0, 0.0)
    observed = float(np.var([mean.value for mean in means], ddof=1))
    launches = float(np.mean([mean.variance for mean in means]))
    return Component(observed - launches, len(means) - 1.0)


def pool_sessions(baselines: Iterable[Baseline], *, prior: Component = SESSIONS) -> Component:
    """Return the variance between sessions over all cases of a file, moderated by ``prior``.

    Give it to :func:`perfgate.gate.decide.decide` as ``sessions``. With one session a case it
    is the prior itself.
    """
    found = [between(baseline_means(base)) for base in baselines]
    found = [component for component in found if component.dof > 0]
    if not found:
        return prior
    dof = float(np.mean([component.dof for component in found]))
    weight = min(POOL_WEIGHT, len(found))
    variance = float(np.average([c.variance for c in found], weights=[c.dof for c in found]))
    return pooled(prior, Component(max(variance, 0.0), dof * weight))


def spread_between_launches(baseline: Baseline) -> float:
    """Return the standard deviation of a stored case's log figure between launches."""
    means = [mean for mean in baseline_means(baseline) if mean.launches > 1]
    return math.sqrt(np.mean([mean.variance * mean.launches for mean in means])) if means else 0.0


def session_variance(means: Sequence[Mean], prior: Component) -> Component:
    """Return one case's variance between sessions: its own, moderated by ``prior``."""
    own = between(means)
    return pooled(prior, Component(max(own.variance, 0.0), own.dof))


def launch_variance(means: Sequence[Mean], prior: Component) -> Component:
    """Return the launches' share in the variance of one session's mean, averaged over sessions.

    :param prior: of the variance between single launches, see :func:`lifted`.
    """
    seen = Component(
        float(np.mean([mean.variance for mean in means])), sum(mean.dof for mean in means)
    )
    return lifted(seen, prior * float(np.mean([1 / mean.launches for mean in means])))


def steadiest_figure(
    sessions: Sequence[Session], quantiles: Sequence[str], follows: float = 0.0
) -> str:
    """Return the quantile that varies least between launches of one session.

    A later one in ``quantiles`` must be steadier by a tenth than those before it, so that the
    choice does not follow chance; put the one to prefer first.
    """
    best, least = quantiles[0], math.inf
    for quantile in quantiles:
        figure = Figure(quantile, follows).known_of(launches_of(sessions))
        spread = math.sqrt(np.mean([_spread(session, figure) for session in sessions]))
        if spread < 0.9 * least:
            best, least = quantile, spread
    return best


def _spread(session: Session, figure: Figure) -> float:
    """The variance of one launch, from the trimmed mean's."""
    mean = trimmed_mean(figure.logs(session.launches))
    return mean.variance * mean.launches
