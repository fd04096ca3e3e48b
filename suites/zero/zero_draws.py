"""What Hypothesis draws jobs from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from zero_ranks import STRATEGIES, Job

WORLDS = [
    pytest.param(size, id=f"x{size}", marks=pytest.mark.world(size=size)) for size in range(1, 6)
]
SEVERAL = WORLDS[1:]
"""Worlds in which something travels."""

shapes = st.lists(st.lists(st.integers(0, 7), max_size=2).map(tuple), min_size=1, max_size=6).map(
    tuple
)
"""Scalars, vectors and matrices, empty ones among them; often fewer elements than ranks."""

seeds = st.integers(0, 2**16)
buckets = st.integers(1, 80)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMM_DTYPES = (None, "fp16", "bf16", "fp32", "fp64")


@st.composite
def jobs(draw: st.DrawFn, strategy: str | None = None, **fixed: object) -> Job:
    """Draw a job; ``fixed`` values override the drawn ones."""
    job_shapes = draw(shapes)
    values = {
        "shapes": job_shapes,
        "config": draw(configs()),
        "strategy": strategy or draw(st.sampled_from(STRATEGIES)),
        "segment_bytes": draw(st.sampled_from([None, 8, 40])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "seed": draw(seeds),
        "absent": draw(st.frozensets(st.integers(0, len(job_shapes) - 1), max_size=2)),
        "shuffled": draw(st.booleans()),
        "rounds": draw(st.integers(1, 3)),
    }
    return Job(**(values | fixed))


@st.composite
def configs(draw: st.DrawFn) -> dict[str, object]:
    """Draw how to reduce; nothing in it changes an exact result but the op."""
    schedule = draw(
        st.sampled_from([{}, {"prescale_gradients": True}, {"gradient_predivide_factor": 2.0}])
    )
    return {
        "stage": draw(st.sampled_from([1, 2])),
        "reduce_bucket_size": draw(buckets),
        "gradient_accumulation_steps": draw(st.integers(1, 3)),
        "overlap_comm": draw(st.booleans()),
        "contiguous_gradients": draw(st.booleans()),
        "round_robin_gradients": draw(st.booleans()),
        "parameter_alignment": draw(st.booleans()),
        "communication_data_type": draw(st.sampled_from(COMM_DTYPES)),
        "gradient_allreduce_op": draw(st.sampled_from(["mean", "sum"])),
        **schedule,
    }
