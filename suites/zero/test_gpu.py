"""Overlap on a GPU: what the side stream reads has been written, whatever the producers' pace."""

import pytest
import torch

from perfgate.zero import GradientReducer, ZeroConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DELAY_CYCLES = 20_000_000


@pytest.mark.ranks(1, backend="nccl", device="cuda")
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_delayed_producers_are_waited_for(rank, overlap):
    """Gradients made late, on streams of their own, in buckets that share two buffers."""
    params = [torch.nn.Parameter(torch.zeros(1000, device=rank.device)) for _ in range(8)]
    named = [(str(index), param) for index, param in enumerate(params)]
    config = ZeroConfig(stage=2, reduce_bucket_size=2000, overlap_comm=overlap)
    reducer = GradientReducer(named, config)
    for step in range(3):
        for index in reversed(range(len(params))):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(DELAY_CYCLES)
                params[index].grad = torch.full_like(params[index], step * 10.0 + index)
                reducer.ready(str(index))
        assert reducer.end_micro_batch()
        for name, _, values in reducer.groups[0].owned_slices():
            assert values.tolist() == [step * 10.0 + int(name)] * 1000
