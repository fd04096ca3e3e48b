"""Creep: steps that are each too small to fail, seen against a pinned release.

The sessions compared with move along with the code: thirty of them, a percent slower each, are a
baseline that has taken in a third. So a release can be pinned, whose sessions stay, and each run
is held against those too, with the same limit and its own share of the error. Like the tail it
only ever adds a REGRESSION.
"""

from __future__ import annotations

from dataclasses import replace

from perfgate.model import Outcome, Policy, Verdict
from perfgate.units import format_percent

ERROR_SHARE = 0.2
"""Of a case's error, where a release is pinned; the other comparisons have the rest."""


def split(policy: Policy) -> tuple[Policy, Policy]:
    """Return what a case's error leaves to the recent sessions and to the pinned release."""
    return (
        replace(policy, alpha=policy.alpha * (1 - ERROR_SHARE)),
        replace(policy, alpha=policy.alpha * ERROR_SHARE),
    )


def with_creep(recent: Verdict, creep: Verdict) -> Verdict:
    """Return the verdict against the recent sessions, or the REGRESSION that only the pin shows.

    :param creep: the verdict against the pinned release's sessions alone.
    """
    if creep.outcome is not Outcome.REGRESSION or recent.outcome.fails:
        return recent
    since = f"since {creep.baseline_commit}, which is pinned: {creep.reason}"
    return replace(creep, reason=f"{since}; {format_percent(recent.change)} since the last session")
