"""The loop in a rank: join the group, run what comes, say what came of it.

A rank knows nothing of pytest, baselines or verdicts.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import faulthandler
import multiprocessing
import os
import pickle
import random
import sys
import warnings
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from perfgate.scheduling import ORDINARY, enter, share_of_cores
from perfgate.world.caught import failure_of
from perfgate.world.cover import start_coverage
from perfgate.world.crossing import pack, unpack
from perfgate.world.debug import enter_post_mortem, install_breakpoint
from perfgate.world.device import choose_gpu
from perfgate.world.memory import keep_freed_memory
from perfgate.world.parcel import Parcel, discard, lay_out
from perfgate.world.protocol import (
    STACK_SIGNAL,
    Call,
    Reply,
    Seat,
    Stop,
    receive,
    send,
)
from perfgate.world.watch import Watch

#: The controller's deadlines come first; no group ever waits for its own.
_GROUP_TIMEOUT_S = 86400.0
#: Before torch 2.8 its newer store cannot serve on a socket that is already open.
_LIBUV_TAKES_SOCKETS = torch.__version__ >= "2.8"


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a world, as a test on ranks sees it."""

    index: int
    size: int
    device: torch.device


@dataclass(frozen=True, slots=True)
class Files:
    """A rank's open descriptors.

    :param stacks: where its threads' stacks are dumped.
    :param record: where its collectives are noted.
    :param listener: the socket of the store that it serves, if it does.
    """

    channel: int
    output: int
    stacks: int
    record: int
    listener: int | None = None


def serve(seat: Seat, files: Files) -> NoReturn:
    """Join the world and serve calls until told to stop or the controller is gone."""
    connection = Connection(files.channel)
    try:
        _settle(seat, files)
        watch = Watch(files.record)
        if seat.watched:
            watch.install()
        rank = _join(seat, files)
        start_coverage(seat.environ)
        install_breakpoint(seat, connection)
        send(connection, Reply(rank=seat.rank, number=0))
        parcel = None
        while not isinstance(message := receive(connection), Stop):
            discard(parcel)
            watch.reset()
            reply = _answer(message, rank, seat, watch)
            parcel = reply.parcel
            send(connection, reply)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the controller is to know
        send(connection, Reply(rank=seat.rank, number=0, failure=failure_of(seat.rank, error)))
    _leave()


def _settle(seat: Seat, files: Files) -> None:
    """Make the forked process look like one started afresh, with its own output."""
    if seat.scheduling != ORDINARY:
        _make_steady(seat)
    os.dup2(files.output, 1)
    os.dup2(files.output, 2)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    # Whole lines, also under PYTHONUNBUFFERED: ranks that share an output would mix their words.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, write_through=False)
    os.environ.clear()
    os.environ.update(seat.environ)
    os.chdir(seat.cwd)
    sys.path[:] = seat.sys_path
    faulthandler.enable(file=files.stacks, all_threads=True)
    faulthandler.register(STACK_SIGNAL, file=files.stacks, all_threads=True)
    random.seed()
    np.random.seed()
    torch.set_num_threads(int(seat.environ.get("OMP_NUM_THREADS", "1")))


def _make_steady(seat: Seat) -> None:
    """Take from a rank that is timed what would make its times vary."""
    enter(seat.scheduling)
    keep_freed_memory()
    if seat.spec.device == "cpu":
        local_size = int(seat.environ["LOCAL_WORLD_SIZE"])
        os.sched_setaffinity(0, share_of_cores(seat.local_rank, local_size))


def _join(seat: Seat, files: Files) -> Rank:
    spec = seat.spec
    device = torch.device("cpu")
    if spec.device == "cuda":
        device = torch.device("cuda", choose_gpu(seat, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    host, port = seat.rendezvous
    timeout = datetime.timedelta(seconds=_GROUP_TIMEOUT_S)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        spec.size,
        is_master=files.listener is not None,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=files.listener,
        use_libuv=_LIBUV_TAKES_SOCKETS,
    )
    dist.init_process_group(
        spec.backend, store=store, rank=seat.rank, world_size=spec.size, timeout=timeout
    )
    return Rank(seat.rank, spec.size, device)


def _answer(call: Call, rank: Rank, seat: Seat, watch: Watch) -> Reply:
    group = dist.GroupMember.WORLD
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reply = _run(call, rank, seat)
    told = tuple((w.category.__name__, str(w.message), w.filename, w.lineno) for w in caught)
    spent = dist.GroupMember.WORLD is not group
    return replace(reply, warnings=told, steps=watch.steps, spent=spent)


def _run(call: Call, rank: Rank, seat: Seat) -> Reply:
    try:
        function, args, kwargs = unpack(call.payload)
        if call.rank_argument is not None:
            kwargs = {**kwargs, call.rank_argument: rank}
        value, parcel = _crossing(function(*args, **kwargs), seat.shares_memory)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the controller is to know
        if seat.post_mortem and seat.terminal:
            enter_post_mortem(error)
        failure = failure_of(rank.index, error)
        return Reply(rank=rank.index, number=call.number, failure=failure)
    return Reply(rank=rank.index, number=call.number, value=value, parcel=parcel)


def _crossing(result: Any, shares_memory: bool) -> tuple[bytes, Parcel | None]:
    buffers: list[pickle.PickleBuffer] | None = [] if shares_memory else None
    try:
        data = pack(result, buffers)
    except Exception as error:
        raise TypeError(
            f"the result, a {type(result).__name__}, cannot cross to the controller: {error}"
        ) from error
    return data, lay_out(buffers) if buffers else None


def _leave() -> NoReturn:
    # The group is not destroyed and nothing is joined: what is gone, or never ends, would be
    # waited for. Exit functions run, because coverage and profilers write their files there.
    for child in multiprocessing.active_children():
        child.kill()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
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
