"""Tests on ranks beside pytest's own options and its best-known plugins."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SUITE = """
    import os, time, warnings
    import pytest, torch, torch.distributed as dist

    @pytest.mark.ranks(2)
    def test_one(rank):
        dist.barrier()

    @pytest.mark.ranks(2)
    def test_two(rank):
        assert rank.index < 1, "second of two"

    @pytest.mark.ranks(3)
    def test_three(rank):
        dist.barrier()

    def test_plain():
        pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(SUITE)
    return pytester


def test_select_by_keyword(suite):
    suite.runpytest_inprocess("-k", "one or plain").assert_outcomes(passed=2, deselected=2)


def test_stop_at_the_first_failure(suite):
    result = suite.runpytest_inprocess("-x", "-k", "two or three", "-p", "no:randomly")
    result.assert_outcomes(failed=1, deselected=2)


def test_last_failed_runs_what_failed(suite):
    suite.runpytest_inprocess().assert_outcomes(passed=3, failed=1)
    suite.runpytest_inprocess("--lf").assert_outcomes(failed=1)


def test_durations_name_tests_on_ranks(suite):
    result = suite.runpytest_inprocess("--durations=0", "-vv")
    result.stdout.fnmatch_lines(["*s call*test_durations_name_tests_on_ranks.py::test_one"])


def test_junit_tells_the_whole_report(suite):
    suite.runpytest_inprocess("--junitxml=report.xml")
    text = (suite.path / "report.xml").read_text()
    assert "rank 1 of 2 raised AssertionError: second of two" in text


def test_xdist_gives_each_worker_worlds_of_its_own(suite):
    result = suite.runpytest_subprocess("-n", "2", "-p", "no:randomly")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*rank 1 of 2 raised AssertionError: second of two*"])


