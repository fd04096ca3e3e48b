"""The largest message that fits, and whether it does on every rank.

No rank may enter a collective that another has no memory for: it would wait for ever. So ranks
allocate first, tell each other whether they could, and only then communicate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist

from perfgate.comm.ops import BoundOp, Op
from perfgate.comm.plans import Member, Message
from perfgate.errors import UsageError
from perfgate.units import format_size

HEADROOM = 0.9
"""The share of free memory that a rank's buffers may take; the rest is the backend's."""
_GATHER_EXTRA = 0.2
T = TypeVar("T")
_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device, ranks_here: int) -> int:
    """Return the memory that is free to this rank.

    :param ranks_here: how many ranks share the host's memory; a GPU is a rank's own.
    """
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free)
    available = int(psutil.virtual_memory().available)
    return min(available, _cgroup_free()) // ranks_here


def _cgroup_free(root: Path = _CGROUP) -> int:
    """Return what a container's limit leaves, or more than there is where it has none."""
    try:
        limit = int((root / "memory.max").read_text())
        return max(0, limit - int((root / "memory.current").read_text()))
    except (OSError, ValueError):
        return 2**63


def largest_size(op: Op, free: int, mem_factor: float, itemsize: int, world_size: int) -> int:
    """Return the size, in bytes, of the one message that fills its share of the memory.

    The rules are those of DeepSpeed's benchmark: ``mem_factor`` of what is free, doubled for an
    op that needs no second buffer, plus 0.2 for all_gather_into_tensor; where the message is cut
    into shards, their elements are rounded down to a power of two. Two things differ: the size
    divides whatever the world size, and below a factor of 0.3 the 0.2 shrinks with it, so that
    a smaller factor always means a smaller message.

    :raises UsageError: when not even the smallest message fits.
    """
    share = mem_factor
    if op.placements == ("in_place",) or op.name == "pt2pt":
        share = 2 * mem_factor
    elif op.name == "all_gather_into_tensor":
        share = mem_factor + min(_GATHER_EXTRA, mem_factor * 2 / 3)
    shares = op.shares(world_size)
    elements = int(free * min(share, HEADROOM)) // itemsize // shares
    if elements < 1:
        raise UsageError(
            f"{op.name} has no room: {share:.2g} of {format_size(free)} free holds no message; "
            "free some memory or raise --mem-factor"
        )
    if shares > 1:
        elements = 2 ** (elements.bit_length() - 1)
    return elements * shares * itemsize


def needed_bytes(
    op: Op, size_bytes: int, dtype: torch.dtype, member: Member, placement: str
) -> int:
    """Return what this rank's buffers would take, without allocating them."""
    count = size_bytes // dtype.itemsize
    message = Message(count, dtype, torch.device("meta"), placement == "in_place")
    plan = op.plan(member, message)
    buffers = [buffer for buffer in (plan.send, plan.receive) if buffer is not None]
    storages = {buffer.untyped_storage()._cdata: buffer for buffer in buffers}
    return sum(buffer.untyped_storage().nbytes() for buffer in storages.values())


class OutOfMemory(UsageError):
    """Some rank has no memory for the message. Raised on every rank alike."""


class _Lacking(str):
    """Why this rank cannot allocate the message."""

    __slots__ = ()


def bind_or_agree(
    op: Op, size_bytes: int, dtype: torch.dtype, device: torch.device, ranks_here: int, **how: Any
) -> BoundOp:
    """Bind an op on every rank of the world or on none. Collective.

    :param how: the rest of :meth:`Op.bind`'s arguments.
    :raises OutOfMemory: on every rank, when one of them cannot allocate the message.
    :raises UsageError: what :meth:`Op.bind` raises.
    """
    member = Member.of(how["comm"], how.get("group"))
    needed = needed_bytes(op, size_bytes, dtype, member, how.get("placement") or op.placements[0])
    _settle(_shortage(needed, free_bytes(device, ranks_here)), device)
    return _settle(_bind(op, size_bytes, dtype, device, how), device)


def _bind(
    op: Op, size_bytes: int, dtype: torch.dtype, device: torch.device, how: dict[str, Any]
) -> BoundOp | _Lacking:
    try:
        return op.bind(size_bytes, dtype, device, **how)
    except (torch.cuda.OutOfMemoryError, MemoryError) as error:
        return _Lacking(error)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        return _Lacking(str(error).splitlines()[0])


def _shortage(needed: int, free: int) -> _Lacking | None:
    if needed <= free * HEADROOM:
        return None
    return _Lacking(
        f"the buffers take {needed / 2**30:.1f}GiB and {free / 2**30:.1f}GiB are free to it, of "
        f"which {HEADROOM:.0%} may be used; lower --mem-factor or --size"
    )


def _settle(outcome: T | _Lacking, device: torch.device) -> T:
    """Return what all ranks of the world have, or raise on all when one is lacking it."""
    rank = dist.get_rank()
    flag = torch.tensor([rank if isinstance(outcome, _Lacking) else -1])
    flag = flag.to(device) if dist.get_backend() == "nccl" else flag
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    if isinstance(outcome, _Lacking):
        raise OutOfMemory(f"out of memory on rank {rank}: {outcome}")
    if flag.item() >= 0:
        raise OutOfMemory(f"out of memory on rank {int(flag.item())}")
    return outcome
