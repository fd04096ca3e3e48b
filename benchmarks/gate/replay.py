"""Replay recorded noise through perfgate's rule and its peers': false alarms and power.

    python benchmarks/gate/replay.py TRACES [--runs 1000] [--json FILE]

TRACES is a file with one fresh launch a line, ``{case: [[ns, ...], [ns, ...]]}``: two arms of
identical code. Each replayed run deals the launches out at random: 8 to the baseline, 8 to the
head, the rest to the confirmation, which perfgate uses only for cases that it flags; peers are
given head and confirmation together from the start. A slowdown is planted by scaling the head's
times. Whatever is flagged without one is a false alarm. The tuned rows give a threshold on a
ratio the best that it can have: chosen afterwards, so that 1 % of these very runs are false.

The launches are of one session: what sessions differ by is not in these traces.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from peers import RULES, SCORES, Calls
from scipy import stats

from perfgate.gate.decide import confirm, decide, needs_confirmation
from perfgate.gate.noise import SESSIONS
from perfgate.gate.stats import Component, summarise
from perfgate.model import Baseline, Case, Launch, Measurement, Outcome, Policy, Session, WorldSpec

SEED = 20260131
BASE, HEAD = 8, 8
RUN_ALPHA = 0.01
PLANTED = (0.05, 0.10, 0.25, 0.50)
OURS = {
    "perfgate, 1 session": SESSIONS,
    "perfgate, calm sessions known": Component(variance=0.012**2, dof=24.0),
}
"""Our rule with what it supposes of sessions: the prior, and what is left of it once stored
sessions have shown that they differ by as little as these traces do."""


@dataclass
class Trace:
    """One case's launches: the calls for the peers, their summary for us."""

    case: Case
    calls: list[npt.NDArray[np.float64]]

    def __post_init__(self) -> None:
        self.launches = [summarise(calls) for calls in self.calls]

    def deal(self, order: npt.NDArray[np.int64], scale: float) -> Deal:
        """Deal the launches out in ``order``, the head's times scaled."""
        base, head = order[:BASE], order[BASE:]
        return Deal(
            self.case,
            [self.calls[k] for k in base],
            [self.calls[k] * scale for k in head],
            [self.launches[k] for k in base],
            [scaled(self.launches[k], scale) for k in head],
        )


@dataclass
class Deal:
    """A baseline and a head of one case."""

    case: Case
    base: Calls
    head: Calls
    base_launches: list[Launch]
    head_launches: list[Launch]

    def ours(self, alpha: float, sessions: Component) -> bool:
        """Whether perfgate says REGRESSION: flagged at first, and confirmed."""
        policy = Policy(alpha=alpha)
        session = Session(commit="base", date="", launches=tuple(self.base_launches))
        baseline = Baseline(case_id=self.case.id, environment="trace", sessions=(session,))
        first = decide(self._measured(slice(HEAD)), baseline, policy, sessions=sessions)
        if not needs_confirmation(first):
            return False
        fresh = self._measured(slice(HEAD, None))
        verdict = confirm(first, fresh, baseline, policy, sessions=sessions)
        return verdict.outcome is Outcome.REGRESSION

    def _measured(self, which: slice) -> Measurement:
        launches = tuple(self.head_launches[which])
        return Measurement(case=self.case, environment="trace", launches=launches)


def scaled(launch: Launch, scale: float) -> Launch:
    """Return a launch whose every call took ``scale`` times as long."""
    return Launch(
        p10_s=launch.p10_s * scale,
        p25_s=launch.p25_s * scale,
        p50_s=launch.p50_s * scale,
        p95_s=launch.p95_s * scale,
        calls=launch.calls,
    )


