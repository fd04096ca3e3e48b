"""Two commits side by side: an interval, and for a REGRESSION an exact test beside it.

The interval is :func:`perfgate.gate.ratio.decide_commits`'.

Why the test is exact
    In every launch both worlds are started in random order, and in every pair of calls both are
    called in random order. Under "same code" the two labels, head and base, could therefore be
    swapped in any launch without changing how likely its figure is: its log ratio is as likely
    plus as minus, whatever the noise looks like, however it drifts and whoever else uses the
    machine. Wilcoxon's signed-rank test counts over all ``2**n`` ways of giving the ``n``
    launches their signs (F. Wilcoxon, "Individual Comparisons by Ranking Methods", Biometrics
    Bulletin 1, 1945), and needs no more than that. A fixed order would lose it.

What it does not cover
    The zygotes. A commit's worlds are forked from a few processes that keep their memory layout
    for the whole run, and the two commits cannot trade them. So the labels are not quite free:
    a layout that is slow in every launch is slow for one commit. That is what the priors
    ``WORLDS`` and ``SESSIONS`` in the t interval allow for, which widen it beyond what the
    launches show, and why both have to agree. The same goes for how the two environments were
    built: a compiler's luck is a real difference between them, and none that repeating shows.

The flag is at the estimate alone and the launches that confirm are fresh, so that the error over
a run is held as :mod:`perfgate.gate.decide` says.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from perfgate.gate.phrase import repeat_command, told_again
from perfgate.gate.ratio import FIGURE, decide_commits
from perfgate.gate.stats import Floats, log_figures
from perfgate.model import Measurement, Outcome, Policy, Verdict


def sign_rank(log_ratios: npt.ArrayLike) -> float:
    """Return the exact one-sided p value of "no slower", by Wilcoxon's signed ranks.

    :param log_ratios: one of each launch, shape ``(launches,)``, head over base.
    """
    from scipy.stats import wilcoxon

    values = np.asarray(log_ratios, np.float64)
    values = values[values != 0]
    if values.size == 0:
        return 1.0
    return float(wilcoxon(values, alternative="greater", method="exact").pvalue)


def least_launches(alpha: float) -> int:
    """Return how many launches can reach ``alpha / 2`` when all say the same: ``2**-n`` is less."""
    return math.floor(1 - math.log2(alpha)) + 1


def decide_beside(measurement: Measurement, policy: Policy, *, base: str, again: str) -> Verdict:
    """Return the first verdict.

    :param base: the commit that is compared with.
    :param again: the options that compare with it again.
    """
    return _with_way_on(decide_commits(measurement, policy, base=base), again)


def confirm_beside(
    flagged: Verdict, fresh: Measurement, policy: Policy, *, base: str, again: str
) -> Verdict:
    """Return the verdict on launches made after ``flagged``; the first launches no longer count."""
    verdict = decide_beside(fresh, policy, base=base, again=again)
    if verdict.outcome is Outcome.REGRESSION:
        verdict = _unless_chance(verdict, log_figures(fresh.launches, FIGURE), policy, again)
    return told_again(flagged, verdict)


def _unless_chance(verdict: Verdict, log_ratios: Floats, policy: Policy, again: str) -> Verdict:
    p = sign_rank(log_ratios)
    if p < policy.alpha:
        return verdict
    slower = int(np.sum(log_ratios > 0))
    return replace(
        verdict,
        outcome=Outcome.INCONCLUSIVE,
        reason=f"{slower} of {verdict.launches} launches are slower, which chance alone makes of "
        f"the same code once in {1 / p:.0f}; {1 / policy.alpha:.0f} is asked for",
        next_step=repeat_command(
            verdict.case, f"{again} --perfgate-launches {2 * verdict.launches}"
        ),
    )


def _with_way_on(verdict: Verdict, again: str) -> Verdict:
    """Name the commands that make sense here: nothing is stored, so nothing is accepted."""
    if verdict.outcome in (Outcome.PASS, Outcome.IMPROVEMENT):
        return replace(verdict, next_step="")
    if verdict.outcome is Outcome.INCONCLUSIVE:
        command = verdict.next_step.replace("pytest --perfgate", f"pytest --perfgate {again}", 1)
        return replace(verdict, next_step=command)
    return replace(verdict, next_step=repeat_command(verdict.case, again))
