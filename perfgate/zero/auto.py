"""Choose the strategy that is fastest here, by measuring."""

from __future__ import annotations

import time
from types import ModuleType

import torch
import torch.distributed as dist

from perfgate.zero.bucket import Bucket
from perfgate.zero.groups import ReduceGroup
from perfgate.zero.message import Message, Strategy
from perfgate.zero.reducer import STRATEGIES
from perfgate.zero.scratch import Scratch

_ROUNDS = 4
_MOST_NUMEL = 1 << 24
"""A longer message is measured in little."""


def fastest(bucket: Bucket, group: ReduceGroup, comm: ModuleType = dist) -> Strategy:
    """Return the strategy that reduces ``bucket`` fastest; every rank of the group gets the same.

    Each is tried a few times on a message like the bucket's; what counts is its best call, timed
    by the slowest rank. Another run may choose otherwise, and only the exchange gives the same
    bits then.
    """
    shrink = max(1, -(-bucket.numel // _MOST_NUMEL))
    counts = tuple(-(-count // shrink) for count in bucket.counts)
    data = torch.zeros(sum(counts), dtype=group.comm_dtype, device=group.owned.device)
    message = Message(data, counts, group.rank, Scratch(), group.process_group, comm)
    strategies = [make() for make in STRATEGIES.values()]
    times = torch.tensor(
        [[_time(strategy, message) for strategy in strategies] for _ in range(_ROUNDS)],
        device=data.device,
    )
    comm.all_reduce(times, op=dist.ReduceOp.MAX, group=group.process_group)
    return strategies[int(times.amin(dim=0).argmin())]


def _time(strategy: Strategy, message: Message) -> float:
    message.comm.barrier(group=message.group)
    start = time.perf_counter()
    strategy.start(message)()
    if message.data.is_cuda:
        torch.cuda.synchronize(message.data.device)
    return time.perf_counter() - start
