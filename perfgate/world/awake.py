"""Processors kept awake while ranks are timed.

A core without work goes to sleep, and the message that wakes it waits: microseconds on bare
metal, up to a millisecond on a virtual machine, whose host gives the core to others meanwhile.
How long depends on the hour, so that identical code differs by a fifth from one second to the
next. One process a core that spins at the lowest priority there is keeps it awake; ranks in a
real-time class displace it at once. Ranks in any other class would have to wait for it.

Run as a script, this is the parent of those processes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


class Awake:
    """Keeps every core that this process may use from sleeping, between enter and exit."""

    def __enter__(self) -> Awake:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._process.stdout.read(len(os.sched_getaffinity(0)))  # type: ignore[union-attr]
        self.pid = self._process.pid
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._process.communicate()


def main() -> None:
    """Spin on every core until standard input ends, as it does when its other end dies."""
    parent = os.getpid()
    spinning = []
    for core in sorted(os.sched_getaffinity(0)):
        pid = os.fork()
        if pid == 0:
            _spin(core, parent)
        spinning.append(pid)
    os.read(0, 1)
    for pid in spinning:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # so that its processor time is ours, and not some other process's


def _spin(core: int, parent: int) -> NoReturn:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.write(1, b".")
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass
    os._exit(0)


if __name__ == "__main__":
    main()
