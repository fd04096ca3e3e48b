"""World: a living group of ranks, driven from one process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

from perfgate.errors import LaunchError, WorldError
from perfgate.model import WorldSpec
from perfgate.world.crossing import pack_call, unpack
from perfgate.world.failure import RankFailure, died, name_ranks, still_running
from perfgate.world.local import Host, Process, host
from perfgate.world.protocol import STACK_SIGNAL, Call, Failure, Reply, Stop, receive, send

__all__ = ["RankFailure", "World"]

JOIN_DEADLINE_S = 60.0
#: How long the other ranks may still answer once one has failed: long enough to tell that they
#: all failed alike, short enough that a waiting rank does not hold up the report.
GRACE_S = 0.2
_STACK_DEADLINE_S = 0.5


@dataclass(slots=True)
class _Exchange:
    """One call under way: who has answered, who failed, until when it may go on."""

    number: int
    pending: dict[int, Process]
    replies: dict[int, Reply]
    failures: dict[int, Failure]
    deadline: float

    def fail(self, failure: Failure) -> None:
        """Note a failure; from the first on, the others have a moment left."""
        self.pending.pop(failure.rank, None)
        self.failures[failure.rank] = failure
        self.deadline = min(self.deadline, time.monotonic() + GRACE_S)


class World:
    """A living group of ranks. Any failure ends it; whoever needs another starts another.

    Use as a context manager, or call :meth:`close`.
    """

    def __init__(self, spec: WorldSpec, machine: Host, processes: list[Process]) -> None:
        self.spec = spec
        self.alive = True
        self.warnings: list[tuple[int, tuple[str, str, str, int]]] = []
        self._host = machine
        self._processes = processes
        self._calls = 0
        self._marks = dict.fromkeys(range(spec.size), 0)

    @classmethod
    def start(
        cls, spec: WorldSpec | None = None, *, output: Path | None = None, passthrough: bool = False
    ) -> World:
        """Launch a world and wait until its process group is up.

        :param output: a folder for ``rank<n>.log``; without it, nameless temporary files.
        :param passthrough: let ranks write to this process's own output.
        :raises LaunchError: when ranks cannot be started.
        :raises RankFailure: when a rank fails while joining.
        """
        spec = spec or WorldSpec()
        machine = host()
        # The group's own timeout is only a backstop: the controller's deadline comes first.
        processes = machine.launch(
            spec,
            timeout_s=spec.deadline_s * 2 + JOIN_DEADLINE_S,
            output=output,
            passthrough=passthrough,
        )
        world = cls(spec, machine, processes)
        world._gather(world._exchange(0, JOIN_DEADLINE_S))
        return world

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
        """Return what a rank has written since this was last asked."""
        sink = self._processes[rank].output
        if sink is None or sink.closed:
            return ""
        sink.seek(self._marks[rank])
        data = sink.read()
        self._marks[rank] += len(data)
        return data.decode(errors="replace")

    def close(self) -> None:
        """End the world and wait until its processes are gone."""
        if self.alive:
            self.alive = False
            for process in self._processes:
                with contextlib.suppress(OSError):
                    send(process.connection, Stop())
            if self._host.alive and not self._host.wait_gone(self._processes, 2.0):
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
        return _Exchange(number, pending, {}, {}, time.monotonic() + deadline_s)

    def _gather(self, exchange: _Exchange) -> list[Reply]:
        """Wait for every rank's answer, or for the first failure and what follows from it."""
        __tracebackhide__ = True
        started = time.monotonic()
        try:
            while exchange.pending:
                left_s = exchange.deadline - time.monotonic()
                if left_s <= 0 or not self._turn(exchange, left_s):
                    self._stop_late(exchange, time.monotonic() - started)
        except BaseException:
            self._abandon()
            raise
        if exchange.failures:
            self._abandon()
            raise _as_error(self.spec.size, exchange)
        return [exchange.replies[rank] for rank in range(self.spec.size)]

    def _turn(self, exchange: _Exchange, left_s: float) -> bool:
        channels = {process.connection: process for process in exchange.pending.values()}
        ready = wait([*channels, self._host.channel], left_s)
        if self._host.channel in ready:
            self._host.read_news()
        for channel, process in channels.items():
            if channel in ready:
                self._take(exchange, process)
        for process in list(exchange.pending.values()):
            if process.pid in self._host.exits and not process.connection.poll():
                exchange.fail(self._death(process))
        return bool(ready)

    def _take(self, exchange: _Exchange, process: Process) -> None:
        try:
            reply: Reply = receive(process.connection)
        except (EOFError, OSError):
            self._host.wait_gone([process], 1.0)
            exchange.fail(self._death(process))
            return
        self.warnings += [(process.rank, warning) for warning in reply.warnings]
        exchange.replies[process.rank] = reply
        exchange.pending.pop(process.rank)
        if reply.failure is not None:
            exchange.fail(reply.failure)

    def _death(self, process: Process) -> Failure:
        status = self._host.exits.get(process.pid, 0)
        return died(process.rank, status, _read(process.stacks), time.monotonic_ns())

    def _stop_late(self, exchange: _Exchange, waited_s: float) -> None:
        """Turn the ranks that have not answered into failures, each with its stack."""
        if exchange.failures:
            outlived = f"when {name_ranks(exchange.failures)} failed"
        else:
            outlived = f"when the deadline of {waited_s:.3g} s passed"
            if exchange.replies:
                outlived += f" ({name_ranks(exchange.replies)} had returned)"
        stacks = self._stacks(list(exchange.pending.values()))
        for rank, stack in stacks.items():
            failure = still_running(rank, stack, outlived=outlived, at_ns=time.monotonic_ns())
            exchange.fail(failure)

    def _stacks(self, processes: list[Process]) -> dict[int, str]:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, STACK_SIGNAL)
        until = time.monotonic() + _STACK_DEADLINE_S
        stacks = {process.rank: "" for process in processes}
        while time.monotonic() < until and not all(stacks.values()):
            time.sleep(0.02)
            stacks = {process.rank: _read(process.stacks) for process in processes}
        return stacks

    def _abandon(self) -> None:
        self.alive = False
        with contextlib.suppress(LaunchError):
            self._host.kill(self._processes)


def _read(stacks: Any) -> str:
    stacks.seek(0)
    return str(stacks.read().decode(errors="replace"))


def _as_error(world_size: int, exchange: _Exchange) -> RankFailure:
    failure = RankFailure(world_size, exchange.failures.values())
    if failure.culprit.exception is not None:
        with contextlib.suppress(Exception):
            failure.__cause__ = unpack(failure.culprit.exception)
    return failure
