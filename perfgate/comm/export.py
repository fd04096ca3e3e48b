"""A rank's log as files: CSV, JSON, Chrome trace, TensorBoard.

Each rank writes its own. A file appears as a whole or not at all.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perfgate.comm.bandwidth import algbw_gbps, busbw_gbps
from perfgate.comm.process import comms_logger, place
from perfgate.comm.records import Key, Snapshot
from perfgate.comm.summary import rows
from perfgate.errors import UsageError
from perfgate.units import format_size

COLUMNS = (
    "name", "op", "group", "world_size", "size_bytes", "sequence", "enter_ns", "latency_us",
    "enqueue_us", "wait_us", "algbw_gbps", "busbw_gbps",
)  # fmt: skip
"""The fields of an exported call; ``enqueue_us`` and ``wait_us`` are empty for blocking calls."""

Path_ = str | os.PathLike[str]


def write_csv(path: Path_) -> Path:
    """Write this rank's calls, one a line under :data:`COLUMNS`, and return the path.

    :raises UsageError: when the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_calls(comms_logger.snapshot()))
    return _replace(Path(path), text.getvalue())


def write_json(path: Path_) -> Path:
    """Write this rank's summary and calls, and return the path.

    The calls stand under ``records`` by column; a figure that does not exist is null.

    :raises UsageError: when the file cannot be written.
    """
    snapshot = comms_logger.snapshot()
    rank, world_size = place()
    calls = list(_calls(snapshot))
    content = {
        "metadata": {"rank": rank, "world_size": world_size},
        "summary": [{"name": row.name, **_finite(row.as_dict())} for row in rows(snapshot)],
        "records": {
            column: list(values)
            for column, values in zip(COLUMNS, zip(*calls, strict=True), strict=True)
        }
        if calls
        else {column: [] for column in COLUMNS},
    }
    return _replace(Path(path), json.dumps(content))


def write_chrome_trace(folder: Path_) -> Path:
    """Write this rank's calls to ``folder/rank<n>.json`` for Perfetto or HTA; return the path.

    Times are CLOCK_MONOTONIC, so that files of one host's ranks line up. Calls that returned a
    handle are asynchronous events, since they overlap.

    :raises UsageError: when the file cannot be written.
    """
    rank, world_size = place()
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": world_size},
        "displayTimeUnit": "ns",
        "traceEvents": list(_events(comms_logger.snapshot(), rank)),
    }
    return _replace(Path(folder) / f"rank{rank}.json", json.dumps(content))


def write_tensorboard(log_dir: Path_, step: int) -> Path:
    """Write this rank's summary as scalars of a step to its run ``log_dir/rank<n>``; return that.

    The tags are ``comm/<name>/<size>/<figure>``; a figure that does not exist is left out.

    :raises UsageError: when TensorBoard is not installed, or the folder cannot be written.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "TensorBoard is not installed; next: pip install 'pytest-perfgate[tensorboard]'"
        ) from None
    run = Path(log_dir) / f"rank{place()[0]}"
    try:
        with SummaryWriter(os.fspath(run)) as writer:
            for tag, figure in _scalars(comms_logger.snapshot()):
                writer.add_scalar(tag, figure, step)
    except OSError as error:
        raise UsageError(f"{run} cannot be written: {error.strerror}") from None
    return run


def _scalars(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    for row in rows(snapshot):
        figures = row.as_dict()
        tag = f"comm/{row.name}/{format_size(row.size_bytes)}"
        for name in ("count", "avg_latency_ms", "tput_avg_gbps", "busbw_avg_gbps"):
            if math.isfinite(figures[name]):
                yield f"{tag}/{name}", figures[name]


def _calls(snapshot: Snapshot) -> Iterator[tuple[Any, ...]]:
    for key, size_bytes, row in _keyed(snapshot):
        latency_s = float(row["latency_s"])
        yield (
            *key[:4],
            size_bytes,
            int(row["sequence"]),
            int(row["enter_ns"]),
            _figure(latency_s * 1e6),
            _figure(float(row["enqueue_ms"]) * 1e3),
            _figure(float(row["wait_s"]) * 1e6),
            _figure(algbw_gbps(size_bytes, latency_s)),
            _figure(busbw_gbps(key.op, size_bytes, latency_s, key.world_size)),
        )


def _keyed(snapshot: Snapshot) -> Iterator[tuple[Key, int, np.void]]:
    for row in snapshot.rows:
        key, size_bytes = snapshot.key_and_size(int(row["size_key"]))
        yield key, size_bytes, row


def _events(snapshot: Snapshot, rank: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
    for number, (key, size_bytes, row) in enumerate(_keyed(snapshot)):
        begin_us, latency_us = int(row["enter_ns"]) / 1e3, float(row["latency_s"]) * 1e6
        event = {"name": key.name, "cat": "comm", "pid": rank, "tid": 0, "ts": begin_us}
        details = {
            "op": key.op,
            "size_bytes": size_bytes,
            "group": key.group,
            "group_size": key.world_size,
            "sequence": int(row["sequence"]),
        }
        if math.isnan(row["enqueue_ms"]):
            yield {**event, "ph": "X", "dur": latency_us, "args": details}
            continue
        details |= {"enqueue_us": _figure(float(row["enqueue_ms"]) * 1e3)}
        details |= {"wait_us": _figure(float(row["wait_s"]) * 1e6)}
        yield {**event, "ph": "b", "id": number, "args": details}
        yield {**event, "ph": "e", "id": number, "ts": begin_us + latency_us}


def _figure(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }


def _replace(path: Path, text: str) -> Path:
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            temporary = file.name
            file.write(text)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return path
