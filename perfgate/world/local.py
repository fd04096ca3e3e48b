"""Launch on this machine: the controller's side of the zygote."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import BinaryIO, TypeVar

from perfgate.errors import LaunchError
from perfgate.model import WorldSpec
from perfgate.scheduling import ORDINARY
from perfgate.world.environ import rank_environ, terminal
from perfgate.world.interpreter import Interpreter
from perfgate.world.machine import Process
from perfgate.world.process import LocalProcess, open_output
from perfgate.world.protocol import Exited, Forked, Kill, Seat

M = TypeVar("M")

START_DEADLINE_S = 120.0
LOOPBACK = "127.0.0.1"
_MESSAGE_BYTES = 1 << 20
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from perfgate.world.zygote import main; main(int(sys.argv[1]))"
)


class Host:
    """The machine we are on: one zygote, and news of the ranks that it forked.

    :param interpreter: the Python that its ranks run, if it is not ours.
    """

    def __init__(self, interpreter: Interpreter | None = None) -> None:
        self._interpreter = interpreter
        self._living: dict[int, LocalProcess] = {}
        self._ready = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        with theirs:
            self.process = _start(interpreter, theirs.fileno())
        self._close = weakref.finalize(self, _clear_away, ours, self.process)

    @property
    def news(self) -> list[socket.socket]:
        """What to wait on for news of ranks that end."""
        return [self._channel]

    @property
    def alive(self) -> bool:
        """Whether ranks can still be forked."""
        return self._close.alive and self.process.poll() is None

    def close(self) -> None:
        """Stop the zygote, and with it every rank."""
        self._close()

    def wait_ready(self) -> None:
        """Block until torch is preloaded.

        :raises LaunchError: when the zygote ends or does not answer.
        """
        if not self._ready:
            self._receive(Forked, START_DEADLINE_S)
            self._ready = True

    def launch(
        self,
        spec: WorldSpec,
        *,
        output: Path | None,
        passthrough: bool,
        watched: bool,
        scheduling: str = ORDINARY,
        post_mortem: bool = False,
    ) -> list[LocalProcess]:
        """Fork one process a rank; they join their group on their own.

        :raises LaunchError: when the zygote is gone, or there is no room for output.
        """
        with listen(LOOPBACK, spec.size) as listener:
            seats = [
                Seat(
                    rank=rank,
                    local_rank=rank,
                    spec=spec,
                    rendezvous=listener.getsockname(),
                    cwd=os.getcwd(),
                    sys_path=self._paths(),
                    environ=self._environ(rank_environ(spec, rank)),
                    watched=watched,
                    scheduling=scheduling,
                    terminal=terminal(),
                    post_mortem=post_mortem,
                )
                for rank in range(spec.size)
            ]
            sinks = [None if passthrough else open_output(output, seat.rank) for seat in seats]
            return self.fork(seats, sinks, listener)

    def _paths(self) -> tuple[str, ...]:
        return tuple(paths()) if self._interpreter is None else self._interpreter.paths

    def _environ(self, ours: dict[str, str]) -> dict[str, str]:
        return ours if self._interpreter is None else self._interpreter.environ(ours)

    def fork(
        self, seats: list[Seat], sinks: list[BinaryIO | None], listener: socket.socket | None
    ) -> list[LocalProcess]:
        """Fork a process for each seat, asked for all at once; rank 0 gets the listener.

        :raises LaunchError: when the zygote is gone.
        """
        self.wait_ready()
        processes: list[LocalProcess] = []
        try:
            for seat, sink in zip(seats, sinks, strict=True):
                processes.append(self._ask(seat, sink, listener))
            for process in processes:
                process.pid = self._receive(Forked, START_DEADLINE_S).pid
                self._living[process.pid] = process
        except BaseException:
            for process in processes:
                process.close()
            self.close()
            raise
        return processes

    def kill(self, processes: Sequence[Process]) -> None:
        """Kill ranks and all that they started, and wait until they are gone."""
        self._send(Kill(tuple(p.pid for p in processes if p.status is None)))
        self.wait_gone(processes, 10.0)

    def wait_gone(self, processes: Sequence[Process], timeout_s: float) -> bool:
        """Wait until every process has ended; say whether it has."""
        until = time.monotonic() + timeout_s
        while any(process.status is None for process in processes):
            left_s = until - time.monotonic()
            if left_s <= 0 or not wait([self._channel], left_s):
                return False
            self.read_news()
        return True

    def read_news(self) -> None:
        """Take in one piece of news.

        :raises LaunchError: when the zygote is gone.
        """
        self._note(self._receive(Exited, 0.0))

    def _note(self, exited: Exited) -> None:
        process = self._living.pop(exited.pid)
        process.status, process.ended_ns = exited.status, exited.at_ns

    def fork_onto(self, seat: Seat, sink: BinaryIO | None, channel: int) -> LocalProcess:
        """Fork a process that talks to a controller elsewhere, through ``channel``.

        :raises LaunchError: when the zygote is gone.
        """
        self.wait_ready()
        ours, theirs = socket.socketpair()
        theirs.close()
        process = LocalProcess(seat.rank, Connection(ours.detach()), sink)
        self._send(seat, process.descriptors(channel))
        process.pid = self._receive(Forked, START_DEADLINE_S).pid
        self._living[process.pid] = process
        return process

    def _ask(
        self, seat: Seat, sink: BinaryIO | None, listener: socket.socket | None
    ) -> LocalProcess:
        ours, theirs = socket.socketpair()
        process = LocalProcess(seat.rank, Connection(ours.detach()), sink)
        with theirs:
            descriptors = process.descriptors(theirs.fileno())
            if listener is not None and seat.rank == 0:
                descriptors.append(listener.fileno())
            self._send(seat, descriptors)
        return process

    def _send(self, message: object, descriptors: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._channel, [pickle.dumps(message)], descriptors or [])
        except OSError as error:
            raise LaunchError(f"the process that forks ranks is gone: {error}") from error

    def _receive(self, kind: type[M], timeout_s: float) -> M:
        """Return the next message of this kind; exits that come before it are noted."""
        while True:
            if timeout_s and not wait([self._channel], timeout_s):
                raise LaunchError(f"the process that forks ranks gave no answer in {timeout_s:g} s")
            data = self._channel.recv(_MESSAGE_BYTES)
            if not data:
                raise LaunchError(f"the process that forks ranks {self._ending()}")
            message = pickle.loads(data)
            if isinstance(message, kind):
                return message
            if isinstance(message, Exited):
                self._note(message)

    def _ending(self) -> str:
        try:
            status = self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            return "has closed its channel"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"


def listen(host: str, backlog: int) -> socket.socket:
    """Return a socket that listens on a port of its own, for a world's store."""
    return socket.create_server((host, 0), backlog=backlog)


