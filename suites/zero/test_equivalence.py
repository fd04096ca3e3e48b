"""Every way to reduce gives each rank the exact mean of its slice."""

import pytest
import torch
import zero_ranks
from hypothesis import given
from hypothesis import strategies as st
from zero_ranks import Job

WORLDS = [
    pytest.param(size, id=f"x{size}", marks=pytest.mark.world(size=size)) for size in (1, 2, 3)
]
STRATEGIES = ("all_reduce", "reduce", "reduce_scatter", "exchange")

shapes = st.lists(
    st.lists(st.integers(0, 7), min_size=0, max_size=2).map(tuple), min_size=1, max_size=6
).map(tuple)


def exact_mean(job: Job, ranks: int, param: int) -> torch.Tensor:
    """Integer gradients are multiples of the number of ranks: their fp64 mean is exact."""
    return sum(zero_ranks.terms(job, ranks, param)) / float(zero_ranks.divisor(job, ranks))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", WORLDS)
@given(
    shapes=shapes,
    seed=st.integers(0, 999),
    bucket=st.integers(1, 60),
    stage=st.sampled_from([1, 2]),
)
def test_integer_gradients_give_the_exact_mean(
    on_ranks, size, strategy, shapes, seed, bucket, stage
):
    config = {"stage": stage, "reduce_bucket_size": bucket}
    job = Job(shapes=shapes, config=config, strategy=strategy, seed=seed)
    reduced = zero_ranks.gathered(job, on_ranks(zero_ranks.reduce, job))
    for param, values in enumerate(reduced):
        assert torch.equal(values, exact_mean(job, size, param)), f"parameter {param}"
