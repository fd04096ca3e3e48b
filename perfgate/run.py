"""Run: one pytest run as the gate sees it, from the plan to what is stored at its end."""

from __future__ import annotations

import functools
import math
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from perfgate.duel import Base, NotInBase, measure_beside
from perfgate.gate.allocate import share_out
from perfgate.gate.baseline import BaselineStore
from perfgate.gate.conditions import Conditions
from perfgate.gate.conditions import problems as spoiled
from perfgate.gate.environment import Environment
from perfgate.gate.noise import pool_sessions, spread_between_launches, steadiest_figure
from perfgate.gate.pace import follows
from perfgate.gate.ratio import portable
from perfgate.gate.stats import Component, Figure
from perfgate.gate.supposed import supposed
from perfgate.judgement import AgainstBaseline, AgainstCommit, AgainstPortable, Judgement
from perfgate.measure import Effort, Timing, measure
from perfgate.model import (
    Baseline,
    Case,
    Measurement,
    Outcome,
    Policy,
    Session,
    Verdict,
)
from perfgate.options import Settings
from perfgate.proof import Proof, prove, prove_beside
from perfgate.report.record import Measured, RunRecord
from perfgate.scheduling import permitted
from perfgate.world.crossing import OnRank
from perfgate.world.pool import LastingWorld, Worlds

