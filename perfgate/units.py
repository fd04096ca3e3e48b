"""Sizes, rates and durations: read what people write, print what people read.

``KiB`` is 2¹⁰ bytes and ``KB`` 10³, as everywhere outside of disks; GB/s is 10⁹ bytes and Gb/s
10⁹ bits a second (nccl-tests prints the first, DeepSpeed the second).
"""

from __future__ import annotations

import math
import re

from perfgate.errors import BadUnit

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<prefix>[KMGT]?)(?P<binary>I?)B?", re.IGNORECASE
)
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ns|us|µs|ms|s|m|min|h)?")
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0,
}  # fmt: skip


def parse_size(text: str | int) -> int:
    """Return a number of bytes from ``"256KiB"``, ``"4 MB"`` or ``1024``.

    :raises BadUnit: when the text is no size, or not a whole number of bytes.
    """
    if isinstance(text, int):
        return _whole(text, text)
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BadUnit(f"size {text!r} does not parse; write it like 4KiB, 256KiB, 4MiB or 1000")
    scale = (_BINARY if match["binary"] else _DECIMAL)[match["prefix"].upper()]
    return _whole(float(match["number"]) * scale, text)


def _whole(value: float, text: object) -> int:
    if value < 0 or value != int(value):
        raise BadUnit(f"size {text!r} is {value:g} bytes; it must be a whole number of 0 or more")
    return int(value)


def format_size(size_bytes: int) -> str:
    """Return the shortest exact spelling: ``4KiB``, ``1000B``, ``3MiB``."""
    for prefix in ("T", "G", "M", "K"):
        scale = _BINARY[prefix]
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes // scale}{prefix}iB"
    return f"{size_bytes}B"


def parse_duration(text: str | float) -> float:
    """Return seconds from ``"90"``, ``"250ms"``, ``"2min"`` or a number.

    :raises BadUnit: when the text is no duration, or is not above zero.
    """
    if isinstance(text, (int, float)):
        seconds = float(text)
    else:
        match = _DURATION.fullmatch(text.strip())
        if match is None:
            raise BadUnit(f"duration {text!r} does not parse; write it like 90, 250ms or 2min")
        seconds = float(match["number"]) * _SECONDS[match["unit"] or "s"]
    if not (seconds > 0 and math.isfinite(seconds)):
        raise BadUnit(f"duration {text!r} must be above zero and finite")
    return seconds


def format_duration(seconds: float) -> str:
    """Return three figures and a unit: ``291us``, ``4.21ms``, ``1.50s``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{format_figure(seconds / scale)}{unit}"
    return f"{seconds * 1e9:.0f}ns"


def format_rate(gbps: float) -> str:
    """Return a rate given in Gb/s as ``1.23 Gb/s``."""
    return f"{format_figure(gbps)} Gb/s"


def format_figure(value: float) -> str:
    """Return a positive number to three figures, below one to two: ``18.8``, ``0.095``."""
    if 0 < value < 0.995:
        return f"{value:.2g}"
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def parse_fraction(text: str | float, *, name: str) -> float:
    """Return a fraction from ``0.1``, ``"10%"`` or ``"10"``, where text counts in percent.

    :raises BadUnit: when it does not parse, or is not above 0 and finite.
    """
    try:
        percent = text.strip().removesuffix("%") if isinstance(text, str) else text * 100
        value = float(percent) / 100
    except ValueError:
        raise BadUnit(f"{name}={text!r} does not parse; write percent, like 10 or 10%") from None
    if not (value > 0 and math.isfinite(value)):
        raise BadUnit(f"{name}={text!r} must be above zero and finite; 0.10 or '10%' is a tenth")
    return value


def format_percent(fraction: float) -> str:
    """Return a signed percentage: ``+12.5%``, ``+250%``, ``>9999%``; ``-`` for none."""
    if not math.isfinite(fraction):
        return "-"
    percent = fraction * 100
    if percent >= 9999.5:
        return ">9999%"
    return f"{percent:+.0f}%" if abs(percent) >= 99.95 else f"{percent:+.1f}%"
