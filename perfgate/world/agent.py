"""An agent: a process of an external launcher that forks its rank anew for each world.

It stays while worlds come and go, so that a launch is fresh although the launcher's processes
are not, and a rank may die without taking the launcher's job down.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from multiprocessing.connection import Connection, wait

from perfgate.world.discovery import Place
from perfgate.world.environ import rank_environ
from perfgate.world.local import Host
from perfgate.world.process import LocalProcess, open_output
from perfgate.world.protocol import (
    Ask,
    Exited,
    Farewell,
    Forked,
    Hello,
    Kill,
    Launch,
    Told,
    receive,
    send,
)
from perfgate.world.rendezvous import Address, connect, find

FIND_DEADLINE_S = 120.0
#: What an agent ends with when rank 0 is gone without a word.
ABANDONED = 70


def serve(place: Place) -> int:
    """Serve rank 0 until it says farewell; return the status to end with.

    That is 0 however the tests went: the job's status is rank 0's, and told once.

    :raises LaunchError: when rank 0 cannot be found.
    """
    host = Host()
    try:
        address, control = find(place, FIND_DEADLINE_S)
        send(control, Hello(place.rank, 0, time.monotonic_ns()))
        host.wait_ready()
        return _Agent(place, address, control, host).serve()
    except (EOFError, ConnectionError):
        return ABANDONED
    finally:
        host.close()


class _Agent:
    def __init__(self, place: Place, address: Address, control: Connection, host: Host) -> None:
        self.place = place
        self.address = address
        self.control = control
        self.host = host
        self.processes: dict[int, LocalProcess] = {}

    def serve(self) -> int:
        while True:
            ready = wait([self.control, *self.host.news])
            if self.control in ready:
                message = receive(self.control)
                if isinstance(message, Farewell):
                    return 0
                self._obey(message)
            else:
                self.host.read_news()
            self._tell_ends()

    def _obey(self, message: object) -> None:
        if isinstance(message, Launch):
            self._launch(message)
        elif isinstance(message, Kill):
            self.host.kill([self.processes[pid] for pid in message.pids if pid in self.processes])
        elif isinstance(message, Ask):
            send(self.control, Told(self._look(message)))

    def _launch(self, launch: Launch) -> None:
        seat = launch.seat
        local_size = min(self.place.local_size, seat.spec.size)
        seat = replace(
            seat,
            local_rank=self.place.local_rank,
            cwd=seat.cwd if os.path.isdir(seat.cwd) else os.getcwd(),
            environ=rank_environ(
                seat.spec,
                seat.rank,
                local_rank=self.place.local_rank,
                local_size=local_size,
                master=seat.rendezvous,
                interface="" if self.place.spans_machines else "lo",
            ),
        )
        channel = connect(self.address)
        send(channel, Hello(self.place.rank, launch.number, time.monotonic_ns()))
        sink = None if launch.passthrough else open_output(None, seat.rank)
        with channel:
            process = self.host.fork_onto(seat, sink, channel.fileno())
        self.processes[process.pid] = process
        send(self.control, Forked(process.pid))

    def _look(self, ask: Ask) -> object:
        process = self.processes.get(ask.pid)
        if process is None:
            return b""
        if ask.what == "close":
            del self.processes[ask.pid]
        return getattr(process, ask.what)()

    def _tell_ends(self) -> None:
        for pid, process in list(self.processes.items()):
            if process.status is not None and process.ended_ns:
                send(self.control, Exited(pid, process.status, process.ended_ns))
                process.ended_ns = 0
