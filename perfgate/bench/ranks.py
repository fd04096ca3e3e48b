"""What a rank does for one row of ``perfgate bench``: bind, call, time, check."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from perfgate.bench.memory import bind_or_agree, free_bytes
from perfgate.bench.request import Nanoseconds, Request, Sample, Shared
from perfgate.bench.sample import Extent
from perfgate.bench.timing import Arm, time_arms
from perfgate.comm.dtypes import parse_dtype
from perfgate.comm.ops import BoundOp, get_op
from perfgate.comm.providers import provider
from perfgate.errors import UsageError

_COPY_BYTES = 2**26
_TICKS = 200
_SHOWN = 8
_LEAST_TRIALS = 3


class BoundArm(Arm):
    """An op of :mod:`perfgate.comm.ops`, without any planted slowdown."""

    def __init__(self, bound: BoundOp) -> None:
        self.prepare = bound.fill  # type: ignore[method-assign]
        self.run = bound.run  # type: ignore[method-assign]
        self.check = bound.check  # type: ignore[method-assign]


def free_here(device: str) -> int:
    """Return the memory that is free to this rank, in bytes."""
    return free_bytes(torch.device(device), _ranks_here())


def _ranks_here() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE") or dist.get_world_size())


def measure(request: Request) -> Sample:
    """Take this rank's part of a row; every rank of the world calls this alike.

    What cannot be is told by the sample, so that the world lives on.
    """
    try:
        bound = _bind(request, None)
    except UsageError as error:
        return Sample(skipped=str(error))
    take = _asynchronous if request.asynchronous else _synchronous
    return take(bound, _fitted(bound, request, 1))


def _bind(request: Request, group: Any) -> BoundOp:
    return bind_or_agree(
        get_op(request.op),
        request.size_bytes,
        parse_dtype(request.dtype),
        torch.device(request.device),
        _ranks_here(),
        comm=provider(request.provider),
        group=group,
        placement=request.placement,
    )


def _fitted(bound: BoundOp, request: Request, loops: int) -> Request:
    """Cut the calls down to the time that the row may take, the same on every rank. Collective."""
    if request.row_s is None:
        return request
    started = time.monotonic()
    bound.fill(0)
    bound.run()
    bound.check(0)
    turn_s = torch.tensor([time.monotonic() - started], dtype=torch.float64)
    turn_s = turn_s.to(request.device) if dist.get_backend() == "nccl" else turn_s
    dist.all_reduce(turn_s, op=dist.ReduceOp.MAX)
    fitting = int(request.row_s / loops / max(turn_s.item(), 1e-9))
    warmups = min(request.warmups, max(1, fitting // 10))
    trials = min(request.trials, max(_LEAST_TRIALS, fitting - warmups))
    return replace(request, warmups=warmups, trials=trials)


def _synchronous(bound: BoundOp, request: Request) -> Sample:
    started_ns = time.monotonic_ns()
    [timed] = time_arms([BoundArm(bound)], Extent(request.trials, warmups=request.warmups))
    wall_ns = time.monotonic_ns() - started_ns
    return Sample(
        times_ns=timed.times_ns,
        wall_ns=wall_ns,
        tick_ns=_tick_ns(),
        copy_ns=_copy_ns(bound),
        problem=timed.problem,
        debug=_debug(bound) if request.debug else None,
    )


def _asynchronous(bound: BoundOp, request: Request) -> Sample:
    calls = request.warmups + request.trials
    stamps = np.zeros((calls, 3), dtype=np.int64)
    problem = None
    started_ns = time.monotonic_ns()
    gc.disable()
    try:
        for call in range(calls):
            bound.fill(call)
            dist.barrier()
            stamps[call] = _enqueue_and_wait(bound)
            problem = problem or bound.check(call)
    finally:
        gc.enable()
    wall_ns = time.monotonic_ns() - started_ns
    entered, enqueued, done = stamps[request.warmups :].T
    return Sample(
        times_ns=done - entered,
        enqueue_ns=enqueued - entered,
        wall_ns=wall_ns,
        tick_ns=_tick_ns(),
        copy_ns=_copy_ns(bound),
        problem=problem,
        debug=_debug(bound) if request.debug else None,
    )


def _enqueue_and_wait(bound: BoundOp) -> tuple[int, int, int]:
    on_gpu = bound.pattern.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    entered_ns = time.monotonic_ns()
    handles = bound.start()
    enqueued_ns = time.monotonic_ns()
    for handle in handles:
        handle.wait()
    if on_gpu:
        torch.cuda.synchronize()
    return entered_ns, enqueued_ns, time.monotonic_ns()


def share(request: Request) -> Shared | Sample:
    """Call an op in one group after the other and then in all at once, on this rank.

    :returns: a :class:`Sample` that holds nothing but the reason, where it cannot be.
    """
    groups = _groups(request.groups, request.strided)
    mine = next(i for i, (ranks, _) in enumerate(groups) if dist.get_rank() in ranks)
    try:
        bound = _bind(request, groups[mine][1])
    except UsageError as error:
        return Sample(skipped=str(error))
    request = _fitted(bound, request, len(groups) + 1)
    problems: list[str | None] = []
    alone_ns = np.empty((0, 2), dtype=np.int64)
    for turn in range(len(groups)):
        stamps = _stamp(bound if turn == mine else None, request, problems)
        alone_ns = stamps if turn == mine else alone_ns
    together_ns = _stamp(bound, request, problems)
    problem = next((problem for problem in problems if problem), None)
    return Shared(group=mine, alone_ns=alone_ns, together_ns=together_ns, problem=problem)


def _stamp(bound: BoundOp | None, request: Request, problems: list[str | None]) -> Nanoseconds:
    """Call over and over, the whole world in step; without an op, only keep step."""
    stamps = np.zeros((request.warmups + request.trials, 2), dtype=np.int64)
    for call in range(len(stamps)):
        if bound is not None:
            bound.fill(call)
        dist.barrier()
        if bound is not None:
            entered_ns, _, left_ns = _enqueue_and_wait(bound)
            stamps[call] = entered_ns, left_ns
            problems.append(bound.check(call))
    return stamps[request.warmups :]


@functools.cache
def _groups(count: int, strided: bool) -> tuple[tuple[tuple[int, ...], Any], ...]:
    """Cut the world into groups; every rank makes all of them, in one order."""
    ranks = range(dist.get_world_size())
    size = len(ranks) // count
    cuts = [ranks[i::count] if strided else ranks[i * size : (i + 1) * size] for i in range(count)]
    return tuple((tuple(cut), dist.new_group(list(cut))) for cut in cuts)


def _tick_ns() -> int:
    """Return the smallest step of the clock that was seen."""
    stamps = [time.perf_counter_ns() for _ in range(_TICKS)]
    steps = [after - before for before, after in itertools.pairwise(stamps)]
    return min((step for step in steps if step > 0), default=max(steps))


def _copy_ns(bound: BoundOp) -> int:
    """Return how long a plain copy takes of what this rank cannot have had before the call.

    That is all of the result but the share of one rank; what any copy takes, however small, is
    left out. Above 64 MiB it is reckoned from a copy of that size, so that it always fits.
    """
    receive, size = bound.plan.receive, bound.member.size
    moved = 0 if receive is None else receive.numel() * receive.itemsize * (size - 1) // size
    if receive is None or moved == 0:
        return 0
    source = torch.zeros(min(moved, _COPY_BYTES), dtype=torch.uint8, device=receive.device)
    target = torch.empty_like(source)
    least_ns, copied_ns = (
        min(_timed_copy_ns(target[:length], source[:length]) for _ in range(5))
        for length in (1, len(source))
    )
    return max(0, copied_ns - least_ns) * moved // len(source)


def _timed_copy_ns(target: torch.Tensor, source: torch.Tensor) -> int:
    on_gpu = source.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    started_ns = time.perf_counter_ns()
    target.copy_(source)
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter_ns() - started_ns


def _debug(bound: BoundOp) -> str:
    def first(buffer: torch.Tensor | None) -> str:
        return "nothing" if buffer is None else f"{buffer[:_SHOWN].tolist()}"

    member, plan = bound.member, bound.plan
    inside = plan.send is plan.receive
    sent = "in place" if inside else first(plan.send)
    return f"rank {member.index}: sent {sent}, received {first(plan.receive)}"
