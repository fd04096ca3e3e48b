"""The table: a line a case, at most 80 columns, grouped by op so that it fits."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table

from perfgate.model import Outcome, Verdict
from perfgate.units import format_duration, format_figure, format_percent

WIDTH = 80
COLUMNS = ("case", "time", "busbw Gb/s", "change", "limit", "noise", "verdict")
_STYLES = {
    Outcome.PASS: "green",
    Outcome.IMPROVEMENT: "cyan",
    Outcome.REGRESSION: "bold red",
    Outcome.INVALID: "bold red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NO_BASELINE: "yellow",
}


def render(verdicts: Iterable[Verdict], *, color: bool = False, width: int = WIDTH) -> str:
    """Return the table as text of at most ``width`` columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in COLUMNS:
        right = column not in ("case", "verdict")
        table.add_column(column, justify="right" if right else "left", no_wrap=column == "verdict")
    group = None
    for verdict in verdicts:
        if verdict.case.op != group:
            group = verdict.case.op
            table.add_row(group)
        *cells, outcome = row(verdict)
        style = _STYLES[verdict.outcome] if color else ""
        table.add_row(*cells, f"[{style}]{outcome}[/]" if style else outcome)
    console = Console(
        file=io.StringIO(), width=width, height=100, force_terminal=color, highlight=False
    )
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def row(verdict: Verdict) -> tuple[str, ...]:
    """Return a verdict's cells, one for each of :data:`COLUMNS`, the op left to the heading."""
    case = verdict.case
    label = case.label.removeprefix(case.op).strip()
    time_s = verdict.time_s
    return (
        f"  {label}",
        format_duration(time_s) if math.isfinite(time_s) else "-",
        _rate(verdict),
        format_percent(verdict.change),
        _unsigned(verdict.limit),
        _unsigned(verdict.mde),
        str(verdict.outcome),
    )


def _rate(verdict: Verdict) -> str:
    busbw_gbps = verdict.case.busbw_gbps(verdict.time_s)
    items_per_s = verdict.case.items_per_s(verdict.time_s)
    if busbw_gbps is not None:
        return format_figure(busbw_gbps)
    return f"{items_per_s:.4g} {verdict.case.unit}/s" if items_per_s is not None else "-"


def _unsigned(fraction: float) -> str:
    return format_percent(fraction).removeprefix("+").replace(".0%", "%")


def notes(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Yield the one line of every verdict that is not a plain PASS."""
    for verdict in verdicts:
        if verdict.outcome is not Outcome.PASS:
            yield verdict.line
