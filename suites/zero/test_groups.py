"""Parameters that not all ranks hold: subgroups, experts, sequence-parallel ranks."""

import pytest
import torch
import zero_ranks
from hypothesis import given
from hypothesis import strategies as st
from zero_draws import buckets, jobs, seeds, shapes
from zero_oracle import exact, gathered
from zero_ranks import STRATEGIES, Grouped, Job

EXPERTS = [((0, 2), (1, 3)), ((0, 1), (2, 3)), ((0,), (1,), (2,), (3,))]


def mean_over(job, ranks, param, *, divisor):
    """Return the exact sum over these ranks, divided; multiples of the divisor are exact."""
    total = sum(job.gradient(rank, divisor, 0, 0, param).double() for rank in ranks)
    return total.reshape(-1) / divisor


@pytest.mark.world(size=4)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    shapes=shapes, seed=seeds, bucket=buckets, dense=st.sampled_from([(1, 3), (2, 3), (1, 2, 3)])
)
def test_ranks_of_a_group_are_not_their_global_ranks(
    on_ranks, strategy, shapes, seed, bucket, dense
):
    config = {"reduce_bucket_size": bucket}
    job = Job(shapes=shapes, config=config, strategy=strategy, seed=seed)
    outcomes = on_ranks(zero_ranks.reduce_grouped, Grouped(job=job, dense=dense))
    assert [outcome is not None for outcome in outcomes] == [rank in dense for rank in range(4)]
    reduced = gathered(job, [outcome for outcome in outcomes if outcome])
    for param, values in enumerate(reduced):
        assert torch.equal(values, mean_over(job, dense, param, divisor=len(dense)))


@pytest.mark.world(size=4)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(shapes=shapes, seed=seeds, bucket=buckets, experts=st.sampled_from(EXPERTS), data=st.data())
def test_an_expert_is_reduced_in_its_group_and_averaged_over_all_ranks(
    on_ranks, strategy, shapes, seed, bucket, experts, data
):
    """Every rank sent its tokens to some expert: the scale is that of all, whatever the groups."""
    chosen = data.draw(st.frozensets(st.integers(0, len(shapes) - 1), min_size=1))
    config = {"reduce_bucket_size": bucket, "overlap_comm": True}
    job = Job(shapes=shapes, config=config, strategy=strategy, seed=seed)
    grouped = Grouped(job=job, dense=(0, 1, 2, 3), experts=experts, expert_params=chosen)
    outcomes = on_ranks(zero_ranks.reduce_grouped, grouped)
    dense = frozenset(range(len(shapes))) - chosen
    for params, ranks in [(dense, range(4)), *((chosen, ranks) for ranks in experts)]:
        reduced = reduced_only(job, params, [outcomes[rank] for rank in ranks])
        for param, values in zip(sorted(params), reduced, strict=True):
            assert torch.equal(values, mean_over(job, ranks, param, divisor=4))


def reduced_only(job, params, outcomes):
    """Return the gathered gradients of some parameters, in their order."""
    place = {param: number for number, param in enumerate(sorted(params))}
    kept = [
        zero_ranks.Outcome(
            [(place[p], start, values) for p, start, values in outcome.owned if p in place],
            outcome.padding,
        )
        for outcome in outcomes
    ]
    shapes = tuple(job.shapes[param] for param in sorted(params))
    return gathered(Job(shapes=shapes, config={}), kept)


@pytest.mark.world(size=4)
@pytest.mark.parametrize("sequence_parallel_size", [2, 4])
@given(data=st.data())
def test_sequence_parallel_ranks_count_once(on_ranks, sequence_parallel_size, data):
    """The mean is over ranks / sp, whatever is divided first; factor == ranks is no exception."""
    factor = data.draw(st.sampled_from([1.0, 2.0, 4.0]))
    job = data.draw(jobs(sequence_parallel_size=sequence_parallel_size, absent=frozenset()))
    config = {**job.config, "prescale_gradients": False, "gradient_predivide_factor": factor}
    job = Job(**{**vars(job), "config": config})
    assert all(
        torch.equal(values, right)
        for values, right in zip(
            gathered(job, on_ranks(zero_ranks.reduce, job)), exact(job, 4), strict=True
        )
    )