def read(path: Path) -> list[Trace]:
    """Return the traces of a file, one a case."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Trace(
            Case(test=name, op=name.split("/")[0], world=WorldSpec()),
            [np.concatenate([np.array(arm) for arm in row[name]]) / 1e9 for row in rows],
        )
        for name in rows[0]
    ]


def replay(traces: list[Trace], scale: float, runs: int) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which cases each rule flags in each run, shape ``(runs, cases)``."""
    rng = np.random.default_rng([SEED, round(scale * 1000)])
    flagged = {name: np.zeros((runs, len(traces)), bool) for name in (*OURS, *RULES)}
    for run in range(runs):
        order = rng.permutation(len(traces[0].calls))
        for column, trace in enumerate(traces):
            deal = trace.deal(order, scale)
            for name, sessions in OURS.items():
                flagged[name][run, column] = deal.ours(RUN_ALPHA / len(traces), sessions)
            for name, rule in RULES.items():
                flagged[name][run, column] = rule(deal.base, deal.head)
    return flagged


def scores(traces: list[Trace], scale: float, runs: int, name: str) -> npt.NDArray[np.float64]:
    """Return a threshold rule's ratio of each case in each run of :func:`replay`."""
    rng = np.random.default_rng([SEED, round(scale * 1000)])
    found = np.empty((runs, len(traces)))
    for run in range(runs):
        order = rng.permutation(len(traces[0].calls))
        for column, trace in enumerate(traces):
            deal = trace.deal(order, scale)
            found[run, column] = SCORES[name](deal.base, deal.head)
    return found


def tuned(traces: list[Trace], runs: int, name: str) -> dict[str, dict[str, float]]:
    """Return a threshold rule's row at the threshold that fails 1 % of these very runs."""
    same = scores(traces, 1.0, runs, name)
    threshold = float(np.quantile(same.max(axis=1), 1 - RUN_ALPHA))
    row = {
        "false any": share((same > threshold).any(axis=1)),
        "false case": share(same > threshold),
    }
    for planted in PLANTED:
        found = scores(traces, 1 + planted, max(runs // 5, 50), name)
        row[f"+{planted:.0%}"] = share(found > threshold)
    return row


def share(flags: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return a share with its exact 95 % interval (Clopper and Pearson)."""
    found = stats.binomtest(int(flags.sum()), flags.size)
    interval = found.proportion_ci(0.95, method="exact")
    return {"share": float(flags.mean()), "low": float(interval.low), "high": float(interval.high)}


def study(traces: list[Trace], runs: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return per rule: false alarms by run and by case, power by planted slowdown and size."""
    same = replay(traces, 1.0, runs)
    small = np.array([int(trace.case.test.split("/")[1]) <= 2**18 for trace in traces])
    table: dict[str, dict[str, dict[str, float]]] = {
        name: {"false any": share(flags.any(axis=1)), "false case": share(flags)}
        for name, flags in same.items()
    }
    for planted in PLANTED:
        for name, flags in replay(traces, 1 + planted, max(runs // 5, 50)).items():
            table[name][f"+{planted:.0%}"] = share(flags)
            table[name][f"+{planted:.0%} small"] = share(flags[:, small])
    for name in SCORES:
        table[f"{name}, threshold tuned"] = tuned(traces, runs, name)
    return table


def show(table: dict[str, dict[str, dict[str, float]]], runs: int, cases: int) -> str:
    """Return the table as text, at most 100 columns."""
    powers = [f"+{planted:.0%}" for planted in PLANTED]
    lines = [
        f"{runs} replayed runs of {cases} cases, {BASE} launches a side, seed {SEED}",
        "false: share of runs of the same code with any case flagged [exact 95 % interval];",
        "then the share of cases flagged: none planted, and slowdowns found, all sizes",
        f"{'rule':30}{'false runs':>20}{'none':>7}" + "".join(f"{name:>7}" for name in powers),
    ]
    for name, row in table.items():
        any_case = row["false any"]
        false = f"{any_case['share']:.3f} [{any_case['low']:.3f}-{any_case['high']:.3f}]"
        cells = [row[column]["share"] for column in ("false case", *powers)]
        lines.append(f"{name:30}{false:>20}" + "".join(f"{cell:7.3f}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    """Replay, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    began = time.perf_counter()
    traces = read(args.traces)
    table = study(traces, args.runs)
    print(show(table, args.runs, len(traces)))
    result = {"seed": SEED, "runs": args.runs, "launches": [BASE, HEAD], "rules": table}
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{time.perf_counter() - began:.0f} s; kept in {args.json.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
