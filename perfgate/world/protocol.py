"""The messages between controller and ranks, and between controller and zygote.

Nothing else crosses. Messages are pickled frozen dataclasses in length-prefixed frames
(:class:`multiprocessing.connection.Connection`); what a user ships, functions and their
values, travels inside them as bytes made by cloudpickle, so that a value that cannot be read
never breaks the channel.
"""

from __future__ import annotations

import pickle
import signal
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from perfgate.model import WorldSpec
from perfgate.scheduling import ORDINARY
from perfgate.world.parcel import Parcel

#: Raise it when a message, or a function that a controller calls on ranks, changes: ranks of
#: another commit (``--perfgate-base``) may have a perfgate of their own.
PROTOCOL = 1
#: Makes a rank write every thread's stack to the file that the controller reads.
STACK_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank sits: all it must know to join its world.

    :param rendezvous: host and port of the store that rank 0 serves.
    :param watched: whether the collectives it begins are noted.
    :param scheduling: the class that the kernel schedules it in.
    :param terminal: the device that a debugger in the rank may talk through, if there is one.
    :param post_mortem: whether to enter the debugger when a function raises.
    :param shares_memory: whether the controller is on the same machine.
    """

    rank: int
    local_rank: int
    spec: WorldSpec
    rendezvous: tuple[str, int]
    cwd: str
    sys_path: tuple[str, ...]
    environ: dict[str, str]
    watched: bool = True
    scheduling: str = ORDINARY
    terminal: str = ""
    post_mortem: bool = False
    shares_memory: bool = True


@dataclass(frozen=True, slots=True)
class Forked:
    """The zygote's answer to a seat: the pid of the rank that took it."""

    pid: int


@dataclass(frozen=True, slots=True)
class Kill:
    """To the zygote: kill these ranks, each with every process it left behind."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exited:
    """From the zygote: a rank is gone. ``status`` is that of :func:`os.waitstatus_to_exitcode`."""

    pid: int
    status: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """To a rank: run this. ``payload`` is cloudpickle's ``(function, args, kwargs)``.

    ``rank_argument`` names the keyword that is to receive the :class:`perfgate.Rank`.
    """

    number: int
    payload: bytes
    rank_argument: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """To a rank: leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One line of a rank's traceback."""

    path: str
    line: int
    function: str
    first_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How one rank failed.

    :param kind: of its own accord: ``raised``, ``skipped``, ``xfailed``, ``died``, ``hung``,
        ``disagreed`` (began another collective than the rest) or ``left`` (returned while others
        wait for it); of a bystander: ``waited``, ``running`` or ``returned``.
    :param type_name: the exception's class, for ``raised``.
    :param message: the exception's text, a signal's name, or where the rank was found.
    :param frames: the traceback, outermost first, without perfgate's own frames.
    :param stack: every thread's stack, for a rank that was still running.
    :param peer_lost: whether this is the echo of another rank's end.
    :param in_collective: whether it was raised inside a collective.
    :param last: the rank's last collective, in words.
    :param at_ns: when, on the machine's monotonic clock.
    :param exception: the pickled exception, where it can be pickled.
    """

    rank: int
    kind: str
    type_name: str = ""
    message: str = ""
    frames: tuple[Frame, ...] = ()
    stack: str = ""
    peer_lost: bool = False
    in_collective: bool = False
    last: str = ""
    at_ns: int = 0
    exception: bytes | None = None

    @property
    def innocent(self) -> bool:
        """Whether it only suffered what another rank did."""
        return (self.peer_lost and self.kind == "raised") or self.kind in (
            "waited",
            "running",
            "returned",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """From a rank: the call's result as cloudpickle's bytes, or its failure.

    :param parcel: where the large parts of the result lie.
    :param steps: a digest of the collectives that it began on the whole world.
    :param spent: whether the function has ended the process group: nothing more can run here.
    """

    rank: int
    number: int
    value: bytes | None = None
    parcel: Parcel | None = None
    failure: Failure | None = None
    warnings: tuple[tuple[str, str, str, int], ...] = field(default=())
    steps: tuple[int, int] = (0, 0)
    spent: bool = False


@dataclass(frozen=True, slots=True)
class Paused:
    """From a rank: a debugger holds it (``held``), or no longer; deadlines wait meanwhile."""

    rank: int
    held: bool


@dataclass(frozen=True, slots=True)
class Hello:
    """To the controller, first of all: an agent, or (``launch`` above 0) a rank's channel.

    :param at_ns: the sender's monotonic clock.
    """

    rank: int
    launch: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Launch:
    """To an agent: fork a rank. It answers with :class:`Forked`."""

    number: int
    seat: Seat
    passthrough: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """To an agent: call this method of a rank's process, for its answer in :class:`Told`."""

    pid: int
    what: str


@dataclass(frozen=True, slots=True)
class Told:
    """From an agent: what was asked for."""

    value: Any


@dataclass(frozen=True, slots=True)
class Farewell:
    """To an agent: the session has ended."""


def send(connection: Connection, message: object) -> None:
    """Send one message.

    :raises OSError: when the other end is gone.
    """
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Receive one message.

    :raises EOFError: when the other end is gone.
    """
    return pickle.loads(connection.recv_bytes())
