# ruff: noqa: D101, D102, D103, N802 - what it shows is told at the top; unittest names its methods
"""Launching and driving ranks, beside the peers, in one run.

    python benchmarks/launch.py [--quick]

Peers: torch's MultiProcContinuousTest and MultiProcessTestCase (they need expecttest), and
DeepSpeed's DistributedTest (its tests/unit must be importable; else a stand-in of ours that
spawns and joins as it does).
Every test body is the same: one all_reduce of 8 floats on two ranks. Medians; a ratio below 1
means that perfgate takes less.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import signal
import statistics
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.testing._internal.common_distributed import (
    MultiProcContinuousTest,
    MultiProcessTestCase,
)

from perfgate import RankFailure, World, WorldSpec
from perfgate.world.crossing import ship_by_value
from perfgate.world.pool import Worlds

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("OMP_NUM_THREADS", "1")
SIZE = 2
TESTS = 300


def reduce() -> None:
    x = torch.ones(8)
    dist.all_reduce(x)
    assert x.tolist() == [float(SIZE)] * 8


def nothing() -> None:
    pass


def seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def median_ms(function: Callable[[], object], times: int) -> float:
    return statistics.median(seconds(function) for _ in range(times)) * 1e3


class Continuous(MultiProcContinuousTest):
    world_size = SIZE

    @classmethod
    def backend_str(cls) -> str:
        return "gloo"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


for number in range(TESTS):
    setattr(Continuous, f"test_{number:03}", lambda _: reduce())


class Spawned(MultiProcessTestCase):
    world_size = SIZE

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def test_reduce(self) -> None:
        store = dist.FileStore(self.file_name, SIZE)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=SIZE)
        reduce()
        dist.destroy_process_group()


class Stopwatch(unittest.TestResult):
    """Notes how long each test takes, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.took: list[float] = []

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.began = time.perf_counter()

    def stopTest(self, test: unittest.TestCase) -> None:
        self.took.append(time.perf_counter() - self.began)
        super().stopTest(test)


def run_case(case: unittest.TestCase | unittest.TestSuite) -> Stopwatch:
    result = Stopwatch()
    with open(os.devnull, "w") as sink, contextlib.redirect_stderr(sink):
        case.run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    return result


def continuous_ms() -> tuple[float, float]:
    """A test in a living world, and what a class costs besides its tests, in milliseconds."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Continuous)
    began = time.perf_counter()
    took = run_case(suite).took
    whole_s = time.perf_counter() - began
    return statistics.median(took) * 1e3, (whole_s - sum(took)) * 1e3


def _stand_in(rank: int, path: str) -> None:
    store = dist.FileStore(path, SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    reduce()
    dist.barrier()
    dist.destroy_process_group()


def deepspeed() -> tuple[str, Callable[[], object]]:
    """DeepSpeed's way: a pool of spawned processes for each test."""
    with contextlib.suppress(ImportError):
        common = importlib.import_module("unit.common")
        case = type("Case", (common.DistributedTest,), {"world_size": SIZE, "run": reduce})
        return "DeepSpeed DistributedTest", lambda: case()._launch_with_file_store(None, SIZE)

    def spawn() -> None:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_stand_in, (os.path.join(folder, "store"),), nprocs=SIZE)

    return "stand-in for DistributedTest (spawn, join)", spawn


def fresh() -> None:
    with World.start(WorldSpec(size=SIZE)) as world:
        world.run(reduce)


def up_to_all_reduce_ms(times: int) -> float:
    figures = []
    for _ in range(times):
        began = time.perf_counter()
        world = World.start(WorldSpec(size=SIZE))
        world.run(reduce)
        figures.append(time.perf_counter() - began)
        world.close()
    return statistics.median(figures) * 1e3


def die() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hang() -> None:
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.barrier()


def failing(worlds: Worlds, function: Callable[[], None], deadline_s: float) -> tuple[float, float]:
    """From the call to the report, and from there to the end of the next test."""
    world = worlds.lasting(WorldSpec(size=SIZE))
    world.run(reduce)
    began = time.perf_counter()
    try:
        world.run(function, deadline_s=deadline_s)
    except RankFailure:
        reported = time.perf_counter()
    world.run(reduce)
    return reported - began, time.perf_counter() - reported


