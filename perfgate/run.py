"""Run: one pytest run as the gate sees it, from the plan to what is stored at its end."""

from __future__ import annotations

import functools
import math
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfgate.archive import Archive, utc
from perfgate.base import Base, NotInBase
from perfgate.duel import measure_beside
from perfgate.gate.conditions import Conditions
from perfgate.gate.conditions import problems as spoiled
from perfgate.gate.environment import Environment
from perfgate.judgement import AgainstCommit, Judgement
from perfgate.measure import Effort, Timing, measure
from perfgate.model import Case, Measurement, Outcome, Policy, Verdict
from perfgate.options import Settings
from perfgate.proof import Proof, prove, prove_beside
from perfgate.report.record import RunRecord
from perfgate.world.crossing import OnRank
from perfgate.world.pool import LastingWorld, Worlds

RUN_ALPHA = 0.01
CONFIRMING_LAUNCHES = 2
#: A baseline is measured once and compared with often.
STORED_LAUNCHES = 2
Tell = Callable[[Case, str], None]


@dataclass
class Run:
    """What is planned, measured, decided and stored in one run.

    :param planned: how many tests are gated; the run's 1 % error and its budget are shared out
        among them before the first is measured.
    :param base: the commit that is compared with in place of stored baselines.
    """

    settings: Settings
    root: Path
    worlds: Worlds
    tell: Tell
    planned: int = 1
    base: Base | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    failed_reports: list[str] = field(default_factory=list)
    _launches: dict[str, int] = field(default_factory=dict)
    _begun: Conditions = field(default_factory=Conditions.read)

    @functools.cached_property
    def world(self) -> LastingWorld:
        """The world that tests see; its spec is set for each test."""
        return self.worlds.lasting(self.settings.world)

    @functools.cached_property
    def environment(self) -> Environment:
        """Where figures are taken; a rank is asked where there is a GPU."""
        if self.settings.world.device == "cpu":
            return Environment.detect()
        world = self.worlds.get(self.settings.world)
        facts = world.run(OnRank("perfgate.world.worker", "describe_device"))[0]
        return Environment.detect(
            gpus=[facts["gpu"]] * facts["gpus"],
            backends={"cuda": str(facts["cuda"])},
        )

    @functools.cached_property
    def archive(self) -> Archive:
        """The stored baselines of this environment."""
        return Archive(self.settings.baselines, self.environment, commit_of(self.root))

    @functools.cached_property
    def proof(self) -> Proof:
        """Whether the gate finds a planted slowdown, tried before the first case."""
        prefix = "self-test, "
        measure_one = functools.partial(self._measure, self.environment, prefix)
        if self.base is not None:
            return prove_beside(self.settings.world, measure_one)
        return prove(self.settings.world, self.environment.key, measure_one)

    def alpha(self, nth: int) -> float:
        """Return the error of a test's nth decision, from 1: the test's share, halved each time."""
        return RUN_ALPHA / self.planned * math.pow(0.5, nth)

    def open_baselines(self, tests: Iterable[str]) -> None:
        """Read what the planned tests will be compared with, before anything is measured.

        :raises BaselineError: when a file cannot be read.
        """
        if self.base is None:
            self._launches = self.archive.launches(tests, self.settings.launches)

    def against_baseline(self, case: Case, policy: Policy) -> Judgement:
        """Return what a time is held against."""
        if self.base is not None:
            return against_commit(self.base, policy)
        return self.archive.against_time(case, policy)

    def against_portable(self, case: Case, policy: Policy) -> Judgement:
        """Return what a ratio is held against."""
        if self.base is not None:
            return against_commit(self.base, policy)
        return self.archive.against_ratio(case, policy)

    def judge(
        self,
        case: Case,
        timing: Timing,
        judgement: Judgement,
        where: Environment | None = None,
    ) -> Verdict:
        """Measure a case, decide, and measure again what looks worse before saying so.

        :param where: the environment that its figures are stored for (default: this one).
        """
        __tracebackhide__ = True
        where = where or self.environment
        proof = self.proof
        try:
            verdict, measurement = self._decide(case, timing, judgement, where)
        except NotInBase as new:
            return self._told(_new(case, where, str(new)))
        verdict = self._unless_spoiled(verdict)
        if proof.broken:
            verdict = replace(verdict, outcome=Outcome.INVALID, reason=proof.line)
        if verdict.outcome is not Outcome.INVALID and self.base is None:
            self.archive.keep(where, measurement)
        return self._told(verdict)

    def take_in(self) -> None:
        """Store what was measured as one session of each case, regressions left out.

        :raises BaselineError: when it cannot be stored.
        """
        self.archive.take_in({v.case.id for v in self.verdicts if v.outcome.fails})

    def near_misses(self) -> tuple[str, ...]:
        """Return how the nearest stored environment differs, where nothing fits this one."""
        if self.base is None and any(v.outcome is Outcome.NO_BASELINE for v in self.verdicts):
            return self.archive.near_misses()
        return ()

    def record(self, plants: Iterable[object]) -> RunRecord:
        """Return the run's record, for the reports."""
        return RunRecord(
            verdicts=tuple(self.verdicts),
            environment=self.environment.key,
            hard=dict(self.environment.hard),
            soft=dict(self.environment.soft),
            commit=self.archive.commit,
            date=utc(self.started),
            duration_s=time.time() - self.started,
            plants=tuple(str(plant) for plant in plants),
            stored=tuple(str(path) for path in self.archive.stored),
            near_misses=self.near_misses(),
            measured=tuple(self.archive.measured),
            remarks=(self.proof.line, *self._compared(), *self.contamination()),
        )

    def contamination(self) -> tuple[str, ...]:
        """Return what spoiled the run so far: processor time taken away, a clock that jumped."""
        now = Conditions.read()
        return spoiled(self._begun, now) if now.monotonic_s - self._begun.monotonic_s > 2 else ()

    def _told(self, verdict: Verdict) -> Verdict:
        self.verdicts.append(verdict)
        return verdict

    def _decide(
        self, case: Case, timing: Timing, judgement: Judgement, where: Environment
    ) -> tuple[Verdict, Measurement]:
        """Return the verdict, and the measurement that it was made on."""
        __tracebackhide__ = True
        effort = self._effort(case)
        beside = isinstance(judgement, AgainstCommit)
        measurement = self._measure(where, "", case, timing, effort, beside=beside)
        verdict = judgement.decide(measurement)
        if not judgement.flags(verdict):
            return verdict, measurement
        effort = effort.times(CONFIRMING_LAUNCHES)
        if isinstance(judgement, AgainstCommit):
            effort = effort.at_least(judgement.confirming)
        measurement = self._measure(where, "again, ", case, timing, effort, beside=beside)
        return judgement.confirm(verdict, measurement), measurement

    def _unless_spoiled(self, verdict: Verdict) -> Verdict:
        """Leave the question open where the machine, judged without the figures, was not ours.

        That is no INVALID, which fails: nobody's code is at fault.
        """
        reasons = self.contamination()
        if not reasons or verdict.outcome in (Outcome.INVALID, Outcome.NO_BASELINE):
            return verdict
        return replace(verdict, outcome=Outcome.INCONCLUSIVE, reason="; ".join(reasons))

    def _effort(self, case: Case) -> Effort:
        """Return a case's share of the budget, by what its stored launches differ by."""
        average = self.settings.launches
        effort = Effort.share(self.settings.budget_s, self.planned, average)
        factor = STORED_LAUNCHES if self.settings.refresh else 1
        return effort.times(factor * self._launches.get(case.test, average) / average)

    def _measure(
        self,
        where: Environment,
        prefix: str,
        case: Case,
        timing: Timing,
        effort: Effort,
        *,
        beside: bool = True,
    ) -> Measurement:
        """Measure a case, beside the base where there is one and ``beside`` says so."""
        __tracebackhide__ = True

        def tell(number: int, of: int) -> None:
            self.tell(case, f"{prefix}launch {number} of {of}")

        if self.base is None or not beside:
            return measure(case, where.key, timing, self.worlds, effort, tell)
        return measure_beside(
            case, where.key, timing, self.worlds, effort, tell, base=self.base, attempt=prefix
        )

    def _compared(self) -> tuple[str, ...]:
        if self.base is None:
            return ()
        return (f"compared with {self.base.name}, in random orders of seed {self.base.seed}",)


def against_commit(base: Base, policy: Policy) -> AgainstCommit:
    """Return what a case is held against when another commit runs beside it."""
    again = f"--perfgate-base {shlex.quote(base.interpreter.python)}"
    return AgainstCommit(policy, base.name, again)


def _new(case: Case, where: Environment, reason: str) -> Verdict:
    """Return the verdict on what the base does not have."""
    return Verdict(outcome=Outcome.NO_BASELINE, case=case, environment=where.key, reason=reason)


def commit_of(root: Path) -> str:
    """Return the short hash of what is checked out, with ``-dirty`` when files differ from it."""
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        described = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return described.stdout.strip() or "unknown"
