"""The same properties of DeepSpeed's own ZeRO optimizer, where it is installed."""

import importlib.metadata
import importlib.util
import itertools

import pytest
import torch
import zero_deepspeed

from perfgate import RankFailure

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed; pip install pytest-perfgate[deepspeed]",
)

CONFIGURATIONS = [
    pytest.param(
        {"stage": stage, "reduce_scatter": scatter, "use_multi_rank_bucket_allreduce": multi},
        id=f"stage{stage}-{'scatter' if scatter else 'allreduce'}-{'multi' if multi else 'single'}",
    )
    for stage, scatter, multi in itertools.product((1, 2), (True, False), (True, False))
]
DEFAULT = {"stage": 2}


def fault(fact):
    """A fault of the version that the suite was last run against: a fixed release speaks up."""
    version = "0.19.8"
    found = importlib.util.find_spec("deepspeed") and importlib.metadata.version("deepspeed")
    return pytest.mark.xfail(
        found == version, strict=True, raises=AssertionError, reason=f"deepspeed {version}: {fact}"
    )


@pytest.mark.world(size=2, deadline=120)
@pytest.mark.parametrize("bucket", [20, 500_000_000], ids=["small", "default"])
@pytest.mark.parametrize("block", CONFIGURATIONS)
def test_two_ranks_train_to_the_same_bits_as_here(on_ranks, block, bucket):
    """There is one sum of two numbers, and halving is exact, wherever it is done."""
    block = {**block, "reduce_bucket_size": bucket}
    theirs = on_ranks(zero_deepspeed.train_theirs, block)
    ours = on_ranks(zero_deepspeed.train_ours, block)
    start = list(zero_deepspeed.perceptron().parameters())
    for rank in range(2):
        for there, here, before in zip(theirs[rank], ours[rank], start, strict=True):
            assert torch.equal(there, here)
            assert not torch.equal(there, before)


@pytest.mark.world(size=2, deadline=120)
@pytest.mark.parametrize(
    "option",
    [{"contiguous_gradients": False}, {"overlap_comm": True}, {"round_robin_gradients": True}],
    ids=lambda option: next(iter(option)),
)
def test_options_change_no_bit(on_ranks, option):
    block = {**DEFAULT, **option, "reduce_bucket_size": 50}
    theirs = on_ranks(zero_deepspeed.train_theirs, block)
    for there, here in zip(theirs[0], on_ranks(zero_deepspeed.train_ours, DEFAULT)[0], strict=True):
        assert torch.equal(there, here)


@pytest.mark.world(size=3, deadline=120)
@pytest.mark.parametrize("block", CONFIGURATIONS)
def test_integer_gradients_give_the_exact_mean(on_ranks, block):
    """Parameters that straddle owners and an empty one, on three ranks."""
    shapes = [(3, 4), (0, 2), (17,), (1,), (5, 5)]
    generator = torch.Generator().manual_seed(3)
    gradients = [
        [3.0 * torch.randint(-8, 9, shape, generator=generator) for shape in shapes]
        for _ in range(3)
    ]
    block = {**block, "reduce_bucket_size": 16}
    reduced = on_ranks(zero_deepspeed.reduce_theirs, gradients, block, {})
    for held in reduced:
        for param, values in enumerate(held):
            right = sum(gradients[rank][param] for rank in range(3)) / 3
            assert torch.equal(values, right), f"parameter {param}"


def mean_of(on_ranks, value, block):
    """Return the mean of ``value`` on both ranks, sent as fp16."""
    gradients = [[torch.full((8,), value)]] * 2
    keys = {"communication_data_type": "fp16"}
    reduced = on_ranks(zero_deepspeed.reduce_theirs, gradients, block, keys)
    return reduced[0][0].tolist()


@pytest.mark.world(size=2, deadline=120)
@fault("reduce_scatter=true all-reduces, unless use_multi_rank_bucket_allreduce is false")
def test_reduce_scatter_does_not_all_reduce(on_ranks):
    sent = on_ranks(zero_deepspeed.count_theirs, {**DEFAULT, "reduce_scatter": True}, 1000)
    assert sent[0].get("all_reduce", 0) < 1000


@pytest.mark.world(size=2, deadline=120)
def test_without_the_multi_rank_bucket_owners_are_reduced_to(on_ranks):
    block = {**DEFAULT, "use_multi_rank_bucket_allreduce": False}
    sent = on_ranks(zero_deepspeed.count_theirs, block, 1000)
    assert sent[0]["reduce"] == 1000
    assert sent[0].get("all_reduce", 0) < 1000


@pytest.mark.world(size=2, deadline=120)
@pytest.mark.parametrize(
    ("factor", "sequence_parallel_size"),
    [
        (1.0, 1),
        (2.0, 1),
        (1.0, 2),
        pytest.param(
            2.0, 2, marks=fault("predivide by the number of ranks halves the mean when sp is 2")
        ),
    ],
)
def test_predividing_leaves_the_mean_alone(on_ranks, factor, sequence_parallel_size):
    """The mean of ones over ranks / sp is sp."""
    means = on_ranks(zero_deepspeed.predivide_theirs, factor, sequence_parallel_size)
    assert means == [[float(sequence_parallel_size)] * 2] * 2


@pytest.mark.world(size=2, deadline=120)
@pytest.mark.parametrize(
    "block",
    [
        pytest.param({**DEFAULT, "reduce_scatter": True}, id="scatter"),
        pytest.param(
            {**DEFAULT, "reduce_scatter": False},
            id="allreduce",
            marks=fault("an fp16 sum that overflows drops the step without a word"),
        ),
    ],
)
def test_a_large_mean_survives_fp16(on_ranks, block):
    assert mean_of(on_ranks, 40_000.0, block) == [40_000.0] * 8


@pytest.mark.world(size=2, deadline=120)
@pytest.mark.parametrize(
    "block",
    [
        pytest.param({**DEFAULT, "reduce_scatter": False}, id="allreduce"),
        pytest.param(
            {**DEFAULT, "reduce_scatter": True},
            id="scatter",
            marks=fault("a small fp16 mean is lost, because it is divided before it is sent"),
        ),
    ],
)
def test_a_small_mean_survives_fp16(on_ranks, block):
    assert mean_of(on_ranks, 2.0**-24, block) == [2.0**-24] * 8


@pytest.mark.world(size=2, deadline=120)
@fault("a parameter without dimensions cannot be broadcast: it has no view of bytes")
def test_a_scalar_parameter_trains(on_ranks):
    gradients = [[torch.tensor(2.0)], [torch.tensor(4.0)]]
    try:
        reduced = on_ranks(zero_deepspeed.reduce_theirs, gradients, DEFAULT, {})
    except RankFailure as failure:
        raise AssertionError(str(failure).splitlines()[0]) from failure
    assert reduced[0][0].item() == 3.0
