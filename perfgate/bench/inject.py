"""Planted slowdowns: how the gate, and its users, see that it can find one.

``PERFGATE_PLANT`` holds one plant or several, divided by ``;``. Each is the op (a shell pattern),
and after colons any of: a size, ``+50%`` (how much slower), ``rank=1`` (only there),
``share=0.1`` (only that share of the calls), ``copy`` (spend the time in copying memory)::

    PERFGATE_PLANT="all_reduce:256KiB:+50%"
    PERFGATE_PLANT="broadcast:+25%:rank=1; send_recv:+100%:share=0.1"

A plant is never silent: the plugin names it in its header and summary, and stores no baseline
while one is set.
"""

from __future__ import annotations

import fnmatch
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from perfgate.errors import BadUnit, UsageError
from perfgate.units import format_percent, format_size, parse_fraction, parse_size

VARIABLE = "PERFGATE_PLANT"
_ORIGINAL = bytes(1 << 14)
_COPY = bytearray(1 << 14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One planted slowdown: which calls, and by how much."""

    op: str
    slowdown: float
    size_bytes: int | None = None
    rank: int | None = None
    share: float = 1.0
    copies: bool = False

    def touches(self, op: str, size_bytes: int | None) -> bool:
        """Say whether calls of this op and size are slowed down somewhere."""
        return fnmatch.fnmatchcase(op, self.op) and self.size_bytes in (None, size_bytes)

    def __str__(self) -> str:
        size = "" if self.size_bytes is None else f" {format_size(self.size_bytes)}"
        where = "" if self.rank is None else f" on rank {self.rank}"
        often = "" if self.share == 1 else f" in {self.share:.0%} of calls"
        how = " by copies" if self.copies else ""
        return f"{self.op}{size} {format_percent(self.slowdown)}{where}{often}{how}"


def planted(environ: Mapping[str, str] = os.environ) -> tuple[Plant, ...]:
    """Return the plants that are set.

    :raises UsageError: when the variable does not parse.
    """
    texts = [text.strip() for text in environ.get(VARIABLE, "").split(";")]
    return tuple(_parse(text) for text in texts if text)


def slowdown_for(op: str, size_bytes: int | None, rank: int) -> Plant | None:
    """Return the plant that slows this op down on this rank, if one does."""
    fitting = [plant for plant in planted() if plant.touches(op, size_bytes)]
    return next((plant for plant in fitting if plant.rank in (None, rank)), None)


def delay(plant: Plant, started_ns: int) -> None:
    """Keep the processor busy in proportion to the time since ``started_ns``.

    A sleep would give the processor away, which no slower code does.
    """
    if plant.share < 1 and random.random() >= plant.share:
        return
    now_ns = time.perf_counter_ns()
    until_ns = now_ns + int((now_ns - started_ns) * plant.slowdown)
    (_copy if plant.copies else _spin)(until_ns)


def _spin(until_ns: int) -> None:
    while time.perf_counter_ns() < until_ns:
        pass


def _copy(until_ns: int) -> None:
    while time.perf_counter_ns() < until_ns:
        _COPY[:] = _ORIGINAL


def work_steadily() -> None:
    """Keep the processor busy for 300 us by the clock."""
    _spin(time.perf_counter_ns() + 300_000)


def _parse(text: str) -> Plant:
    op, *parts = (part.strip() for part in text.split(":"))
    fields: dict[str, float | int] = {}
    try:
        for part in parts:
            fields |= _field(part)
    except (BadUnit, ValueError) as error:
        raise UsageError(f"{VARIABLE}={text!r} does not parse: {error}") from error
    if not op or "slowdown" not in fields:
        raise UsageError(f"{VARIABLE}={text!r} needs an op and a slowdown: all_reduce:256KiB:+50%")
    return Plant(op=op, **fields)  # type: ignore[arg-type]


def _field(part: str) -> dict[str, float | int]:
    if part.startswith("+"):
        return {"slowdown": parse_fraction(part[1:], name="slowdown")}
    if part == "copy":
        return {"copies": True}
    if part.startswith("rank="):
        return {"rank": int(part.removeprefix("rank="))}
    if part.startswith("share="):
        return {"share": float(part.removeprefix("share="))}
    return {"size_bytes": parse_size(part)}
