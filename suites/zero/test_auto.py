"""The strategy can be chosen by measuring; the choice is one for all ranks."""

import pytest
import torch
import zero_ranks
from zero_oracle import exact, gathered
from zero_ranks import STRATEGIES, Job

from perfgate.zero import GradientReducer, ZeroConfig


@pytest.mark.world(size=3)
def test_the_measured_choice_reduces_right(on_ranks):
    job = Job(
        shapes=((40, 30), (7,)), config={"reduce_bucket_size": 500}, strategy="auto", rounds=2
    )
    for values, right in zip(
        gathered(job, on_ranks(zero_ranks.reduce, job)), exact(job, 3), strict=True
    ):
        assert torch.equal(values, right)


def choice():
    param = torch.nn.Parameter(torch.zeros(1 << 18))
    return GradientReducer([("w", param)], ZeroConfig(stage=2), strategy="auto").strategy.name


@pytest.mark.world(size=3)
def test_all_ranks_choose_alike(world):
    for _ in range(5):
        choices = world.run(choice)
        assert len(set(choices)) == 1
        assert choices[0] in STRATEGIES


@pytest.mark.world(size=1)
def test_a_single_rank_chooses_without_sending(world):
    assert world.run(choice)[0] in STRATEGIES
