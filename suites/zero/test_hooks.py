"""Gradients of a real module: hooks, accumulation, and what is kept of them."""

import copy

import pytest
import torch
import torch.distributed as dist
from zero_ranks import STRATEGIES

from perfgate.errors import UsageError
from perfgate.zero import GradientReducer, ZeroConfig

MICRO_BATCHES = 3


class Net(torch.nn.Module):
    """Shared, unused, empty and branching parameters, integer everywhere."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.mix = torch.nn.Linear(4, 4)
        self.unused = torch.nn.Linear(3, 3)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.empty = torch.nn.Parameter(torch.zeros(0, 3))
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for param in self.parameters():
                param.copy_(torch.randint(-2, 3, param.shape, generator=generator))

    def forward(self, tokens, branch):
        """Use one branch, and the shared layers twice."""
        hidden = self.mix(self.embed(tokens))
        hidden = self.branches[branch](hidden) + self.mix(hidden)
        return hidden @ self.embed.weight.T * self.frozen[0] + self.empty.sum()


def loss_of(net, rank, ranks, step, micro):
    """Return a loss with integer gradients, multiples of ranks; branches differ by rank."""
    generator = torch.Generator().manual_seed(step * 100 + micro * 10 + rank)
    tokens = torch.randint(0, 5, (6,), generator=generator)
    return net(tokens, (rank + micro) % 2).sum() * ranks


def wanted(net, ranks, step):
    """Return the mean gradient by name, from one process that sees all data."""
    net = copy.deepcopy(net)
    for micro in range(MICRO_BATCHES):
        for index in range(ranks):
            loss_of(net, index, ranks, step, micro).backward()
    zeros = {name: torch.zeros_like(param) for name, param in net.named_parameters()}
    grads = {name: param.grad for name, param in net.named_parameters() if param.grad is not None}
    return {name: value / ranks for name, value in (zeros | grads).items()}


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("contiguous", [False, True], ids=["", "contiguous"])
def test_a_module_is_reduced_as_one_process_would(rank, stage, strategy, overlap, contiguous):
    """Three micro-batches a step, two steps: each contributes once and none is left over."""
    torch.manual_seed(0)
    net = Net()
    config = ZeroConfig(
        stage=stage,
        reduce_bucket_size=20,
        overlap_comm=overlap,
        contiguous_gradients=contiguous,
        gradient_accumulation_steps=MICRO_BATCHES,
    )
    reducer = GradientReducer(net.named_parameters(), config, strategy=strategy).attach()
    for step in range(2):
        right = wanted(net, rank.size, step)
        for micro in range(MICRO_BATCHES):
            loss_of(net, rank.index, rank.size, step, micro).backward()
            assert reducer.end_micro_batch() == (micro == MICRO_BATCHES - 1)
            if stage == 2:
                assert all(param.grad is None for param in net.parameters())
        if stage == 1:
            assert net.mix.weight.grad is not None
        for group in reducer.groups:
            for name, start, values in group.owned_slices():
                flat = right[name].reshape(-1)[start : start + values.numel()]
                assert torch.equal(values, flat), name
        net.zero_grad()


@pytest.mark.ranks(2)
def test_stage_1_sends_once_a_step_and_stage_2_every_micro_batch(rank, counted):
    for stage, times in ((1, 1), (2, MICRO_BATCHES)):
        param = torch.nn.Parameter(torch.zeros(8))
        config = ZeroConfig(stage=stage, gradient_accumulation_steps=MICRO_BATCHES)
        comm = counted()
        reducer = GradientReducer([("w", param)], config, strategy="all_reduce", comm=comm).attach()
        for _ in range(MICRO_BATCHES):
            (param * (rank.index + 1)).sum().backward()
            reducer.end_micro_batch()
        assert comm.calls["all_reduce"] == times
        assert reducer.groups[0].owned.tolist() == [MICRO_BATCHES * 1.5] * 4


@pytest.mark.ranks(2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_buffers_are_made_once_and_no_larger_than_buckets_need(strategy, overlap):
    """A message, what is received for it and its sum, for each bucket under way."""
    bucket = 300
    params = [torch.nn.Parameter(torch.zeros(100)) for _ in range(12)]
    named = [(str(index), param) for index, param in enumerate(params)]
    config = ZeroConfig(stage=2, reduce_bucket_size=bucket, overlap_comm=overlap)
    reducer = GradientReducer(named, config, strategy=strategy).attach()
    held = []
    for _ in range(4):
        sum(param.sum() for param in params).backward()
        reducer.end_micro_batch()
        held.append(reducer.buffer_bytes)
    assert held[1:] == held[1:2] * 3
    under_way = 2 if overlap else 1
    assert bucket * 4 <= held[-1] <= under_way * 4 * bucket * 4


@pytest.mark.ranks(2)
def test_unused_parameters_are_told_where_they_are_not_allowed():
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    config = ZeroConfig(stage=2, ignore_unused_parameters=False)
    reducer = GradientReducer([("used", used), ("unused", unused)], config).attach()
    used.sum().backward()
    with pytest.raises(UsageError, match="no gradient for unused, and ignore_unused_parameters"):
        reducer.end_micro_batch()


@pytest.mark.ranks(2)
def test_a_second_backward_before_the_micro_batch_ends_is_refused():
    param = torch.nn.Parameter(torch.ones(2))
    GradientReducer([("w", param)], ZeroConfig(stage=1)).attach()
    param.sum().backward()
    with pytest.raises(UsageError, match=r"'w' became ready twice .* end_micro_batch"):
        param.sum().backward()
    dist.barrier()


@pytest.mark.ranks(2)
def test_a_detached_reducer_leaves_gradients_alone():
    param = torch.nn.Parameter(torch.ones(2))
    reducer = GradientReducer([("w", param)], ZeroConfig(stage=2)).attach()
    reducer.detach()
    param.sum().backward()
    assert param.grad.tolist() == [1.0, 1.0]


@pytest.mark.ranks(2)
def test_gradients_that_are_not_contiguous_are_read_in_order():
    param = torch.nn.Parameter(torch.zeros(2, 3))
    reducer = GradientReducer([("w", param)], ZeroConfig(stage=2, reduce_bucket_size=6))
    values = torch.arange(6.0).reshape(3, 2).T
    assert not values.is_contiguous()
    param.grad = values
    reducer.ready("w")
    reducer.end_micro_batch()
    flat = values.reshape(-1)
    for _, start, owned in reducer.groups[0].owned_slices():
        assert owned.tolist() == flat[start : start + owned.numel()].tolist()
