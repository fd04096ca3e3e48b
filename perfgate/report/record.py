"""The record of a run: what every report is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from perfgate.gate.stats import Figure
from perfgate.model import Launch, Outcome, Session, Verdict

#: Worst first: what must be read stands on top.
SEVERITY = (
    Outcome.INVALID,
    Outcome.REGRESSION,
    Outcome.INCONCLUSIVE,
    Outcome.NO_BASELINE,
    Outcome.IMPROVEMENT,
    Outcome.PASS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured of a case, as a session that can be accepted later.

    A portable one is a ratio, good on any machine. ``figure`` is what to compare it by.
    """

    case_id: str
    suite: str
    portable: bool
    figure: Figure
    session: Session


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One gated run. ``hard`` and ``soft`` spell its environment out.

    ``remarks`` are what is to be said of the run as a whole.
    """

    verdicts: tuple[Verdict, ...]
    environment: str
    hard: dict[str, str]
    soft: dict[str, str]
    commit: str
    date: str
    duration_s: float
    plants: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()

    @property
    def worst_first(self) -> list[Verdict]:
        """The verdicts by severity, in their order within it."""
        return sorted(self.verdicts, key=lambda verdict: SEVERITY.index(verdict.outcome))

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many verdicts there are of each outcome that occurs, worst first."""
        found = [verdict.outcome for verdict in self.verdicts]
        return {outcome: found.count(outcome) for outcome in SEVERITY if outcome in found}

    @property
    def summary(self) -> str:
        """One sentence: ``29 PASS, 1 REGRESSION``."""
        return ", ".join(f"{n} {outcome}" for outcome, n in reversed(self.counts.items())) or "none"

    def as_json(self) -> dict[str, object]:
        """The record as plain data."""
        verdicts = [verdict.as_json() for verdict in self.verdicts]
        measured = {m.case_id: asdict(m) for m in self.measured}
        return asdict(self) | {"verdicts": verdicts, "measured": measured}


def session_of(data: Mapping[str, Any]) -> Session:
    """Return a session from the plain data that a record holds of it."""
    launches = tuple(Launch(**launch) for launch in data["launches"])
    return Session(**{**data, "launches": launches})
