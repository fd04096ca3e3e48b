"""Who waits for whom: two analyses of calls that every rank of their group logged.

The first is DeepSpeed's, ``sum(t - min over ranks of t)``: how much longer a rank was in its calls
than the quickest, which is the time that it waited for the last to arrive. The second looks at the
arrivals themselves: ranks of one host share a clock, so that the stamps of one call say who came
last, and by how much. What is left of the last one's call is the transfer.

Calls are matched by their group and its sequence number, so that it does not matter whether ranks
logged the same calls. Point-to-point calls have no such number and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.comm.records import Snapshot
from perfgate.comm.summary import TRIM, columns, readable_size, trim_mean

_CALL = np.dtype(
    [
        ("sequence", "<u4"),
        ("rank", "<i4"),
        ("kind", "<i8"),
        ("enter_ns", "<i8"),
        ("latency_s", "<f8"),
    ]
)


@dataclass(frozen=True, slots=True)
class RankCalls:
    """What one rank logged.

    :param host: ranks of equal host share a clock.
    :param members: the ranks of a group by its name; groups of different ranks may have one name.
    """

    rank: int
    host: str
    snapshot: Snapshot
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


Kind = tuple[str, int]
"""Name and size in bytes of a row."""

Group = tuple[str, int, tuple[int, ...]]
"""Name, size and, where they are known, ranks of a group."""


def analyse(ranks: Sequence[RankCalls]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return both analyses by name and message size, equal for whoever asks.

    ``count``, ``total_comm_lat_ms``, ``total_straggler_ms`` and their trimmed means are
    DeepSpeed's figures, as seen by the lowest rank that took part (``rank``);
    ``straggler_by_rank_ms`` has each rank's total. ``skew`` holds ``mean_ms`` and ``max_ms`` from
    the first arrival to the last on a host, ``transfer_ms`` from the last arrival to its end, the
    ``late_rank`` with the share of calls in which it was last, and each rank's mean lateness.
    ``unmatched`` counts calls that not every rank of the group logged.
    """
    kinds: dict[Kind, int] = {}
    groups: dict[Group, list[NDArray[np.void]]] = {}
    for calls in ranks:
        for group, part in _by_group(calls, kinds):
            groups.setdefault(group, []).append(part)
    matched: dict[int, list[NDArray[np.void]]] = {}
    unmatched = dict.fromkeys(range(len(kinds)), 0)
    for (_, world_size, _), parts in groups.items():
        _match(np.concatenate(parts), world_size, matched, unmatched)
    hosts = {calls.rank: calls.host for calls in ranks}
    analysis: dict[str, dict[int, dict[str, Any]]] = {}
    for (name, size_bytes), kind in kinds.items():
        if kind in matched:
            row = _row(matched[kind], hosts)
            row |= {"unmatched": unmatched[kind], "msg_size_bytes": size_bytes}
            row["msg_size_str"] = readable_size(size_bytes)
            analysis.setdefault(name, {})[size_bytes] = row
    return {name: dict(sorted(sizes.items())) for name, sizes in analysis.items()}


def _by_group(calls: RankCalls, kinds: dict[Kind, int]) -> Iterator[tuple[Group, NDArray[np.void]]]:
    rows = calls.snapshot.rows
    size_keys, inverse = np.unique(rows["size_key"], return_inverse=True)
    made = np.empty(len(rows), _CALL)
    made["rank"] = calls.rank
    for column in ("sequence", "enter_ns", "latency_s"):
        made[column] = rows[column]
    groups: dict[Group, list[int]] = {}
    numbers = np.empty(len(size_keys), np.int64)
    for place, size_key in enumerate(size_keys.tolist()):
        key, size_bytes = calls.snapshot.key_and_size(size_key)
        numbers[place] = kinds.setdefault((key.name, size_bytes), len(kinds))
        members = calls.members.get(key.group, ())
        groups.setdefault((key.group, key.world_size, members), []).append(place)
    made["kind"] = numbers[inverse]
    for group, places in groups.items():
        part = made[np.isin(inverse, places) & (made["sequence"] > 0)]
        if len(part):
            yield group, part


def _match(
    calls: NDArray[np.void],
    world_size: int,
    matched: dict[int, list[NDArray[np.void]]],
    unmatched: dict[int, int],
) -> None:
    """Sort a group's calls into complete ones, as (calls, ranks) arrays by kind, and the rest."""
    # A group made anew under an old name counts from 1 again: the later call is meant.
    calls = calls[np.lexsort((calls["enter_ns"], calls["rank"], calls["sequence"]))]
    same = (np.diff(calls["sequence"]) == 0) & (np.diff(calls["rank"]) == 0)
    calls = calls[np.append(~same, True)]
    counts = np.unique(calls["sequence"], return_counts=True)[1]
    complete = np.repeat(counts == world_size, counts)
    for kind, count in zip(*np.unique(calls["kind"][~complete], return_counts=True), strict=True):
        unmatched[int(kind)] += int(count)
    table = calls[complete].reshape(-1, world_size)
    for kind in np.unique(table["kind"][:, 0]) if len(table) else ():
        matched.setdefault(int(kind), []).append(table[table["kind"][:, 0] == kind])


