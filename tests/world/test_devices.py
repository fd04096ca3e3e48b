"""Which device a rank gets, and what is said before a backend says it worse."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from perfgate import World, WorldSpec
from perfgate.errors import UsageError
from perfgate.world.crossing import ship_by_value
from perfgate.world.device import choose_gpu
from perfgate.world.environ import rank_environ
from perfgate.world.protocol import Seat

ship_by_value(sys.modules[__name__])

NCCL = WorldSpec(size=4, backend="nccl", device="cuda")
GLOO = WorldSpec(size=4, backend="gloo", device="cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


def seat(spec: WorldSpec, rank: int, **environ: str) -> Seat:
    return Seat(
        rank=rank,
        local_rank=rank,
        spec=spec,
        rendezvous=("127.0.0.1", 1),
        cwd=".",
        sys_path=(),
        environ=rank_environ(spec, rank) | environ,
    )


def test_nccl_gets_a_gpu_a_rank() -> None:
    assert [choose_gpu(seat(NCCL, rank), gpus=4) for rank in range(4)] == [0, 1, 2, 3]


def test_nccl_with_too_few_gpus_is_refused_before_nccl_is_asked() -> None:
    with pytest.raises(UsageError, match="nccl takes one GPU a rank: 4 ranks, 1 GPU on this mach"):
        choose_gpu(seat(NCCL, 0), gpus=1)


def test_gloo_shares_gpus() -> None:
    assert [choose_gpu(seat(GLOO, rank), gpus=2) for rank in range(4)] == [0, 1, 0, 1]


def test_neighbours_of_xdist_use_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    for worker in ("gw0", "gw1"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        chosen.append({choose_gpu(seat(NCCL, rank), gpus=8) for rank in range(4)})
    assert chosen == [{0, 1, 2, 3}, {4, 5, 6, 7}]


def test_neighbours_of_xdist_do_not_share_gpus_under_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    with pytest.raises(UsageError, match=r"xdist's worker gw1.* would need GPUs 4-7 of 6"):
        choose_gpu(seat(NCCL, 0), gpus=6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_world_on_gpus_without_one_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a GPU and torch sees none; use device='cpu'"):
        World.start(GLOO)


def reduce_on_gpu() -> tuple[str, float]:
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x)
    return str(x.device), float(x[0])


@needs_gpu
def test_gloo_with_cuda_tensors() -> None:
    with World.start(WorldSpec(size=2, backend="gloo", device="cuda")) as world:
        assert [total for _, total in world.run(reduce_on_gpu)] == [2.0, 2.0]


@needs_gpu
def test_nccl_on_every_gpu() -> None:
    size = torch.cuda.device_count()
    with World.start(WorldSpec(size=size, backend="nccl", device="cuda")) as world:
        assert world.run(reduce_on_gpu) == [(f"cuda:{rank}", float(size)) for rank in range(size)]


@needs_gpu
def test_nccl_with_more_ranks_than_gpus_is_refused() -> None:
    size = torch.cuda.device_count() + 1
    with pytest.raises(UsageError, match="nccl takes one GPU a rank"):
        World.start(WorldSpec(size=size, backend="nccl", device="cuda"))
