"""What the gate finds of slowdowns planted on real ranks, by kind and size, in runs of its own.

    python benchmarks/gate/power.py record --out DIR [--ops OP,OP]   # about 15 minutes
    python benchmarks/gate/power.py judge --out DIR [--sessions DIR ...]

``record`` measures the comm suite's cases as they are, several times, and once with each kind of
slowdown at each size, in an order drawn at random. ``judge`` holds every planted session against
every plain one as its only stored session, and against any five of them, and prints how often it
is found at the error of a run of 30 cases, with exact 95 % intervals (the sessions are few and
shared by the pairs, so that these are too narrow), the change estimated, the share of intervals
at 95 % that cover the planted ratio, and what was said to be detectable beside what was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from live import DEFAULT_TESTS, ROOT, run_gate
from scipy import stats

from perfgate.gate.noise import pool_sessions
from perfgate.gate.pace import follows
from perfgate.gate.supposed import supposed
from perfgate.gate.tail import ERROR_SHARE
from perfgate.judgement import AgainstBaseline
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
from perfgate.report.record import session_of
from perfgate.scheduling import permitted

SEED = 20261129
SIZES = (0.05, 0.10, 0.25, 0.50)
MODES = {
    "busy": "*:+{percent}%",
    "copy": "*:+{percent}%:copy",
    "one rank": "*:+{percent}%:rank=1",
    "a tenth of calls": "*:+{percent}%:share=0.1",
}
PLAIN = 6
POLICY = Policy(alpha=0.01 / 30 / 2)  # a run of 30 cases, the first decision of each test


def record(out: Path, ops: str) -> None:
    """Measure everything once, in random order, into ``out/<name>/run.json``."""
    plan = [(f"plain-{number}", "") for number in range(1, PLAIN + 1)]
    for (mode, text), size in itertools.product(MODES.items(), SIZES):
        percent = f"{size * 100:.0f}"
        plan.append((f"{mode}-{percent}", text.format(percent=percent)))
    random.Random(SEED).shuffle(plan)
    for number, (name, plant) in enumerate(plan, start=1):
        print(f"{number} of {len(plan)}: {name}", flush=True)
        _measure(out / name, plant, ops)


def _measure(folder: Path, plant: str, ops: str) -> None:
    chosen = " or ".join(f"{op}-" for op in ops.split(","))
    budget = f"--perfgate-budget={2 * 3 * len(ops.split(','))}"
    run_gate(folder, folder / "none", f"-k={chosen}", budget, *DEFAULT_TESTS, plant=plant)


@dataclass
class Recorded:
    """One run's sessions by case."""

    cases: dict[str, Case]
    sessions: dict[str, Session]

    @classmethod
    def read(cls, path: Path) -> Recorded:
        """Read a run's record."""
        run = json.loads(path.read_text())
        cases = {_case(v["case"]).id: _case(v["case"]) for v in run["verdicts"]}
        sessions = {name: session_of(one["session"]) for name, one in run["measured"].items()}
        return cls(cases, sessions)


def _case(data: dict[str, Any]) -> Case:
    return Case(**{**data, "world": WorldSpec(**data["world"])})


def verdicts(
    head: Recorded, bases: list[list[Recorded]], policy: Policy = POLICY
) -> Iterator[Verdict]:
    """Yield the verdict on each case against each choice of stored sessions."""
    for sessions in bases:
        stored = {
            name: Baseline(
                case_id=name,
                environment="here",
                sessions=tuple(one.sessions[name] for one in sessions),
                figure="p10_s",
                follows=follows(case),
            )
            for name, case in head.cases.items()
            if all(name in one.sessions for one in sessions)
        }
        prior = supposed(permitted())
        noise = replace(prior, sessions=pool_sessions(stored.values(), prior=prior.sessions))
        for name in stored:
            case, now = head.cases[name], head.sessions[name]
            measured = Measurement(
                case=case,
                environment="here",
                launches=now.launches,
                others_share=now.others_share,
            )
            yield AgainstBaseline(stored[name], policy, noise).decide(measured)


def share(hits: int, of: int) -> str:
    """Return a share with its exact interval."""
    interval = stats.binomtest(hits, of).proportion_ci(0.95)
    return f"{hits / of:5.2f} [{interval.low:.2f}-{interval.high:.2f}]"


def covers(head: Recorded, bases: list[list[Recorded]], planted: float) -> float:
    """Return how often the typical call's 95 % interval holds the planted slowdown."""
    held = [
        verdict.lower <= planted <= verdict.upper
        for verdict in verdicts(head, bases, Policy(alpha=0.025 / (1 - ERROR_SHARE)))
    ]
    return sum(held) / len(held)


def line(name: str, found: list[Verdict], planted: float, covered: float = math.nan) -> str:
    """Return one row of the table."""
    hits = sum(verdict.outcome is Outcome.REGRESSION for verdict in found)
    passed = sum(verdict.outcome is Outcome.PASS for verdict in found)
    changes = [math.log1p(verdict.change) for verdict in found]
    mde = np.median([verdict.mde for verdict in found])
    return (
        f"{name:26}{share(hits, len(found)):>20}{passed / len(found):7.2f}"
        f"{math.expm1(np.median(changes)):+9.1%}{np.std(changes):8.3f}{mde:8.1%}{planted:+9.0%}"
        f"{covered:8.2f}"
    )


def judge(out: Path, more: list[Path]) -> None:
    """Print the table."""
    plain = [Recorded.read(path) for path in sorted(out.glob("plain-*/run.json"))]
    for folder in more:
        plain += [Recorded.read(path) for path in sorted(folder.glob("same*/run.json"))]
    ones = [[one] for one in plain]
    fives = [list(five) for five in itertools.combinations(plain, 5)][:40]
    head = f"{'':26}{'found':>20}{'PASS':>7}{'change':>9}{'SD':>8}{'noise':>8}{'planted':>9}"
    head += f"{'covers':>8}"
    for title, bases in (("one stored session", ones), ("five stored sessions", fives)):
        print(f"{title}\n{head}")
        print(line("nothing planted", _same(plain, bases), 0.0))
        for mode, size in itertools.product(MODES, SIZES):
            planted = Recorded.read(out / f"{mode}-{size * 100:.0f}" / "run.json")
            found = list(verdicts(planted, bases))
            everywhere = "share" not in MODES[mode]  # else the typical call is as it was
            covered = covers(planted, bases, size if everywhere else 0.0)
            print(line(f"{mode} {size:+.0%}", found, size, covered))
            small = [v for v in found if (v.case.size_bytes or 0) <= 2**18]
            print(line("  up to 256KiB", small, size))


def _same(plain: list[Recorded], bases: list[list[Recorded]]) -> list[Verdict]:
    return [
        verdict
        for head in plain
        for verdict in verdicts(head, [base for base in bases if head not in base])
    ]


def main() -> int:
    """Record or judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("record", "judge"))
    parser.add_argument("--out", type=Path, default=ROOT / ".perfgate" / "power")
    parser.add_argument("--ops", default="all_reduce,all_to_all_single,broadcast,gather")
    parser.add_argument("--sessions", type=Path, nargs="*", default=[])
    args = parser.parse_args()
    if args.what == "record":
        record(args.out.resolve(), args.ops)
    else:
        judge(args.out.resolve(), args.sessions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
