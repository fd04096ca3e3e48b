"""The one table of bandwidth formulas, shared by benchmark, logger and report.

``size_bytes`` is always nccl-tests' size: the larger of what one rank sends and receives, which
for all_gather, reduce_scatter, gather and scatter is the whole of ``world_size`` shards. With
``t`` the time of a call, nccl-tests' ``doc/PERFORMANCE.md`` defines::

    algbw = size / t
    busbw = algbw * factor(op, world_size)

and the factor is what one link must carry for each byte of size, so that busbw is comparable
between ops and world sizes. Rates are in Gb/s, 10⁹ bits a second.

At the edges: one rank moves nothing, so that the ops whose factor holds ``world_size - 1`` have
busbw 0 there, as in nccl-tests. A time that is zero, negative or NaN has no bandwidth; the result
is NaN, which no comparison takes for a fast call.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perfgate.errors import UsageError


def _all_to_one_and_back(world_size: int) -> float:
    return 2 * (world_size - 1) / world_size


def _all_but_own_shard(world_size: int) -> float:
    return (world_size - 1) / world_size


def _everything(world_size: int) -> float:  # noqa: ARG001 - one signature for the whole table
    return 1.0


def _nothing(world_size: int) -> float:  # noqa: ARG001
    return 0.0


FACTORS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "all_reduce": _all_to_one_and_back,
        "all_reduce_coalesced": _all_to_one_and_back,
        "all_gather": _all_but_own_shard,
        "all_gather_into_tensor": _all_but_own_shard,
        "all_gather_coalesced": _all_but_own_shard,
        "all_gather_object": _all_but_own_shard,
        "reduce_scatter": _all_but_own_shard,
        "reduce_scatter_tensor": _all_but_own_shard,
        "reduce_scatter_coalesced": _all_but_own_shard,
        "all_to_all": _all_but_own_shard,
        "all_to_all_single": _all_but_own_shard,
        "all_to_all_single_uneven": _all_but_own_shard,
        "gather": _all_but_own_shard,
        "gather_object": _all_but_own_shard,
        "scatter": _all_but_own_shard,
        "scatter_object_list": _all_but_own_shard,
        "broadcast": _everything,
        "broadcast_object_list": _everything,
        "reduce": _everything,
        "send": _everything,
        "recv": _everything,
        "isend": _everything,
        "irecv": _everything,
        "send_recv": _everything,
        "pt2pt": _everything,
        "pt2pt_bidirectional": _everything,
        "batch_isend_irecv": _everything,
        "send_object_list": _everything,
        "recv_object_list": _everything,
        "barrier": _nothing,
        "monitored_barrier": _nothing,
    }
)
"""busbw over algbw as a function of the group's size, by op."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the ending of an error: the known name most like this one, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(known)}"


def factor(op: str, world_size: int) -> float:
    """Return busbw over algbw for a group of this many ranks (the group's size, not the job's).

    :raises UsageError: for an op without a formula, or a world size below 1.
    """
    if op not in FACTORS:
        raise UsageError(f"op {op!r} has no bandwidth formula; {nearest(op, FACTORS)}")
    if world_size < 1:
        raise UsageError(f"world size is {world_size}; a group has 1 rank or more")
    return FACTORS[op](world_size)


def algbw_gbps(size_bytes: float, time_s: float) -> float:
    """Return size over time in Gb/s; NaN where there is no time."""
    return size_bytes * 8 / time_s / 1e9 if time_s > 0 else math.nan


def busbw_gbps(op: str, size_bytes: float, time_s: float, world_size: int) -> float:
    """Return nccl-tests' bus bandwidth in Gb/s; NaN where there is no time.

    :raises UsageError: see :func:`factor`.
    """
    return algbw_gbps(size_bytes, time_s) * factor(op, world_size)


_SIZE_IS_SHARD = frozenset({"all_gather", "all_gather_into_tensor"})


@dataclass(frozen=True, slots=True)
class DeepSpeedFigures:
    """What DeepSpeed's benchmark prints of a call: its Size, Throughput and BusBW columns."""

    size_bytes: float
    tput_gbps: float
    busbw_gbps: float


def deepspeed_convention(
    op: str, size_bytes: float, time_s: float, world_size: int
) -> DeepSpeedFigures:
    """Return a call's figures by the convention of DeepSpeed's communication benchmark.

    It parts from nccl-tests twice: all_reduce's throughput counts the buffer twice, and the size
    shown for an all_gather is the shard. Its busbw agrees. Ops that it does not have are shown
    by nccl-tests' convention.

    :param size_bytes: nccl-tests' size, as everywhere.
    :raises UsageError: see :func:`factor`.
    """
    algbw = algbw_gbps(size_bytes, time_s)
    return DeepSpeedFigures(
        size_bytes=size_bytes / world_size if op in _SIZE_IS_SHARD else size_bytes,
        tput_gbps=2 * algbw if op == "all_reduce" else algbw,
        busbw_gbps=busbw_gbps(op, size_bytes, time_s, world_size),
    )
