"""What crosses to a rank and back: functions as they are, values, tensors, and what cannot."""

from __future__ import annotations

import concurrent.futures
import importlib
import sys
import threading
import warnings
import xml.etree.ElementTree
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

import perfgate.world.crossing
from perfgate import RankFailure, World
from perfgate.errors import UsageError
from perfgate.world.crossing import ship_by_value

ship_by_value(sys.modules[__name__])

OFFSET = 3


@pytest.fixture(scope="module")
def world():
    with World.start() as world:
        yield world


def add_offset(x):
    return x + OFFSET + dist.get_rank()


class Local:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(self).__name__ == type(other).__name__ and self.value == other.value

    __hash__ = None


def test_functions_lambdas_closures_and_methods(world) -> None:
    captured = 10

    def closure(x):
        return x + captured

    class Inner:
        def double(self, x):
            return 2 * x

    assert world.run(add_offset, 1) == [4, 5]
    assert world.run(lambda x: x * 2, 4) == [8, 8]
    assert world.run(closure, 1) == [11, 11]
    assert world.run(Inner().double, 3) == [6, 6]
    assert world.run(lambda: Local(5)) == [Local(5), Local(5)]


def test_module_state_of_the_moment_crosses(world, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "OFFSET", 100)
    assert world.run(add_offset, 0) == [100, 101]


@pytest.mark.parametrize("elements", [0, 1, 1 << 10, 1 << 22])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_come_back_whole(world, elements: int, dtype: torch.dtype) -> None:
    def make(n, dtype):
        return (torch.arange(n) + dist.get_rank()).to(dtype)

    results = world.run(make, elements, dtype)
    for rank, result in enumerate(results):
        assert result.dtype == dtype
        assert torch.equal(result, (torch.arange(elements) + rank).to(dtype))
        result.zero_()  # it is ours to change


def test_tensors_outlive_their_rank() -> None:
    with World.start() as world:
        results = world.run(torch.ones, 1 << 22)
    assert [float(result.sum()) for result in results] == [1 << 22, 1 << 22]


def test_large_tensor_is_mapped_not_copied(world) -> None:
    for result in world.run(torch.ones, 1 << 20):
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
        (line,) = (
            line
            for line, (start, end) in zip(lines, spans, strict=True)
            if start <= result.data_ptr() < end
        )
        assert "perfgate-result" in line


def test_large_arrays_and_views(world) -> None:
    def make():
        base = torch.arange(1 << 22, dtype=torch.float32).view(2, -1)
        return {"view": base[1], "numpy": np.ones(1 << 20), "both": (base, base)}

    for result in world.run(make):
        assert result["view"][0] == 1 << 21
        assert result["numpy"].sum() == 1 << 20
        assert result["both"][0] is result["both"][1]


def test_what_cannot_cross_is_named(world) -> None:
    with pytest.raises(UsageError, match="argument 1 cannot be sent to the ranks: TypeError"):
        world.run(print, 1, sys.stdout)
    with pytest.raises(UsageError, match="argument 'file' cannot"):
        world.run(print, file=threading.Lock())
    assert world.alive


def test_result_that_cannot_cross_is_told() -> None:
    with World.start() as world, pytest.raises(RankFailure) as caught:
        world.run(lambda: (x for x in ()))
    assert "TypeError: the result, a generator, cannot cross to the controller" in str(caught.value)


def test_rewritten_asserts_explain_themselves() -> None:
    def check(total):
        assert total == dist.get_world_size() + 1

    with World.start() as world, pytest.raises(RankFailure) as caught:
        world.run(check, 5)
    assert "assert 5 == (2 + 1)" in str(caught.value)
    assert __file__ in str(caught.value)


def test_warnings_of_ranks_are_kept(world) -> None:
    world.warnings.clear()
    world.run(lambda: warnings.warn("a small matter", DeprecationWarning, stacklevel=1))
    assert [(rank, w[0], w[1]) for rank, w in world.warnings] == [
        (0, "DeprecationWarning", "a small matter"),
        (1, "DeprecationWarning", "a small matter"),
    ]


def pool():
    return concurrent.futures.ThreadPoolExecutor


def deeper():
    return xml.etree.ElementTree.Element


def tensors():
    return torch.nn.functional.relu, dist.all_reduce


@pytest.mark.parametrize("function", [pool, deeper, tensors, add_offset])
def test_submodules_are_those_that_cloudpickle_finds(function) -> None:
    ours = perfgate.world.crossing._Submodules()
    original = importlib.util.find_spec("cloudpickle.cloudpickle")
    fresh = importlib.util.module_from_spec(original)
    original.loader.exec_module(fresh)
    values = [v for k, v in function.__globals__.items() if k in function.__code__.co_names]
    names = lambda modules: sorted(m.__name__ for m in modules)  # noqa: E731
    theirs = fresh._find_imported_submodules(function.__code__, values)
    assert names(ours(function.__code__, values)) == names(theirs)
    assert cloudpickle.cloudpickle is not fresh
