"""Two commits compared, `pytest --perfgate --perfgate-base`, as its user sees it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

QUICK = ("--perfgate", "-p", "no:randomly", "--perfgate-launches=5", "--perfgate-budget=1")

THING = """
    import time

    def spin(seconds):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    def fast():
        spin(0.0003)

    def slow():
        spin({slow_s})

    {more}
"""
TESTS = """
    import pytest, thing

    @pytest.mark.world(size=1)
    def test_fast(gate):
        gate.throughput(thing.fast, items=3, unit="steps")

    @pytest.mark.world(size=1)
    def test_slow(gate):
        gate.throughput(thing.slow, items=3, unit="steps")

    def test_sum(gate):
        gate.collective("all_reduce", size="64KiB", max_regression=1)
"""


def make_venv(folder: Path, *, shared: bool = True) -> Path:
    """Make an environment that sees this one's packages, but not its editable ones."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    if shared:
        (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/python"


def write_thing(folder: Path, slow_s: float = 0.0003, more: str = "") -> None:
    """Write the package under test in a version of its own."""
    import textwrap

    (folder / "thing").mkdir(exist_ok=True)
    code = textwrap.dedent(THING).format(slow_s=slow_s, more=more)
    (folder / "thing" / "__init__.py").write_text(code)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a base that has its own thing and borrows perfgate."""
    python = make_venv(tmp_path_factory.mktemp("base") / "venv")
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    write_thing(site)
    return python


@pytest.fixture
def head(pytester: pytest.Pytester) -> pytest.Pytester:
    """A checkout with a thing of its own, not installed, and tests of it."""
    pytester.makeini("[pytest]\n")
    write_thing(pytester.path)
    pytester.makepyfile(test_cases=TESTS)
    return pytester


@pytest.fixture
def compared(head: pytest.Pytester, base: Path) -> Callable[..., pytest.RunResult]:
    """Run the tests of the head against the base, quickly."""

    def run(*args: str) -> pytest.RunResult:
        return head.runpytest(
            *QUICK, f"--perfgate-base={base}", "--perfgate-base-name=c0ffee", *args
        )

    return run


def test_unchanged_code_is_no_regression(compared):
    result = compared("-rs")
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(
        ["perfgate: gate, limit 10%, * against c0ffee*", "self-test: a planted +200% was found*"]
    )


def test_the_head_twice_as_slow_fails_exactly_the_test_it_touches(compared, head):
    write_thing(head.path, slow_s=0.0006)
    result = compared("-k", "fast or slow", "-rs")
    result.assert_outcomes(passed=1, failed=1, deselected=1)
    result.stdout.fnmatch_lines(
        ["REGRESSION slow x1: *us, * steps/s, +*%*at least *against c0ffee, measured beside it*"]
    )