def test_random_order(suite):
    result = suite.runpytest_subprocess("-p", "randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=1)


def test_without_the_plugin_nothing_is_in_the_way(suite):
    result = suite.runpytest_subprocess("-p", "no:perfgate", "-k", "plain")
    result.assert_outcomes(passed=1, deselected=3, warnings=3)


def test_timeout_of_pytest_timeout_ends_the_ranks(pytester):
    pytester.makepyfile("""
        import os, time, pathlib, pytest

        @pytest.mark.ranks(2)
        def test_first(rank):
            pass

        @pytest.mark.timeout(5)
        @pytest.mark.ranks(2)
        def test_hangs(rank):
            pathlib.Path(f"pid{rank.index}").write_text(str(os.getpid()))
            time.sleep(1000)

        @pytest.mark.ranks(2)
        def test_next(rank):
            pass
    """)
    result = pytester.runpytest_subprocess("-p", "no:randomly")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*Timeout (>5.0s) from pytest-timeout*"])
    for rank in range(2):
        assert not psutil.pid_exists(int((pytester.path / f"pid{rank}").read_text()))


def test_deadline_of_the_marker(pytester):
    pytester.makepyfile("""
        import time, pytest

        @pytest.mark.ranks(2, deadline="1s")
        def test_hangs(rank):
            if rank.index == 1:
                time.sleep(1000)
    """)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*rank 1 of 2 hung at *when the deadline of 1 s passed*"])


def test_coverage_of_rank_code(pytester):
    pytester.makepyfile(
        library="""
            def on_rank(index):
                if index == 0:
                    return "first"
                return "other"

            def never():
                return None
        """,
        test_cov="""
            import pytest

            @pytest.mark.ranks(2)
            def test_library(rank):
                import library
                assert library.on_rank(rank.index)
        """,
    )
    result = pytester.runpytest_subprocess(
        "--cov=library", "--cov-report=term-missing", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r"library\.py +6 +1 +83% +7"])


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_output_of_ranks_passes_through(pytester, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    pytester.makepyfile("""
        import pytest, torch.distributed as dist

        @pytest.mark.ranks(2)
        def test_prints(rank):
            for _ in range(20):
                dist.barrier()
                print("rank", rank.index, "speaks")
    """)
    result = pytester.runpytest_subprocess("-s", "-p", "no:randomly")
    result.assert_outcomes(passed=1)
    whole = [line for line in result.outlines if line in ("rank 0 speaks", "rank 1 speaks")]
    assert len(whole) >= 39  # the first may stand behind the file's name


def test_output_of_ranks_is_shown_on_failure_and_kept(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.ranks(2)
        def test_prints(rank):
            print("rank", rank.index, "speaks")
            assert rank.index == 0
    """)
    result = pytester.runpytest_inprocess("--perfgate-report=reports")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Captured rank 1 call*", "rank 1 speaks"])
    logs = [path.read_text() for path in (pytester.path / "reports").rglob("rank1.log")]
    assert "rank 1 speaks\n" in logs


def test_warning_in_a_rank_can_be_an_error(pytester):
    pytester.makepyfile("""
        import warnings, pytest

        @pytest.mark.ranks(2)
        def test_warns(rank):
            warnings.warn("a small matter", DeprecationWarning)
    """)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, warnings=1)
    result = pytester.runpytest_inprocess("-W", "error::DeprecationWarning")
    result.assert_outcomes(failed=1)


HANGING = """
    import os, pathlib, time, pytest

    @pytest.mark.ranks(2)
    def test_hangs(rank):
        pathlib.Path(f"pid{rank.index}").write_text(str(os.getpid()))
        time.sleep(1000)
"""


def heed_interrupts() -> None:
    """What a shell starts in the background ignores them, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_pytest_leaves_no_rank(pytester, signum):
    pytester.makepyfile(HANGING)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=heed_interrupts,
    )  # fmt: skip
    files = [pytester.path / f"pid{rank}" for rank in range(2)]
    _wait(lambda: all(file.exists() and file.read_text() for file in files))
    pids = [int(file.read_text()) for file in files]
    process.send_signal(signum)
    text, _ = process.communicate(timeout=30)
    _wait(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    if signum == signal.SIGINT:
        assert process.returncode == pytest.ExitCode.INTERRUPTED
        assert "KeyboardInterrupt" in text


def _wait(condition, deadline_s: float = 30.0) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


BREAKING = """
    import pytest

    @pytest.mark.ranks(2, deadline="1s")
    def test_breaks(rank):
        answer = 41 + rank.index
        breakpoint()
        assert answer == 42 - 1 + rank.index

    @pytest.mark.ranks(2)
    def test_raises(rank):
        secret = 7 * 6 + rank.index
        assert rank.index == 0
"""


class Terminal:
    """pytest on a terminal of its own, read and typed into."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            command = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-q"]
            os.execv(sys.executable, [sys.executable, *command, *options])
        self.text = ""

    def expect(self, words: str, deadline_s: float = 60.0) -> None:
        until = time.monotonic() + deadline_s
        while words not in self.text:
            left_s = until - time.monotonic()
            assert left_s > 0, self.text
            if select.select([self.descriptor], [], [], left_s)[0]:
                try:
                    self.text += os.read(self.descriptor, 4096).decode(errors="replace")
                except OSError:
                    raise AssertionError(self.text) from None
        self.text = self.text.split(words, 1)[1]

    def type(self, line: str) -> None:
        os.write(self.descriptor, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self.descriptor)
        os.waitpid(self.pid, 0)


def test_breakpoint_in_a_rank_holds_the_terminal_and_the_deadline(pytester):
    pytester.makepyfile(BREAKING)
    terminal = Terminal(pytester.path, "-k", "breaks")
    for _ in range(2):
        terminal.expect("--- perfgate: rank ")
        terminal.expect("(Pdb) ")
        terminal.type("p 'answer', answer")
        terminal.expect("('answer', 4")
        terminal.expect("(Pdb) ")
        time.sleep(0.8)  # together longer than the deadline, which waits
        terminal.type("c")
    terminal.expect("1 passed")
    terminal.close()


def test_pdb_enters_the_rank_that_raised(pytester):
    pytester.makepyfile(BREAKING)
    terminal = Terminal(pytester.path, "-k", "raises", "--pdb")
    terminal.expect("--- perfgate: rank 1 of 2")
    terminal.expect("(Pdb) ")
    terminal.type("p secret")
    terminal.expect("43")
    terminal.expect("(Pdb) ")
    terminal.type("q")
    terminal.expect("rank 1 of 2 raised AssertionError")
    terminal.expect("(Pdb) ")
    terminal.type("q")
    terminal.expect("1 failed")
    terminal.close()
