"""Compare recorded sessions of identical code with each other, their weather known and ignored.

    python benchmarks/gate/sessions.py [FILE]

FILE is a baseline file (default: the recorded sessions among the tests). Each session is gated
against each other one as its only stored session, once knowing how busy others kept the machine
and once not, without and with a slowdown planted in the head. Pairs share sessions, so that the
shares are no independent draws; no confirmation is made, which could only lower them.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from perfgate.gate.decide import decide
from perfgate.gate.schema import parse
from perfgate.gate.weather import CHANGEABLE, NONE
from perfgate.model import Baseline, Case, Launch, Measurement, Outcome, Policy, Session, WorldSpec

RECORDED = Path(__file__).parents[2] / "tests" / "data" / "sessions.json"
RUN_ALPHA = 0.01
PLANTED = (0.0, 0.25, 0.50)


def scaled(launches: tuple[Launch, ...], scale: float) -> tuple[Launch, ...]:
    """Return launches whose every call took ``scale`` times as long."""
    return tuple(
        Launch(
            p10_s=one.p10_s * scale,
            p25_s=one.p25_s * scale,
            p50_s=one.p50_s * scale,
            p95_s=one.p95_s * scale,
            calls=one.calls,
        )
        for one in launches
    )


def outcomes(
    head: dict[str, Session], base: dict[str, Session], planted: float, knowing: bool
) -> list[Outcome]:
    """Return the first verdicts of one run, a case each."""
    policy = Policy(alpha=RUN_ALPHA / len(head))
    found = []
    for name, session in head.items():
        case = Case(test=name, op=name, world=WorldSpec())
        now = Measurement(
            case=case,
            environment="recorded",
            launches=scaled(session.launches, 1 + planted),
            others_share=session.others_share,
        )
        stored = Baseline(case_id=case.id, environment="recorded", sessions=(base[name],))
        found.append(decide(now, stored, policy, climate=CHANGEABLE if knowing else NONE).outcome)
    return found


def main() -> int:
    """Print the table."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED
    content = parse(path.read_text(encoding="utf-8"), str(path))
    count = len(next(iter(content.cases.values())).sessions)
    sessions = [
        {name: case.sessions[k].session() for name, case in content.cases.items()}
        for k in range(count)
    ]
    print(f"{count} sessions of identical code, {len(content.cases)} cases, each against each")
    print("runs: share with any REGRESSION; cases: share with each outcome")
    print(
        f"{'weather':9}{'planted':>8}{'runs':>8}{'REGRESSION':>12}{'PASS':>8}{'INCONCLUSIVE':>14}"
    )
    for knowing, planted in itertools.product((True, False), PLANTED):
        runs = [
            outcomes(head, base, planted, knowing)
            for head, base in itertools.permutations(sessions, 2)
        ]
        flat = [outcome for run in runs for outcome in run]
        any_case = sum(Outcome.REGRESSION in run for run in runs) / len(runs)
        shares = [
            flat.count(which) / len(flat)
            for which in (Outcome.REGRESSION, Outcome.PASS, Outcome.INCONCLUSIVE)
        ]
        print(
            f"{'known' if knowing else 'ignored':9}{planted:8.0%}{any_case:8.3f}"
            f"{shares[0]:12.3f}{shares[1]:8.3f}{shares[2]:14.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
