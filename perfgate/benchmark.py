"""The command ``perfgate bench``: DeepSpeed's ds_bench, on any backend, with checked data."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from perfgate.bench.arguments import configure, read, settle_device
from perfgate.bench.request import Request
from perfgate.bench.row import Row
from perfgate.bench.shared import SharedRow
from perfgate.bench.sweep import Sweep
from perfgate.bench.table import Table, check_writable, write_csv, write_json
from perfgate.model import WorldSpec
from perfgate.units import format_size
from perfgate.world.agent import serve
from perfgate.world.controller import World
from perfgate.world.discovery import Place, discover
from perfgate.world.external import Fleet
from perfgate.world.machine import use

__all__ = ["configure", "run"]

OK, INVALID = 0, 1


def run(args: argparse.Namespace) -> int:
    """Run the benchmark and print it; return 0, or 1 where a row is not to be believed.

    :raises UsageError: for what cannot be; nothing is measured then.
    """
    place = discover(os.environ)
    if place is not None and place.rank > 0:
        return serve(place)
    with _launched_by(place):
        args = settle_device(args)
        sweep = read(args)
        for path in (args.json, args.csv):
            check_writable(path)
        return _status(_measure(args, sweep, place))


@contextmanager
def _launched_by(place: Place | None) -> Iterator[None]:
    """Take ranks from the launcher's processes, where there is one, and let them go at the end."""
    if place is None:
        yield
        return
    fleet = Fleet(place)
    use(fleet)
    try:
        yield
    finally:
        use(None)
        fleet.close()


def _measure(args: argparse.Namespace, sweep: Sweep, place: Place | None) -> list[Row | SharedRow]:
    spec = WorldSpec(
        size=args.ranks if place is None else place.size,
        backend=args.backend or ("nccl" if args.device == "cuda" else "gloo"),
        device=args.device,
        provider=args.dist,
        deadline_s=args.deadline,
    )
    sweep.group_size(spec.size)
    table = Table(unit=args.bw_unit, raw=args.raw, asynchronous=args.async_op)
    rows: list[Row | SharedRow] = []
    try:
        with World.start(spec, watched=False) as world:
            for row in sweep.rows(world, spec.size, _tell):
                _print(table, row, rows[-1] if rows else None)
                rows.append(row)
    finally:  # what was measured is kept, whatever happened after
        world_facts = asdict(spec) | {"launcher": place.launcher if place else "perfgate"}
        if args.json and rows:
            write_json(args.json, rows, world_facts)
        if args.csv and rows:
            write_csv(args.csv, rows)
    _say(f"\n{table.note()}")
    return rows


def _tell(request: Request) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{request.op} {format_size(request.size_bytes)} ...\r")
        sys.stderr.flush()


def _print(table: Table, row: Row | SharedRow, before: Row | SharedRow | None) -> None:
    if isinstance(row, SharedRow):
        text = table.shared_line(row)
    else:
        first = before is None or before.request.op != row.request.op
        text = "\n".join([*([table.title(row)] if first else []), table.line(row), *row.debug])
    _say(text)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _status(rows: list[Row | SharedRow]) -> int:
    measured = [row for row in rows if isinstance(row, SharedRow) or row.skipped is None]
    if not measured:
        _say("nothing was measured")
    return OK if measured and not any(row.problems for row in measured) else INVALID
