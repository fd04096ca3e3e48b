"""What a measured case is held against, each with its first decision and its confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perfgate.gate.decide import confirm, decide, needs_confirmation
from perfgate.gate.ratio import decide_portable, decide_ratio
from perfgate.gate.stats import Component
from perfgate.model import Baseline, Measurement, Outcome, Policy, Verdict


class Judgement(Protocol):
    """Decides on a measurement; where it flags one, decides again on fresh launches alone."""

    def decide(self, measurement: Measurement) -> Verdict:
        """Return the first verdict."""

    def flags(self, verdict: Verdict) -> bool:
        """Say whether the case must be measured again before it may fail."""

    def confirm(self, flagged: Verdict, fresh: Measurement) -> Verdict:
        """Return the verdict on launches made after the flag."""


@dataclass(frozen=True, slots=True)
class AgainstBaseline:
    """The stored sessions of this environment."""

    baseline: Baseline | None
    policy: Policy
    sessions: Component

    def decide(self, measurement: Measurement) -> Verdict:
        """Return the first verdict."""
        return decide(measurement, self.baseline, self.policy, sessions=self.sessions)

    def flags(self, verdict: Verdict) -> bool:
        """Say whether the case looks slower than its limit."""
        return self.baseline is not None and needs_confirmation(verdict)

    def confirm(self, flagged: Verdict, fresh: Measurement) -> Verdict:
        """Return the verdict on launches made after the flag."""
        if self.baseline is None:
            return flagged
        return confirm(flagged, fresh, self.baseline, self.policy, sessions=self.sessions)


@dataclass(frozen=True, slots=True)
class AgainstLimit:
    """A ratio that is not to be passed, on any machine."""

    at_most: float
    alpha: float

    def decide(self, measurement: Measurement) -> Verdict:
        """Return the first verdict."""
        return decide_ratio(measurement, at_most=self.at_most, alpha=self.alpha)

    def flags(self, verdict: Verdict) -> bool:
        """Say whether the ratio lies above its limit."""
        return verdict.outcome is Outcome.REGRESSION

    def confirm(self, flagged: Verdict, fresh: Measurement) -> Verdict:  # noqa: ARG002
        """Return the verdict on the fresh launches."""
        return self.decide(fresh)


@dataclass(frozen=True, slots=True)
class AgainstPortable:
    """The stored ratios, which any machine may have measured."""

    baseline: Baseline | None
    policy: Policy

    def decide(self, measurement: Measurement) -> Verdict:
        """Return the first verdict."""
        return decide_portable(measurement, self.baseline, self.policy)

    def flags(self, verdict: Verdict) -> bool:
        """Say whether the ratio looks worse than its limit."""
        return self.baseline is not None and needs_confirmation(verdict)

    def confirm(self, flagged: Verdict, fresh: Measurement) -> Verdict:
        """Return the verdict on launches made after the flag."""
        return decide_portable(fresh, self.baseline, self.policy, flagged=flagged)