RUN_ALPHA = 0.01
CONFIRMING_LAUNCHES = 2
#: What a case may be compared by, the one to prefer first: where most calls stall, p25 jumps
#: between those that run through and those that do not.
QUANTILES = ("p10_s", "p25_s")
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
    _measured: list[Measured] = field(default_factory=list)
    _stored: list[Path] = field(default_factory=list)
    failed_reports: list[str] = field(default_factory=list)
    _launches: dict[str, int] = field(default_factory=dict)
    _begun: Conditions = field(default_factory=Conditions.read)
    _opened: dict[Path, tuple[dict[str, Baseline], Component]] = field(default_factory=dict)

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
    def proof(self) -> Proof:
        """Whether the gate finds a planted slowdown, tried before the first case."""
        here = self.environment
        if self.base is not None:
            return prove_beside(
                self.settings.world,
                lambda case, timing, effort: self._measure_beside(
                    case, here, timing, effort, "self-test, "
                ),
            )
        return prove(
            self.settings.world,
            here.key,
            lambda case, timing, effort: self._measure(case, here, timing, effort, "self-test, "),
        )

    @functools.cached_property
    def commit(self) -> str:
        """The commit that is measured, marked when the tree differs from it."""
        return commit_of(self.root)

    @functools.cached_property
    def store(self) -> BaselineStore:
        """The stored baselines."""
        return BaselineStore(self.settings.baselines)

    def alpha(self, nth: int) -> float:
        """Return the error of a test's nth decision, from 1: the test's share, halved each time."""
        return RUN_ALPHA / self.planned * math.pow(0.5, nth)

    def open_baselines(self, tests: Iterable[str]) -> None:
        """Read what the planned tests will be compared with, before anything is measured.

        :raises BaselineError: when a file cannot be read.
        """
        if self.base is not None:
            return
        spreads: dict[str, float | None] = dict.fromkeys(tests)
        for suite in sorted({suite_of(test) for test in spreads}):
            self._baselines(portable(), suite)
            for case_id, baseline in self._baselines(self.environment, suite)[0].items():
                test = case_id.split(" | ")[0]
                if test in spreads:
                    spreads[test] = max(spreads[test] or 0.0, spread_between_launches(baseline))
        self._launches = share_out(spreads, self.settings.launches)

    def against_baseline(self, case: Case, policy: Policy) -> Judgement:
        """Return what a time is held against."""
        if self.base is not None:
            return against_commit(self.base, policy)
        suite = suite_of(case.test)
        baselines, pooled = self._baselines(self.environment, suite)
        pinned = self.store.load_pinned(self.environment, suite).get(case.id)
        noise = replace(supposed(permitted()), sessions=pooled)
        return AgainstBaseline(baselines.get(case.id), policy, noise, pinned)

    def against_portable(self, case: Case, policy: Policy) -> Judgement:
        """Return what a ratio is held against."""
        if self.base is not None:
            return against_commit(self.base, policy)
        baselines, _ = self._baselines(portable(), suite_of(case.test))
        return AgainstPortable(baselines.get(case.id), policy)

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
        effort = self._effort(case)
        beside = isinstance(judgement, AgainstCommit)
        measure_it = self._measure_beside if beside else self._measure
        try:
            measurement = measure_it(case, where, timing, effort, "")
        except NotInBase as new:
            return self._new(case, where, str(new))
        verdict = judgement.decide(measurement)
        if judgement.flags(verdict):
            effort = effort.times(CONFIRMING_LAUNCHES)
            if isinstance(judgement, AgainstCommit):
                effort = effort.at_least(judgement.confirming)
            measurement = measure_it(case, where, timing, effort, "again, ")
            verdict = judgement.confirm(verdict, measurement)
        verdict = self._unless_spoiled(verdict)
        if proof.broken:
            verdict = replace(verdict, outcome=Outcome.INVALID, reason=proof.line)
        self.verdicts.append(verdict)
        if verdict.outcome is not Outcome.INVALID and self.base is None:
            self._keep(where, measurement)
        return verdict

    def take_in(self) -> None:
        """Store what was measured as one session of each case, regressions left out.

        :raises BaselineError: when it cannot be stored.
        """
        worse = {v.case.id for v in self.verdicts if v.outcome.fails}
        files: dict[tuple[bool, str], dict[str, Session]] = {}
        for m in self._measured:
            if m.case_id not in worse:
                files.setdefault((m.portable, m.suite), {})[m.case_id] = m.session
        for (anywhere, suite), sessions in files.items():
            where = portable() if anywhere else self.environment
            known = self._baselines(where, suite)[0]
            self._stored.append(self.store.add(where, suite, sessions))
            if not anywhere:
                new = {m.case_id: m.figure for m in self._measured if m.case_id not in known}
                figures = {name: new[name] for name in sessions if name in new}
                self.store.calibrate(where, suite, figures)

    def near_misses(self) -> tuple[str, ...]:
        """Return how the nearest stored environment differs, where nothing fits this one."""
        if self.base is None and any(v.outcome is Outcome.NO_BASELINE for v in self.verdicts):
            return self.store.near_misses(self.environment)
        return ()

    def record(self, plants: Iterable[object]) -> RunRecord:
        """Return the run's record, for the reports."""
        return RunRecord(
            verdicts=tuple(self.verdicts),
            environment=self.environment.key,
            hard=dict(self.environment.hard),
            soft=dict(self.environment.soft),
            commit=self.commit,
            date=_utc(self.started),
            duration_s=time.time() - self.started,
            plants=tuple(str(plant) for plant in plants),
            stored=tuple(str(path) for path in self._stored),
            near_misses=self.near_misses(),
            measured=tuple(self._measured),
            remarks=(self.proof.line, *self._compared(), *self.contamination()),
        )

    def contamination(self) -> tuple[str, ...]:
        """Return what spoiled the run so far: processor time taken away, a clock that jumped."""
        now = Conditions.read()
        return spoiled(self._begun, now) if now.monotonic_s - self._begun.monotonic_s > 2 else ()

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
        self, case: Case, where: Environment, timing: Timing, effort: Effort, prefix: str
    ) -> Measurement:
        __tracebackhide__ = True
        return measure(
            case,
            where.key,
            timing,
            self.worlds,
            effort,
            lambda number, of: self.tell(case, f"{prefix}launch {number} of {of}"),
        )

    def _measure_beside(
        self, case: Case, where: Environment, timing: Timing, effort: Effort, prefix: str
    ) -> Measurement:
        __tracebackhide__ = True
        assert self.base is not None
        return measure_beside(
            case,
            where.key,
            timing,
            self.worlds,
            effort,
            lambda number, of: self.tell(case, f"{prefix}launch {number} of {of}"),
            base=self.base,
            attempt=prefix,
        )

    def _new(self, case: Case, where: Environment, reason: str) -> Verdict:
        """Return the verdict on what the base does not have."""
        verdict = Verdict(
            outcome=Outcome.NO_BASELINE, case=case, environment=where.key, reason=reason
        )
        self.verdicts.append(verdict)
        return verdict

    def _compared(self) -> tuple[str, ...]:
        if self.base is None:
            return ()
        return (f"compared with {self.base.name}, in random orders of seed {self.base.seed}",)

    def _keep(self, where: Environment, measurement: Measurement) -> None:
        session = Session(
            commit=self.commit,
            date=_utc(time.time()),
            launches=measurement.launches,
            others_share=measurement.others_share,
        )
        self._measured.append(
            Measured(
                case_id=measurement.case.id,
                suite=suite_of(measurement.case.test),
                portable=where == portable(),
                figure=_steadiest(measurement.case, session),
                session=session,
            )
        )

    def _baselines(self, where: Environment, suite: str) -> tuple[dict[str, Baseline], Component]:
        """Return a suite's baselines and the variance between sessions that they show."""
        path = self.store.path(where, suite)
        if path not in self._opened:
            baselines = self.store.load(where, suite)
            prior = supposed(permitted()).sessions
            self._opened[path] = baselines, pool_sessions(baselines.values(), prior=prior)
        return self._opened[path]


def against_commit(base: Base, policy: Policy) -> AgainstCommit:
    """Return what a case is held against when another commit runs beside it."""
    again = f"--perfgate-base {shlex.quote(base.interpreter.python)}"
    return AgainstCommit(policy, base.name, again)


def _steadiest(case: Case, session: Session) -> Figure:
    share = follows(case)
    return Figure(steadiest_figure([session], QUANTILES, share), share)


def suite_of(test: str) -> str:
    """Return the baseline file's name for a test: its folder below ``suites`` or ``tests``.

    ``suites/comm/test_ops.py::test_x`` is of suite ``comm``, ``test_a.py::test_x`` of ``test_a``.
    """
    path = PurePosixPath(test.split("::")[0])
    folders = [part for part in path.parent.parts if part not in ("suites", "tests", "..")]
    return "-".join(folders) or path.stem


def commit_of(root: Path) -> str:
    """Return the short hash of what is checked out, with ``-dirty`` when files differ from it."""
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        described = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return described.stdout.strip() or "unknown"


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
