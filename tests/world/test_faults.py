"""Every fault costs one call: who did it, where the rest were, and nothing left behind."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import pytest
import rank_faults as faults

from perfgate import RankFailure, World, WorldSpec
from perfgate.world.crossing import ship_by_value

ship_by_value(faults)

DEADLINE_S = 1.0
#: What a report may take beyond the deadline, on a machine that is busy.
SLACK_S = 5.0
FIRST, LAST = 0, -1


@dataclass(frozen=True)
class Fault:
    name: str
    line: str
    sizes: tuple[int, ...] = (2, 4)
    guilty: tuple[int, ...] = (FIRST, LAST)
    places: tuple[str, ...] = ("before", "after")
    says: str = ""


ONE = {"sizes": (2,), "guilty": (LAST,), "places": ("after",)}
EACH_SIZE = {"guilty": (LAST,), "places": ("after",)}
INSTEAD = {"places": ("instead",)}

FAULTS = (
    Fault("raise_error", "raised ValueError: bad gradients", says="E   ValueError: bad gradients"),
    Fault("assert_wrong", "raised AssertionError: the sum is off", **EACH_SIZE, says="the sum is"),
    Fault("raise_unpicklable", "raised rank_faults.Unpicklable: kept its words", **ONE),
    Fault("recurse", "raised RecursionError: maximum recursion depth exceeded", **ONE,
          says=r"\.\.\. \d+ frames \.\.\."),
    Fault("raise_long", "raised ValueError: xxxxxx", **ONE),
    Fault("sys_exit", "raised SystemExit: 3", **EACH_SIZE),
    Fault("exit_0", "left with exit code 0 without an answer"),
    Fault("exit_3", "left with exit code 3 without an answer", **EACH_SIZE),
    Fault("sigkill", "was killed by SIGKILL", places=("before", "inside", "after")),
    Fault("sigsegv", "was killed by SIGSEGV", **EACH_SIZE, says="Fatal Python error: Segmentation"),
    Fault("abort", "was killed by SIGABRT", places=("inside",), says="Fatal Python error: Aborted"),
    Fault("cpp_terminate", "was killed by SIGABRT", **ONE),
    Fault("memory_error", "raised MemoryError", **ONE),
    Fault("hang", r"hung at .*faults\.py:\d+ in hang \(in wait\) when the deadline of 1 s passed",
          guilty=(LAST,), says=r'faults\.py", line \d+ in hang'),
    Fault("hang_in_c", r"hung at .*faults\.py:\d+ in hang_in_c \(in match\) when the", **ONE),
    Fault("stop", r"hung stopped by a signal \(SIGSTOP\) when the deadline", **EACH_SIZE),
    Fault("receive_forever", "hung in recv when the deadline of 1 s passed, without joining #2",
          **ONE),
    Fault("close_group", "raised ValueError: Default process group has not been", **EACH_SIZE),
)  # fmt: skip

MISMATCHES = (
    Fault("other_size", r"called #1 all_reduce \(16,\) float32 SUM", **INSTEAD),
    Fault("other_dtype", r"called #1 all_reduce \(8,\) int32 SUM", **INSTEAD),
    Fault("other_reduction", r"called #1 all_reduce \(8,\) float32 MAX", **INSTEAD),
    Fault("other_op", r"called #1 all_gather \(8,\) float32", **INSTEAD),
)


def each(*table: Fault) -> list[object]:
    return [
        pytest.param(
            fault,
            size,
            guilty % size,
            place,
            id=f"{fault.name}-x{size}-rank{guilty % size}-{place}",
        )
        for fault in table
        for size in fault.sizes
        for guilty in fault.guilty
        for place in fault.places
    ]  # fmt: skip


def fail(size: int, function: object, *args: object) -> RankFailure:
    """Run what must fail, and check what holds for every failure."""
    with World.start(WorldSpec(size=size)) as world:
        began = time.monotonic()
        with pytest.raises(RankFailure) as caught:
            world.run(function, *args, deadline_s=DEADLINE_S)
    assert time.monotonic() - began < DEADLINE_S + SLACK_S
    assert not world.alive
    failure = caught.value
    assert failure.world_size == size
    assert str(failure).startswith(failure.line)
    assert len(str(failure)) < 30_000
    return failure


@pytest.mark.parametrize(("fault", "size", "guilty", "place"), each(*FAULTS))
def test_guilty_rank_is_named_first(fault: Fault, size: int, guilty: int, place: str) -> None:
    failure = fail(size, faults.run, getattr(faults, fault.name), guilty, place)
    assert re.match(f"rank {guilty} of {size} {fault.line}", failure.line), failure.line
    assert failure.culprit.rank == guilty
    assert re.search(fault.says, str(failure))
    others = [f for f in failure.failures if f.rank != guilty]
    assert len(others) == size - 1
    assert all(f.innocent for f in others)
    if place == "after":
        assert failure.culprit.last.startswith("#1 all_reduce (8,) float32 SUM") or fault.name in (
            "receive_forever",
            "close_group",
        )


@pytest.mark.parametrize(("fault", "size", "guilty", "place"), each(*MISMATCHES))
def test_ranks_that_disagree_are_told(fault: Fault, size: int, guilty: int, place: str) -> None:
    failure = fail(size, faults.run, getattr(faults, fault.name), guilty, place)
    usual = r"all_reduce \(8,\) float32 SUM"
    if size > 2:
        others = [rank for rank in range(size) if rank != guilty]
        named = f"ranks {others[0]}-{others[-1]}"
        assert re.match(
            f"rank {guilty} of {size} {fault.line} where {named} called {usual}", failure.line
        ), failure.line
    else:
        told = re.search(f"rank {guilty} {fault.line} where rank {1 - guilty} called", str(failure))
        assert told, str(failure)
        assert {f.kind for f in failure.failures} == {"disagreed"}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("guilty", [FIRST, LAST])
def test_rank_that_skips_a_collective(size: int, guilty: int) -> None:
    guilty %= size
    failure = fail(size, faults.skip_one, guilty)
    assert f"rank {guilty} called #2 all_reduce (8,) float32 SUM where" in str(failure)
    assert "called all_reduce (4,) float32 SUM" in failure.line or size == 2


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("guilty", [FIRST, LAST])
def test_rank_that_leaves_early_is_told_before_the_deadline(size: int, guilty: int) -> None:
    guilty %= size
    began = time.monotonic()
    with World.start(WorldSpec(size=size)) as world, pytest.raises(RankFailure) as caught:
        world.run(faults.leave_early, guilty, deadline_s=60)
    assert time.monotonic() - began < 30
    assert caught.value.line == (
        f"rank {guilty} of {size} returned without joining #2 all_reduce (4,) float32 SUM"
    )


def test_all_ranks_failing_alike_are_told_once() -> None:
    failure = fail(4, faults.assert_wrong)
    assert failure.line == "ranks 0-3 of 4 raised AssertionError: the sum is off"
    assert str(failure).count("total = 3") == 1


def test_the_exception_is_the_cause() -> None:
    assert isinstance(fail(2, faults.raise_error).__cause__, ValueError)
    assert fail(2, faults.raise_unpicklable).__cause__ is None


def test_next_world_is_fresh() -> None:
    fail(2, faults.run, faults.sigkill, 0, "before")
    with World.start() as world:
        assert world.run(faults.dist.get_rank) == [0, 1]
