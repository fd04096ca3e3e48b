"""``perfgate report``: one Markdown table from the JUnit files of a run or of several."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import UsageError
from perfgate.model import Outcome
from perfgate.report.record import SEVERITY

_PROPERTIES = ("time_us", "busbw_gbps", "change_percent", "limit_percent", "mde_percent")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured test of a JUnit file: its properties by name, and its message if it has one."""

    name: str
    outcome: Outcome
    properties: dict[str, str]
    message: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument("files", nargs="+", type=Path, help="JUnit XML files of pytest --perfgate")
    parser.add_argument("--output", type=Path, help="write here instead of standard output")


def run(args: argparse.Namespace) -> int:
    """Print the table; return 1 when a measured test failed its gate, else 0."""
    rows = [row for path in args.files for row in read(path)]
    text = markdown(rows)
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return int(any(row.outcome.fails for row in rows))


def read(path: Path) -> Iterator[Row]:
    """Yield the measured tests of a JUnit file, as any reader of JUnit finds them.

    :raises UsageError: when the file cannot be read, or junitparser is not installed.
    """
    try:
        from junitparser import JUnitXml
        from junitparser.xunit2 import TestCase
    except ImportError:
        raise UsageError(
            "reading JUnit needs junitparser; next: pip install 'pytest-perfgate[report]'"
        ) from None
    try:
        suites = JUnitXml.fromfile(str(path))
    except Exception as error:  # the parser's own errors differ by XML library
        raise UsageError(f"{path} is no JUnit file that can be read: {error}") from error
    for suite in suites:
        for case in suite:
            test = TestCase.fromelem(case)  # type: ignore[no-untyped-call]
            properties = {p.name: p.value for p in test.properties()}
            if "verdict" in properties:
                message = next((result.message or "" for result in test.result), "")
                outcome = Outcome(properties["verdict"])
                yield Row(f"{test.classname}::{test.name}", outcome, properties, message)


def markdown(rows: list[Row]) -> str:
    """Return the rows as a Markdown section, worst first."""
    ordered = sorted(rows, key=lambda row: SEVERITY.index(row.outcome))
    counts = {outcome: sum(row.outcome is outcome for row in rows) for outcome in SEVERITY}
    title = ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n)
    lines = [f"### perfgate: {title or 'nothing was measured'}", ""]
    if rows:
        lines += ["| case | " + " | ".join(_PROPERTIES) + " | verdict |"]
        lines += ["|---|" + "--:|" * len(_PROPERTIES) + "---|"]
    for row in ordered:
        cells = [row.properties.get(name, "-") for name in _PROPERTIES]
        case = row.properties.get("case", row.name).split(" | ")[-1]
        lines.append(f"| {case} | " + " | ".join(cells) + f" | {row.outcome} |")
    lines += ["", *(f"- {row.message.splitlines()[0]}" for row in ordered if row.message)]
    return "\n".join(lines).rstrip() + "\n"
