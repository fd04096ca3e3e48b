"""How the processes of one run find each other, and why a stranger cannot join them.

The control channel runs code. Whoever connects must answer a challenge with a shared secret
(HMAC, :mod:`multiprocessing.connection`), within a second. On one machine the secret is made
for the run and left in a file that only the user can read; between machines the user sets it.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import secrets
import socket
import struct
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from perfgate.errors import LaunchError, UsageError
from perfgate.world.discovery import Place

SECRET_VARIABLE = "PERFGATE_SECRET"
LOOPBACK = "127.0.0.1"
_LEAST_SECRET = 16
_ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the control channel of a run is, and its secret."""

    host: str
    port: int
    secret: bytes


class Door:
    """Where rank 0 lets the run's other processes in."""

    def __init__(self, place: Place) -> None:
        host, port = place.master or (LOOPBACK, 0)
        secret = user_secret() if place.master else secrets.token_bytes(32)
        self._file = None if place.master else _file(place)
        try:
            self._socket = socket.create_server((host, port), backlog=place.size)
        except OSError as error:
            raise LaunchError(f"{host}:{port} cannot be listened on: {error}") from error
        self.address = Address(host, self._socket.getsockname()[1], secret)
        if self._file is not None:
            _publish(self._file, self.address)

    def admit(self, timeout_s: float) -> Connection | None:
        """Return the next connection that knows the secret; None when none came in time."""
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            with contextlib.suppress(AuthenticationError, EOFError, OSError):
                stranger, _ = self._socket.accept()
                return _authenticated(stranger, self.address.secret, first=True)
        return None

    def close(self) -> None:
        """Let nobody in any more."""
        self._socket.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def find(place: Place, timeout_s: float) -> tuple[Address, Connection]:
    """Return the run's control channel, and a connection to it.

    :raises LaunchError: when rank 0 cannot be reached, or does not know the secret.
    """
    until = time.monotonic() + timeout_s
    reason = "it has not said where it listens"
    while time.monotonic() < until:
        address = _known(place)
        if address is not None:
            try:
                return address, connect(address)
            except AuthenticationError:
                reason = f"it holds another secret than this process ({SECRET_VARIABLE})"
            except (OSError, EOFError) as error:
                reason = f"{address.host}:{address.port}: {error}"
        time.sleep(0.05)
    raise LaunchError(f"{place} has not reached rank 0 in {timeout_s:g} s: {reason}")


def connect(address: Address) -> Connection:
    """Return an authenticated connection.

    :raises OSError: when nobody listens there.
    :raises AuthenticationError: when the secrets differ.
    """
    peer = socket.create_connection((address.host, address.port), timeout=5.0)
    return _authenticated(peer, address.secret, first=False)


def user_secret() -> bytes:
    """Return the secret that the user has set.

    :raises UsageError: when there is none, or it is too short to be one.
    """
    secret = os.environ.get(SECRET_VARIABLE, "")
    if len(secret) < _LEAST_SECRET:
        raise UsageError(
            f"ranks on several machines need {SECRET_VARIABLE}, the same for all, of "
            f"{_LEAST_SECRET} characters or more: the control channel runs code. For example "
            f"export {SECRET_VARIABLE}=$(openssl rand -hex 32)"
        )
    return secret.encode()


def _authenticated(peer: socket.socket, secret: bytes, *, first: bool) -> Connection:
    """Return a connection, once each side has proved to the other that it knows the secret."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _limit(peer, _ANSWER_S if first else 10 * _ANSWER_S)
    connection = Connection(os.dup(peer.fileno()))
    try:
        for step in (deliver_challenge, answer_challenge)[:: 1 if first else -1]:
            step(connection, secret)
    except BaseException:
        connection.close()
        raise
    finally:
        _limit(peer, 0.0)
        peer.close()
    return connection


def _limit(peer: socket.socket, timeout_s: float) -> None:
    whole = int(timeout_s)
    limit = struct.pack("ll", whole, int((timeout_s - whole) * 1e6))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _known(place: Place) -> Address | None:
    if place.master is not None:
        return Address(*place.master, user_secret())
    try:
        said = json.loads(_file(place).read_text())
    except (OSError, ValueError):
        return None
    return Address(LOOPBACK, said["port"], bytes.fromhex(said["secret"]))


def _file(place: Place) -> Path:
    """Return the run's file, in a folder that only the user can enter.

    :raises UsageError: when somebody else owns that folder.
    """
    name = re.sub(r"\W", "", getpass.getuser())
    folder = Path(tempfile.gettempdir()) / f"perfgate-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(f"{folder} can be written by others; remove it, or set TMPDIR")
    # What some launchers do not name is told apart by the launcher's own process.
    run = place.run if "-" in place.run else f"{place.run}-{os.getppid()}"
    return folder / re.sub(r"[^\w.-]", "_", run)


def _publish(file: Path, address: Address) -> None:
    fresh = file.with_suffix(f".{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as out:
        json.dump({"port": address.port, "secret": address.secret.hex()}, out)
    fresh.replace(file)