@cache
def _shared() -> dict[tuple[Interpreter | None, int], Host]:
    return {}


def host(place: int = 0, interpreter: Interpreter | None = None) -> Host:
    """Return one of an interpreter's zygotes, started on its first call (in background).

    Forks share the memory layout of their zygote, and a layout can move times by a tenth. Who
    measures therefore launches from several; everybody else from the first.

    :param interpreter: the Python that its ranks run, if it is not ours.
    """
    hosts, key = _shared(), (interpreter, place)
    if key not in hosts or not hosts[key].alive:
        hosts[key] = Host(interpreter)
    return hosts[key]


def paths() -> list[str]:
    """Return where this process imports from."""
    return [path for path in sys.path if isinstance(path, str)]


def _start(interpreter: Interpreter | None, descriptor: int) -> subprocess.Popen[bytes]:
    """Start a zygote that serves a descriptor; another interpreter's away from our files."""
    if interpreter is None:
        command = [sys.executable, "-c", _BOOT, str(descriptor), json.dumps(paths())]
        return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL)
    return subprocess.Popen(
        interpreter.command(descriptor),
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        env=interpreter.environ(os.environ),
        cwd=os.sep,
    )


def _clear_away(channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    channel.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    if process.poll() is None:
        process.kill()
        process.wait()
