"""`pytest --perfgate` as its user sees it: outcomes, the table, JUnit, stored files."""

from __future__ import annotations

import json
import sys

import pytest
from junitparser import JUnitXml
from junitparser.xunit2 import TestCase

PERFGATE = (sys.executable, "-m", "perfgate")
STEADY = ("-k", "short or long")


def test_without_the_option_every_case_runs_once_verified(measured):
    result = measured.runpytest()
    result.assert_outcomes(passed=3)
    assert "NO_BASELINE" not in result.stdout.str()
    assert not (measured.path / "baselines").exists()


def test_without_a_baseline_the_test_is_skipped_with_the_next_command(gated):
    result = gated("-rs")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(
        ["SKIPPED*NO_BASELINE all_reduce 64KiB float32 x2*--perfgate-refresh*::test_sum*"]
    )


def test_a_missing_answer_fails_when_strict(gated):
    gated("--perfgate-strict").assert_outcomes(failed=3)


def test_unchanged_code_passes_against_a_stored_session(refreshed):
    result = refreshed(*STEADY)
    result.assert_outcomes(passed=2, deselected=1)
    result.stdout.fnmatch_lines(["*perfgate: 2 PASS*"])


def test_a_planted_slowdown_fails_exactly_the_tests_it_touches(refreshed, monkeypatch):
    monkeypatch.setenv("PERFGATE_PLANT", "short:+60%")
    result = refreshed("-rf", *STEADY)
    result.assert_outcomes(passed=1, failed=1, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "perfgate: PLANTED SLOWDOWN short +60.0%",
            "REGRESSION short x1: *, +*% (limit +10.0%, noise *",
            "PLANTED SLOWDOWN short +60.0%: this run proves the gate",
            "FAILED test_cases.py::test_short - Failed: REGRESSION short*",
        ]
    )


def test_a_planted_slowdown_reaches_a_collective(gated, monkeypatch):
    gated("--perfgate-refresh", "-k", "sum").assert_outcomes(passed=1, deselected=2)
    monkeypatch.setenv("PERFGATE_PLANT", "all_reduce:64KiB:+600%")
    result = gated("-k", "sum", "--perfgate-budget=0.2")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["REGRESSION all_reduce 64KiB float32 x2*"])


def test_each_run_proves_that_the_gate_can_find_something(refreshed):
    result = refreshed(*STEADY)
    result.stdout.fnmatch_lines(["self-test: a planted +200% was found, as +*%"])


def test_a_gate_that_finds_nothing_is_not_believed(refreshed, monkeypatch):
    monkeypatch.setattr("perfgate.proof.SLOWDOWN", 0.0)
    result = refreshed("-k", "short")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["INVALID short x1*self-test: a planted *was told as PASS*"])


def test_what_became_faster_is_told_and_passes(refreshed, scale):
    scale("long", 2)
    result = refreshed(*STEADY)
    result.assert_outcomes(passed=2, deselected=1)
    result.stdout.fnmatch_lines(["*perfgate: 1 PASS, 1 IMPROVEMENT*"])


def test_an_interval_too_wide_for_the_limit_is_no_pass(refreshed):
    result = refreshed("-k", "short", "--perfgate-max-regression=0.01%", "-rs")
    result.assert_outcomes(skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["SKIPPED*INCONCLUSIVE short x1*lies below*"])


def test_the_table_fits_eighty_columns_and_names_every_case(refreshed):
    lines = refreshed().stdout.lines
    start = next(i for i, line in enumerate(lines) if "= perfgate: " in line)
    table = lines[start + 1 : start + 8]
    assert max(len(line) for line in lines[start : start + 9]) <= 80
    assert table[0].split() == [
        "case", "time", "busbw", "Gb/s", "change", "limit", "noise", "verdict"
    ]  # fmt: skip
    assert [line.split()[0] for line in table[1:]] == [
        "short", "x1", "long", "x1", "all_reduce", "64KiB"
    ]  # fmt: skip


