"""Coverage in ranks, wherever it runs in the controller: pytest-cov combines what they write."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Mapping

VARIABLE = "PERFGATE_COVERAGE"
_OPTIONS = ("branch", "source", "include", "omit")


def coverage_environ() -> dict[str, str]:
    """Return the variable by which ranks are told to measure coverage as this process does."""
    coverage = sys.modules.get("coverage")
    current = coverage and coverage.Coverage.current()
    if not current:
        return {}
    options = {name: current.get_option(f"run:{name}") for name in _OPTIONS}
    options["data_file"] = os.path.abspath(current.get_option("run:data_file"))
    return {VARIABLE: json.dumps(options)}


def start_coverage(environ: Mapping[str, str]) -> None:
    """Measure coverage in this rank from now on, if it was told to."""
    if VARIABLE not in environ:
        return
    import coverage

    measuring = coverage.Coverage(
        data_suffix=True, config_file=False, **json.loads(environ[VARIABLE])
    )
    measuring.start()
    atexit.register(measuring.save)
    atexit.register(measuring.stop)
