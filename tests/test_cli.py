"""The command line, run as a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfgate import Launch, Session
from perfgate.gate.baseline import BaselineStore
from perfgate.gate.environment import Environment

HERE = Environment(hard={"cpu": "test", "cores": "2", "torch": "2.0"})


def perfgate(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfgate", *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def session(number: int, time_s: float) -> Session:
    launch = Launch(
        p10_s=time_s, p25_s=time_s * 1.01, p50_s=time_s * 1.02, p95_s=time_s * 2, calls=9
    )
    return Session(commit=f"c{number:02}", date="2026-01-31T12:00:00Z", launches=(launch,) * 3)


@pytest.fixture
def drifted(tmp_path: Path) -> Path:
    """Twenty sessions, of which the last ten are a tenth slower."""
    store = BaselineStore(tmp_path / "baselines")
    for number in range(20):
        wobble = 1 + 0.005 * (number % 3)
        time_s = 1e-3 * wobble * (1.1 if number >= 10 else 1)
        store.add(HERE, "comm", {"a.py::test_a | all_reduce 4KiB": session(number, time_s)})
    return tmp_path


def test_history_tells_a_lasting_step_with_the_commit(drifted):
    result = perfgate("history", cwd=drifted)
    assert result.returncode == 1, result.stderr
    assert "c10" in result.stdout
    assert "1 lasting steps in 1 cases" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_show_and_list_tell_what_is_stored(drifted):
    listed = perfgate("baseline", "list", cwd=drifted).stdout
    assert "c19" in listed
    assert "20" in listed
    shown = perfgate("baseline", "show", "all_reduce", cwd=drifted).stdout
    assert shown.count("c1") == 10


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("baseline", "list"), "holds no baseline; next: pytest --perfgate --perfgate-refresh"),
        (("baseline", "show", "x"), "no stored case holds 'x'"),
        (("baseline", "accept", "x"), "no record of a run"),
        (("history",), "no stored case holds ''"),
        (("report", "absent.xml"), "absent.xml is no JUnit file that can be read"),
    ],
)
def test_what_is_not_there_is_told_with_the_next_command(args, told, tmp_path):
    result = perfgate(*args, cwd=tmp_path)
    assert result.returncode == 2
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_the_doctor_tells_what_can_be_seen(tmp_path):
    result = perfgate("doctor", "--size", "4KiB", "--launches", "3", "--budget", "2", cwd=tmp_path)
    assert result.returncode in (0, 1), result.stderr
    header, op, row = result.stdout.splitlines()[:3]
    assert header.split()[:3] == ["case", "time", "launches"]
    assert (op.strip(), row.split()[0]) == ("all_reduce", "4KiB")
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--op", "all_reduse"), "did you mean 'all_reduce'?"),
        (("--budget", "0"), "above zero"),
        (("--world-size", "0"), "1 or more"),
        (("--size", "4QiB"), "does not parse"),
    ],
)
def test_a_doctor_asked_for_what_cannot_be(args, told, tmp_path):
    result = perfgate("doctor", *args, cwd=tmp_path)
    assert result.returncode == 2
    assert told in result.stderr


def test_help_names_every_command(tmp_path):
    result = perfgate("--help", cwd=tmp_path)
    assert result.returncode == 0
    for command in ("bench", "baseline", "doctor", "history", "report"):
        assert command in result.stdout


def test_a_pinned_release_is_kept_and_who_pins_what_is_not_there_is_told(drifted):
    told = perfgate("baseline", "pin", "c00", cwd=drifted)
    assert told.returncode == 0, told.stderr
    assert "c00 is pinned" in told.stdout
    store = BaselineStore(drifted / "baselines")
    for number in range(20, 60):
        store.add(HERE, "comm", {"a.py::test_a | all_reduce 4KiB": session(number, 1e-3)})
    [pinned] = store.load_pinned(HERE, "comm").values()
    assert [one.commit for one in pinned.sessions] == ["c00"]
    absent = perfgate("baseline", "pin", "c99", cwd=drifted)
    assert absent.returncode == 2
    assert "no stored session is of commit 'c99'" in absent.stderr
