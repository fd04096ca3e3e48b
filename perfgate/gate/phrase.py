"""What a verdict says: the reason, and the command that leads on."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

from perfgate.model import Case, Outcome, Verdict
from perfgate.units import format_percent

SESSIONS_WANTED = 5
"""From here on more sessions narrow an interval less than more launches do."""
WIDEST_LIMIT = 1.0
"""A limit above this is no limit that anyone would set."""


def regression(judged: Verdict) -> Verdict:
    """Return the verdict on a slowdown."""
    return replace(
        judged,
        outcome=Outcome.REGRESSION,
        reason=f"at least {format_percent(judged.lower)} against {_against(judged)}",
        next_step=f"perfgate baseline accept {shlex.quote(judged.case.test)}, if it is meant",
    )


def improvement(judged: Verdict) -> Verdict:
    """Return the verdict on a gain, which is kept by storing it."""
    return replace(
        judged,
        outcome=Outcome.IMPROVEMENT,
        reason=f"at least {format_percent(judged.upper)} against {_against(judged)}",
        next_step=repeat_command(judged.case, "--perfgate-refresh"),
    )


def inconclusive(judged: Verdict, excluded: float, decidable: float) -> Verdict:
    """Return the verdict on an open question.

    :param excluded: the slowdown from which on all are excluded.
    :param decidable: the smallest must-catch size that unchanged code would pass at this noise.
    """
    reason = (
        f"a slowdown of {_plain(judged.must_catch)} is not excluded, it may be up to "
        f"{format_percent(excluded)}"
    )
    if decidable > judged.must_catch:
        limit = decidable > judged.limit
        asked, value = ("limit", judged.limit) if limit else ("must-catch", judged.must_catch)
        reason += f"; {asked} {_plain(value)} lies below what this noise lets pass, "
        reason += _plain(decidable)
    return replace(
        judged,
        outcome=Outcome.INCONCLUSIVE,
        reason=reason,
        next_step=repeat_command(judged.case, _way_out(judged, decidable)),
    )


def _way_out(judged: Verdict, decidable: float) -> str:
    if 0 < judged.baseline_sessions < SESSIONS_WANTED:
        return "--perfgate-refresh"
    if judged.must_catch < decidable <= WIDEST_LIMIT:
        return f"--perfgate-max-regression {math.ceil(decidable * 100)}"
    return f"--perfgate-launches {2 * judged.launches}"


def told_again(flagged: Verdict, verdict: Verdict) -> Verdict:
    """Return ``verdict`` with what was measured before it in its reason."""
    first = f"first measured {format_percent(flagged.change)}, then again"
    reason = f"{first}: {verdict.reason}" if verdict.reason else f"{first} in fresh launches"
    return replace(verdict, reason=reason)


def repeat_command(case: Case, options: str = "") -> str:
    """Return the command that measures a case's test again."""
    test = shlex.quote(case.test)
    return " ".join(part for part in ("pytest --perfgate", options, test) if part)


def _against(verdict: Verdict) -> str:
    if not verdict.baseline_sessions:
        return f"{verdict.baseline_commit or 'the base'}, measured beside it"
    plural = "" if verdict.baseline_sessions == 1 else "s"
    return f"{verdict.baseline_sessions} session{plural} up to {verdict.baseline_commit[:12]}"


def _plain(fraction: float) -> str:
    return format_percent(fraction).lstrip("+")
