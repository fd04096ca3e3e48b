"""What a user is told when ranks fail: the culprit first, those that only waited folded."""

from __future__ import annotations

import linecache
import os
import re
import signal
import sysconfig
import textwrap
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from perfgate.errors import WorldError
from perfgate.world.agreement import name_ranks
from perfgate.world.protocol import Failure, Frame

__all__ = ["RankFailure", "absent", "died", "disagreed", "name_ranks", "returned", "still_running"]

_STACK_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_ENGINE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"]
_MOST_FRAMES = 10
_COLLECTIVES_FILE = "distributed_c10d.py"


class RankFailure(WorldError):
    """A rank raised, died, hung or left early.

    :ivar world_size: how many ranks the world had.
    :ivar failures: one for each rank that failed or was caught waiting, culprit first.

    The exception a culprit raised is this one's ``__cause__`` where it could be carried over.
    """

    def __init__(self, world_size: int, failures: Iterable[Failure]) -> None:
        self.world_size = world_size
        self.failures = tuple(sorted(failures, key=_blame))
        super().__init__(world_size, self.failures)

    @property
    def culprit(self) -> Failure:
        """The rank that failed first of its own accord."""
        return self.failures[0]

    @property
    def line(self) -> str:
        """The first line of the report: who, and what."""
        ranks = [f.rank for f in self.failures if _told_alike(f, self.culprit)]
        return f"{name_ranks(ranks)} of {self.world_size} {_what(self.culprit)}"

    def __str__(self) -> str:
        """Return the whole report, culprit first."""
        parts = [self.line]
        for _, alike in groupby(self.failures, key=_told_as):
            group = list(alike)
            parts.append(f"--- {name_ranks([f.rank for f in group])} {_what(group[0])}")
            parts.extend(_evidence(group[0]))
        return "\n".join(parts)


def died(
    rank: int, status: int | None, stack: str, *, at_ns: int, short_of_memory: bool
) -> Failure:
    """Return the failure of a rank that ended with ``status`` (negative: a signal's number).

    :param short_of_memory: whether the kernel has killed for want of memory meanwhile.
    """
    if status is None:
        message = "closed its channel and lives on"
    elif status < 0:
        message = f"was killed by {_signal_name(-status)}"
    else:
        message = f"left with exit code {status} without an answer"
    if status == -signal.SIGKILL and short_of_memory:
        message += ": the kernel, out of memory"
    return Failure(rank=rank, kind="died", message=message, stack=stack, at_ns=at_ns)


def still_running(rank: int, stack: str, state: str, *, outlived: str, at_fault: bool) -> Failure:
    """Return the failure of a rank that had to be stopped, by where its main thread was found.

    :param state: the kernel's letter for what the process does.
    :param at_fault: whether nobody else had failed: it outlived the deadline of its own accord.
    """
    collective = collective_in(stack)
    if state in ("T", "t"):
        kind, place = "hung", "stopped by a signal (SIGSTOP)"
    elif collective:
        kind, place = "waited", f"in {collective}"
    else:
        kind, place = "hung" if at_fault else "running", _innermost(stack)
    message = f"{place} {outlived}"
    return Failure(rank=rank, kind=kind, message=message, stack=stack, at_ns=time.monotonic_ns())


def returned(rank: int) -> Failure:
    """Return what is told of a rank that did nothing wrong that is known of."""
    return Failure(rank=rank, kind="returned", message="")


def absent(failure: Failure, step: str) -> Failure:
    """Return the failure of a rank that others wait for in ``step``, which it never began."""
    if failure.kind == "returned":
        return replace(failure, kind="left", message=f"returned without joining {step}")
    return replace(failure, kind="hung", message=f"{failure.message}, without joining {step}")


def disagreed(failure: Failure, step: str) -> Failure:
    """Return the failure of a rank that began ``step`` where the others began another."""
    return replace(failure, kind="disagreed", message=f"{step}\n{failure.message}".strip())


def collective_in(stack: str) -> str:
    """Return the collective that a faulthandler stack shows the main thread waiting in, or ''."""
    frames = [match for line in _main_thread(stack) if (match := _STACK_FRAME.match(line))]
    inside = [match["function"] for match in frames if match["path"].endswith(_COLLECTIVES_FILE)]
    if inside:
        return inside[-1]
    if frames and ".wait(" in linecache.getline(frames[0]["path"], int(frames[0]["line"])):
        return "wait"
    return ""


