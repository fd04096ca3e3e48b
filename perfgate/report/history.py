"""``perfgate history``: the lasting steps in stored sessions, which no single run can see."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from perfgate.errors import UsageError
from perfgate.gate.baseline import BaselineStore
from perfgate.gate.history import change_points
from perfgate.units import format_duration, format_percent


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "--baselines", type=Path, default=Path("baselines"), help="folder (default: baselines)"
    )
    parser.add_argument("text", nargs="?", default="", help="only cases whose id holds this")


def run(args: argparse.Namespace) -> int:
    """Print every lasting step; return 1 when a case became slower, else 0."""
    store = BaselineStore(args.baselines)
    table = Table(box=None, pad_edge=False)
    for column in ("case", "from", "to", "change", "since", "date"):
        table.add_column(column, overflow="fold")
    cases, slower = 0, False
    for environment, suite in store.suites():
        for case_id, baseline in store.load(environment, suite).items():
            if args.text not in case_id:
                continue
            cases += 1
            for step in change_points(baseline):
                slower |= step.change > 0
                table.add_row(
                    case_id.split(" | ")[-1],
                    format_duration(step.before_s),
                    format_duration(step.after_s),
                    format_percent(step.change),
                    step.commit,
                    step.date,
                )
    if not cases:
        raise UsageError(f"no stored case holds {args.text!r}; next: perfgate baseline list")
    if table.row_count:
        Console(width=None if sys.stdout.isatty() else 80).print(table)
    sys.stdout.write(f"{table.row_count} lasting steps in {cases} cases\n")
    return int(slower)
