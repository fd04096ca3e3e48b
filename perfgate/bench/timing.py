"""Single calls, timed: a barrier before each, every time kept, the data verified.

Blocks of calls measure the scheduler, since nearly every block holds a stall; single calls keep
the distribution, of which a low quantile varies 10 to 20 times less. Garbage collection is off
while calls are timed. On a GPU a call is timed by events in its stream, on a CPU by the clock.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from perfgate.bench.inject import Plant, delay, slowdown_for
from perfgate.bench.probe import Probe
from perfgate.bench.sample import Extent, Timed
from perfgate.comm.dtypes import parse_dtype
from perfgate.comm.ops import get_op
from perfgate.comm.providers import provider

MIN_CALLS, MAX_CALLS = 20, 1000


class Arm:
    """What is timed: three steps, of which only ``run`` is."""

    plant: Plant | None = None

    def prepare(self, call: int) -> None:
        """Make ready, untimed."""

    def run(self) -> None:
        """Do what is measured."""
        raise NotImplementedError

    def check(self, call: int) -> str | None:  # noqa: ARG002 - what a subclass may need
        """Return what is wrong with the result, untimed."""
        return None


class CollectiveArm(Arm):
    """One collective, its data filled before each call and checked after."""

    def __init__(self, op: str, size_bytes: int, dtype: str, source: str, device: torch.device):
        self.bound = get_op(op).bind(size_bytes, parse_dtype(dtype), device, provider(source))
        self.plant = slowdown_for(op, size_bytes, dist.get_rank())
        self.prepare = self.bound.fill  # type: ignore[method-assign]
        self.run = self.bound.run  # type: ignore[method-assign]
        self.check = self.bound.check  # type: ignore[method-assign]


class FunctionArm(Arm):
    """A user's function. With ``setup``, what that returned is its one argument."""

    def __init__(self, function: Callable[..., Any], setup: Callable[[], Any] | None):
        arguments = () if setup is None else (setup(),)
        self.run = lambda: function(*arguments)  # type: ignore[method-assign]
        name = getattr(function, "__name__", "function")
        self.plant = slowdown_for(name, None, dist.get_rank())


def time_collective(
    op: str, size_bytes: int, dtype: str, source: str, device: str, extent: Extent
) -> Timed:
    """Time a collective on this rank; every rank of the world calls this alike.

    :raises UsageError: for an op, dtype or size that cannot be; see :meth:`Op.bind`.
    """
    arm = CollectiveArm(op, size_bytes, dtype, source, torch.device(device))
    return time_arms([arm], extent)[0]


def time_function(
    function: Callable[..., Any], setup: Callable[[], Any] | None, extent: Extent
) -> Timed:
    """Time a user's function on this rank; every rank of the world calls this alike."""
    return time_arms([FunctionArm(function, setup)], extent)[0]


def time_pair(
    first: Callable[..., Any],
    second: Callable[..., Any],
    setup: Callable[[], Any] | None,
    extent: Extent,
) -> list[Timed]:
    """Time two functions in one world, calls alternating, on this rank; first, then second."""
    arms: list[Arm] = [FunctionArm(function, setup) for function in (first, second)]
    return time_arms(arms, extent)


def time_arms(arms: list[Arm], extent: Extent) -> list[Timed]:
    """Time several arms in one world, a call of each in turn, in random order within the turn.

    The order follows from the extent's seed, so that it is the same on every rank.
    """
    clock = clock_here()
    for arm in arms if extent.slowdown else ():
        arm.plant = Plant(op="*", slowdown=extent.slowdown)
    problems: list[str | None] = [None] * len(arms)
    turns_s = [_warm_up(arms, call, clock, problems) for call in range(extent.warmups)]
    turns = extent.calls or _agree(extent.budget_s, median(turns_s))
    orders = _orders(len(arms), turns, extent.seed)
    times: list[list[int]] = []
    probes: list[int] = []
    with _probe(extent) as probe, _no_garbage_collection():
        for turn, indices in enumerate(orders):
            times.append(take_turn(arms, indices, extent.warmups + turn, clock, problems))
            probes.append(probe.time() if probe else 0)
    by_arm = np.array(times, dtype=np.int64).reshape(turns, len(arms)).T
    probes_ns = np.array(probes, dtype=np.int64)
    return [Timed(by_arm[i].copy(), problem, probes_ns) for i, problem in enumerate(problems)]


def _orders(arms: int, turns: int, seed: int) -> list[list[int]]:
    """Return each turn's order of arms, drawn beforehand: in between it would cool the caches."""
    order = random.Random(seed)
    return [order.sample(range(arms), arms) for _ in range(turns)]


def _probe(extent: Extent) -> AbstractContextManager[Probe | None]:
    wanted = extent.probed and not _on_gpu() and dist.get_world_size() > 1
    return Probe() if wanted else nullcontext()


def _warm_up(
    arms: list[Arm], call: int, clock: CpuClock | CudaClock, problems: list[str | None]
) -> float:
    """Run a turn whose times do not count; return what all of it took, in seconds."""
    started = time.perf_counter()
    take_turn(arms, range(len(arms)), call, clock, problems)
    return time.perf_counter() - started


def take_turn(
    arms: list[Arm],
    order: Sequence[int],
    call: int,
    clock: CpuClock | CudaClock,
    problems: list[str | None],
) -> list[int]:
    """Make one call of each arm in this order; return their times in nanoseconds, by arm.

    :param problems: by arm, takes the first thing that is wrong with its result.
    """
    times = [0] * len(arms)
    for index in order:
        arm = arms[index]
        arm.prepare(call)
        dist.barrier()
        times[index] = clock.time(arm)
        problems[index] = problems[index] or arm.check(call)
    return times


class CpuClock:
    """Wall time of a call that is complete when it returns."""

    def time(self, arm: Arm) -> int:
        """Call an arm, with its plant, and return the time in nanoseconds."""
        plant, run = arm.plant, arm.run
        started_ns = time.perf_counter_ns()
        run()
        if plant is not None:
            delay(plant, started_ns)
        return time.perf_counter_ns() - started_ns


class CudaClock:
    """Time between two events in the current stream, which the call joins."""

    def time(self, arm: Arm) -> int:
        """Call an arm, with its plant, and return the time in nanoseconds."""
        before, after = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        started_ns = time.perf_counter_ns()
        before.record()
        arm.run()
        if arm.plant is not None:
            torch.cuda.synchronize()
            delay(arm.plant, started_ns)
        after.record()
        after.synchronize()
        return int(before.elapsed_time(after) * 1e6)


def clock_here() -> CpuClock | CudaClock:
    """Return what calls on this rank are timed by."""
    return CudaClock() if _on_gpu() else CpuClock()


def _on_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _agree(budget_s: float, turn_s: float) -> int:
    """Return how many turns fit into the budget by rank 0's reckoning, the same on every rank."""
    fitting = int(budget_s / max(turn_s, 1e-9))
    calls = torch.tensor([min(max(fitting, MIN_CALLS), MAX_CALLS)])
    if _on_gpu() and dist.get_backend() == "nccl":
        calls = calls.cuda()
    dist.broadcast(calls, src=0)
    return int(calls.item())


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
