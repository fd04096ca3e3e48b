"""A gate's verdict made the outcome of its test. Loading this imports neither torch nor scipy."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perfgate.fixture import Gate


def conclude(item: pytest.Item, gate: Gate) -> None:
    """Let the worst of a gate's verdicts be its test's outcome, and tell JUnit of it."""
    # No frame is hidden here: pytest would tell the reader so instead of showing the line alone.
    from perfgate.report.record import SEVERITY

    if not gate.verdicts:
        return
    worst = min(gate.verdicts, key=lambda verdict: SEVERITY.index(verdict.outcome))
    item.user_properties.extend(worst.properties().items())
    lines = [v.line for v in sorted(gate.verdicts, key=lambda v: SEVERITY.index(v.outcome))]
    settings = gate.run.settings
    if worst.outcome.fails or (worst.outcome.unanswered and settings.strict):
        pytest.fail("\n".join(lines), pytrace=False)
    if worst.outcome.unanswered and not settings.refresh:
        pytest.skip(lines[0])


def without_perfgate(tb: TracebackType | None) -> TracebackType | None:
    """Return a traceback down to the user's line that asked for what cannot be."""
    if tb is None:
        return None
    below = without_perfgate(tb.tb_next)
    if below is None and tb.tb_frame.f_globals.get("__name__", "").startswith("perfgate."):
        return None
    return TracebackType(below, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
