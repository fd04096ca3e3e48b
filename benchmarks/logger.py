"""What logging costs, beside the real deepspeed.comm: one rank, gloo, calls alternating.

Run it on a quiet machine: ``python benchmarks/logger.py``. It takes about a minute and prints each
figure with its limit. Every round times a block of calls of each arm, in turn; a cost is the
median over the rounds of the difference to the bare block of the same round.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable

import torch
import torch.distributed

import perfgate.comm
from perfgate.comm.loggers import LoggedLayer, logged_layer

ROUNDS = 400
CALLS = 50
RECORDS = 10**6
SUMMARIES = 5
NAME, SIZE_BYTES = "all_reduce", 4096


def main() -> int:
    """Measure, print, and return how many figures miss their limit."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    ours, theirs = logged_layer("perfgate"), logged_layer("deepspeed")
    print(f"perfgate beside {theirs.name} {theirs.version}, torch {torch.__version__}\n")
    misses = costs(ours, theirs) + memory_and_summaries(ours, theirs)
    torch.distributed.destroy_process_group()
    return misses


def costs(ours: LoggedLayer, theirs: LoggedLayer) -> int:
    """Compare what a call costs over a bare one, logged and not."""
    tensor = torch.ones(SIZE_BYTES // 4)

    for layer in (ours, theirs):
        layer.restart()

    def block(layer: LoggedLayer | None, **switches: bool) -> float:
        call = torch.distributed.all_reduce if layer is None else layer.comm.all_reduce
        if layer is not None:
            layer.comm.configure(**switches)
            forget_timers(layer)
        call(tensor)
        begin = time.perf_counter()
        for _ in range(CALLS):
            call(tensor)
        return (time.perf_counter() - begin) / CALLS * 1e6

    arms: dict[str, Callable[[], float]] = {
        "bare": lambda: block(None),
        "ours off": lambda: block(ours, enabled=False),
        "ours on": lambda: block(ours, enabled=True),
        "theirs off": lambda: block(theirs, enabled=False),
        "theirs on": lambda: block(theirs, enabled=True),
    }
    times_us: dict[str, list[float]] = {name: [] for name in arms}
    gc.disable()
    for _ in range(ROUNDS):
        for name, arm in arms.items():
            times_us[name].append(arm())
    gc.enable()
    bare_us = statistics.median(times_us["bare"])
    cost_us = {
        name: statistics.median(
            t - bare for t, bare in zip(times_us[name], times_us["bare"], strict=True)
        )
        for name in arms
    }
    print(f"a bare all_reduce takes {bare_us:.2f} us; a call costs over that")
    print(
        f"  off  perfgate {cost_us['ours off']:6.2f} us   deepspeed {cost_us['theirs off']:6.2f} us"
    )
    print(
        f"  on   perfgate {cost_us['ours on']:6.2f} us   deepspeed {cost_us['theirs on']:6.2f} us"
    )
    return tell("cost on, ours over theirs", cost_us["ours on"] / cost_us["theirs on"], 0.1) + tell(
        "cost off over a bare call, us", cost_us["ours off"], 0.5
    )


def forget_timers(layer: LoggedLayer) -> None:
    """Spare DeepSpeed what its timers, which add up all earlier calls, cost later calls."""
    timers = getattr(layer.comm, "timers", None)
    if timers is not None and layer.comm is not perfgate.comm:
        timers.timers.clear()


def memory_and_summaries(ours: LoggedLayer, theirs: LoggedLayer) -> int:
    """Compare a million records: what they take, and how long a summary of them takes."""
    held, loggers = {}, {}
    for layer in (ours, theirs):
        layer.restart()
        tracemalloc.start()
        for number in range(RECORDS):
            layer.logger.append(NAME, NAME, 0.01 + number % 997 / 1e4, SIZE_BYTES)
        held[layer.name] = tracemalloc.get_traced_memory()[0] / RECORDS
        tracemalloc.stop()
        loggers[layer.name] = layer.logger
    times_s: dict[str, list[float]] = {name: [] for name in loggers}
    for _ in range(SUMMARIES):
        for name, logger in loggers.items():
            begin = time.perf_counter()
            summary = logger.get_operation_summary(NAME)
            times_s[name].append(time.perf_counter() - begin)
            assert summary is not None
            assert summary[SIZE_BYTES]["count"] == RECORDS
    ours_s, theirs_s = (statistics.median(times_s[layer.name]) for layer in (ours, theirs))
    print(f"\n{RECORDS} records")
    print(f"  bytes a record  perfgate {held[ours.name]:6.1f}   deepspeed {held[theirs.name]:6.1f}")
    print(f"  a summary, ms   perfgate {ours_s * 1e3:6.1f}   deepspeed {theirs_s * 1e3:6.1f}")
    return tell("bytes a record", held[ours.name], 32) + tell(
        "a summary, ours over theirs", ours_s / theirs_s, 1 / 20
    )


def tell(what: str, value: float, at_most: float) -> int:
    """Print a figure beside its limit; return 1 if it misses it."""
    misses = not value <= at_most
    print(f"  {'MISS' if misses else 'ok  '} {what}: {value:.3f}, at most {at_most:g}")
    return int(misses)


if __name__ == "__main__":
    sys.exit(main())
