"""`pytest --perfgate` as its user sees it: outcomes, the table, JUnit, stored files."""

from __future__ import annotations

import json

import pytest
from junitparser import JUnitXml
from junitparser.xunit2 import TestCase


def test_without_the_option_every_case_runs_once_verified(measured):
    result = measured.runpytest()
    result.assert_outcomes(passed=3)
    assert "NO_BASELINE" not in result.stdout.str()
    assert not (measured.path / "baselines").exists()


def test_without_a_baseline_the_test_is_skipped_with_the_next_command(gated):
    result = gated("-rs")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(
        ["SKIPPED*NO_BASELINE broadcast 64KiB float32 x2*--perfgate-refresh*::test_broadcast*"]
    )


def test_a_missing_answer_fails_when_strict(gated):
    gated("--perfgate-strict").assert_outcomes(failed=3)


def test_unchanged_code_passes_against_a_stored_session(refreshed):
    result = refreshed()
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*perfgate: 3 PASS*"])


def test_a_planted_slowdown_fails_exactly_the_tests_it_touches(refreshed, monkeypatch):
    monkeypatch.setenv("PERFGATE_PLANT", "all_reduce:64KiB:+3000%")
    result = refreshed("-rf")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["perfgate: PLANTED SLOWDOWN all_reduce 64KiB +3000%",
         "REGRESSION all_reduce 64KiB float32 x2: *, +*% (limit 400%, noise *",
         "FAILED test_ops.py::test_all_reduce?64KiB? - Failed: REGRESSION all_reduce*"]
    )  # fmt: skip


def test_what_became_faster_is_told_and_passes(refreshed, scale):
    scale("broadcast", 40)
    result = refreshed()
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*perfgate: 2 PASS, 1 IMPROVEMENT*"])


def test_an_interval_too_wide_for_the_limit_is_no_pass(refreshed, measured):
    result = refreshed("-k", "broadcast", "--perfgate-max-regression=0.01%", "-rs")
    result.assert_outcomes(skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["SKIPPED*INCONCLUSIVE broadcast*lies below*"])


def test_the_table_fits_eighty_columns_and_names_every_case(refreshed):
    lines = refreshed().stdout.lines
    start = next(i for i, line in enumerate(lines) if "perfgate: 3 PASS" in line)
    table = lines[start : start + 8]
    assert max(len(line) for line in table) <= 80
    assert table[1].split() == ["case", "time", "busbw", "change", "limit", "noise", "verdict"]
    assert [line.split()[0] for line in table[2:7]] == [
        "all_reduce", "4KiB", "64KiB", "broadcast", "64KiB"
    ]  # fmt: skip


def test_junit_carries_every_figure(refreshed, measured, scale):
    scale("broadcast", 0.01)
    refreshed("--junitxml=out.xml").assert_outcomes(passed=2, failed=1)
    (suite,) = JUnitXml.fromfile(str(measured.path / "out.xml"))
    tests = {test.name: TestCase.fromelem(test) for test in suite}
    for test in tests.values():
        found = {p.name: p.value for p in test.properties()}
        assert {
            "busbw_gbps", "algbw_gbps", "time_us", "change_percent", "limit_percent",
            "mde_percent", "verdict", "environment", "baseline_commit",
        } <= found.keys()  # fmt: skip
        time_s = float(found["time_us"]) / 1e6
        size = 4096 if "4KiB]" in test.name and "64" not in test.name else 65536
        assert float(found["algbw_gbps"]) == pytest.approx(size * 8 / time_s / 1e9, rel=1e-4)
    (result,) = tests["test_broadcast"].result
    assert (
        result.message.splitlines()[0]
        .removeprefix("Failed: ")
        .startswith("REGRESSION broadcast 64KiB float32 x2: ")
    )


def test_a_refresh_adds_a_session_and_leaves_a_regression_out(refreshed, scale, baseline_file):
    scale("broadcast", 0.01)
    refreshed("--perfgate-refresh").assert_outcomes(passed=2, failed=1)
    cases = json.loads(baseline_file().read_text())["cases"]
    sessions = {name.split(" | ")[1]: len(case["sessions"]) for name, case in cases.items()}
    assert sessions == {
        "all_reduce 4KiB float32 x2 gloo/cpu torch": 2,
        "all_reduce 64KiB float32 x2 gloo/cpu torch": 2,
        "broadcast 64KiB float32 x2 gloo/cpu torch": 1,
    }


def test_a_change_that_is_meant_is_accepted_by_name(refreshed, measured, scale, baseline_file):
    scale("broadcast", 0.01)
    refreshed().assert_outcomes(passed=2, failed=1)
    accepted = measured.run("perfgate", "baseline", "accept", "test_ops.py::test_broadcast")
    assert accepted.ret == 0, accepted.stderr.str()
    refreshed().assert_outcomes(passed=3)
    measured.run("perfgate", "baseline", "list").stdout.fnmatch_lines(["*broadcast*1*"])


def test_the_baseline_holds_one_case_a_line(refreshed, baseline_file):
    lines = baseline_file().read_text().splitlines()
    assert sum("test_ops.py::" in line for line in lines) == 3
    assert all(line.count("test_ops.py::") <= 1 for line in lines)


def test_a_baseline_cut_in_half_is_named_and_left_alone(refreshed, baseline_file):
    path = baseline_file()
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    result = refreshed("--perfgate-refresh")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_ops.json:*cut short*"])
    assert path.read_text() == text[: len(text) // 2]


def test_reports_are_written_and_one_that_cannot_be_warns(refreshed, measured, monkeypatch):
    summary = measured.path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    refreshed("--perfgate-report=out").assert_outcomes(passed=3)
    assert json.loads((measured.path / "out/run.json").read_text())["verdicts"][0]["line"]
    assert "| all_reduce 4KiB float32 x2 |" in summary.read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(measured.path))
    result = refreshed()
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*ReportFailed: MarkdownFile failed: IsADirectoryError*"])


def test_junit_files_become_one_table(refreshed, measured):
    refreshed("--junitxml=out.xml")
    result = measured.run("perfgate", "report", "out.xml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["### perfgate: 3 PASS", "| broadcast 64KiB float32 x2*| PASS |"])


def test_a_wrong_result_is_invalid_and_stores_nothing(measured, gated):
    measured.makepyfile(
        test_ops="""
        import pytest, torch.distributed
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
            from perfgate import measure
            monkeypatch.setattr(measure, "OnRank", lambda *_: measure_wrongly)
            gate.collective("all_reduce", size="4KiB")
        """
    )
    result = gated("--perfgate-refresh")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["INVALID all_reduce 4KiB*element 0 is *, expected *"])
    assert not list(measured.path.glob("baselines/*/*.json"))
    measured.runpytest().assert_outcomes(failed=1)


def test_throughput_is_gated_and_told_in_items(measured, gated):
    measured.makepyfile(
        test_ops="""
        import torch

        def make():
            return torch.ones(64, 64)

        def step(x):
            return x @ x

        def test_step(gate):
            gate.throughput(step, items=32, unit="samples", setup=make)
        """
    )
    gated("--perfgate-refresh").assert_outcomes(passed=1)
    result = gated("--junitxml=out.xml")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*x2 *us *e+0?/s*PASS"])
    assert "items_per_s" in (measured.path / "out.xml").read_text()
