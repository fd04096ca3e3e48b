"""Ranks on processes that torchrun, Slurm or an MPI started: one an agent, rank 0 the controller.

Only rank 0 collects tests and reports; the others serve (:mod:`perfgate.world.agent`). A world
takes the first of them, and each launch of one forks its ranks anew.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from perfgate.errors import LaunchError, UsageError
from perfgate.model import WorldSpec
from perfgate.scheduling import ORDINARY
from perfgate.world.discovery import Place
from perfgate.world.environ import rank_environ
from perfgate.world.local import host, listen, paths
from perfgate.world.machine import Process
from perfgate.world.process import LocalProcess, open_output
from perfgate.world.protocol import (
    Farewell,
    Forked,
    Hello,
    Kill,
    Launch,
    Seat,
    receive,
)
from perfgate.world.remote import ANSWER_DEADLINE_S, Agent, RemoteProcess
from perfgate.world.rendezvous import LOOPBACK, Door

GATHER_DEADLINE_S = 120.0


class Fleet:
    """The processes of one run, as rank 0 holds them. A :class:`perfgate.world.machine.Machine`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._door = Door(place)
        self._agents: dict[int, Agent] = {}
        self._launches = 0
        self._lost = False

    @property
    def news(self) -> list[Any]:
        """What to wait on for news of ranks that end."""
        return [*host().news, *(agent.control for agent in self._agents.values())]

    @property
    def alive(self) -> bool:
        """Whether ranks can still be launched."""
        return not self._lost and host().alive

    def gather(self, timeout_s: float = GATHER_DEADLINE_S) -> None:
        """Wait until every agent has come.

        :raises LaunchError: naming the ranks that have not.
        """
        until = time.monotonic() + timeout_s
        while missing := set(range(1, self.place.size)) - set(self._agents):
            connection = self._door.admit(max(0.0, until - time.monotonic()))
            if connection is None:
                raise LaunchError(
                    f"of {self.place.size} processes of {self.place.launcher}, ranks "
                    f"{sorted(missing)} have not come within {timeout_s:g} s"
                )
            hello: Hello = receive(connection)
            clock_ns = time.monotonic_ns() - hello.at_ns
            self._agents[hello.rank] = Agent(hello.rank, connection, clock_ns)

    def launch(
        self,
        spec: WorldSpec,
        *,
        output: Path | None,
        passthrough: bool,
        watched: bool,
        scheduling: str = ORDINARY,
        post_mortem: bool = False,  # noqa: ARG002 - no terminal reaches a rank elsewhere
    ) -> Sequence[Process]:
        """Start one process a rank, rank 0 here and the others by their agents.

        :raises UsageError: when the world is larger than the run.
        :raises LaunchError: when an agent is gone.
        """
        if spec.size > self.place.size:
            raise UsageError(
                f"a world of {spec.size} ranks needs as many processes; {self.place.launcher} "
                f"started {self.place.size}"
            )
        self.gather()
        self._launches += 1
        with listen(self._host, spec.size) as listener:
            seat = self._seat(spec, watched, scheduling, listener.getsockname())
            if output is not None:
                output.mkdir(parents=True, exist_ok=True)
            remote = [
                self._launch(replace(seat, rank=rank), output, passthrough)
                for rank in range(1, spec.size)
            ]
            sink = None if passthrough else open_output(output, 0)
            return [*host().fork([seat], [sink], listener), *remote]

    def read_news(self) -> None:
        """Take in what news there is.

        :raises LaunchError: when the zygote or an agent is gone.
        """
        ready = wait(self.news, 0.0)
        try:
            if any(channel in ready for channel in host().news):
                host().read_news()
            for agent in self._agents.values():
                if agent.control in ready:
                    agent.read_news()
        except LaunchError:
            self._lost = True
            raise

    def wait_gone(self, processes: Sequence[Process], timeout_s: float) -> bool:
        """Wait until every process has ended; say whether it has."""
        until = time.monotonic() + timeout_s
        while any(process.status is None for process in processes):
            left_s = until - time.monotonic()
            if left_s <= 0 or not wait(self.news, left_s):
                return False
            self.read_news()
        return True

    def kill(self, processes: Sequence[Process]) -> None:
        """Kill ranks and all that they started, and wait until they are gone."""
        host().kill([process for process in processes if isinstance(process, LocalProcess)])
        for agent in self._agents.values():
            pids = [pid for pid, process in agent.processes.items() if process in processes]
            if pids:
                with contextlib.suppress(LaunchError):
                    agent.tell(Kill(tuple(pids)))
        self.wait_gone(processes, 10.0)

    def close(self) -> None:
        """Send the agents home."""
        with contextlib.suppress(LaunchError):
            self.gather(ANSWER_DEADLINE_S)
        for agent in self._agents.values():
            with contextlib.suppress(LaunchError):
                agent.tell(Farewell())
            agent.control.close()
        self._agents.clear()
        self._lost = True
        self._door.close()

    @property
    def _host(self) -> str:
        return self.place.master[0] if self.place.master else LOOPBACK

    def _seat(
        self, spec: WorldSpec, watched: bool, scheduling: str, rendezvous: tuple[str, int]
    ) -> Seat:
        return Seat(
            rank=0,
            local_rank=self.place.local_rank,
            spec=spec,
            rendezvous=rendezvous,
            cwd=os.getcwd(),
            sys_path=tuple(paths()),
            environ=rank_environ(
                spec,
                0,
                local_rank=self.place.local_rank,
                local_size=min(self.place.local_size, spec.size),
                master=rendezvous,
                interface="" if self.place.spans_machines else "lo",
            ),
            watched=watched,
            scheduling=scheduling,
            shares_memory=not self.place.spans_machines,
        )

    def _launch(self, seat: Seat, output: Path | None, passthrough: bool) -> RemoteProcess:
        agent = self._agents[seat.rank]
        agent.tell(Launch(self._launches, seat, passthrough))
        connection = self._channel(seat.rank)
        log = None if output is None or passthrough else output / f"rank{seat.rank}.log"
        process = RemoteProcess(seat.rank, agent, connection, log)
        process.pid = agent.expect(Forked).pid
        agent.processes[process.pid] = process
        return process

    def _channel(self, rank: int) -> Connection:
        """Return the connection that an agent has made for the rank that it forks."""
        connection = self._door.admit(ANSWER_DEADLINE_S)
        if connection is None:
            raise LaunchError(f"the process that serves rank {rank} does not answer")
        hello: Hello = receive(connection)
        if (hello.rank, hello.launch) != (rank, self._launches):
            raise LaunchError(f"{hello} came where rank {rank} was awaited")
        return connection
