"""A debugger in a rank, talking through the terminal that pytest was started from."""

from __future__ import annotations

import fcntl
import os
import pdb
import sys
from multiprocessing.connection import Connection
from typing import Any

from perfgate.errors import UsageError
from perfgate.world.protocol import Paused, Seat, send

_rank: tuple[Seat, Connection] | None = None


def install_breakpoint(seat: Seat, connection: Connection) -> None:
    """Make ``breakpoint()`` in this rank talk through the terminal, one rank at a time."""
    global _rank
    _rank = (seat, connection)
    sys.breakpointhook = _break_here


def enter_post_mortem(error: BaseException) -> None:
    """Let the user look at where a function on this rank raised."""
    debugger = _Debugger()
    try:
        debugger.reset()
        debugger.interaction(None, error.__traceback__)
    finally:
        debugger.release()


def _break_here(*_: Any, **__: Any) -> None:
    _Debugger().set_trace(sys._getframe(1))


class _Debugger(pdb.Pdb):
    """pdb on the terminal, which it holds until the program goes on."""

    def __init__(self) -> None:
        if _rank is None or not _rank[0].terminal:
            raise UsageError(
                "a debugger in a rank needs a terminal; run pytest from one, without xdist's -n"
            )
        seat, self._connection = _rank
        self._number = seat.rank
        send(self._connection, Paused(self._number, held=True))
        self._terminal = open(os.open(seat.terminal, os.O_RDWR | os.O_NOCTTY), "rb", buffering=0)  # noqa: SIM115
        fcntl.flock(self._terminal, fcntl.LOCK_EX)
        keys = open(os.dup(self._terminal.fileno()))  # noqa: SIM115
        screen = open(os.dup(self._terminal.fileno()), "w")  # noqa: SIM115
        print(f"\n--- perfgate: rank {seat.rank} of {seat.spec.size}", file=screen, flush=True)
        super().__init__(stdin=keys, stdout=screen, nosigint=True)
        self.use_rawinput = False

    def set_continue(self) -> None:
        """Go on, and let the next rank have the terminal."""
        super().set_continue()
        self.release()

    def set_quit(self) -> None:
        """Leave the program, and let the next rank have the terminal."""
        super().set_quit()
        self.release()

    def release(self) -> None:
        """Give the terminal back."""
        if not self._terminal.closed:
            fcntl.flock(self._terminal, fcntl.LOCK_UN)  # pdb holds duplicates of it
            self._terminal.close()
            send(self._connection, Paused(self._number, held=False))
