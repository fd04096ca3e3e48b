"""A small suite of a user's, run by a pytest of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

MEASURED = """
    import pytest

    @pytest.mark.parametrize("size", ["4KiB", "64KiB"])
    def test_all_reduce(gate, size):
        gate.collective("all_reduce", size=size)

    def test_broadcast(gate):
        gate.collective("broadcast", size="64KiB")
"""
# Few launches and little time: these tests are about outcomes, which are made to lie far from
# every limit.
QUICK = ("--perfgate-launches=3", "--perfgate-budget=1", "--perfgate-max-regression=400%")


@pytest.fixture
def measured(pytester: pytest.Pytester) -> pytest.Pytester:
    """Three measured tests in a directory of their own."""
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_ops=MEASURED)
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
        (path,) = measured.path.glob("baselines/*/test_ops.json")
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
