"""World: a living group of ranks, driven from one process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

from perfgate.errors import LaunchError, UsageError, WorldError
from perfgate.model import WorldSpec
from perfgate.world.agreement import absence, disagreement, last
from perfgate.world.crossing import pack_call, unpack
from perfgate.world.failure import (
    RankFailure,
    died,
    disagreed,
    left,
    name_ranks,
    returned,
    still_running,
)
from perfgate.world.local import Host, Process, host, kernel_kills
from perfgate.world.protocol import Call, Failure, Paused, Reply, Stop, receive, send
from perfgate.world.record import collectives

__all__ = ["RankFailure", "World"]

JOIN_DEADLINE_S = 60.0
#: How long the other ranks may still answer once one has failed: long enough to tell that they
#: all failed alike, short enough that a waiting rank does not hold up the report.
GRACE_S = 0.2
_STACK_DEADLINE_S = 0.5
_STOP_DEADLINE_S = 2.0
_FOREVER_S = 86400.0
#: The most that is shown of what one rank has written.
OUTPUT_BYTES = 1 << 18


@dataclass(slots=True)
class _Exchange:
    """One call under way: who has answered, who failed, until when it may go on.

    :param paused: ranks that a debugger holds; the deadline waits for them.
    """

    number: int
    pending: dict[int, Process]
    replies: dict[int, Reply]
    failures: dict[int, Failure]
    deadline: float
    deadline_s: float
    paused: set[int] = field(default_factory=set)

    def fail(self, failure: Failure) -> None:
        """Note a failure; from the first on, the others have a moment left."""
        self.pending.pop(failure.rank, None)
        self.failures[failure.rank] = failure
        self.deadline = min(self.deadline, time.monotonic() + GRACE_S)

    def left_s(self) -> float:
        """Return how long it may still go on."""
        return _FOREVER_S if self.paused else self.deadline - time.monotonic()

    def pause(self, message: Paused) -> None:
        """Let the deadline wait while a debugger holds a rank; then give it all its time again."""
        if message.held:
            self.paused.add(message.rank)
        else:
            self.paused.discard(message.rank)
            self.deadline = time.monotonic() + self.deadline_s


class World:
    """A living group of ranks. Any failure ends it; whoever needs another starts another.

    Use as a context manager, or call :meth:`close`.
    """

    def __init__(self, spec: WorldSpec, machine: Host, processes: list[Process]) -> None:
        self.spec = spec
        self.warnings: list[tuple[int, tuple[str, str, str, int]]] = []
        self._open = True
        self._host = machine
        self._processes = processes
        self._calls = 0
        self._kernel_kills = kernel_kills()

    @classmethod
    def start(
        cls,
        spec: WorldSpec | None = None,
        *,
        output: Path | None = None,
        passthrough: bool = False,
        watched: bool = True,
        post_mortem: bool = False,
    ) -> World:
        """Launch a world and wait until its process group is up.

        :param output: a folder for ``rank<n>.log``; without it, nameless files in memory.
        :param passthrough: let ranks write to this process's own output.
        :param watched: note each rank's collectives (about a microsecond a call), so that a
            failure tells where each rank was and ranks that disagree are found out.
        :param post_mortem: enter the debugger on a rank whose function raises.
        :raises LaunchError: when ranks cannot be started.
        :raises RankFailure: when a rank fails while joining.
        :raises UsageError: when this machine has too few GPUs for what is asked.
        """
        spec = spec or WorldSpec()
        machine = host()
        processes = machine.launch(
            spec, output=output, passthrough=passthrough, watched=watched, post_mortem=post_mortem
        )
        world = cls(spec, machine, processes)
        try:
            world._gather(world._exchange(0, JOIN_DEADLINE_S))
        except BaseException as error:
            world.close()
            if isinstance(error.__cause__, UsageError):
                raise error.__cause__ from None
            raise
        return world

    @property
    def alive(self) -> bool:
        """Whether it can still run something."""
        return self._open and self._host.alive

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_s: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Run a function on every rank and return the results by rank.

        :param deadline_s: how long it may take; the world's own deadline by default.
        :raises RankFailure: when a rank raises, dies, hangs or leaves early; the world is ended.
        :raises UsageError: when the function or an argument cannot be pickled.
        """
        __tracebackhide__ = True
        return self.run_with_rank(None, function, *args, deadline_s=deadline_s, **kwargs)

    def run_with_rank(
        self,
        rank_argument: str | None,
        function: Callable[..., Any],
        *args: Any,
        deadline_s: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Like :meth:`run`; the keyword ``rank_argument`` receives each rank's own Rank."""
        __tracebackhide__ = True
        payload = pack_call(function, args, kwargs)
        if not self.alive:
            raise WorldError(f"the world {self.spec} has ended; start another")
        self._calls += 1
        call = Call(number=self._calls, payload=payload, rank_argument=rank_argument)
        for process in self._processes:
            with contextlib.suppress(OSError):  # a dead rank is told by the exchange
                send(process.connection, call)
        exchange = self._exchange(self._calls, deadline_s or self.spec.deadline_s)
        replies = self._gather(exchange)
        return [unpack(reply.value) for reply in replies if reply.value is not None]

    def output(self, rank: int) -> str:
        """Return what a rank has written since this was last asked, the end of it if it is long."""
        data = self._processes[rank].new_output()
        text = data[-OUTPUT_BYTES:].decode(errors="replace")
        skipped = len(data) - OUTPUT_BYTES
        return f"[{skipped} bytes before this are left out]\n{text}" if skipped > 0 else text

    def close(self) -> None:
        """End the world and wait until its processes are gone."""
        if self._open:
            self._open = False
            for process in self._processes:
                with contextlib.suppress(OSError):
                    send(process.connection, Stop())
            if self._host.alive and not self._host.wait_gone(self._processes, _STOP_DEADLINE_S):
                self._host.kill(self._processes)
        for process in self._processes:
            process.close()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def _exchange(self, number: int, deadline_s: float) -> _Exchange:
        pending = {process.rank: process for process in self._processes}
        return _Exchange(number, pending, {}, {}, time.monotonic() + deadline_s, deadline_s)

    def _gather(self, exchange: _Exchange) -> list[Reply]:
        """Wait for every rank's answer, or for the first failure and what follows from it."""
        __tracebackhide__ = True
        try:
            while exchange.pending:
                left_s = exchange.left_s()
                if left_s <= 0 or not self._turn(exchange, left_s):
                    self._stop_late(exchange)
        except BaseException:
            self._abandon()
            raise
        replies = [exchange.replies[rank] for rank in sorted(exchange.replies)]
        if exchange.failures or len({reply.steps for reply in replies}) > 1:
            failure = self._explain(exchange)
            self._abandon()
            raise failure
        return replies

    def _turn(self, exchange: _Exchange, left_s: float) -> bool:
        channels = {process.connection: process for process in exchange.pending.values()}
        ready = wait([*channels, *self._host.news], left_s)
        if any(channel in ready for channel in self._host.news):
            self._host.read_news()
        for connection, process in channels.items():
            if connection in ready:
                self._take(exchange, process)
        for process in list(exchange.pending.values()):
            if process.status is not None and not process.connection.poll():
                exchange.fail(self._death(process))
        return bool(ready)

    def _take(self, exchange: _Exchange, process: Process) -> None:
        try:
            message: Reply | Paused = receive(process.connection)
        except (EOFError, OSError):
            self._host.wait_gone([process], 1.0)
            exchange.fail(self._death(process))
            return
        if isinstance(message, Paused):
            exchange.pause(message)
            return
        self.warnings += [(process.rank, warning) for warning in message.warnings]
        exchange.replies[process.rank] = message
        exchange.pending.pop(process.rank)
        if message.failure is not None:
            exchange.fail(message.failure)

    def _death(self, process: Process) -> Failure:
        return died(
            process.rank,
            process.status,
            process.stack(),
            at_ns=process.ended_ns,
            short_of_memory=kernel_kills() > self._kernel_kills,
        )

    def _stop_late(self, exchange: _Exchange) -> None:
        """Turn the ranks that have not answered into failures, each with its stack."""
        late = list(exchange.pending.values())
        in_time = not exchange.failures
        if exchange.failures:
            outlived = f"when {name_ranks(exchange.failures)} failed"
        else:
            outlived = f"when the deadline of {exchange.deadline_s:.3g} s passed"
        _dump_stacks(late)
        for process in late:
            stack, state = process.stack(), process.state()
            exchange.fail(
                still_running(process.rank, stack, state, outlived=outlived, at_fault=in_time)
            )

    def _explain(self, exchange: _Exchange) -> RankFailure:
        """Return the failure, with what the ranks' records say of it."""
        histories = {p.rank: collectives(p.record()) for p in self._processes}
        failures = exchange.failures
        for rank, reply in exchange.replies.items():
            if reply.failure is None:
                failures[rank] = returned(rank)
        for rank, step in disagreement(histories).items():
            failures[rank] = disagreed(failures[rank], step)
        if all(failure.innocent for failure in failures.values()):
            for rank, step in absence(histories).items():
                if failures[rank].kind == "returned":
                    failures[rank] = left(rank, step)
        told = [replace(f, last=last(histories[f.rank])) for f in failures.values()]
        return _with_cause(RankFailure(self.spec.size, told))

    def _abandon(self) -> None:
        self._open = False
        with contextlib.suppress(LaunchError):
            self._host.kill(self._processes)


def _dump_stacks(processes: list[Process]) -> None:
    """Make ranks write their stacks, and wait until those that can have done so."""
    for process in processes:
        process.ask_stack()
    until = time.monotonic() + _STACK_DEADLINE_S
    able = [process for process in processes if process.state() not in ("T", "t")]
    while time.monotonic() < until and not all(process.stack() for process in able):
        time.sleep(0.01)


def _with_cause(failure: RankFailure) -> RankFailure:
    if failure.culprit.exception is not None:
        with contextlib.suppress(Exception):
            failure.__cause__ = unpack(failure.culprit.exception)
    return failure