def leaks(times: int) -> str:
    """What many tests in a row leave behind: descriptors, processes, memory."""
    with World.start(WorldSpec(size=SIZE)) as world:
        me = psutil.Process()
        for _ in range(50):
            world.run(reduce)
        gc.collect()
        before = me.num_fds(), len(me.children(recursive=True)), me.memory_info().rss
        ranks = world.run(_rss)
        for _ in range(times):
            world.run(reduce)
        gc.collect()
        after = me.num_fds(), len(me.children(recursive=True)), me.memory_info().rss
        grown = max(b / a - 1 for a, b in zip(ranks, world.run(_rss), strict=True))
    return (
        f"{times} tests: {after[0] - before[0]:+d} descriptors, "
        f"{after[1] - before[1]:+d} processes, "
        f"memory {after[2] / before[2] - 1:+.1%} here, {grown:+.1%} in ranks"
    )


def _rss() -> int:
    return psutil.Process().memory_info().rss


def examples_a_second(count: int) -> float:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    with Worlds() as worlds:
        world = worlds.lasting(WorldSpec(size=SIZE))
        world.run(add_up, 0)

        @settings(max_examples=count, deadline=None, database=None,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(st.integers(0, 10**9))
        def property_holds(value: int) -> None:
            world.run(add_up, value)

        return count / seconds(property_holds)


def add_up(value: int) -> None:
    total = torch.tensor([value])
    dist.all_reduce(total)
    assert total.item() == SIZE * value


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true")
    times = 5 if options.parse_args().quick else 20
    ship_by_value(sys.modules["__main__"])
    fresh()

    with World.start(WorldSpec(size=SIZE)) as world:
        for _ in range(20):
            world.run(nothing)
        empty_ms = median_ms(lambda: world.run(nothing), 20 * times)
        living_ms = median_ms(lambda: world.run(reduce), 20 * times)
    up_ms, fresh_ms = up_to_all_reduce_ms(times), median_ms(fresh, times)
    spawned_ms = median_ms(lambda: run_case(Spawned("test_reduce")), 1 if times < 20 else 3)
    continuous, class_ms = continuous_ms()
    peer, launch = deepspeed()
    deepspeed_ms = median_ms(launch, 1 if times < 20 else 3)
    with Worlds() as worlds:
        killed = [failing(worlds, die, 60) for _ in range(times)]
        hung = [failing(worlds, hang, 0.5) for _ in range(3)]

    print(f"\n{'':44}{'perfgate':>12}{'peer':>12}{'ratio':>8}")
    row = "{:44}{:>9.2f} ms{:>9.1f} ms{:>8.3f}".format
    print(
        row(
            "test in a living world / ContinuousTest", living_ms, continuous, living_ms / continuous
        )
    )
    print(
        row(
            "fresh world, one test / MultiProcessTestCase",
            fresh_ms,
            spawned_ms,
            fresh_ms / spawned_ms,
        )
    )
    print(
        row("fresh world, one test / ContinuousTest class", fresh_ms, class_ms, fresh_ms / class_ms)
    )
    print(row(f"fresh / {peer}"[:44], fresh_ms, deepspeed_ms, fresh_ms / deepspeed_ms))
    print(f"fresh world until all have reduced: {up_ms:.1f} ms; empty test: {empty_ms:.2f} ms")
    report_s, next_s = (statistics.median(column) for column in zip(*killed, strict=True))
    print(f"SIGKILL of a rank to the report: {report_s * 1e3:.0f} ms, to the next test's end: "
          f"{next_s * 1e3:.0f} ms more")  # fmt: skip
    late_s = statistics.median(figure[0] for figure in hung) - 0.5
    print(f"deadline to the report: {late_s * 1e3:.0f} ms")
    print(leaks(100 if times < 20 else 500))
    print(f"hypothesis: {examples_a_second(200 if times < 20 else 1000):.0f} examples a second")


if __name__ == "__main__":
    main()