def test_junit_carries_every_figure(refreshed, measured, scale):
    scale("all_reduce", 0.001)
    refreshed("--junitxml=out.xml").assert_outcomes(passed=2, failed=1)
    (suite,) = JUnitXml.fromfile(str(measured.path / "out.xml"))
    tests = {test.name: TestCase.fromelem(test) for test in suite}
    found = {p.name: p.value for p in tests["test_sum"].properties()}
    assert {
        "busbw_gbps", "algbw_gbps", "time_us", "change_percent", "limit_percent", "mde_percent",
        "verdict", "environment", "baseline_commit",
    } <= found.keys()  # fmt: skip
    bits_per_ns = 65536 * 8 / (float(found["time_us"]) * 1e3)
    assert float(found["algbw_gbps"]) == pytest.approx(bits_per_ns, rel=1e-4)
    assert found["busbw_gbps"] == found["algbw_gbps"]  # two ranks: 2(n-1)/n is 1
    (result,) = tests["test_sum"].result
    first = result.message.splitlines()[0].removeprefix("Failed: ")
    assert first.startswith("REGRESSION all_reduce 64KiB float32 x2: ")
    steps = {p.name: p.value for p in tests["test_short"].properties()}
    assert float(steps["items_per_s"]) == pytest.approx(3e6 / float(steps["time_us"]), rel=1e-4)


def test_a_refresh_adds_a_session_and_leaves_a_regression_out(refreshed, scale, baseline_file):
    scale("long", 0.01)
    refreshed("--perfgate-refresh", *STEADY).assert_outcomes(passed=1, failed=1, deselected=1)
    cases = json.loads(baseline_file().read_text())["cases"]
    sessions = {name.split(" | ")[1]: len(case["sessions"]) for name, case in cases.items()}
    assert sessions == {
        "short x1 gloo/cpu torch": 2,
        "long x1 gloo/cpu torch": 1,
        "all_reduce 64KiB float32 x2 gloo/cpu torch": 1,
    }


def test_a_change_that_is_meant_is_accepted_by_name(refreshed, measured, scale):
    scale("long", 0.01)
    refreshed(*STEADY).assert_outcomes(passed=1, failed=1, deselected=1)
    accepted = measured.run(*PERFGATE, "baseline", "accept", "test_cases.py::test_long")
    assert accepted.ret == 0, accepted.stderr.str()
    refreshed(*STEADY).assert_outcomes(passed=2, deselected=1)
    measured.run(*PERFGATE, "baseline", "list").stdout.fnmatch_lines(["*long x1*1*unknown*"])
    measured.run(*PERFGATE, "baseline", "show", "long").stdout.fnmatch_lines(["*unknown*us *us*"])


def test_accepting_what_was_not_measured_names_what_was(refreshed, measured):
    result = measured.run(*PERFGATE, "baseline", "accept", "test_cases.py::test_lnog")
    assert result.ret == 2
    result.stderr.fnmatch_lines(["*measured no 'test_cases.py::test_lnog'*::test_long*"])


def test_the_baseline_holds_one_case_a_line(refreshed, baseline_file):
    lines = baseline_file().read_text().splitlines()
    assert sum("test_cases.py::" in line for line in lines) == 3
    assert all(line.count("test_cases.py::") <= 1 for line in lines)


def test_a_baseline_cut_in_half_is_named_and_left_alone(refreshed, baseline_file):
    path = baseline_file()
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    result = refreshed("--perfgate-refresh")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_cases.json:*cut short*"])
    assert path.read_text() == text[: len(text) // 2]


def test_a_session_that_cannot_be_stored_fails_the_run_and_keeps_its_record(refreshed, measured):
    (measured.path / "baselines/.lock").unlink(missing_ok=True)
    (measured.path / "baselines/.lock").mkdir()
    result = refreshed("--perfgate-refresh", "-k", "short")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["NOT STORED: *cannot lock the baseline*"])
    assert json.loads((measured.path / ".perfgate/run.json").read_text())["measured"]


