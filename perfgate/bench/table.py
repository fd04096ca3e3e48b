"""Rows as text: the columns of DeepSpeed's benchmark, and nccl-tests' beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfgate.bench.row import Row
from perfgate.bench.shared import SharedRow
from perfgate.comm.bandwidth import algbw_gbps, deepspeed_convention
from perfgate.errors import UsageError
from perfgate.units import format_size

UNITS = {"Gbps": 1.0, "GBps": 1 / 8}
_SHOWN = ("p10", "p50", "p95", "p99")
_NOTE = (
    "Size, algbw: nccl-tests' convention; Description, Throughput: DeepSpeed's; BusBW: both.\n"
    "Duration: the median of the calls, each as long as its slowest rank's."
)


class Table:
    """Formats rows one by one, as they are measured.

    :param unit: ``Gbps`` or ``GBps``.
    :param raw: plain numbers: bytes, microseconds and rates without units.
    """

    def __init__(self, *, unit: str, raw: bool, asynchronous: bool) -> None:
        self.unit, self.raw, self.asynchronous = unit, raw, asynchronous

    def title(self, row: Row) -> str:
        """Return what stands above an op's rows: what is measured, and the columns."""
        request = row.request
        form = (request.placement or "").replace("_", " ")
        mode = "asynchronous" if request.asynchronous else "blocking"
        ranks = "1 rank" if row.world_size == 1 else f"{row.world_size} ranks"
        what = f"{request.op}, {ranks}, {request.dtype}, {request.provider}"
        heads = self._line(
            "Size (Bytes)", "Description", "Duration", f"Throughput ({self.unit})",
            f"BusBW ({self.unit})", f"algbw ({self.unit})", *self._extra_heads(),
        )  # fmt: skip
        return f"\n---- {what}, {', '.join(p for p in (form, mode) if p)} ----\n{heads}"

    def note(self) -> str:
        """Return what the columns mean."""
        return _NOTE

    def line(self, row: Row) -> str:
        """Return a row, with why it is not to be believed below it, if so."""
        if row.skipped:
            return f"{format_size(row.request.size_bytes)}: skipped, {row.skipped}"
        op, size, time_s = row.request.op, row.request.size_bytes, row.time_s
        figures = deepspeed_convention(op, size, time_s, row.world_size)
        cells = [
            str(size) if self.raw else format_size(size),
            f"{figures.size_bytes / row.itemsize:.0f}x{row.itemsize}",
            self._duration(time_s),
            self._rate(figures.tput_gbps),
            self._rate(figures.busbw_gbps),
            self._rate(algbw_gbps(size, time_s)),
        ]
        percentiles = row.percentiles_s
        cells += [self._duration(percentiles[name]) for name in _SHOWN if name != "p50"]
        if self.asynchronous:
            cells += [self._duration(row.enqueue_s), self._duration(row.wait_s)]
        return "\n".join([self._line(*cells), *(f"  INVALID: {p}" for p in row.problems)])

    def shared_line(self, row: SharedRow) -> str:
        """Return what several groups at once do to each other."""
        layout = f"{row.request.groups} groups of {row.group_size}"
        parts = [
            f"{format_size(row.request.size_bytes)} {row.request.op}, {layout}:",
            f"alone {self._duration(row.alone_s)}, at once {self._duration(row.together_s)},",
            f"contention x{row.contention:.2f},",
            f"together {self._rate(row.aggregate_busbw_gbps)} {self.unit} busbw in one window",
        ]
        return "\n".join([" ".join(parts), *(f"  INVALID: {p}" for p in row.problems)])

    def _extra_heads(self) -> list[str]:
        heads = [name for name in _SHOWN if name != "p50"]
        return heads + (["Enqueue", "Wait"] if self.asynchronous else [])

    def _line(self, *cells: str) -> str:
        widths = (13, 15, 11, 18, 14, 14, 10, 10, 10, 10, 10)
        return " ".join(c.ljust(w) for c, w in zip(cells, widths, strict=False)).rstrip()

    def _rate(self, gbps: float) -> str:
        rate = gbps * UNITS[self.unit]
        return f"{rate:.3f}" if not rate < 1 else f"{rate:.3g}"

    def _duration(self, seconds: float | None) -> str:
        if seconds is None:
            return "-"
        if self.raw:
            return f"{seconds * 1e6:.3f}"
        if seconds < 1e-3:
            return f"{seconds * 1e6:.1f} us"
        return f"{seconds * 1e3:.3f} ms" if seconds < 1 else f"{seconds:.3f} s"


def check_writable(path: Path | None) -> None:
    """Find out before anything is measured whether a file can be written.

    :raises UsageError: when it cannot.
    """
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: {path.parent} must be a folder and {path} a file")


def write_json(path: Path, rows: Iterable[Row | SharedRow], world: Mapping[str, Any]) -> None:
    """Write every row with both conventions, whole or not at all."""
    record = {"schema": 1, "world": dict(world), "rows": [row.as_json() for row in rows]}
    _replace(path, json.dumps(record, indent=1) + "\n")


def write_csv(path: Path, rows: Iterable[Row | SharedRow]) -> None:
    """Write every row flat, nested names joined by a dot, whole or not at all."""
    flat = [_flat(row.as_json()) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    beside = path.with_name(path.name + ".new")
    with beside.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(flat)
    beside.replace(path)


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = "; ".join(map(str, value)) if isinstance(value, list) else value
    return flat
