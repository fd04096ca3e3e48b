"""Figures of logged calls: by name and message size, from one definition of the mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfgate.comm.bandwidth import algbw_gbps, factor
from perfgate.comm.records import Key, Snapshot
from perfgate.errors import UsageError

TRIM = 0.1
"""The share of calls left out at either end of the mean."""

_FEW_ROWS = 16


def trim_mean(data: ArrayLike, trim_percent: float) -> float:
    """Return the mean without the lowest and highest ``trim_percent`` (a fraction) of values.

    As many are left out at either end as fit whole into that fraction, as in
    ``scipy.stats.trim_mean``; half or more at either end leaves the median. The mean of nothing
    is 0. The argument is not changed.

    :raises UsageError: when the fraction is not within 0 to 1.
    """
    if not 0.0 <= trim_percent <= 1.0:
        raise UsageError(f"trim_percent is {trim_percent!r}; a fraction lies within 0 to 1")
    values = np.array(data)
    if values.dtype != np.float32:  # which sorts twice as quickly, and is averaged as a double
        values = values.astype(np.float64)
    if values.size == 0:
        return 0.0
    cut = int(values.size * trim_percent)
    if 2 * cut >= values.size:
        return float(np.median(values))
    if cut:
        values.sort()  # quicker than numpy's partition
    return float(values[cut : values.size - cut].mean(dtype=np.float64))


def readable_size(size_bytes: float) -> str:
    """Return bytes in the largest unit that leaves 1 or more: ``678.86 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{round(size_bytes, 2):g} {unit}"
        size_bytes /= 1024
    return f"{round(size_bytes, 2):g} TiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The calls of one name and size.

    ``avg_latency_ms`` is the trimmed mean, and both bandwidths follow from it: latency times
    algorithm bandwidth is the size, whatever was trimmed. ``ranks`` counts calls by the size of
    their group; where there are several, the bus bandwidth has the mean of their factors.
    """

    name: str
    size_bytes: int
    count: int
    total_latency_ms: float
    avg_latency_ms: float
    tput_avg_gbps: float
    busbw_avg_gbps: float
    ranks: dict[int, int]

    def as_dict(self) -> dict[str, Any]:
        """The row as DeepSpeed's logger gives it."""
        return {
            "count": self.count,
            "total_latency_ms": self.total_latency_ms,
            "avg_latency_ms": self.avg_latency_ms,
            "tput_avg_gbps": self.tput_avg_gbps,
            "busbw_avg_gbps": self.busbw_avg_gbps,
            "msg_size_bytes": self.size_bytes,
            "msg_size_str": readable_size(self.size_bytes),
            "ranks": dict(self.ranks),
        }


def rows(snapshot: Snapshot, name: str | None = None) -> list[Row]:
    """Return the rows of one name, or of all: names as first logged, sizes upwards."""
    size_keys = np.ascontiguousarray(snapshot.rows["size_key"])
    latencies_s = np.ascontiguousarray(snapshot.rows["latency_s"])
    parts: dict[tuple[int, int], list[tuple[Key, NDArray[np.float32]]]] = {}
    first = {key.name: place for place, key in reversed(list(enumerate(snapshot.keys)))}
    for size_key, chosen in _groups(size_keys, latencies_s):
        key, size_bytes = snapshot.key_and_size(size_key)
        if name is None or key.name == name:
            parts.setdefault((first[key.name], size_bytes), []).append((key, chosen))
    return [_row(size_bytes, parts[place, size_bytes]) for place, size_bytes in sorted(parts)]


def _groups(
    size_keys: NDArray[np.uint64], values: NDArray[np.float32]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    if len(size_keys) and size_keys.min() == size_keys.max():
        yield int(size_keys[0]), values
        return
    in_order = np.sort(size_keys)  # quicker than np.unique
    distinct = (
        in_order[np.append(True, in_order[1:] != in_order[:-1])] if len(in_order) else in_order
    )
    if len(distinct) <= _FEW_ROWS:  # one pass each is cheaper than sorting everything
        for size_key in distinct:
            yield int(size_key), values[size_keys == size_key]
    else:
        order = np.argsort(size_keys, kind="stable")
        starts = np.searchsorted(in_order, distinct)
        for size_key, chosen in zip(distinct, np.split(values[order], starts[1:]), strict=True):
            yield int(size_key), chosen


def _row(size_bytes: int, parts: Sequence[tuple[Key, NDArray[np.float32]]]) -> Row:
    latencies_s = np.concatenate([part for _, part in parts])
    avg_s = trim_mean(latencies_s, TRIM)
    count = len(latencies_s)
    mean_factor = sum(factor(key.op, key.world_size) * len(part) for key, part in parts) / count
    ranks: dict[int, int] = {}
    for key, part in parts:
        ranks[key.world_size] = ranks.get(key.world_size, 0) + len(part)
    tput_gbps = algbw_gbps(size_bytes, avg_s)
    return Row(
        name=parts[0][0].name,
        size_bytes=size_bytes,
        count=count,
        total_latency_ms=float(latencies_s.sum(dtype=np.float64)) * 1e3,
        avg_latency_ms=avg_s * 1e3,
        tput_avg_gbps=tput_gbps,
        busbw_avg_gbps=tput_gbps * mean_factor,
        ranks=ranks,
    )


def raw_data(snapshot: Snapshot) -> dict[str, dict[int, list[Any]]]:
    """Return ``{name: {size: [count, [latency_ms], [algbw_gbps], [busbw_gbps]]}}``, as logged."""
    data: dict[str, dict[int, list[Any]]] = {}
    factors = np.array([factor(key.op, key.world_size) for key in snapshot.keys])
    key_ids, sizes_bytes = snapshot.key_ids, snapshot.sizes_bytes
    latencies_s = snapshot.rows["latency_s"].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        algbws = np.where(latencies_s > 0, sizes_bytes * 8 / latencies_s / 1e9, math.nan)
    columns = zip(
        key_ids.tolist(),
        sizes_bytes.tolist(),
        (latencies_s * 1e3).tolist(),
        algbws.tolist(),
        (algbws * factors[key_ids]).tolist() if len(factors) else [],
        strict=True,
    )
    for key_id, size_bytes, latency_ms, algbw, busbw in columns:
        sizes = data.setdefault(snapshot.keys[key_id].name, {})
        entry = sizes.setdefault(size_bytes, [0, [], [], []])
        entry[0] += 1
        for values, value in zip(entry[1:], (latency_ms, algbw, busbw), strict=True):
            values.append(value)
    return data


_COLUMNS = (
    "Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)",
    "tput_avg (Gbps)", "busbw_avg (Gbps)",
)  # fmt: skip


def columns(*cells: str) -> str:
    """Return a line of the table, whose columns are 20 wide as in DeepSpeed's."""
    return "".join(f"{cell: <20}" for cell in cells).rstrip()


def table(found: Sequence[Row]) -> str:
    """Return the printed summary: a line for each name, below it one for each size."""
    lines = [columns(*_COLUMNS)]
    last = None
    for row in found:
        if row.name != last:
            lines.append(last := row.name)
        figures = (row.total_latency_ms, row.avg_latency_ms, row.tput_avg_gbps, row.busbw_avg_gbps)
        cells = ("", readable_size(row.size_bytes), str(row.count))
        lines.append(columns(*cells, *(f"{figure:.2f}" for figure in figures)))
    return "\n".join(lines)
