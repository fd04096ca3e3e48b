"""A small suite of a user's, run by a pytest of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

# Functions that take a time by the clock, so that the figures hardly vary on a busy machine.
MEASURED = """
    import pytest, time

    def spin(seconds):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    def short():
        spin(0.0003)

    def long():
        spin(0.0006)

    @pytest.mark.world(size=1)
    def test_short(gate):
        gate.throughput(short, items=3, unit="steps")

    @pytest.mark.world(size=1)
    def test_long(gate):
        gate.throughput(long, items=1, unit="steps")

    def test_sum(gate):
        gate.collective("all_reduce", size="64KiB", max_regression=1)
"""
QUICK = ("--perfgate-launches=5", "--perfgate-budget=1")


@pytest.fixture
def measured(pytester: pytest.Pytester) -> pytest.Pytester:
    """Three measured tests in a directory of their own."""
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_cases=MEASURED)
    return pytester


@pytest.fixture
def gated(measured: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run ``pytest --perfgate``, quickly."""

    def run(*args: str) -> pytest.RunResult:
        return measured.runpytest("--perfgate", "-p", "no:randomly", *QUICK, *args)

    return run


@pytest.fixture
def refreshed(gated: Callable[..., pytest.RunResult]) -> Callable[..., pytest.RunResult]:
    """The same, with one session stored."""
    gated("--perfgate-refresh").assert_outcomes(passed=3)
    return gated


@pytest.fixture
def baseline_file(measured: pytest.Pytester) -> Callable[[], Path]:
    """Find the one baseline file."""

    def find() -> Path:
        (path,) = measured.path.glob("baselines/*/test_cases.json")
        return path

    return find


@pytest.fixture
def scale(baseline_file: Callable[[], Path]) -> Callable[[str, float], None]:
    """Multiply the stored times of the cases whose id holds a text."""

    def rewrite(text: str, by: float) -> None:
        content = json.loads(baseline_file().read_text())
        for name, case in content["cases"].items():
            for session in case["sessions"] if text in name else ():
                session["launches"] = [
                    [*(time_us * by for time_us in row[:4]), row[4]] for row in session["launches"]
                ]
        baseline_file().write_text(json.dumps(content))

    return rewrite
