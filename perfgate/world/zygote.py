"""One preloaded process per interpreter, from which ranks are forked.

Importing torch takes seconds, a fork of a process that has imported it 10 ms. The zygote starts
no thread pool and never touches a GPU, so that a fork of it is as good as a fresh process. It
adopts what a dead rank leaves behind (``PR_SET_CHILD_SUBREAPER``, on both of them), daemons
included, so that the end of a rank is the end of its children too, and it kills everything when
the controller is gone, however that went.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import weakref
from pathlib import Path
from typing import NoReturn

import psutil

from perfgate.world.protocol import Exited, Forked, Kill, Seat

PRELOAD = (
    "numpy.random",
    "torch",
    "torch.distributed",
    "cloudpickle",
    "perfgate.world.worker",
    "perfgate.bench.timing",
)
_MESSAGE_BYTES = 1 << 20
_DESCRIPTORS = 5
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(descriptor: int) -> NoReturn:
    """Serve fork and kill requests on a socket until the other end closes."""
    for module in PRELOAD:
        importlib.import_module(module)
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        # What the preloaded modules would take down at exit (torch: 25 ms of op tables) is
        # the zygote's; a rank has no need to.
        finalizer.atexit = False
    gc.collect()
    gc.freeze()
    channel = socket.socket(fileno=descriptor)
    Zygote(channel).serve()
    os._exit(0)


class Zygote:
    """The parent of every rank: forks them, reaps them, clears up behind them."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.ranks: set[int] = set()
        self.parent = os.getppid()
        self.wakeup, self.alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve(self) -> None:
        """Answer until the controller is gone; then leave nothing behind."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self.alarm, warn_on_full_buffer=False)
        with contextlib.suppress(ConnectionError):
            self._tell(Forked(os.getpid()))
            while os.getppid() == self.parent and self._turn():
                pass
        self._kill_all()

    def _turn(self) -> bool:
        ready, _, _ = select.select([self.channel.fileno(), self.wakeup], [], [])
        if self.wakeup in ready:
            os.read(self.wakeup, 4096)
            self._reap()
        return self.channel.fileno() not in ready or self._obey()

    def _obey(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self.channel, _MESSAGE_BYTES, _DESCRIPTORS)
        if not data:
            return False
        message = pickle.loads(data)
        if isinstance(message, Seat):
            self._fork(message, descriptors)
        elif isinstance(message, Kill):
            for pid in message.pids:
                _kill_group(pid)
        return True

    def _fork(self, seat: Seat, descriptors: list[int]) -> None:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_rank(seat, descriptors, zygote)
        self.ranks.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        self._tell(Forked(pid))

    def _become_rank(self, seat: Seat, descriptors: list[int], zygote: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            for signum in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(signum, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            if os.getppid() != zygote:
                os._exit(70)
            self.channel.close()
            os.close(self.wakeup)
            os.close(self.alarm)
            from perfgate.world.worker import Files, serve

            serve(seat, Files(*descriptors))
        finally:
            os._exit(70)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.ranks:
                self.ranks.discard(pid)
                at_ns = time.monotonic_ns()
                _kill_session_group(pid)
                self._kill_orphans()
                self._tell(Exited(pid, os.waitstatus_to_exitcode(status), at_ns))

    def _kill_orphans(self) -> None:
        """Kill what dead ranks left behind: a living rank adopts its own orphans itself."""
        while orphans := _children() - self.ranks:
            for pid in orphans:
                _kill(pid)
                os.waitpid(pid, 0)

    def _kill_all(self) -> None:
        for pid in self.ranks:
            _kill_group(pid)
        while self.ranks:
            pid, _ = os.waitpid(-1, 0)
            self.ranks.discard(pid)
        self._kill_orphans()

    def _tell(self, message: object) -> None:
        self.channel.send(pickle.dumps(message))


def _children() -> set[int]:
    try:
        listing = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return {child.pid for child in psutil.Process().children()}
    return {int(pid) for pid in listing.split()}


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    """Kill a living rank and its process group, which it may not have founded yet."""
    _kill_session_group(pid)
    _kill(pid)


def _kill_session_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
