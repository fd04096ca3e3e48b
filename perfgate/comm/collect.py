"""The summary of all ranks: gathered, merged into one that is equal on each, printed by rank 0."""

from __future__ import annotations

import datetime
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed
from torch.distributed import ProcessGroup, distributed_c10d

from perfgate.comm.process import comms_logger, place
from perfgate.comm.straggler import RankCalls, analyse, straggler_table
from perfgate.comm.summary import Row, rows, table

MOST_CALLS = 200_000
"""A rank hands over its last so many calls to the straggler analysis."""


@dataclass(frozen=True, slots=True)
class _Report:
    rank: int
    timestamp: str
    rows: list[Row]
    selected: list[str]
    calls: RankCalls | None


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> dict[str, Any] | None:
    """Print what was logged, on rank 0; to be called by all ranks.

    Ranks may have logged different calls, or different numbers of them. Each row is the view of
    the lowest rank that has it, which is rank 0 wherever it took part; ``metadata["unequal"]``
    lists the rows whose counts differ between ranks. The summary itself is not logged.

    :param show_straggler: add :func:`perfgate.comm.straggler.analyse`, of the last
        :data:`MOST_CALLS` calls of each rank.
    :returns: with ``return_dict``, ``{"summary": {name: {size_bytes: figures}},
        "straggler_analysis": ..., "metadata": {...}}``, on every rank the same but for
        ``metadata["rank"]``.
    """
    rank, world_size = place()
    reports = _gather(_report(rank, show_straggler), world_size)
    found, unequal = _merge(reports)
    straggler = (
        analyse([report.calls for report in reports if report.calls]) if show_straggler else None
    )
    if rank == 0:
        text = table(found) + (f"\n{straggler_table(straggler)}" if straggler is not None else "")
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    if not return_dict:
        return None
    summary: dict[str, dict[int, dict[str, Any]]] = {}
    for row in found:
        summary.setdefault(row.name, {})[row.size_bytes] = row.as_dict()
    metadata = {
        "world_size": world_size,
        "rank": rank,
        "timestamp": reports[0].timestamp,
        "unequal": unequal,
        "never_called": _never_called(reports),
    }
    return {"summary": summary, "straggler_analysis": straggler, "metadata": metadata}


def _report(rank: int, with_calls: bool) -> _Report:
    snapshot = comms_logger.snapshot()
    last = snapshot._replace(rows=snapshot.rows[-MOST_CALLS:])
    return _Report(
        rank=rank,
        timestamp=datetime.datetime.now().astimezone().isoformat(),
        rows=rows(snapshot),
        selected=comms_logger.prof_ops,
        calls=RankCalls(rank, socket.gethostname(), last, _members()) if with_calls else None,
    )


def _members() -> dict[str, tuple[int, ...]]:
    groups = distributed_c10d._world.pg_group_ranks
    return {
        group.group_name: tuple(ranks)
        for group, ranks in groups.items()
        if isinstance(group, ProcessGroup)  # not the mark of a group that this rank is not in
    }


def _gather(report: _Report, world_size: int) -> list[_Report]:
    if not torch.distributed.is_initialized():
        return [report]
    reports: list[Any] = [None] * world_size
    distributed_c10d.all_gather_object(reports, report)  # torch's own, which nothing logs
    return reports


def _merge(reports: Sequence[_Report]) -> tuple[list[Row], list[dict[str, Any]]]:
    holders: dict[tuple[str, int], dict[int, Row]] = {}
    for report in reports:
        for row in report.rows:
            holders.setdefault((row.name, row.size_bytes), {})[report.rank] = row
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in holders))}
    found, unequal = [], []
    for name, size_bytes in sorted(holders, key=lambda kind: (order[kind[0]], kind[1])):
        by_rank = holders[name, size_bytes]
        found.append(replace(by_rank[min(by_rank)]))
        counts = {report.rank: 0 for report in reports}
        counts |= {rank: row.count for rank, row in by_rank.items()}
        if len(set(counts.values())) > 1:
            unequal.append({"name": name, "msg_size_bytes": size_bytes, "count_by_rank": counts})
    return found, unequal


def _never_called(reports: Sequence[_Report]) -> list[str]:
    selected = {name for report in reports for name in report.selected}
    called = {row.name.split(" | [")[0] for report in reports for row in report.rows}
    return sorted(selected - called)
