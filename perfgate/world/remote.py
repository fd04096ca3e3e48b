"""A rank's process that an agent holds, as the controller sees it through the agent."""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from perfgate.errors import LaunchError
from perfgate.world.protocol import Ask, Exited, Told, receive, send

ANSWER_DEADLINE_S = 30.0


class Agent:
    """The controller's side of an agent.

    :ivar clock_ns: what to add to its clock to have ours.
    """

    def __init__(self, rank: int, control: Connection, clock_ns: int) -> None:
        self.rank = rank
        self.control = control
        self.clock_ns = clock_ns
        self.processes: dict[int, RemoteProcess] = {}

    def ask(self, pid: int, what: str) -> Any:
        """Return what an agent knows of a process.

        :raises LaunchError: when the agent is gone.
        """
        self.tell(Ask(pid, what))
        return self.expect(Told).value

    def tell(self, message: object) -> None:
        """Send a message.

        :raises LaunchError: when the agent is gone.
        """
        try:
            send(self.control, message)
        except OSError as error:
            raise LaunchError(f"the process that serves rank {self.rank} is gone") from error

    def expect(self, kind: type[Any]) -> Any:
        """Return the next message of a kind; news that come before it are noted.

        :raises LaunchError: when the agent is gone or does not answer.
        """
        until = time.monotonic() + ANSWER_DEADLINE_S
        while wait([self.control], max(0.0, until - time.monotonic())):
            message = self._next()
            if isinstance(message, kind):
                return message
            self.note(message)
        raise LaunchError(f"the process that serves rank {self.rank} does not answer")

    def read_news(self) -> None:
        """Note one message.

        :raises LaunchError: when the agent is gone.
        """
        self.note(self._next())

    def note(self, message: object) -> None:
        """Note that a process has ended."""
        if isinstance(message, Exited):
            process = self.processes.pop(message.pid)
            process.status = message.status
            process.ended_ns = message.at_ns + self.clock_ns

    def _next(self) -> object:
        try:
            return receive(self.control)
        except (EOFError, OSError) as error:
            raise LaunchError(f"the process that serves rank {self.rank} is gone") from error


class RemoteProcess:
    """A rank's process that an agent holds, seen through it."""

    def __init__(self, rank: int, agent: Agent, connection: Connection, log: Path | None) -> None:
        self.rank = rank
        self.pid = 0
        self.status: int | None = None
        self.ended_ns = 0
        self.clock_ns = agent.clock_ns
        self.connection = connection
        self._agent = agent
        self._log = log

    def ask_stack(self) -> None:
        """Make the rank write its stacks."""
        self._ask("ask_stack", b"")

    def stack(self) -> str:
        """Return the stacks that it has written."""
        return str(self._ask("stack", "") or "")

    def record(self) -> bytes:
        """Return the record of its collectives."""
        return bytes(self._ask("record", bytes(8)) or bytes(8))

    def state(self) -> str:
        """Return the letter by which the kernel tells what it is doing, or nothing."""
        return str(self._ask("state", "") or "")

    def new_output(self) -> bytes:
        """Return what it has written since this was last asked."""
        data = bytes(self._ask("new_output", b""))
        if self._log is not None and data:
            with open(self._log, "ab") as file:
                file.write(data)
        return data

    def close(self) -> None:
        """Fetch what is left of its output, and close its channel."""
        if not self.connection.closed:
            self.new_output()
            self._ask("close", b"")
            self.connection.close()

    def _ask(self, what: str, otherwise: object) -> Any:
        """Return what its agent says; an agent that is gone is told elsewhere."""
        with contextlib.suppress(LaunchError):
            return self._agent.ask(self.pid, what)
        return otherwise
