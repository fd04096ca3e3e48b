"""A rank's process on this machine, and the files that it shares with the controller."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO

from perfgate.errors import LaunchError
from perfgate.world.protocol import STACK_SIGNAL
from perfgate.world.record import Record, anonymous_file


class LocalProcess:
    """One rank's process on this machine, as the controller holds it.

    :ivar status: how it ended (negative: a signal's number); None while it lives.
    """

    def __init__(self, rank: int, connection: Connection, output: BinaryIO | None) -> None:
        self.rank = rank
        self.pid = 0
        self.status: int | None = None
        self.ended_ns = 0
        self.clock_ns = 0
        self.connection = connection
        self._output = output
        self._read = 0
        self._stacks = open(anonymous_file("perfgate-stacks"), "r+b", buffering=0)  # noqa: SIM115
        self._record = Record()

    def descriptors(self, channel: int) -> list[int]:
        """Return what the rank is to be given, in the order of ``worker.Files``."""
        output = self._output.fileno() if self._output else 1
        return [channel, output, self._stacks.fileno(), self._record.descriptor]

    def ask_stack(self) -> None:
        """Make the rank write its stacks; it may be stopped, or not listen."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, STACK_SIGNAL)

    def stack(self) -> str:
        """Return the stacks that it has written."""
        return read_beside(self._stacks.fileno(), 0).decode(errors="replace")

    def record(self) -> bytes:
        """Return the record of its collectives."""
        return self._record.read()

    def state(self) -> str:
        """Return the letter by which the kernel tells what it is doing, or nothing."""
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self.pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0]
        return ""

    def new_output(self) -> bytes:
        """Return what it has written since this was last asked."""
        if self._output is None or self._output.closed:
            return b""
        data = read_beside(self._output.fileno(), self._read)
        self._read += len(data)
        return data

    def close(self) -> None:
        """Close what the controller holds of it."""
        if not self._stacks.closed:
            self.connection.close()
            self._stacks.close()
            self._record.close()
        if self._output is not None:
            self._output.close()


def read_beside(descriptor: int, start: int) -> bytes:
    """Return what stands in a file from ``start`` on, without moving the place in it.

    A rank shares that place with us, and may be writing.
    """
    pieces = []
    while piece := os.pread(descriptor, 1 << 20, start):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def open_output(directory: Path | None, rank: int) -> BinaryIO:
    """Return the file that takes a rank's output.

    :raises LaunchError: when it cannot be made.
    """
    if directory is None:
        return open(anonymous_file(f"perfgate-rank{rank}"), "w+b", buffering=0)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return open(directory / f"rank{rank}.log", "w+b", buffering=0)
    except OSError as error:
        raise LaunchError(
            f"the output of rank {rank} cannot be kept: {error}; make room, or choose another "
            "folder with --perfgate-report"
        ) from error
