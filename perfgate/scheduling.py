"""How the kernel schedules the ranks that are timed.

An ordinary process waits its turn: gloo's threads, two or three to a rank, keep each other waiting
for a tick of 4 ms, so that half of all calls measure the scheduler. In a real-time class a thread
that is woken runs. Where that is not permitted the batch class still keeps woken threads from
interrupting the one that is about to finish.
"""

from __future__ import annotations

import os
import sys
from functools import cache

REAL_TIME, BATCH, ORDINARY = "real-time", "batch", "ordinary"
PERMIT = "sudo prlimit --pid $$ --rtprio=1"
"""Permits the shell that it is typed in, and what that starts, the lowest real-time priority."""


def share_of_cores(local_rank: int, local_size: int) -> set[int]:
    """Return the cores that one of several ranks on this machine gets to itself, or shares.

    Without that the kernel now and then puts two ranks onto one core, for a whole launch.
    """
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // local_size
    if each == 0:
        return {cores[local_rank % len(cores)]}
    return set(cores[local_rank * each : (local_rank + 1) * each])


@cache
def permitted() -> str:
    """Return the best class that this process may give its ranks, by trying it on itself."""
    if sys.platform != "linux":
        return ORDINARY
    usual = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        enter(REAL_TIME)
    except PermissionError:
        return BATCH
    os.sched_setscheduler(0, *usual)
    return REAL_TIME


def class_for(ranks: int) -> str:
    """Return the class for so many timed ranks on this machine.

    Real time only where each has a core: threads of gloo's that poll would keep the ranks that
    they wait for from the core that they share, for a whole time slice of 100 ms.
    """
    if permitted() == REAL_TIME and ranks > len(os.sched_getaffinity(0)):
        return BATCH
    return permitted()


def enter(scheduling: str) -> None:
    """Put this thread, and every thread and process that it starts from now on, into a class.

    Round robin among themselves, so that of two ranks on one core none waits for the other's end.

    :raises PermissionError: when that is not permitted.
    """
    if sys.platform != "linux":
        return
    policies = {
        REAL_TIME: (os.SCHED_RR, 1),
        BATCH: (os.SCHED_BATCH, 0),
        ORDINARY: (os.SCHED_OTHER, 0),
    }
    policy, priority = policies[scheduling]
    os.sched_setscheduler(0, policy, os.sched_param(priority))
