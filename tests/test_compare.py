"""`perfgate compare BASE..HEAD` in a real repository, with real environments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

INSTALL = "{python} -m pip install --quiet --no-deps --no-build-isolation {checkout}"
QUICK = ("--perfgate-launches=5", "--perfgate-budget=1", "-p", "no:randomly")
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "thing"
version = "1.0"

[tool.setuptools]
packages = ["thing"]

[tool.pytest.ini_options]
testpaths = ["tests"]
"""
THING = """
import time

def step():
    until = time.perf_counter() + {time_s}
    while time.perf_counter() < until:
        pass
"""
TESTS = """
import pytest, thing

@pytest.mark.world(size=1)
def test_step(gate):
    gate.throughput(thing.step, items=1)
"""
Compare = Callable[..., "subprocess.CompletedProcess[str]"]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, time_s: float) -> str:
    (folder / "thing" / "__init__.py").write_text(THING.format(time_s=time_s))
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", f"a step of {time_s} s")
    return git(folder, "rev-parse", "HEAD")[:12]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A repository of two commits, the second twice as slow."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "thing").mkdir()
    (folder / "tests").mkdir()
    (folder / "tests" / "test_thing.py").write_text(TESTS)
    return folder, commit(folder, 0.0003), commit(folder, 0.0006)


@pytest.fixture
def compare(repository: tuple[Path, str, str]) -> Compare:
    """Run the command in the repository."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "perfgate", "compare", *args]
        return subprocess.run(
            command, cwd=repository[0], capture_output=True, text=True, check=False
        )

    return run


def test_the_slower_head_is_a_regression_and_both_environments_are_kept(compare, repository):
    folder, base, head = repository
    result = compare("HEAD~1..HEAD", "--install", INSTALL, "--", *QUICK)
    told = result.stdout
    assert result.returncode == 1, told + result.stderr
    assert "REGRESSION step x1: " in told
    assert f"against {base}, measured beside it" in told
    assert f"comparing {base} with {head}" in told
    assert git(folder, "status", "--porcelain") == ""

    again = compare("HEAD~1..HEAD", "--install", INSTALL, "--", "--collect-only", "-q")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("is installed already") == 2
    assert "installing" not in again.stdout


def test_the_working_tree_is_compared_as_it_is(compare, repository, monkeypatch):
    folder, base, _ = repository
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    result = compare(f"{base}", "--install", INSTALL, "--", "--collect-only", "-q")
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"comparing {base} with this working tree" in result.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("HEAD~1..absent",), "'absent' is no revision of this repository; next: git fetch"),
        (("..HEAD",), "'..HEAD' is no BASE..HEAD"),
        (("HEAD...HEAD~1",), "'HEAD...HEAD~1' is no BASE..HEAD"),
        (("HEAD", "--install", "no-such-command"), "no-such-command cannot be run"),
        (("HEAD", "--install", "'"), "is no command: No closing quotation"),
    ],
)
def test_what_cannot_be_compared_is_told(compare, args, told):
    result = compare(*args)
    assert result.returncode == 2
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_a_failed_installation_shows_its_end_and_the_command(compare, repository):
    code = "print(*range(99), sep=chr(10)); exit('this wheel is square')"
    result = compare("HEAD", "--install", f'{{python}} -c "{code}" {{checkout}}')
    assert result.returncode == 2
    assert "cannot be installed, the command ended with 1:" in result.stderr
    assert "\nthis wheel is square\n" in result.stderr
    assert "\n80\n" in result.stderr
    assert "\n70\n" not in result.stderr
    assert f"/{repository[2]}/checkout && " in result.stderr


def test_outside_of_a_repository_git_says_so(tmp_path):
    command = [sys.executable, "-m", "perfgate", "compare", "a..b"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "not a git repository" in result.stderr