def test_reports_are_written_and_one_that_cannot_be_is_named(refreshed, measured, monkeypatch):
    summary = measured.path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    refreshed("--perfgate-report=out", *STEADY).assert_outcomes(passed=2, deselected=1)
    assert json.loads((measured.path / "out/run.json").read_text())["verdicts"][0]["line"]
    assert "| short x1 |" in summary.read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(measured.path))
    result = refreshed(*STEADY)
    result.assert_outcomes(passed=2, deselected=1)
    result.stdout.fnmatch_lines(["MarkdownFile failed: IsADirectoryError*"])


def test_a_regression_is_annotated_on_github(refreshed, scale, monkeypatch):
    scale("long", 0.01)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = refreshed(*STEADY)
    result.stdout.fnmatch_lines(["::error file=test_cases.py,title=perfgate::REGRESSION long x1*"])


def test_junit_files_become_one_table(refreshed, measured, scale):
    scale("long", 0.01)
    refreshed("--junitxml=out.xml", *STEADY)
    result = measured.run(*PERFGATE, "report", "out.xml")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "### perfgate: 1 REGRESSION, 1 PASS",
            "| long x1*| REGRESSION |",
            "| short x1*| PASS |",
            "*REGRESSION long x1:*",
        ]
    )


def test_a_wrong_result_is_invalid_and_stores_nothing(measured, gated):
    measured.makepyfile(
        test_cases="""
        from perfgate import measure
        from perfgate.bench import timing

        class Wrong(timing.CollectiveArm):
            def __init__(self, *args):
                super().__init__(*args)
                right = self.run
                self.run = lambda: (right(), self.bound.plan.receive.add_(1))

        def measure_wrongly(*args):
            timing.CollectiveArm = Wrong
            return timing.time_collective(*args)

        def test_wrong(gate, monkeypatch):
            right = measure.OnRank
            monkeypatch.setattr(
                measure, "OnRank",
                lambda *name: measure_wrongly if "time_collective" in name else right(*name),
            )
            gate.collective("all_reduce", size="4KiB")
        """
    )
    result = gated("--perfgate-refresh")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["INVALID all_reduce 4KiB*element 0 is *, expected *"])
    assert not list(measured.path.glob("baselines/*/*.json"))
    measured.runpytest().assert_outcomes(failed=1)


def test_a_rank_that_dies_while_it_is_measured_fails_that_test_alone(measured, gated):
    measured.makepyfile(
        test_cases="""
        import os, signal, torch.distributed as dist

        def die():
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()

        def test_dies(gate):
            gate.throughput(die, items=1)

        def test_next(gate):
            gate.throughput(dist.barrier, items=1)
        """
    )
    result = gated("--perfgate-refresh")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*rank 1 of 2 was killed by SIGKILL*"])


RATIO = """
    import time

    def spin(seconds):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    def half():
        spin(0.0003)

    def whole():
        spin(0.0006)

    def test_limit(gate):
        gate.ratio(half, to=whole, at_most=0.6)

    def test_stored(gate):
        gate.ratio(half, to=whole)
"""


def test_a_ratio_is_held_against_its_limit_and_the_portable_baseline(measured, gated, monkeypatch):
    measured.makepyfile(test_cases=RATIO)
    gated("--perfgate-refresh").assert_outcomes(passed=2)
    assert (measured.path / "baselines/portable/test_cases.json").exists() or list(
        measured.path.glob("baselines/portable*/test_cases.json")
    )
    result = gated()
    result.assert_outcomes(passed=2)
    monkeypatch.setenv("PERFGATE_PLANT", "half:+60%")
    result = gated()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["REGRESSION half/whole x2: +*; 0.8* of the reference's time*"])