def _main_thread(stack: str) -> list[str]:
    """Return the lines of the thread that was started first: faulthandler dumps it last."""
    threads = re.split(r"^(?=Thread 0x|Current thread 0x)", stack, flags=re.MULTILINE)
    return threads[-1].splitlines()


def _innermost(stack: str) -> str:
    """Return where the main thread was: in the user's code, and below it in what."""
    frames = [match for line in _main_thread(stack) if (match := _STACK_FRAME.match(line))]
    if not frames:
        return "at a place that could not be read (the process did not answer)"
    own = next((f for f in frames if _is_own(f["path"])), frames[0])
    below = "" if own is frames[0] else f" (in {frames[0]['function']})"
    return f"at {own['path']}:{own['line']} in {own['function']}{below}"


def _is_own(path: str) -> bool:
    return not (path.startswith(_STDLIB) or "site-packages" in path or _is_engine(path))


def _blame(failure: Failure) -> tuple[int, int, int]:
    if failure.kind == "disagreed":  # whatever else happened, it had to go wrong
        guilt = 0
    elif failure.innocent:
        guilt = 3
    else:
        guilt = 2 if failure.kind == "raised" and failure.in_collective else 1
    return (guilt, failure.at_ns, failure.rank)


def _told_as(failure: Failure) -> tuple[str, str]:
    return (_without_addresses(failure), failure.last)


def _told_alike(one: Failure, other: Failure) -> bool:
    return _without_addresses(one) == _without_addresses(other)


def _without_addresses(failure: Failure) -> str:
    """Return what is told of it, but for addresses: they tell ranks apart that did alike."""
    told = _what(failure) if failure.innocent else f"{failure.kind} {failure.message}"
    return _ADDRESS.sub("0x", told)


def _what(failure: Failure) -> str:
    first = failure.message.splitlines()[0] if failure.message else failure.type_name
    if failure.peer_lost and failure.kind == "raised":
        return "lost a peer"
    match failure.kind:
        case "raised":
            return f"raised {first}"
        case "died" | "left":
            return first
        case "disagreed":
            return f"called {first}"
        case "running":
            return f"was {first}"
        case _:
            return f"{failure.kind} {first}".strip()


def _evidence(failure: Failure) -> list[str]:
    lines = [f"    last collective: {failure.last}"] if failure.last else []
    if failure.innocent:
        return lines
    lines += _traceback(failure.frames)
    if failure.frames or failure.kind == "raised":
        lines += [f"E   {line}" for line in failure.message.splitlines()]
    lines += [_place(frame) for frame in failure.frames[-1:]]
    return lines + _without_engine(failure.stack)


def _traceback(frames: tuple[Frame, ...]) -> list[str]:
    """Return the frames' places, with the source of the innermost that is the user's own."""
    own = [place for place, frame in enumerate(frames) if _is_own(frame.path)]
    if not frames:
        return []
    shown = own[-1] if own else len(frames) - 1
    places = [_place(frame) for frame in frames]
    return [
        *_shorten(places[:shown]),
        *_source(frames[shown]),
        *_shorten(places[shown:-1]),
    ]


def _shorten(places: list[str]) -> list[str]:
    """Return the first and last lines of a list that is too long to be read."""
    left_out = len(places) - 2 * _MOST_FRAMES
    if left_out <= 0:
        return places
    return [*places[:_MOST_FRAMES], f"... {left_out} frames ...", *places[-_MOST_FRAMES:]]


def _without_engine(stack: str) -> list[str]:
    """Return a stack without the frames of perfgate that every rank stands on."""
    kept = []
    for line in stack.splitlines():
        frame = _STACK_FRAME.match(line)
        if line.startswith("Extension modules:") or (frame and _is_engine(frame["path"])):
            continue
        kept.append(line)
    return kept


def _is_engine(path: str) -> bool:
    return path == "<string>" or path.startswith(_ENGINE)


def _place(frame: Frame) -> str:
    return f"{frame.path}:{frame.line}: in {frame.function}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _source(frame: Frame) -> list[str]:
    """Return the function's source down to the failing line, marked as pytest marks it."""
    numbers = range(max(frame.first_line, frame.line - 30), frame.line + 1)
    text = "".join(linecache.getline(frame.path, number) for number in numbers)
    lines = ["    " + line for line in textwrap.dedent(text).splitlines()]
    return [*lines[:-1], ">" + lines[-1][1:]] if lines else []
