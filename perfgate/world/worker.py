"""The loop in a rank: join the group, run what comes, say what came of it.

A rank knows nothing of pytest, baselines or verdicts. Outcomes that pytest raises as exceptions
(skip, xfail) are told by their names, so that this module need not import it.
"""

from __future__ import annotations

import atexit
import datetime
import faulthandler
import os
import random
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from perfgate.world.crossing import pack, unpack
from perfgate.world.protocol import (
    STACK_SIGNAL,
    Call,
    Failure,
    Frame,
    Reply,
    Seat,
    Stop,
    receive,
    send,
)

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OUTCOMES = {"Skipped": "skipped", "XFailed": "xfailed"}
_PEER_LOST = ("connection closed by peer", "connection reset by peer", "connection refused",
              "timed out waiting", "broken pipe", "remote process exited")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a world, as a test on ranks sees it."""

    index: int
    size: int
    device: torch.device


@dataclass(frozen=True, slots=True)
class Files:
    """A rank's open descriptors: its channel, its output and where its stacks are dumped."""

    channel: int
    output: int
    stacks: int


def serve(seat: Seat, files: Files) -> NoReturn:
    """Join the world and serve calls until told to stop or the controller is gone."""
    connection = Connection(files.channel)
    try:
        _settle(seat, files)
        rank = _join(seat)
        send(connection, Reply(rank=seat.rank, number=0))
        _loop(connection, rank)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the controller is to know
        send(connection, Reply(rank=seat.rank, number=0, failure=_failure(seat.rank, error)))
    _leave()


def _settle(seat: Seat, files: Files) -> None:
    """Make the forked process look like one started afresh, with its own output."""
    os.dup2(files.output, 1)
    os.dup2(files.output, 2)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(seat.environ)
    os.chdir(seat.cwd)
    sys.path[:] = seat.sys_path
    faulthandler.enable(file=files.stacks, all_threads=True)
    faulthandler.register(STACK_SIGNAL, file=files.stacks, all_threads=True)
    random.seed()
    np.random.seed()
    torch.set_num_threads(int(seat.environ.get("OMP_NUM_THREADS", "1")))


def _join(seat: Seat) -> Rank:
    spec = seat.spec
    device = torch.device(spec.device, seat.rank) if spec.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        spec.backend,
        store=dist.FileStore(seat.rendezvous, spec.size),  # type: ignore[attr-defined]
        rank=seat.rank,
        world_size=spec.size,
        timeout=datetime.timedelta(seconds=seat.timeout_s),
    )
    return Rank(seat.rank, spec.size, device)


def _loop(connection: Connection, rank: Rank) -> None:
    while not isinstance(message := receive(connection), Stop):
        send(connection, _answer(message, rank))


def _answer(call: Call, rank: Rank) -> Reply:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value, failure = _run(call, rank)
    told = tuple((w.category.__name__, str(w.message), w.filename, w.lineno) for w in caught)
    return Reply(rank=rank.index, number=call.number, value=value, failure=failure, warnings=told)


def _run(call: Call, rank: Rank) -> tuple[bytes | None, Failure | None]:
    try:
        function, args, kwargs = unpack(call.payload)
        if call.rank_argument is not None:
            kwargs = {**kwargs, call.rank_argument: rank}
        return _crossing(function(*args, **kwargs)), None
    except BaseException as error:  # noqa: BLE001 - whatever it is, the controller is to know
        return None, _failure(rank.index, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _crossing(result: Any) -> bytes:
    try:
        data = pack(result)
    except Exception as error:
        raise TypeError(
            f"the result, a {type(result).__name__}, cannot cross to the controller: {error}"
        ) from error
    return data


def _failure(rank: int, error: BaseException) -> Failure:
    message = "".join(traceback.format_exception_only(type(error), error)).strip()
    return Failure(
        rank=rank,
        kind=_OUTCOMES.get(type(error).__name__, "raised"),
        type_name=type(error).__name__,
        message=message if type(error).__name__ not in _OUTCOMES else str(error),
        frames=_frames(error.__traceback__),
        peer_lost=isinstance(error, RuntimeError) and _is_echo(message),
        at_ns=time.monotonic_ns(),
        exception=_pickled(error),
    )


def _is_echo(message: str) -> bool:
    text = message.lower()
    return any(phrase in text for phrase in _PEER_LOST)


def _pickled(error: BaseException) -> bytes | None:
    try:
        data = pack(error)
        unpack(data)
    except Exception:  # noqa: BLE001 - an exception's own __reduce__ may raise anything
        return None
    return data


def _frames(tb: TracebackType | None) -> tuple[Frame, ...]:
    frames = []
    while tb is not None:
        code = tb.tb_frame.f_code
        if not code.co_filename.startswith(_PACKAGE + "world"):
            frames.append(
                Frame(
                    path=code.co_filename,
                    line=tb.tb_lineno,
                    function=code.co_name,
                    first_line=code.co_firstlineno,
                )
            )
        tb = tb.tb_next
    return tuple(frames)


def _leave() -> NoReturn:
    # The group is not destroyed and threads are not joined: a peer that is gone would be waited
    # for. Exit functions run, because coverage and profilers write their files there.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def describe_device() -> dict[str, Any]:
    """Return what only a rank can know of its accelerator: its name, count and driver."""
    if not torch.cuda.is_available():
        return {}
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
    }
