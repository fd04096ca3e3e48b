"""One call on all ranks, from its sending to the last answer, or to who is to blame."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

from perfgate.world.agreement import absence, disagreement, last, name_ranks, stuck
from perfgate.world.crossing import unpack
from perfgate.world.failure import (
    RankFailure,
    absent,
    died,
    disagreed,
    returned,
    still_running,
)
from perfgate.world.machine import Machine, Process
from perfgate.world.protocol import Failure, Paused, Reply, receive
from perfgate.world.record import SLOTS, Collective, collectives

#: How long the other ranks may still answer once one has failed: long enough to tell that they
#: all failed alike, short enough that a waiting rank does not hold up the report.
GRACE_S = 0.2
_STACK_DEADLINE_S = 0.5
_LOOK_EVERY_S = 0.5
_FOREVER_S = 86400.0


class Exchange:
    """Who has answered, who failed, and until when it may go on.

    :param kernel_kills_before: :func:`kernel_kills` when the world was started.

    :ivar replies: answers so far, by rank.
    :ivar failures: failures so far, by rank.
    """

    def __init__(
        self,
        machine: Machine,
        processes: Sequence[Process],
        deadline_s: float,
        kernel_kills_before: int,
    ) -> None:
        self.replies: dict[int, Reply] = {}
        self.failures: dict[int, Failure] = {}
        self._machine = machine
        self._processes = processes
        self._pending = {process.rank: process for process in processes}
        self._deadline_s = deadline_s
        self._deadline = time.monotonic() + deadline_s
        self._paused: set[int] = set()
        self._seen: dict[int, tuple[Collective, ...]] = {}
        self._kernel_kills = kernel_kills_before

    @property
    def in_order(self) -> bool:
        """Whether every rank answered, and all began the same collectives."""
        return not self.failures and len({reply.steps for reply in self.replies.values()}) == 1

    def settle(self) -> None:
        """Wait for every rank's answer, or for the first failure and what follows from it."""
        while self._pending:
            left_s = _FOREVER_S if self._paused else self._deadline - time.monotonic()
            if left_s <= 0:
                self._stop_late(f"when {self._reason()}")
            elif not self._turn(min(left_s, _LOOK_EVERY_S)) and self._is_stuck():
                self._stop_late("and could never go on")

    def failure(self) -> RankFailure:
        """Return what went wrong, with what the ranks' records say of it."""
        histories = self._histories()
        failures = {rank: returned(rank) for rank in self.replies} | self.failures
        for rank, step in disagreement(histories).items():
            failures[rank] = disagreed(failures[rank], step)
        if all(failure.innocent for failure in failures.values()):
            for rank, step in absence(histories).items():
                failures[rank] = absent(failures[rank], step)
        if all(failure.kind == "returned" for failure in failures.values()):
            forgotten = f"other collectives than the rest, more than {SLOTS} before its last"
            failures = {rank: disagreed(failures[rank], forgotten) for rank in failures}
        told = [replace(f, last=last(histories[f.rank])) for f in failures.values()]
        return _with_cause(RankFailure(len(self._processes), told))

    def _turn(self, left_s: float) -> bool:
        channels = {process.connection: process for process in self._pending.values()}
        news = self._machine.news
        ready = wait([*channels, *news], left_s)
        if any(channel in ready for channel in news):
            self._machine.read_news()
        for connection, process in channels.items():
            if connection in ready:
                self._take(process)
        for process in list(self._pending.values()):
            if process.status is not None and not process.connection.poll():
                self._fail(self._death(process))
        return bool(ready)

    def _take(self, process: Process) -> None:
        try:
            message: Reply | Paused = receive(process.connection)
        except (EOFError, OSError):
            self._machine.wait_gone([process], 1.0)
            self._fail(self._death(process))
            return
        if isinstance(message, Paused):
            self._pause(message)
            return
        self.replies[process.rank] = message
        self._pending.pop(process.rank)
        if message.failure is not None:
            at_ns = message.failure.at_ns + process.clock_ns
            self._fail(replace(message.failure, at_ns=at_ns))

    def _fail(self, failure: Failure) -> None:
        """Note a failure; from the first on, the others have a moment left."""
        self._pending.pop(failure.rank, None)
        self.failures[failure.rank] = failure
        self._deadline = min(self._deadline, time.monotonic() + GRACE_S)

    def _pause(self, message: Paused) -> None:
        """Let the deadline wait while a debugger holds a rank; then give it all its time again."""
        if message.held:
            self._paused.add(message.rank)
        else:
            self._paused.discard(message.rank)
            self._deadline = time.monotonic() + self._deadline_s

    def _death(self, process: Process) -> Failure:
        return died(
            process.rank,
            process.status,
            process.stack(),
            at_ns=process.ended_ns,
            short_of_memory=kernel_kills() > self._kernel_kills,
        )

    def _reason(self) -> str:
        if self.failures:
            return f"{name_ranks(self.failures)} failed"
        return f"the deadline of {self._deadline_s:.3g} s passed"

    def _is_stuck(self) -> bool:
        """Whether nothing has moved since the last look, and what is waited for cannot be."""
        if self.failures or self._paused:
            return False
        histories = self._histories()
        before, self._seen = self._seen, histories
        return before == histories and stuck(histories, self.replies)

    def _histories(self) -> dict[int, tuple[Collective, ...]]:
        return {process.rank: collectives(process.record()) for process in self._processes}

    def _stop_late(self, outlived: str) -> None:
        """Turn the ranks that have not answered into failures, each with its stack."""
        late = list(self._pending.values())
        at_fault = not self.failures
        _dump_stacks(late)
        for process in late:
            stack, state = process.stack(), process.state()
            self._fail(
                still_running(process.rank, stack, state, outlived=outlived, at_fault=at_fault)
            )


def kernel_kills() -> int:
    """Return how often the kernel has killed a process for want of memory, since it runs."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _dump_stacks(processes: Sequence[Process]) -> None:
    """Make ranks write their stacks, and wait until those that can have done so."""
    for process in processes:
        process.ask_stack()
    until = time.monotonic() + _STACK_DEADLINE_S
    able = [process for process in processes if process.state() not in ("T", "t")]
    before, now = [""], [process.stack() for process in able]
    while time.monotonic() < until and (before != now or not all(now)):  # one may be half written
        time.sleep(0.01)
        before, now = now, [process.stack() for process in able]


def _with_cause(failure: RankFailure) -> RankFailure:
    if failure.culprit.exception is not None:
        with contextlib.suppress(Exception):
            failure.__cause__ = unpack(failure.culprit.exception)
    return failure
