from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from perfgate.world.local import host


def survivors() -> list[psutil.Process]:
    """Return the processes below this one that are not the zygote."""
    return [p for p in psutil.Process().children(recursive=True) if p.pid != host().process.pid]


def all_gone(pids: list[int], deadline_s: float = 10.0) -> bool:
    until = time.monotonic() + deadline_s
    while any(_lives(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No process of ours outlives a test, however it went."""
    before = survivors()
    yield
    assert [process for process in survivors() if process not in before] == []


@pytest.fixture
def gone() -> Callable[..., bool]:
    """Whether processes have ended, given time to."""
    return all_gone
