"""The archive: the stored baselines as one run sees them, read before it and added to after it."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from perfgate.gate.allocate import share_out
from perfgate.gate.baseline import BaselineStore
from perfgate.gate.environment import Environment
from perfgate.gate.noise import pool_sessions, spread_between_launches, steadiest_figure
from perfgate.gate.pace import follows
from perfgate.gate.ratio import portable
from perfgate.gate.stats import Component, Figure
from perfgate.gate.supposed import supposed
from perfgate.judgement import AgainstBaseline, AgainstPortable
from perfgate.model import Baseline, Case, Measurement, Policy, Session
from perfgate.report.record import Measured
from perfgate.scheduling import class_for, permitted

#: What a case may be compared by, the one to prefer first: where most calls stall, p25 jumps
#: between those that run through and those that do not.
QUANTILES = ("p10_s", "p25_s")


@dataclass
class Archive:
    """What is stored for an environment, and what this run has measured in it.

    :param root: the folder of the baselines.
    :param commit: what is measured.
    """

    root: Path
    environment: Environment
    commit: str
    measured: list[Measured] = field(default_factory=list)
    stored: list[Path] = field(default_factory=list)
    _opened: dict[Path, _Opened] = field(default_factory=dict)

    @functools.cached_property
    def store(self) -> BaselineStore:
        """The files."""
        return BaselineStore(self.root)

    def launches(self, tests: Iterable[str], average: int) -> dict[str, int]:
        """Return how many launches each planned test is worth, by what its stored ones differ by.

        All that will be compared with is read by this, before anything is measured.

        :raises BaselineError: when a file cannot be read.
        """
        spreads: dict[str, float | None] = dict.fromkeys(tests)
        for suite in sorted({suite_of(test) for test in spreads}):
            self._baselines(portable(), suite)
            for case_id, baseline in self._baselines(self.environment, suite).recent.items():
                test = case_id.split(" | ")[0]
                if test in spreads:
                    spreads[test] = max(spreads[test] or 0.0, spread_between_launches(baseline))
        return share_out(spreads, average)

    def against_time(self, case: Case, policy: Policy) -> AgainstBaseline:
        """Return what a time is held against."""
        opened = self._baselines(self.environment, suite_of(case.test))
        noise = replace(supposed(class_for(case.world.size)), sessions=opened.pooled)
        recent, pinned = opened.recent.get(case.id), opened.pinned.get(case.id)
        return AgainstBaseline(recent, policy, noise, pinned)

    def against_ratio(self, case: Case, policy: Policy) -> AgainstPortable:
        """Return what a ratio is held against."""
        opened = self._baselines(portable(), suite_of(case.test))
        return AgainstPortable(opened.recent.get(case.id), policy)

    def keep(self, where: Environment, measurement: Measurement) -> None:
        """Note a measurement as a session that may be stored."""
        session = Session(
            commit=self.commit,
            date=utc(time.time()),
            launches=measurement.launches,
            others_share=measurement.others_share,
        )
        self.measured.append(
            Measured(
                case_id=measurement.case.id,
                suite=suite_of(measurement.case.test),
                portable=where == portable(),
                figure=_steadiest(measurement.case, session),
                session=session,
            )
        )

    def take_in(self, worse: set[str]) -> None:
        """Store what was measured as one session of each case, those that got worse left out.

        :raises BaselineError: when it cannot be stored.
        """
        files: dict[tuple[bool, str], dict[str, Session]] = {}
        for m in self.measured:
            if m.case_id not in worse:
                files.setdefault((m.portable, m.suite), {})[m.case_id] = m.session
        for (anywhere, suite), sessions in files.items():
            where = portable() if anywhere else self.environment
            known = self._baselines(where, suite).recent
            self.stored.append(self.store.add(where, suite, sessions))
            if not anywhere:
                new = {m.case_id: m.figure for m in self.measured if m.case_id not in known}
                figures = {name: new[name] for name in sessions if name in new}
                self.store.calibrate(where, suite, figures)

    def near_misses(self) -> tuple[str, ...]:
        """Return how the nearest stored environment differs from this one."""
        return self.store.near_misses(self.environment)

    def _baselines(self, where: Environment, suite: str) -> _Opened:
        path = self.store.path(where, suite)
        if path not in self._opened:
            recent = self.store.load(where, suite)
            prior = supposed(permitted()).sessions
            self._opened[path] = _Opened(
                recent=recent,
                pinned=self.store.load_pinned(where, suite),
                pooled=pool_sessions(recent.values(), prior=prior),
            )
        return self._opened[path]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A suite's baselines, as read.

    :param pinned: the pinned release's sessions alone, by the cases that have one.
    :param pooled: the variance between sessions that all of them show.
    """

    recent: dict[str, Baseline]
    pinned: dict[str, Baseline]
    pooled: Component


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


def utc(seconds: float) -> str:
    """Return a moment as baselines and reports write it."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
