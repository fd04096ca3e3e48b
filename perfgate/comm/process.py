"""The place of this process in its job, and its logger."""

from __future__ import annotations

import torch.distributed

from perfgate.comm.logger import CommsLogger


def place() -> tuple[int, int]:
    """Return this process's rank and the world size; alone without a process group."""
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


comms_logger = CommsLogger(place)
"""The logger that every call of ``perfgate.comm`` in this process passes."""
