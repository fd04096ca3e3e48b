"""What a measured case is held against, each with its first decision and its confirmation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from perfgate.gate import creep
from perfgate.gate.commits import confirm_beside, decide_beside, least_launches
from perfgate.gate.decide import confirm, decide, needs_confirmation
from perfgate.gate.ratio import decide_portable, decide_ratio
from perfgate.gate.supposed import Supposed
from perfgate.gate.tail import decide_tail, split, with_tail
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
    """The stored sessions of this environment: the typical call, and beside it the tail.

    :param supposed: of noise, where too little is stored; its ``sessions`` the file's pooled ones.
    :param pinned: the sessions of a pinned release, if there is one: creep shows against it.
    """

    baseline: Baseline | None
    policy: Policy
    supposed: Supposed
    pinned: Baseline | None = None

    def decide(self, measurement: Measurement) -> Verdict:
        """Return the first verdict."""
        return self._beside(
            measurement, lambda policy: self._typical(measurement, self.baseline, policy)
        )

    def flags(self, verdict: Verdict) -> bool:
        """Say whether the case looks slower than its limit."""
        return self.baseline is not None and needs_confirmation(verdict)

    def confirm(self, flagged: Verdict, fresh: Measurement) -> Verdict:
        """Return the verdict on launches made after the flag."""
        sessions, climate = self.supposed.sessions, self.supposed.climate
        return self._beside(
            fresh,
            lambda policy: confirm(
                flagged, fresh, self.baseline, policy, sessions=sessions, climate=climate
            ),
        )

    def _typical(
        self, measurement: Measurement, baseline: Baseline | None, policy: Policy
    ) -> Verdict:
        sessions, climate = self.supposed.sessions, self.supposed.climate
        return decide(measurement, baseline, policy, sessions=sessions, climate=climate)

    def _beside(self, measurement: Measurement, typical: Callable[[Policy], Verdict]) -> Verdict:
        """Return the typical call's verdict, or what only the tail or the pinned release shows."""
        recent, pin = creep.split(self.policy) if self.pinned else (self.policy, self.policy)
        usual, tail = split(recent, self.supposed.tail_limit)
        slowest = decide_tail(measurement, self.baseline, tail, self.supposed)
        verdict = with_tail(typical(usual), slowest)
        if self.pinned is None:
            return verdict
        return creep.with_creep(verdict, self._typical(measurement, self.pinned, pin))


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


@dataclass(frozen=True, slots=True)
class AgainstCommit:
    """Another commit, measured beside this one.

    :param base: what it is called.
    :param again: the options that compare with it again.
    """

    policy: Policy
    base: str
    again: str

    @property
    def confirming(self) -> int:
        """How many fresh launches a confirmation needs at least."""
        return least_launches(self.policy.alpha)

    def decide(self, measurement: Measurement) -> Verdict:
        """Return the first verdict."""
        return decide_beside(measurement, self.policy, base=self.base, again=self.again)

    def flags(self, verdict: Verdict) -> bool:
        """Say whether the case looks slower than its limit."""
        return needs_confirmation(verdict)

    def confirm(self, flagged: Verdict, fresh: Measurement) -> Verdict:
        """Return the verdict on launches made after the flag."""
        return confirm_beside(flagged, fresh, self.policy, base=self.base, again=self.again)
