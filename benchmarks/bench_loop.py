"""What ``perfgate bench`` measures beside a loop written by hand, in one world, taking turns.

    python benchmarks/bench_loop.py

Blocks of calls alternate, since the benchmark sets up before its first call, which leaves the
caches to other things. A launch's ratio is the median over its pairs of blocks. Prints, by size,
the median of the launches and the interval that holds it at 95 %, by order statistics; it should
lie within 2 % of one. Takes two minutes or so.
"""

from __future__ import annotations

import gc
import random
import statistics
import time

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from scipy.stats import quantile_test

from perfgate import World, WorldSpec
from perfgate.bench.ranks import BoundArm
from perfgate.bench.sample import Extent
from perfgate.bench.timing import time_arms
from perfgate.comm.ops import BoundOp, get_op
from perfgate.measure import undisturbed
from perfgate.scheduling import permitted
from perfgate.units import format_size

LAUNCHES = 15
BLOCK = 50
PAIRS = {4 * 2**10: 60, 256 * 2**10: 60, 4 * 2**20: 16}
LIMIT = 0.02
Nanoseconds = npt.NDArray[np.int64]


def by_hand(bound: BoundOp) -> Nanoseconds:
    """Time a block of calls as anybody would, around the same filling and checking."""
    buffer = bound.plan.send
    took_ns = []
    for call in range(BLOCK):
        bound.fill(call)
        dist.barrier()
        started_ns = time.perf_counter_ns()
        dist.all_reduce(buffer)
        took_ns.append(time.perf_counter_ns() - started_ns)
        bound.check(call)
    return np.array(took_ns)


def by_bench(bound: BoundOp) -> Nanoseconds:
    """Time a block of calls as the benchmark does."""
    [timed] = time_arms([BoundArm(bound)], Extent(BLOCK, warmups=0))
    return timed.times_ns


def alternate(size_bytes: int, pairs: int) -> Nanoseconds:
    """Return this rank's times, ``(pairs, 2, BLOCK)``: by hand, then by the benchmark."""
    bound = get_op("all_reduce").bind(size_bytes, torch.float32, "cpu", dist)
    gc.freeze()
    gc.disable()  # as the benchmark does while it times
    order = random.Random(0)  # the same on every rank
    times = np.empty((1 + pairs, 2, BLOCK), dtype=np.int64)
    for pair in times:
        for column, take in order.sample([(0, by_hand), (1, by_bench)], 2):
            pair[column] = take(bound)
    return times[1:]


def ratio(spec: WorldSpec, size_bytes: int, pairs: int) -> float:
    """Launch a world; return the median over its pairs of one median over the other."""
    with World.start(spec, watched=False, scheduling=permitted()) as world:
        ranks = world.run(alternate, size_bytes, pairs)
    slowest = np.max(ranks, axis=0)
    by_hand_ns, by_bench_ns = np.median(slowest, axis=2).T
    return float(np.median(by_bench_ns / by_hand_ns))


def told(ratios: list[float]) -> str:
    """Say where the median of the launches lies, and what that means."""
    low, high = quantile_test(ratios, p=0.5).confidence_interval(0.95)
    if low >= 1 - LIMIT and high <= 1 + LIMIT:
        verdict = f"within {LIMIT:.0%}"
    elif high < 1 - LIMIT or low > 1 + LIMIT:
        verdict = f"NOT within {LIMIT:.0%}"
    else:
        verdict = f"does not resolve {LIMIT:.0%}"
    return f"{statistics.median(ratios):.3f}, 95 % [{low:.3f}, {high:.3f}]: {verdict}"


def main() -> None:
    """Print a line for each size."""
    spec = WorldSpec(size=2)
    with undisturbed(spec):
        for size_bytes, pairs in PAIRS.items():
            ratios = [ratio(spec, size_bytes, pairs) for _ in range(LAUNCHES)]
            print(f"all_reduce {format_size(size_bytes)}: bench/hand {told(ratios)}", flush=True)


if __name__ == "__main__":
    main()
