"""What ``perfgate bench`` measures beside a loop written by hand, in one world, calls alternating.

    python benchmarks/bench_loop.py

Prints the median of the paired ratios, launch by launch and over the launches; the latter should
be within 2 % of one.
"""

from __future__ import annotations

import gc
import random
import statistics
import time

import torch
import torch.distributed as dist

from perfgate import World, WorldSpec
from perfgate.bench.ranks import BoundArm
from perfgate.bench.sample import Extent
from perfgate.bench.timing import time_arms
from perfgate.comm.ops import BoundOp, get_op

LAUNCHES = 7
CALLS = {4 * 2**10: 400, 256 * 2**10: 300, 4 * 2**20: 300}


def by_hand(bound: BoundOp, call: int) -> int:
    """Time one call as anybody would, around the same filling and checking."""
    bound.fill(call)
    buffer = bound.plan.send
    dist.barrier()
    started_ns = time.perf_counter_ns()
    dist.all_reduce(buffer)
    took_ns = time.perf_counter_ns() - started_ns
    bound.check(call)
    return took_ns


def by_bench(bound: BoundOp, _call: int) -> int:
    """Time one call as the benchmark does."""
    [timed] = time_arms([BoundArm(bound)], Extent(1, warmups=0))
    return int(timed.times_ns[0])


def alternate(size_bytes: int, calls: int) -> list[tuple[int, int]]:
    """Return each turn's two times on this rank, by hand and by the benchmark."""
    bound = get_op("all_reduce").bind(size_bytes, torch.float32, "cpu", dist)
    gc.freeze()  # so that the benchmark's collection before each turn has nothing to do
    gc.disable()
    order = random.Random(0)  # the same on every rank
    times = []
    for call in range(calls):
        turn = {}
        for take in order.sample((by_hand, by_bench), 2):
            turn[take] = take(bound, call)
        times.append((turn[by_hand], turn[by_bench]))
    return times[calls // 10 :]


def main() -> None:
    """Print a table of ratios."""
    for size_bytes, calls in CALLS.items():
        ratios = []
        for _ in range(LAUNCHES):
            with World.start(WorldSpec(size=2)) as world:
                ranks = world.run(alternate, size_bytes, calls)
            slowest = [[max(times) for times in zip(*turn, strict=True)]
                       for turn in zip(*ranks, strict=True)]  # fmt: skip
            ratios.append(statistics.median(bench / hand for hand, bench in slowest))
        told = " ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
        print(f"all_reduce {size_bytes:>8} B: bench/hand {statistics.median(ratios):.3f} ({told})")


if __name__ == "__main__":
    main()
