"""The command ``perfgate bench``: DeepSpeed's ds_bench, on any backend, with checked data."""

from __future__ import annotations

import argparse
import io
import os
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, TextIO

from perfgate.bench.arguments import configure, read, settle_device
from perfgate.bench.joined import JoinedWorld, Place, discover
from perfgate.bench.request import Request
from perfgate.bench.row import Row
from perfgate.bench.shared import SharedRow
from perfgate.bench.sweep import Ranks
from perfgate.bench.table import Table, check_writable, write_csv, write_json
from perfgate.model import WorldSpec
from perfgate.units import format_size

__all__ = ["configure", "run"]

OK, INVALID = 0, 1


def run(args: argparse.Namespace) -> int:
    """Run the benchmark and print it; return 0, or 1 where a row is not to be believed.

    :raises UsageError: for what cannot be; nothing is measured then.
    """
    args = settle_device(args)
    sweep = read(args)
    for path in (args.json, args.csv):
        check_writable(path)
    place = discover(os.environ)
    spec = _spec(args, place)
    table = Table(unit=args.bw_unit, raw=args.raw, asynchronous=args.async_op)
    speaks = place is None or place.rank == 0
    told = sys.stdout if speaks else io.StringIO()
    rows: list[Row | SharedRow] = []
    try:
        with _world(args, spec, place) as ranks:
            for row in sweep.rows(ranks, spec.size, _progress if speaks else _silence):
                _print(table, row, rows[-1] if rows else None, told)
                rows.append(row)
    finally:  # what was measured is kept, whatever happened after
        if speaks and rows:
            _write(args, rows, spec, place)
    print(f"\n{table.note()}", file=told)
    return _status(rows, told)


def _progress(request: Request) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{request.op} {format_size(request.size_bytes)} ...\r")
        sys.stderr.flush()


def _silence(_request: Request) -> None:
    """Leave the talking to rank 0."""


def _spec(args: argparse.Namespace, place: Place | None) -> WorldSpec:
    return WorldSpec(
        size=args.ranks if place is None else place.world_size,
        backend=args.backend or ("nccl" if args.device == "cuda" else "gloo"),
        device=args.device,
        provider=args.dist,
        deadline_s=args.deadline,
    )


def _world(
    args: argparse.Namespace, spec: WorldSpec, place: Place | None
) -> AbstractContextManager[Ranks]:
    if place is not None:
        return JoinedWorld(place, spec.backend, spec.device, args.deadline)
    from perfgate.world.controller import World

    return World.start(spec)


def _print(table: Table, row: Row | SharedRow, before: Row | SharedRow | None, out: TextIO) -> None:
    if isinstance(row, SharedRow):
        text = table.shared_line(row)
    else:
        first = before is None or before.request.op != row.request.op
        text = "\n".join([*([table.title(row)] if first else []), table.line(row), *row.debug])
    print(text, file=out, flush=True)


def _write(
    args: argparse.Namespace, rows: list[Row | SharedRow], spec: WorldSpec, place: Place | None
) -> None:
    world: dict[str, Any] = asdict(spec) | {"launcher": place.launcher if place else "perfgate"}
    if args.json:
        write_json(args.json, rows, world)
    if args.csv:
        write_csv(args.csv, rows)


def _status(rows: list[Row | SharedRow], out: TextIO) -> int:
    measured = [row for row in rows if isinstance(row, SharedRow) or row.skipped is None]
    if not measured:
        print("nothing was measured", file=out)
    return OK if measured and not any(row.problems for row in measured) else INVALID