def _row(tables: Sequence[NDArray[np.void]], hosts: Mapping[int, str]) -> dict[str, Any]:
    waits: dict[int, list[NDArray[np.float64]]] = {}
    quickest: dict[int, list[NDArray[np.float64]]] = {}
    for table in tables:
        least = table["latency_s"].min(axis=1)
        for column in range(table.shape[1]):
            for rank in np.unique(table["rank"][:, column]).tolist():
                mine = table["rank"][:, column] == rank
                waits.setdefault(rank, []).append(table["latency_s"][mine, column] - least[mine])
                quickest.setdefault(rank, []).append(least[mine])
    rank = min(waits)
    comm_ms, wait_ms = (np.concatenate(of[rank]) * 1e3 for of in (quickest, waits))
    by_rank = {r: float(np.concatenate(waits[r]).sum()) * 1e3 for r in sorted(waits)}
    return {
        "rank": rank,
        "count": len(comm_ms),
        "total_comm_lat_ms": float(comm_ms.sum()),
        "total_straggler_ms": float(wait_ms.sum()),
        "avg_comm_lat_ms": trim_mean(comm_ms, TRIM),
        "avg_straggler_ms": trim_mean(wait_ms, TRIM),
        "straggler_by_rank_ms": by_rank,
        "skew": _skew(tables, hosts),
    }


def _skew(tables: Sequence[NDArray[np.void]], hosts: Mapping[int, str]) -> dict[str, Any] | None:
    """Return the arrivals on the hosts that have several of a call's ranks; None without one."""
    skews, transfers = [], []
    lateness: dict[int, float] = {}
    last: dict[int, int] = {}
    for table in tables:
        by_host: dict[str, list[int]] = {}
        for column, rank in enumerate(table["rank"][0].tolist()):
            by_host.setdefault(hosts[rank], []).append(column)
        for places in by_host.values():
            if len(places) < 2:
                continue
            here = table[:, places]
            late_s = (here["enter_ns"] - here["enter_ns"].min(axis=1, keepdims=True)) * 1e-9
            latest = late_s.argmax(axis=1)
            skews.append(late_s.max(axis=1))
            transfers.append(np.take_along_axis(here["latency_s"], latest[:, None], axis=1)[:, 0])
            for place, rank in enumerate(here["rank"][0].tolist()):
                lateness[rank] = lateness.get(rank, 0.0) + float(late_s[:, place].sum())
                last[rank] = last.get(rank, 0) + int((latest == place).sum())
    if not skews:
        return None
    skew_s, transfer_s = np.concatenate(skews), np.concatenate(transfers)
    late_rank = max(lateness, key=lambda rank: (lateness[rank], -rank))
    return {
        "mean_ms": float(skew_s.mean()) * 1e3,
        "max_ms": float(skew_s.max()) * 1e3,
        "transfer_ms": trim_mean(transfer_s, TRIM) * 1e3,
        "late_rank": late_rank,
        "late_share": last[late_rank] / len(skew_s),
        "lateness_by_rank_ms": {r: lateness[r] / len(skew_s) * 1e3 for r in sorted(lateness)},
    }


_COLUMNS = (
    "Comm. Op", "Message Size", "Count", "Total comm lat(ms)", "Total straggler(ms)",
    "Avg comm lat(ms)", "Avg straggler(ms)", "Arrival skew(ms)", "Late rank",
)  # fmt: skip


def straggler_table(analysis: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
    """Return the printed analysis."""
    title = "Breakdown with straggler effect"
    lines = ["_" * len(title), title, "-" * len(title), columns(*_COLUMNS)]
    for name, sizes in analysis.items():
        lines.append(name)
        for row in sizes.values():
            figures = ("total_comm_lat_ms", "total_straggler_ms", "avg_comm_lat_ms")
            cells = [f"{row[figure]:.2f}" for figure in (*figures, "avg_straggler_ms")]
            skew = row["skew"]
            if skew is not None:
                late = f"rank {skew['late_rank']} ({skew['late_share']:.0%})"
                cells += [f"{skew['mean_ms']:.2f}", late]
            lines.append(columns("", row["msg_size_str"], str(row["count"]), *cells))
    return "\n".join(lines)
