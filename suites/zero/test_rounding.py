"""Where results are rounded, they are rounded no more often than the schedule says."""

from functools import reduce as fold
from itertools import permutations

import pytest
import torch
import zero_ranks
from hypothesis import given
from hypothesis import strategies as st
from zero_draws import DTYPES, SEVERAL, buckets, seeds
from zero_oracle import beyond_bound, gathered, terms
from zero_ranks import STRATEGIES, Job

NEAR_THE_TOP = 40_000.0  # fp16 ends at 65504
SMALLEST = 2.0**-24  # the smallest subnormal fp16


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", SEVERAL)
@given(
    dtype=st.sampled_from(DTYPES),
    comm=st.sampled_from([None, "fp16", "bf16", "fp32"]),
    kept=st.sampled_from([None, "bf16", "fp32"]),
    kind=st.sampled_from(["normal", "cancelling", "tiny"]),
    schedule=st.sampled_from(
        [{}, {"prescale_gradients": True}, {"gradient_predivide_factor": 3.0}]
    ),
    steps=st.integers(1, 3),
    seed=seeds,
    bucket=buckets,
)
def test_results_stay_within_the_derived_bound(
    on_ranks, size, strategy, dtype, comm, kept, kind, schedule, steps, seed, bucket
):
    config = {
        "communication_data_type": comm,
        "grad_accum_dtype": kept,
        "gradient_accumulation_steps": steps,
        "reduce_bucket_size": bucket,
        **schedule,
    }
    job = Job(
        shapes=((5,), (3, 4)), config=config, strategy=strategy, dtype=dtype, kind=kind, seed=seed
    )
    assert not beyond_bound(job, size, gathered(job, on_ranks(zero_ranks.reduce, job)))


@pytest.mark.parametrize("strategy", ["all_reduce", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("comm", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("size", [size for size in SEVERAL if size.values[0] in (3, 4)])
@given(seed=seeds)
def test_a_backend_rounds_at_every_hop(on_ranks, size, comm, strategy, seed):
    """Each element is a sum in the communication dtype, one rank after the other."""
    config = {"gradient_allreduce_op": "sum"}
    job = Job(
        shapes=((8,),), config=config, strategy=strategy, dtype=comm, kind="normal", seed=seed
    )
    (values,) = gathered(job, on_ranks(zero_ranks.reduce, job))
    sent = [term.to(comm) for term in terms(job, size, 0)]
    possible = torch.stack([fold(torch.add, order) for order in permutations(sent)]).double()
    assert bool((possible == values).any(dim=0).all())


def mean_of(on_ranks, value, strategy, **config):
    """Return the mean of ``value`` on every rank, sent as fp16."""
    config = {"communication_data_type": "fp16", **config}
    job = Job(shapes=((4,),), config=config, strategy=strategy, kind="constant", scale=value)
    (values,) = gathered(job, on_ranks(zero_ranks.reduce, job))
    assert bool((values == values[0]).all())
    return values[0].item()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.world(size=2)
def test_a_sum_beyond_fp16_overflows_only_where_fp16_adds(on_ranks, strategy):
    expected = NEAR_THE_TOP if strategy == "exchange" else float("inf")
    assert mean_of(on_ranks, NEAR_THE_TOP, strategy) == expected


@pytest.mark.parametrize("schedule", ["prescale_gradients", "gradient_predivide_factor"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.world(size=2)
def test_dividing_first_keeps_large_gradients_and_loses_small_ones(on_ranks, strategy, schedule):
    config = {schedule: True} if schedule == "prescale_gradients" else {schedule: 2.0}
    assert mean_of(on_ranks, NEAR_THE_TOP, strategy, **config) == NEAR_THE_TOP
    assert mean_of(on_ranks, SMALLEST, strategy, **config) == 0.0
    assert mean_of(on_ranks, SMALLEST, strategy) == SMALLEST


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.world(size=2)
def test_a_gradient_beyond_fp16_is_divided_before_it_is_cast(on_ranks, strategy):
    """Half of it fits; the sum of the halves fits only where fp32 adds."""
    beyond = 80_000.0
    expected = beyond if strategy == "exchange" else float("inf")
    assert mean_of(on_ranks, beyond, strategy, prescale_gradients=True) == expected
    assert mean_of(on_ranks, beyond, strategy) == float("inf")


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.world(size=2)
def test_bf16_micro_batches_are_added_in_fp32(on_ranks, stage):
    """256 and three ones make 256 in bf16, 259 in fp32; where bf16 is asked for, it is used."""
    config = {"stage": stage, "gradient_accumulation_steps": 4}
    for kept, expected in ((None, 259.0), ("fp32", 259.0), ("bf16", 256.0)):
        job = Job(
            shapes=((4,),),
            config={**config, "grad_accum_dtype": kept},
            dtype=torch.bfloat16,
            kind="staircase",
        )
        (values,) = gathered(job, on_ranks(zero_ranks.reduce, job))
        assert values.tolist() == [expected] * 4, kept


@pytest.mark.world(size=2)
def test_sequence_parallel_gradients_travel_in_fp32(on_ranks):
    """Ranks of one sequence hold parts of one sample's gradient: bf16 would round each part."""
    third = 1 / 3
    job = Job(
        shapes=((4,),),
        config={"communication_data_type": "bf16"},
        kind="constant",
        scale=third,
        sequence_parallel_size=2,
    )
    (values,) = gathered(job, on_ranks(zero_ranks.reduce, job))
    assert values.tolist() == [torch.tensor(third).mul(2).item()] * 4
