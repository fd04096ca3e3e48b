"""A probe of the machine itself: one byte there and back over plain TCP, between two ranks.

How long that takes depends on the machine alone: on where the host has put its processors, on
what they share, on the kernel. On a virtual machine it changes by half within a minute and stays
so for the next, and every collective changes with it (:mod:`perfgate.gate.pace`). So each timed
call is followed by a probe.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from types import TracebackType
from typing import Any

import torch.distributed as dist

_TRIPS = 2


class Probe:
    """The round trip between the first rank and the last; the ranks between stand by.

    Making one is collective, and so is closing it.
    """

    _made = itertools.count()  # alike on every rank, so that each finds the other's of its own

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        key = f"perfgate/probe{next(self._made)}"
        last = dist.get_world_size() - 1
        if dist.get_rank() == 0:
            self._socket = _accepted(key)
        elif dist.get_rank() == last:
            self._socket = _connected(key)
        if self._socket is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def time(self) -> int:
        """Return one round trip in nanoseconds on the first rank, elsewhere 0. Collective."""
        if self._socket is None:
            return 0
        if dist.get_rank():
            _answer(self._socket)
            return 0
        return _ask(self._socket)

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._socket is not None:
            self._socket.close()


def _ask(peer: socket.socket) -> int:
    _trip(peer)  # in which whoever comes first waits for the other
    started_ns = time.perf_counter_ns()
    for _ in range(_TRIPS):
        _trip(peer)
    return (time.perf_counter_ns() - started_ns) // _TRIPS


def _trip(peer: socket.socket) -> None:
    peer.sendall(b".")
    _byte(peer)


def _answer(peer: socket.socket) -> None:
    for _ in range(1 + _TRIPS):
        peer.sendall(_byte(peer))


def _byte(peer: socket.socket) -> bytes:
    byte = peer.recv(1)
    if not byte:
        raise ConnectionError("the rank at the other end of the probe has left")
    return byte


def _accepted(key: str) -> socket.socket:
    host = os.environ["MASTER_ADDR"]  # where rank 0 serves the store
    with socket.create_server((host, 0)) as server:
        _store().set(key, f"{host} {server.getsockname()[1]}")
        return server.accept()[0]


def _connected(key: str) -> socket.socket:
    host, port = _store().get(key).decode().split()
    return socket.create_connection((host, int(port)))


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
