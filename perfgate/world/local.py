"""Launch on this machine: the controller's side of the zygote."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import BinaryIO, TypeVar

from perfgate.errors import LaunchError
from perfgate.model import WorldSpec
from perfgate.world.protocol import Exited, Forked, Kill, Seat

M = TypeVar("M")

START_DEADLINE_S = 120.0
_MESSAGE_BYTES = 1 << 20
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from perfgate.world.zygote import main; main(int(sys.argv[1]))"
)


@dataclass(slots=True)
class Process:
    """One rank's process, as the controller holds it."""

    rank: int
    pid: int
    connection: Connection
    output: BinaryIO | None
    stacks: BinaryIO

    def close(self) -> None:
        """Close what the controller holds of it."""
        self.connection.close()
        self.stacks.close()
        if self.output is not None:
            self.output.close()


class Host:
    """A machine: one zygote, and news of the ranks that it forked.

    :ivar exits: exit status by pid of the ranks that are known to be gone.
    """

    def __init__(self) -> None:
        self.exits: dict[int, int] = {}
        self.directory = Path(tempfile.mkdtemp(prefix="perfgate-"))
        self._worlds = 0
        self._ready = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = ours
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(_paths())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._close = weakref.finalize(self, _clear_away, ours, self.process, self.directory)

    def fileno(self) -> int:
        """Make the host something that can be waited for."""
        return self.channel.fileno()

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
        self, spec: WorldSpec, *, timeout_s: float, output: Path | None, passthrough: bool
    ) -> list[Process]:
        """Fork one process a rank; they join their group on their own.

        :raises LaunchError: when the zygote is gone.
        """
        self.wait_ready()
        self._worlds += 1
        rendezvous = self.directory / f"world-{self._worlds}"
        processes: list[Process] = []
        for rank in range(spec.size):
            seat = Seat(
                rank=rank,
                spec=spec,
                rendezvous=str(rendezvous),
                timeout_s=timeout_s,
                cwd=os.getcwd(),
                sys_path=tuple(_paths()),
                environ=_environ(spec, rank),
            )
            processes.append(self._fork(seat, output, passthrough))
        return processes

    def kill(self, processes: list[Process]) -> None:
        """Kill ranks and all that they started, and wait until they are gone."""
        self._send(Kill(tuple(p.pid for p in processes if p.pid not in self.exits)))
        self.wait_gone(processes, 10.0)

    def wait_gone(self, processes: list[Process], timeout_s: float) -> bool:
        """Wait until every process has ended; say whether it has."""
        while any(p.pid not in self.exits for p in processes):
            if not wait([self.channel], timeout_s):
                return False
            self.read_news()
        return True

    def read_news(self) -> None:
        """Take in one message of the zygote.

        :raises LaunchError: when the zygote is gone.
        """
        message = self._receive(Exited, 0.0)
        self.exits[message.pid] = message.status

    def _fork(self, seat: Seat, output: Path | None, passthrough: bool) -> Process:
        ours, theirs = socket.socketpair()
        stacks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as the rank
        sink = None if passthrough else _open_output(output, seat.rank)
        with theirs:
            descriptors = [theirs.fileno(), sink.fileno() if sink else 1, stacks.fileno()]
            self._send(seat, descriptors)
        pid = self._receive(Forked, START_DEADLINE_S).pid
        self.exits.pop(pid, None)
        return Process(seat.rank, pid, Connection(ours.detach()), sink, stacks)

    def _send(self, message: object, descriptors: list[int] | None = None) -> None:
        try:
            socket.send_fds(self.channel, [pickle.dumps(message)], descriptors or [])
        except OSError as error:
            raise LaunchError(f"the process that forks ranks is gone: {error}") from error

    def _receive(self, kind: type[M], timeout_s: float) -> M:
        """Return the next message of this kind; exits that come before it are kept."""
        while True:
            if timeout_s and not wait([self.channel], timeout_s):
                raise LaunchError(f"the process that forks ranks gave no answer in {timeout_s:g} s")
            data = self.channel.recv(_MESSAGE_BYTES)
            if not data:
                status = self.process.wait()
                raise LaunchError(f"the process that forks ranks ended with status {status}")
            message = pickle.loads(data)
            if isinstance(message, kind):
                return message
            if isinstance(message, Exited):
                self.exits[message.pid] = message.status


@cache
def _shared() -> list[Host]:
    return []


def host() -> Host:
    """Return this interpreter's zygote, started on the first call (it preloads in background)."""
    hosts = _shared()
    if not hosts or not hosts[0].alive:
        hosts[:] = [Host()]
    return hosts[0]


def _paths() -> list[str]:
    return [path for path in sys.path if isinstance(path, str)]


def _open_output(directory: Path | None, rank: int) -> BinaryIO:
    if directory is None:
        return tempfile.TemporaryFile(buffering=0)
    directory.mkdir(parents=True, exist_ok=True)
    return open(directory / f"rank{rank}.log", "w+b", buffering=0)


def _environ(spec: WorldSpec, rank: int) -> dict[str, str]:
    defaults = {"OMP_NUM_THREADS": "1"}
    if spec.backend == "gloo" and sys.platform == "linux":
        # A host name that does not resolve is the usual reason that gloo does not come up.
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    identity = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(spec.size),
        "LOCAL_WORLD_SIZE": str(spec.size),
        "LOCAL_SIZE": str(spec.size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    return defaults | dict(os.environ) | identity


def _clear_away(channel: socket.socket, process: subprocess.Popen[bytes], directory: Path) -> None:
    channel.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    if process.poll() is None:
        process.kill()
        process.wait()
    shutil.rmtree(directory, ignore_errors=True)
