"""``perfgate baseline``: what is stored, and how a change that is meant is accepted."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from perfgate.errors import UsageError
from perfgate.gate.baseline import BaselineStore
from perfgate.gate.environment import Environment
from perfgate.gate.ratio import portable
from perfgate.gate.stats import Figure
from perfgate.model import Session
from perfgate.report.record import session_of
from perfgate.units import format_duration


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "--baselines", type=Path, default=Path("baselines"), help="folder (default: baselines)"
    )
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    listing = actions.add_parser("list", help="every stored case, by environment and suite")
    listing.set_defaults(act=_list)
    show = actions.add_parser("show", help="the sessions of the cases whose id holds a text")
    show.add_argument("text", help="part of a case id or of a test's name")
    show.set_defaults(act=_show)
    accept = actions.add_parser(
        "accept", help="begin a new baseline from the last run, for a change that is meant"
    )
    accept.add_argument("tests", nargs="+", help="test ids as the verdict prints them")
    accept.add_argument(
        "--report", type=Path, default=Path(".perfgate"), help="the run's folder (.perfgate)"
    )
    accept.set_defaults(act=_accept)
    pin = actions.add_parser(
        "pin", help="keep a release's sessions for good, so that slow creep shows against them"
    )
    pin.add_argument("commit", help="a commit that list shows; it replaces the one pinned before")
    pin.set_defaults(act=_pin)


def run(args: argparse.Namespace) -> int:
    """Do what was asked and return the exit status."""
    status: int = args.act(args, BaselineStore(args.baselines))
    return status


def _list(args: argparse.Namespace, store: BaselineStore) -> int:
    table = Table(box=None, pad_edge=False)
    for column in ("case", "sessions", "last commit", "date"):
        table.add_column(column, overflow="fold")
    for environment, suite in store.suites():
        table.add_row(f"[bold]{environment.key}/{suite}[/]")
        for case_id, baseline in store.load(environment, suite).items():
            last = baseline.sessions[-1]
            count = str(len(baseline.sessions))
            table.add_row("  " + case_id.split(" | ")[-1], count, last.commit, last.date)
    if not table.row_count:
        raise UsageError(
            f"{args.baselines} holds no baseline; next: pytest --perfgate --perfgate-refresh"
        )
    _print(table)
    return 0


def _show(args: argparse.Namespace, store: BaselineStore) -> int:
    found = False
    for environment, suite in store.suites():
        for case_id, baseline in store.load(environment, suite).items():
            if args.text in case_id:
                found = True
                _print(_sessions(f"{environment.key}/{suite}: {case_id}", baseline.sessions))
    if not found:
        raise UsageError(f"no stored case holds {args.text!r}; next: perfgate baseline list")
    return 0


def _sessions(title: str, sessions: tuple[Session, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("date", "commit", "launches", "p25 of each launch"):
        table.add_column(column, overflow="fold")
    for session in sessions:
        figures = " ".join(format_duration(launch.p25_s) for launch in session.launches)
        table.add_row(session.date, session.commit, str(len(session.launches)), figures)
    return table


def _accept(args: argparse.Namespace, store: BaselineStore) -> int:
    record = _read_run(args.report / "run.json")
    environment = Environment(hard=record["hard"], soft=record["soft"])
    for test in args.tests:
        chosen = {
            case_id: entry
            for case_id, entry in record["measured"].items()
            if case_id.split(" | ")[0] == test or test == case_id
        }
        if not chosen:
            raise UsageError(
                f"the last run measured no {test!r}; it measured "
                f"{', '.join(sorted({c.split(' | ')[0] for c in record['measured']}))}"
            )
        for case_id, entry in chosen.items():
            session = session_of(entry["session"])
            where = portable() if entry["portable"] else environment
            path = store.restart(where, entry["suite"], {case_id: session})
            if not entry["portable"]:
                store.calibrate(where, entry["suite"], {case_id: Figure(**entry["figure"])})
            sys.stdout.write(f"{path}: {case_id} begins anew with {session.commit}\n")
    return 0


def _pin(args: argparse.Namespace, store: BaselineStore) -> int:
    stored = [
        (environment, suite)
        for environment, suite in store.suites()
        if args.commit in _commits(store, environment, suite)
    ]
    if not stored:
        raise UsageError(
            f"no stored session is of commit {args.commit!r}; next: perfgate baseline show ''"
        )
    for environment, suite in stored:
        path = store.pin(environment, suite, args.commit)
        sys.stdout.write(f"{path}: {args.commit} is pinned; runs are held against it too\n")
    return 0


def _commits(store: BaselineStore, environment: Environment, suite: str) -> set[str]:
    cases = store.load(environment, suite).values()
    return {session.commit for case in cases for session in case.sessions}


def _read_run(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: no record of a run: {error}; next: pytest --perfgate, then accept"
        ) from error
    if record.get("plants"):
        raise UsageError(f"{path}: that run had a planted slowdown; it is no baseline")
    return record


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 80).print(table)
