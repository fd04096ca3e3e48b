"""Two commits compared, `pytest --perfgate --perfgate-base`, as its user sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from junitparser import JUnitXml
from junitparser.xunit2 import TestCase

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
    (folder / "thing").mkdir(exist_ok=True)
    code = textwrap.dedent(THING).format(slow_s=slow_s, more=more)
    (folder / "thing" / "__init__.py").write_text(code)


@pytest.fixture(autouse=True)
def one_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork from one zygote a side: what is tested here is not how little layouts matter."""
    monkeypatch.setattr("perfgate.duel.LAYOUTS", 1)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a base that has its own thing and borrows perfgate."""
    python = make_venv(tmp_path_factory.mktemp("base") / "venv")
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    write_thing(site)
    return python


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a base that has torch and no thing."""
    return make_venv(tmp_path_factory.mktemp("bare") / "venv")


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


def test_a_plant_slows_down_the_head_alone(compared, monkeypatch):
    monkeypatch.setenv("PERFGATE_PLANT", "fast:+60%")
    result = compared("-k", "fast")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["REGRESSION fast x1: *+6*%*against c0ffee*"])


def test_the_self_test_measures_the_base_too(compared, monkeypatch):
    monkeypatch.setattr("perfgate.proof.SLOWDOWN", 0.0)
    result = compared("-k", "fast")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["INVALID fast x1*self-test: a planted *was told as *"])


def test_nothing_stored_is_read_written_or_offered(compared, head):
    (head.path / "baselines").write_text("a file, not a folder")
    result = compared("-k", "fast", "--junitxml=out.xml")
    assert result.ret == pytest.ExitCode.OK
    assert (head.path / "baselines").read_text() == "a file, not a folder"
    assert json.loads((head.path / ".perfgate/run.json").read_text())["measured"] == {}
    (suite,) = JUnitXml.fromfile(str(head.path / "out.xml"))
    (test,) = (TestCase.fromelem(test) for test in suite)
    figures = {p.name: p.value for p in test.properties()}
    assert figures["baseline_commit"] == "c0ffee"
    assert float(figures["time_us"]) > 300


def test_ratios_are_compared_with_the_base_s_ratios(compared, head):
    write_thing(head.path, slow_s=0.0006)
    head.makepyfile(
        test_cases="""
        import thing

        def test_ratio(gate):
            gate.ratio(thing.slow, to=thing.fast)

        def test_limit(gate):
            gate.ratio(thing.slow, to=thing.fast, at_most=2.5)
        """
    )
    result = compared()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["REGRESSION slow/fast x2: +9*against c0ffee*"])


def test_test_code_is_the_head_s_on_both_sides(compared, head):
    head.mkpydir("tests")
    head.makepyfile(
        **{
            "tests/conftest": "FACTOR = 2",
            "tests/beside": "def work(): import thing; thing.fast()",
            "lone/alone": "def work(): import thing; thing.fast()",
            "tests/test_package": """
                from tests import beside
                def test_package(gate):
                    gate.throughput(beside.work, items=1)
            """,
            "lone/test_lone": """
                import alone
                def test_lone(gate):
                    gate.throughput(alone.work, items=1)
            """,
        }
    )
    result = compared("tests", "lone", "-rs")
    assert result.parseoutcomes().get("failed", 0) == 0
    assert result.parseoutcomes().get("errors", 0) == 0
    result.stdout.fnmatch_lines(["work"])


def test_what_the_base_lacks_is_new_and_no_failure(compared, head):
    write_thing(head.path, more="def new(): spin(0.0003)")
    head.makepyfile(
        test_cases="import thing\ndef test_new(gate): gate.throughput(thing.new, items=1)"
    )
    result = compared("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED*NO_BASELINE new x2: the base c0ffee cannot run it: *'new'*"]
    )


def test_a_base_that_dies_is_told_as_the_base(compared, head):
    head.makepyfile(
        test_cases="""
        import os, signal, sys

        def die():
            if "base" in sys.prefix:
                os.kill(os.getpid(), signal.SIGKILL)

        def test_dies(gate):
            gate.throughput(die, items=1)

        def test_next(gate):
            gate.throughput(print, items=1)
        """
    )
    result = compared("-k", "dies or next")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1, outcomes
    result.stdout.fnmatch_lines(["E*the base c0ffee failed, not the head: *SIGKILL*"])


def test_a_package_found_in_the_head_s_checkout_alone_is_told(head, bare):
    result = head.runpytest(*QUICK, f"--perfgate-base={bare}", "-k", "fast")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines([f"E*has no module 'thing'*checkout {head.path}*into {bare}"])


def test_a_base_that_imports_the_head_s_code_is_told(head, bare):
    (site,) = bare.parent.parent.glob("lib/python*/site-packages")
    (site / "linked.pth").write_text(f"{head.path}\n")
    result = head.runpytest(*QUICK, f"--perfgate-base={bare}", "-k", "fast")
    (site / "linked.pth").unlink()
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(
        [f"E*the base imported thing from the head's checkout, {head.path}/thing/*{bare}"]
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--perfgate", "--perfgate-base=absent/python"), "*absent/python is not there; give*"),
        (("--perfgate", "--perfgate-base=no-such-python"), "*no-such-python is not there; give*"),
        (("--perfgate", "--perfgate-base=./tox.ini"), "*./tox.ini cannot be run; give*"),
        (("--perfgate", "--perfgate-base=/bin/echo"), "*does not answer as a Python does: -s *"),
        (("--perfgate", "--perfgate-base=python", "--perfgate-refresh"), "*give one of them*"),
        (("--perfgate-base=python",), "*compares what --perfgate measures; give both*"),
    ],
)
def test_a_base_that_cannot_be_is_refused(head, args, told):
    result = head.runpytest(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([told])


def test_a_base_without_torch_names_the_command(head, tmp_path):
    python = make_venv(tmp_path / "venv", shared=False)
    result = head.runpytest("--perfgate", f"--perfgate-base={python}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*has no torch, *next: {python} -m pip install torch *psutil"])


def test_a_base_with_a_perfgate_of_another_protocol_is_refused(head, bare):
    (site,) = bare.parent.parent.glob("lib/python*/site-packages")
    (site / "perfgate" / "world").mkdir(parents=True)
    for name in ("__init__", "world/__init__", "world/protocol"):
        (site / "perfgate" / f"{name}.py").write_text("PROTOCOL = 0\n")
    result = head.runpytest("--perfgate", f"--perfgate-base={bare}")
    shutil.rmtree(site / "perfgate")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*whose ranks speak protocol 0 and not *pip uninstall*"])
