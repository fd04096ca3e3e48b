"""The gate's proof of itself: in every gated run a planted slowdown must be found.

A gate can rot so that it never fires, and nobody notices a job that is always green. So each run
measures a case of its own twice, the second time with every call slowed down, and decides on it
as on any other. Where the machine is too noisy to see even that, the run says so; where the gate
looked and found nothing, nothing that it says afterwards is believed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfgate.gate.decide import decide
from perfgate.gate.ratio import decide_commits
from perfgate.measure import Effort, Timing
from perfgate.model import (
    Baseline,
    Case,
    Measurement,
    Outcome,
    Policy,
    Session,
    Verdict,
    WorldSpec,
)
from perfgate.units import format_percent
from perfgate.world.crossing import OnRank

SLOWDOWN = 2.0
POLICY = Policy(max_regression=0.5, must_catch=2.0)
EFFORT = Effort(launches=4, launch_s=0.03)
# It takes its time by the clock, so that a busy machine is no excuse.
_WORK = OnRank("perfgate.bench.inject", "work_steadily")


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of the planted slowdown."""

    verdict: Verdict

    @property
    def broken(self) -> bool:
        """Whether the gate could have seen the slowdown and did not."""
        return self.verdict.outcome not in (Outcome.REGRESSION, Outcome.INCONCLUSIVE)

    @property
    def line(self) -> str:
        """What the summary says of it."""
        planted, found = format_percent(SLOWDOWN), format_percent(self.verdict.change)
        if self.broken:
            return f"self-test: a planted {planted} was told as {self.verdict.line}"
        if self.verdict.outcome is Outcome.INCONCLUSIVE:
            return f"self-test: this machine is too noisy to see a planted {planted}"
        return f"self-test: a planted {planted} was found, as {found}"


def prove(
    spec: WorldSpec, environment: str, measure: Callable[[Case, Timing, Effort], Measurement]
) -> Proof:
    """Measure a case as it is and slowed down, and decide on the second against the first."""
    case = _case(spec)
    before = measure(case, Timing("time_function", (_WORK, None)), EFFORT)
    after = measure(case, Timing("time_function", (_WORK, None), SLOWDOWN), EFFORT)
    session = Session(commit="self-test", date="", launches=before.launches)
    baseline = Baseline(case_id=case.id, environment=environment, sessions=(session,))
    return Proof(decide(after, baseline, POLICY))


def prove_beside(spec: WorldSpec, measure: Callable[[Case, Timing, Effort], Measurement]) -> Proof:
    """Do the same where another commit runs beside this one, and only the head is slowed down."""
    timing = Timing("time_function", (_WORK, None), SLOWDOWN)
    return Proof(decide_commits(measure(_case(spec), timing, EFFORT), POLICY, base="the base"))


def _case(spec: WorldSpec) -> Case:
    return Case(test="self-test", op=_WORK.name, world=spec, items=1, unit="calls")
