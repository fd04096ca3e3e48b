"""Whatever the layout, the buckets and the strategy, owners hold the same gradient."""

import pytest
import torch
import zero_ranks
from hypothesis import given
from hypothesis import strategies as st
from zero_draws import SEVERAL, WORLDS, buckets, jobs, seeds, shapes
from zero_oracle import beyond_bound, exact, gathered, in_rank_order
from zero_ranks import STRATEGIES, Job


def assert_same(reduced, expected):
    for param, (values, right) in enumerate(zip(reduced, expected, strict=True)):
        assert torch.equal(values, right), f"parameter {param}: {values} instead of {right}"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", WORLDS)
@given(data=st.data())
def test_integer_gradients_give_the_exact_mean(on_ranks, size, strategy, data):
    """Order and place of divisions cannot matter here, so nothing may be off by a bit."""
    job = data.draw(jobs(strategy))
    outcomes = on_ranks(zero_ranks.reduce, job)
    assert_same(gathered(job, outcomes), exact(job, size))
    for outcome in outcomes:
        assert not outcome.padding.any()


@pytest.mark.parametrize("size", SEVERAL)
@given(data=st.data())
def test_the_exchange_adds_in_the_order_of_ranks(on_ranks, size, data):
    """Its bits depend on no bucket, segment, order of readiness or overlap."""
    job = data.draw(jobs("exchange", kind="normal"))
    config = {key: job.config[key] for key in ("stage", "reduce_bucket_size", "overlap_comm")}
    comm = job.config["communication_data_type"]
    comm = {"communication_data_type": None if comm == "fp64" else comm}
    job = Job(**{**vars(job), "config": config | comm, "dtype": torch.float32})
    outcomes = on_ranks(zero_ranks.reduce, job)
    assert_same(gathered(job, outcomes), in_rank_order(job, size))


@pytest.mark.parametrize("size", SEVERAL)
@given(shapes=shapes, seed=seeds, bucket=buckets, stage=st.sampled_from([1, 2]))
def test_strategies_agree_within_their_bounds(on_ranks, size, shapes, seed, bucket, stage):
    """Each stays within its own bound; of two ranks' sums there is only one."""
    config = {"stage": stage, "reduce_bucket_size": bucket}
    several = [
        Job(shapes=shapes, config=config, strategy=strategy, kind="normal", seed=seed)
        for strategy in STRATEGIES
    ]
    outcomes = on_ranks(zero_ranks.reduce_all, several)
    reduced = [
        gathered(job, list(held))
        for job, held in zip(several, zip(*outcomes, strict=True), strict=True)
    ]
    for job, values in zip(several, reduced, strict=True):
        assert not beyond_bound(job, size, values)
        if size == 2:
            assert_same(values, reduced[0])


@pytest.mark.world(size=3)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(seed=seeds, bucket=buckets, rank=st.integers(0, 2), place=st.integers(0, 19))
def test_a_nan_stays_where_it_is(on_ranks, strategy, seed, bucket, rank, place):
    """Partial sums that a backend leaves in buffers of others never come back."""
    config = {"reduce_bucket_size": bucket, "overlap_comm": True}
    job = Job(
        shapes=((5,), (4, 5), (6,)),
        config=config,
        strategy=strategy,
        seed=seed,
        nan=(rank, 1, place),
    )
    reduced = gathered(job, on_ranks(zero_ranks.reduce, job))
    right = exact(job, 3)
    assert reduced[1].isnan().nonzero().tolist() == [[place]]
    assert_same([values.nan_to_num(7) for values in reduced], [v.nan_to_num(7) for v in right])


@pytest.mark.parametrize("size", [pytest.param(2, id="x2", marks=pytest.mark.world(size=2))])
@pytest.mark.parametrize("numel", [(1 << 16) - 1, (1 << 16) + 1, (1 << 18) + 3])
def test_parts_longer_than_a_chunk_are_added_whole(on_ranks, size, numel):
    job = Job(shapes=((numel * 2,),), config={"reduce_bucket_size": 1 << 20}, segment_bytes=1 << 18)
    assert_same(gathered(job, on_ranks(zero_ranks.reduce, job)), exact(job, size))
