"""What cannot be is told before a gradient is sent, on every rank and by its name."""

import math

import pytest
import torch
from zero_ranks import STRATEGIES

from perfgate.errors import UsageError
from perfgate.zero import SGD, GradientReducer, Layout, Topology, ZeroConfig, ZeroOptimizer
from perfgate.zero.bounds import unit_roundoff
from perfgate.zero.bucket import plan_buckets

SAME = {"names": ("a", "b"), "shapes": ((4,), (2, 3)), "dtype": torch.float32, "config": {}}
DIFFERENT = {
    "shape": ({"shapes": ((4,), (3, 2))}, r"'b' of shape \(2, 3\).*'b' of shape \(3, 2\)"),
    "name": ({"names": ("a", "c")}, "'b' of shape.*'c' of shape"),
    "order": ({"names": ("b", "a")}, "'a' of shape.*'b' of shape"),
    "dtype": ({"dtype": torch.bfloat16}, "torch.float32.*torch.bfloat16"),
    "fewer": ({"names": ("a",), "shapes": ((4,),)}, "'b' of shape.*rank 1 has nothing"),
    "bucket": ({"config": {"reduce_bucket_size": 7}}, "size=500000000.*reduce_bucket_size=7"),
    "stage": ({"config": {"stage": 1}}, "stage=2.*stage=1"),
    "strategy": ({"config": {"reduce_scatter": False}}, "exchange.*all_reduce"),
    "steps": ({"config": {"gradient_accumulation_steps": 2}}, "1 micro-batches.*2 micro-batches"),
    "comm": ({"config": {"communication_data_type": "bf16"}}, "None.*'bf16'"),
}


def reducer_of(*, names, shapes, dtype, config, comm):
    params = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    named = list(zip(names, params, strict=True))
    return GradientReducer(named, ZeroConfig(**{"stage": 2, **config}), comm=comm)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_disagree_are_told_the_first_difference(rank, counted, what):
    change, told = DIFFERENT[what]
    comm = counted()
    with pytest.raises(UsageError, match=f"rank 0 has.*{told}") as caught:
        reducer_of(**(SAME | (change if rank.index == 1 else {})), comm=comm)
    assert "rank 1 has" in str(caught.value)
    assert not comm.calls
    reducer_of(**SAME, comm=comm)  # the ranks are still in step


@pytest.mark.ranks(2)
def test_a_parameter_that_changes_shape_is_named():
    param = torch.nn.Parameter(torch.zeros(4))
    GradientReducer([("w", param)], ZeroConfig(stage=2)).attach()
    param.data = torch.zeros(6)
    with pytest.raises(UsageError, match=r"'w' has shape \(6,\); its parameter had \(4,\)"):
        param.sum().backward()


@pytest.mark.ranks(2)
def test_a_sparse_gradient_is_named():
    embed = torch.nn.Embedding(4, 2, sparse=True)
    GradientReducer(embed.named_parameters(), ZeroConfig(stage=2)).attach()
    with pytest.raises(UsageError, match="'weight' is sparse"):
        embed(torch.tensor([1])).sum().backward()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("bad", ["nothing", "frozen", "expert", "strategy", "sequence", "batch"])
def test_what_cannot_be_reduced_is_refused(bad):
    param = torch.nn.Parameter(torch.zeros(4), requires_grad=bad != "frozen")
    arguments = {
        "nothing": ([], {}, {}, "no parameter that needs a gradient"),
        "frozen": ([("w", param)], {}, {}, "no parameter that needs a gradient"),
        "expert": ([("w", param)], {"topology": Topology(experts={"v": None})}, {}, "expert 'v'"),
        "strategy": (
            [("w", param)],
            {"strategy": "ring"},
            {},
            "'ring' is not known; choose one",
        ),
        "sequence": ([("w", param)], {"topology": Topology(sequence_parallel_size=3)}, {}, "3.* 2"),
        "batch": (
            [("w", param)],
            {},
            {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2},
            "train_batch_size=7 is not train_micro_batch_size_per_gpu=2",
        ),
    }
    named, options, config, told = arguments[bad]
    with pytest.raises(UsageError, match=told):
        GradientReducer(named, ZeroConfig(stage=2, **config), **options)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("culprit", [0, 2])
def test_nan_and_overflow_are_seen_by_every_rank(rank, strategy, value, culprit):
    """One element on one rank, owned by one other: no rank may step."""
    linear = torch.nn.Linear(3, 3)
    config = ZeroConfig(stage=2, gradient_clipping=0.0)
    optimizer = ZeroOptimizer(linear, SGD, config, strategy=strategy)
    before = linear.weight.detach().clone()
    x = torch.ones(3)
    if rank.index == culprit:
        x[1] = value
    optimizer.backward(linear(x)[0])
    step = optimizer.step()
    assert step.skipped
    assert not math.isfinite(step.norm)
    assert torch.equal(linear.weight, before)
    optimizer.backward(linear(torch.ones(3)).sum())
    assert not optimizer.step().skipped
    assert not torch.equal(linear.weight, before)


def test_counts_below_one_are_refused():
    with pytest.raises(UsageError, match="partitions=0; a layout needs 1 or more"):
        Layout.plan([3], 0)
    with pytest.raises(UsageError, match="alignment=0"):
        Layout.plan([3], 1, alignment=0)
    with pytest.raises(UsageError, match="parameter 1 has -1 elements"):
        Layout.plan([3, -1], 1)
    with pytest.raises(UsageError, match="reduce_bucket_size=0"):
        plan_buckets([Layout.plan([3], 1)], [(0, 0)], 0)
    with pytest.raises(UsageError, match="reduce_bucket_size=0"):
        ZeroConfig(stage=2, reduce_bucket_size=0)


def test_a_dtype_without_a_bound_is_refused():
    with pytest.raises(UsageError, match=r"no error bound for torch\.float8_e5m2"):
        unit_roundoff(torch.float8_e5m2)
