"""What each collective costs, at a size bound by latency, one in between and one by bandwidth."""

import pytest


@pytest.mark.world(size=2)
@pytest.mark.parametrize("size", ["4KiB", "256KiB", "4MiB"])
@pytest.mark.parametrize(
    "op",
    [
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "send_recv",
    ],
)
def test_collective(gate, op, size):
    gate.collective(op, size=size, dtype="float32")
