"""The live line: which case, which launch, how far. Nothing where no one watches."""

from __future__ import annotations

import pytest

from perfgate.model import Case


class Progress:
    """Rewrites one line on a terminal; stays silent in a file or a CI log.

    There pytest's own line a test is the progress.
    """

    def __init__(self, reporter: pytest.TerminalReporter | None) -> None:
        self.reporter = reporter
        self.live = reporter is not None and reporter.isatty and reporter.verbosity >= 0

    def tell(self, case: Case, what: str) -> None:
        """Show what is being measured."""
        if self.reporter is not None and self.live:
            text = f"measuring {case.label}, {what}"
            self.reporter.rewrite(text[: self.reporter._tw.fullwidth - 1], erase=True)
