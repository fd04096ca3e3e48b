"""Where a run's record goes. Each sink stands alone; :func:`deliver` lets none harm another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from perfgate.report import table
from perfgate.report.record import RunRecord

_STEP_SUMMARY_BYTES = 900_000


class Sink(Protocol):
    """Somewhere that a run's record is written to."""

    def write(self, record: RunRecord) -> None:
        """Write it."""


def deliver(record: RunRecord, sinks: list[Sink]) -> list[str]:
    """Hand the record to every sink and return what went wrong, a line each."""
    failures = []
    for sink in sinks:
        try:
            sink.write(record)
        except Exception as error:  # noqa: BLE001 - a report must never change a verdict
            failures.append(f"{type(sink).__name__} failed: {type(error).__name__}: {error}")
    return failures


class JsonFile:
    """``run.json``: the whole record, for ``perfgate report`` and other programs."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "run.json"

    def write(self, record: RunRecord) -> None:
        """Write it, replacing an older one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(record.as_json(), indent=1) + "\n", encoding="utf-8")


class MarkdownFile:
    """A Markdown table, worst first: ``summary.md``, or appended to GitHub's step summary."""

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self.path = path
        self.append = append

    def write(self, record: RunRecord) -> None:
        """Write or append it, cut to what GitHub takes."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a" if self.append else "w", encoding="utf-8") as file:
            file.write(markdown(record)[:_STEP_SUMMARY_BYTES])


def markdown(record: RunRecord) -> str:
    """Return the record as a Markdown section."""
    lines = [f"### perfgate: {record.summary}", ""]
    lines += [f"**{warning}**" for warning in _warnings(record)]
    lines += ["| " + " | ".join(table.COLUMNS) + " |", "|---|--:|--:|--:|--:|--:|---|"]
    for verdict in record.worst_first:
        _, *cells = table.row(verdict)
        lines.append(f"| {verdict.case.label} | " + " | ".join(cells) + " |")
    lines += ["", *(f"- {line}" for line in table.notes(record.worst_first))]
    facts = f"{record.environment}, commit {record.commit}, {record.date}"
    return "\n\n".join(["\n".join(lines), *record.remarks, facts, ""])


def usual_sinks(directory: Path) -> list[Sink]:
    """Return the sinks of every gated run, and GitHub's where the run is there."""
    sinks: list[Sink] = [JsonFile(directory), MarkdownFile(directory / "summary.md")]
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        sinks.append(MarkdownFile(Path(path), append=True))
    return sinks


def _warnings(record: RunRecord) -> list[str]:
    return [f"Planted slowdown: {plant}. This run proves the gate." for plant in record.plants]
