"""What a world stands on: processes that hold ranks, and the machine or machines they live on."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from perfgate.model import WorldSpec


class Process(Protocol):
    """One rank's process, as the controller holds it.

    :ivar status: how it ended (negative: a signal's number); None while it lives.
    :ivar ended_ns: when, on our monotonic clock.
    :ivar clock_ns: what to add to its machine's monotonic clock to have ours.
    """

    rank: int
    pid: int
    status: int | None
    ended_ns: int
    clock_ns: int
    connection: Connection

    def ask_stack(self) -> None:
        """Make the rank write its stacks; it may be stopped, or not listen."""

    def stack(self) -> str:
        """Return the stacks that it has written."""

    def record(self) -> bytes:
        """Return the record of its collectives."""

    def state(self) -> str:
        """Return the letter by which the kernel tells what it is doing, or nothing."""

    def new_output(self) -> bytes:
        """Return what it has written since this was last asked."""

    def close(self) -> None:
        """Close what the controller holds of it."""


class Machine(Protocol):
    """Where ranks are launched."""

    @property
    def alive(self) -> bool:
        """Whether ranks can still be launched."""

    @property
    def news(self) -> Sequence[socket.socket | Connection]:
        """What to wait on for news of ranks that end."""

    def launch(
        self,
        spec: WorldSpec,
        *,
        output: Path | None,
        passthrough: bool,
        watched: bool,
        scheduling: str,
        post_mortem: bool,
    ) -> Sequence[Process]:
        """Start one process a rank; they join their group on their own."""

    def read_news(self) -> None:
        """Take in what news there is."""

    def wait_gone(self, processes: Sequence[Process], timeout_s: float) -> bool:
        """Wait until every process has ended; say whether it has."""

    def kill(self, processes: Sequence[Process]) -> None:
        """Kill ranks and all that they started, and wait until they are gone."""


_chosen: list[Machine] = []


def use(machine: Machine | None) -> None:
    """Launch worlds there from now on; with None, on this machine again."""
    _chosen[:] = [] if machine is None else [machine]


def chosen() -> Machine | None:
    """Return where worlds are launched, if it is not this machine."""
    return _chosen[0] if _chosen else None
