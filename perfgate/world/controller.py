"""World: a living group of ranks, driven from one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from perfgate.errors import LaunchError, UsageError, WorldError
from perfgate.model import WorldSpec
from perfgate.scheduling import ORDINARY
from perfgate.world.crossing import pack_call, unpack
from perfgate.world.exchange import Exchange, kernel_kills
from perfgate.world.failure import RankFailure
from perfgate.world.local import host
from perfgate.world.machine import Machine, Process, chosen
from perfgate.world.parcel import take
from perfgate.world.protocol import Call, Reply, Stop, send

__all__ = ["RankFailure", "World"]

JOIN_DEADLINE_S = 60.0
_STOP_DEADLINE_S = 2.0
#: The most that is shown of what one rank has written.
OUTPUT_BYTES = 1 << 18


class World:
    """A living group of ranks. Any failure ends it; whoever needs another starts another.

    Use as a context manager, or call :meth:`close`.
    """

    def __init__(self, spec: WorldSpec, machine: Machine, processes: Sequence[Process]) -> None:
        self.spec = spec
        self.warnings: list[tuple[int, tuple[str, str, str, int]]] = []
        self._open = True
        self._machine = machine
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
        scheduling: str = ORDINARY,
        post_mortem: bool = False,
        place: int = 0,
        machine: Machine | None = None,
    ) -> World:
        """Launch a world and wait until its process group is up.

        :param output: a folder for ``rank<n>.log``; without it, nameless files in memory.
        :param passthrough: let ranks write to this process's own output.
        :param watched: note each rank's collectives (two or three microseconds each), so that a
            failure tells where each rank was and ranks that disagree are found out.
        :param scheduling: the class of :mod:`perfgate.scheduling` that its ranks run in.
        :param post_mortem: enter the debugger on a rank whose function raises.
        :param place: the zygote to launch from, where worlds start on this machine alone.
        :param machine: where to launch, if not where worlds usually are.
        :raises LaunchError: when ranks cannot be started.
        :raises RankFailure: when a rank fails while joining.
        :raises UsageError: when this machine has too few GPUs for what is asked.
        """
        spec = spec or WorldSpec()
        machine = machine or chosen() or host(place)
        processes = machine.launch(
            spec,
            output=output,
            passthrough=passthrough,
            watched=watched,
            scheduling=scheduling,
            post_mortem=post_mortem,
        )
        world = cls(spec, machine, processes)
        try:
            world._gather(JOIN_DEADLINE_S)
        except BaseException as error:
            world.close()
            if isinstance(error.__cause__, UsageError):
                raise error.__cause__ from None
            raise
        return world

    @property
    def alive(self) -> bool:
        """Whether it can still run something."""
        return self._open and self._machine.alive

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
        replies = self._gather(deadline_s or self.spec.deadline_s)
        return [_result(reply) for reply in replies]

    def output(self, rank: int) -> str:
        """Return what a rank has written since this was last asked, the end of it if it is long."""
        data = self._processes[rank].new_output()
        text = data[-OUTPUT_BYTES:].decode(errors="replace")
        skipped = len(data) - OUTPUT_BYTES
        return f"[{skipped} bytes before this are left out]\n{text}" if skipped > 0 else text

    def close(self) -> None:
        """End the world and wait until its processes are gone."""
        self._stop()
        for process in self._processes:
            process.close()

    def _stop(self) -> None:
        if not self._open:
            return
        self._open = False
        for process in self._processes:
            with contextlib.suppress(OSError):
                send(process.connection, Stop())
        if self._machine.alive and not self._machine.wait_gone(self._processes, _STOP_DEADLINE_S):
            self._machine.kill(self._processes)

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def _gather(self, deadline_s: float) -> list[Reply]:
        """Wait for every rank's answer to what was sent.

        :raises RankFailure: when it did not come; the world is ended.
        """
        __tracebackhide__ = True
        exchange = Exchange(self._machine, self._processes, deadline_s, self._kernel_kills)
        try:
            exchange.settle()
            for rank, reply in sorted(exchange.replies.items()):
                self.warnings += [(rank, warning) for warning in reply.warnings]
            if not exchange.in_order:
                raise exchange.failure()
        except BaseException:
            self._abandon()
            raise
        replies = [exchange.replies[rank] for rank in range(self.spec.size)]
        if any(reply.spent for reply in replies):
            self._stop()
        return replies

    def _abandon(self) -> None:
        self._open = False
        with contextlib.suppress(LaunchError):
            self._machine.kill(self._processes)


def _result(reply: Reply) -> Any:
    if reply.value is None:
        raise WorldError(f"rank {reply.rank} answered without a result")
    return unpack(reply.value, take(reply.parcel) if reply.parcel is not None else ())
