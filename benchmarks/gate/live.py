"""Gate unchanged code again and again, then code with a planted slowdown, on real ranks.

    python benchmarks/gate/live.py [--same 10] [--planted 5] [--sessions 1] [--out DIR] [TEST ...]

Stores ``--sessions`` sessions in a directory of its own, then makes ``--same`` gated runs of the
same code and ``--planted`` runs with ``--plant``. Every run's record is kept below ``--out``.
Prints one line a run, and at the end the share of runs with a false REGRESSION, and of planted
runs in which exactly the planted cases were found, with exact 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scipy import stats

from perfgate.bench.inject import VARIABLE, planted

ROOT = Path(__file__).parents[2]
DEFAULT_TESTS = ("suites/comm/test_ops.py",)


def gated_run(args: argparse.Namespace, name: str, *options: str, plant: str = "") -> Any:
    """Run pytest --perfgate and return its record."""
    report = args.out / name
    began = time.monotonic()
    run_gate(report, args.out / "baselines", *options, *(args.tests or DEFAULT_TESTS), plant=plant)
    record = json.loads((report / "run.json").read_text())
    record["seconds"] = time.monotonic() - began
    return record


def run_gate(report: Path, baselines: Path, *words: str, plant: str = "") -> None:
    """Run pytest --perfgate with further options and tests; its output goes beside its record."""
    command = [
        sys.executable, "-m", "pytest", "--perfgate", "-q", "-p", "no:randomly",
        f"--perfgate-baselines={baselines}", f"--perfgate-report={report}", *words,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, VARIABLE: plant},
        capture_output=True,
        text=True,
        check=False,
    )
    (report / "pytest.txt").write_text(done.stdout + done.stderr)


def found(record: Any) -> list[str]:
    """Return the labels of the cases that were told as regressions."""
    return sorted(
        v["case"]["op"] + " " + str(v["case"]["size_bytes"])
        for v in record["verdicts"]
        if v["outcome"] == "REGRESSION"
    )


def wanted(record: Any, plant: str) -> list[str]:
    """Return the labels of the cases that the plant touches."""
    plants = planted({VARIABLE: plant})
    cases = [v["case"] for v in record["verdicts"]]
    return sorted(
        f"{case['op']} {case['size_bytes']}"
        for case in cases
        if any(one.touches(case["op"], case["size_bytes"]) for one in plants)
    )


def told(name: str, record: Any) -> None:
    """Print one line of a run."""
    counts = Counter(v["outcome"] for v in record["verdicts"])
    summary = ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common())
    print(f"{name:12} {record['seconds']:5.0f} s  {summary}  {found(record)}", flush=True)


def share(hits: int, runs: int) -> str:
    """Return a share with its exact (Clopper-Pearson) 95 % interval."""
    if not runs:
        return "no run"
    interval = stats.binomtest(hits, runs).proportion_ci(0.95)
    return f"{hits} of {runs} [{interval.low:.3f}, {interval.high:.3f}]"


def main() -> int:
    """Make the runs; return 1 for a false alarm or an overlooked plant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--same", type=int, default=10)
    parser.add_argument("--planted", type=int, default=5)
    parser.add_argument("--plant", default="all_reduce:256KiB:+50%")
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / ".perfgate" / "live")
    parser.add_argument("tests", nargs="*")
    args = parser.parse_args()
    args.out = args.out.resolve()
    for number in range(1, args.sessions + 1):
        name = f"session{number}"
        told(name, gated_run(args, name, "--perfgate-refresh"))
    false, exact = 0, 0
    for number in range(1, args.same + 1):
        record = gated_run(args, f"same{number}")
        told(f"same{number}", record)
        false += bool(found(record))
    for number in range(1, args.planted + 1):
        record = gated_run(args, f"planted{number}", plant=args.plant)
        told(f"planted{number}", record)
        exact += found(record) == wanted(record, args.plant)
    print(f"runs of unchanged code with a REGRESSION: {share(false, args.same)}")
    print(f"planted runs with exactly {args.plant} found: {share(exact, args.planted)}")
    return int(false > 0 or exact < args.planted)


if __name__ == "__main__":
    sys.exit(main())
