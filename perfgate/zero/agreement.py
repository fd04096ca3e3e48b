"""Ranks compare what they are about to do, before they enter a collective that depends on it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest

import torch
import torch.distributed as dist

from perfgate.errors import UsageError


def agree(lines: Sequence[str], group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Check that every rank of ``group`` describes the same thing; all ranks must call it.

    A digest of fixed size is gathered first, so that ranks which disagree still meet in the same
    collective; the descriptions follow only when digests differ.

    :raises UsageError: on every rank, naming the first line that differs and who holds it.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(device)
    digests = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(digests, mine, group=group)
    if all(torch.equal(digests[0], other) for other in digests):
        return
    descriptions: list[Sequence[str]] = [[] for _ in digests]
    dist.all_gather_object(descriptions, list(lines), group=group)
    raise UsageError(_first_difference(descriptions))


def _first_difference(descriptions: Sequence[Sequence[str]]) -> str:
    for rank, lines in enumerate(descriptions):
        for here, there in zip_longest(descriptions[0], lines, fillvalue="nothing"):
            if here != there:
                return (
                    f"ranks disagree on what is reduced: rank 0 has {here}; rank {rank} has "
                    f"{there}. No gradient was sent"
                )
    return "ranks disagree on what is reduced, and describe it alike"
