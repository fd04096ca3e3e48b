"""The end of a gated run as its user reads it: the table, then what to do next."""

from __future__ import annotations

import os

import pytest

from perfgate.report import table
from perfgate.report.record import RunRecord


def summarise(
    reporter: pytest.TerminalReporter, record: RunRecord, failed_reports: list[str]
) -> None:
    """Print a run's record below pytest's own results."""
    width = min(table.WIDTH, reporter._tw.fullwidth)
    reporter.section(f"perfgate: {record.summary}")
    text = table.render(record.verdicts, color=reporter.hasmarkup, width=width)
    reporter.write(text)
    reporter.write_line(f"{record.environment}, commit {record.commit}")
    for plant in record.plants:
        reporter.write_line(f"PLANTED SLOWDOWN {plant}: this run proves the gate", red=True)
    for line in record.remarks:
        reporter.write_line(line)
    for line in failed_reports:
        reporter.write_line(line, yellow=True)
    for miss in record.near_misses:
        reporter.write_line(f"nearest stored environment differs in {miss}", yellow=True)
    for path in record.stored:
        reporter.write_line(f"stored one session in {path}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github_errors(record):
            reporter.write_line(line)


def github_errors(record: RunRecord) -> list[str]:
    """Return GitHub's ``::error`` lines, which stand a regression beside the change."""
    return [
        f"::error file={verdict.case.test.split('::')[0]},title=perfgate::{_escaped(verdict.line)}"
        for verdict in record.verdicts
        if verdict.outcome.fails
    ]


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
