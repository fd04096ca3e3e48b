"""Stepped partitions back to all ranks."""

from __future__ import annotations

from types import ModuleType

import torch
import torch.distributed as dist

from perfgate.zero.groups import ReduceGroup
from perfgate.zero.message import spans


def gather_partitions(
    flat: torch.Tensor,
    group: ReduceGroup,
    *,
    bucket_numel: int,
    at_once: bool = True,
    comm: ModuleType = dist,
) -> None:
    """Fill ``flat`` with every rank's partition of it, in place; all ranks must call it.

    :param flat: 1-D, ``group.layout.numel`` elements; this rank's own part is up to date.
    :param bucket_numel: ``allgather_bucket_size``: at most this many elements at a time.
    :param at_once: all-gather; otherwise each owner broadcasts (``allgather_partitions`` off).
    """
    ranks, length = group.layout.partitions, group.layout.partition_numel
    if ranks == 1 or length == 0:
        return
    partitions = list(flat.view(ranks, length).unbind())
    mine = partitions[group.rank]
    if not at_once:
        for rank, partition in enumerate(partitions):
            for span in spans(length, bucket_numel):
                comm.broadcast(partition[span], group.global_rank(rank), group=group.process_group)
    elif length * ranks <= bucket_numel:
        gather = getattr(comm, "all_gather_single", None) or comm.all_gather_into_tensor
        gather(flat, mine, group=group.process_group)
    else:
        for span in spans(length, max(1, bucket_numel // ranks)):
            pieces = [partition[span] for partition in partitions]
            comm.all_gather(pieces, mine[span], group=group.process_group)
