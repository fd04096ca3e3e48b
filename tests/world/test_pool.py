"""Worlds kept between tests, and properties that outlive the ranks they kill."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate import RankFailure, WorldSpec
from perfgate.world.crossing import ship_by_value
from perfgate.world.pool import CAPACITY, Worlds

ship_by_value(sys.modules[__name__])


@pytest.fixture
def worlds():
    with Worlds() as worlds:
        yield worlds


def get_pid() -> int:
    return os.getpid()


def test_living_world_is_used_again_whatever_its_deadline(worlds: Worlds) -> None:
    first = worlds.get(WorldSpec())
    again = worlds.get(WorldSpec(deadline_s=3))
    assert again is first
    assert again.spec.deadline_s == 3


def test_world_used_longest_ago_makes_room(worlds: Worlds) -> None:
    first, second = worlds.get(WorldSpec(size=1)), worlds.get(WorldSpec(size=2))
    worlds.get(WorldSpec(size=1))
    for size in range(3, CAPACITY + 2):
        worlds.get(WorldSpec(size=size))
    assert first.alive
    assert not second.alive


def test_fresh_world_is_new_processes(worlds: Worlds) -> None:
    living = worlds.get(WorldSpec()).run(get_pid)
    with worlds.fresh(WorldSpec()) as fresh:
        assert set(fresh.run(get_pid)).isdisjoint(living)
    assert worlds.get(WorldSpec()).run(get_pid) == living


def die() -> None:
    sys.stdout.write("last words\n")
    sys.stdout.flush()
    os._exit(1)


def test_lasting_world_outlives_its_ranks(worlds: Worlds) -> None:
    world = worlds.lasting(WorldSpec())
    before = world.run(get_pid)
    with pytest.raises(RankFailure):
        world.run(die)
    assert world.output(0) == "last words\n"
    after = world.run(get_pid)
    assert set(before).isdisjoint(after)
    assert world.output(0) == ""


def sum_up(values: list[int], kill_above: int) -> list[int]:
    if dist.get_rank() == 1 and any(value > kill_above for value in values):
        os._exit(9)
    total = torch.tensor(values)
    dist.all_reduce(total)
    return total.tolist()


def test_example_that_kills_a_rank_is_shrunk_and_replayed(worlds: Worlds) -> None:
    world = worlds.lasting(WorldSpec())
    tried: list[list[int]] = []

    @settings(max_examples=200, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.lists(st.integers(0, 1000), min_size=1, max_size=5))
    def sums(values: list[int]) -> None:
        tried.append(values)
        assert world.run(sum_up, values, 100)[0] == [2 * value for value in values]

    with pytest.raises(RankFailure) as caught:
        sums()
    assert caught.value.line == "rank 1 of 2 left with exit code 9 without an answer"
    assert tried[-1] == [101], "the smallest example was not replayed last"
    assert world.run(sum_up, [3], 100) == [[6], [6]]


def check_sum(value: int) -> None:
    total = torch.tensor([value])
    dist.all_reduce(total)
    assert total.item() < 100


def test_failing_example_shrinks_in_ranks(worlds: Worlds) -> None:
    world = worlds.lasting(WorldSpec())
    tried: list[int] = []

    @settings(max_examples=200, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.integers(0, 1000))
    def below(value: int) -> None:
        tried.append(value)
        world.run(check_sum, value)

    with pytest.raises(RankFailure) as caught:
        below()
    assert tried[-1] == 50
    assert "raised AssertionError: assert 100 < 100" in caught.value.line
    assert "value=50" in "\n".join(caught.value.__notes__)
