"""An exception on a rank, made over into what the controller can tell of it.

Outcomes that pytest raises as exceptions (skip, xfail) are told by their names, so that ranks
need not import it.
"""

from __future__ import annotations

import os
import time
import traceback
from types import TracebackType

import torch.distributed as dist

from perfgate.world.crossing import pack, unpack
from perfgate.world.protocol import Failure, Frame

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH_DISTRIBUTED = os.path.dirname(dist.__file__) + os.sep
_MESSAGE_CHARACTERS = 8_000
_OUTCOMES = {"Skipped": "skipped", "XFailed": "xfailed"}
_PEER_LOST = ("connection closed by peer", "connection reset by peer", "connection refused",
              "timed out waiting", "broken pipe", "remote process exited")  # fmt: skip


def failure_of(rank: int, error: BaseException) -> Failure:
    """Return what a rank tells of an exception that ended its function."""
    outcome = _OUTCOMES.get(type(error).__name__)
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    message = str(error) if outcome else text
    return Failure(
        rank=rank,
        kind=outcome or "raised",
        type_name=type(error).__name__,
        message=_shorten(message),
        frames=_frames(error.__traceback__),
        peer_lost=isinstance(error, RuntimeError) and _is_echo(message),
        in_collective=isinstance(error, RuntimeError) and _inside_torch(error.__traceback__),
        at_ns=time.monotonic_ns(),
        exception=_pickled(error),
    )


def _shorten(message: str) -> str:
    left_out = len(message) - _MESSAGE_CHARACTERS
    if left_out <= 0:
        return message
    return f"{message[:_MESSAGE_CHARACTERS]} ... {left_out} characters more"


def _is_echo(message: str) -> bool:
    text = message.lower()
    return any(phrase in text for phrase in _PEER_LOST)


def _inside_torch(tb: TracebackType | None) -> bool:
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb is not None and tb.tb_frame.f_code.co_filename.startswith(_TORCH_DISTRIBUTED)


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
