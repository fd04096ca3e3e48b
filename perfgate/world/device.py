"""Which of a machine's GPUs a rank gets."""

from __future__ import annotations

from perfgate.errors import UsageError
from perfgate.world.protocol import Seat


def choose_gpu(seat: Seat, gpus: int) -> int:
    """Return a rank's GPU of this machine's: one each for nccl, shared where gloo has to.

    :raises UsageError: where there is none, or nccl would have to share one.
    """
    ranks = int(seat.environ["LOCAL_WORLD_SIZE"])
    first = int(seat.environ["PERFGATE_FIRST_GPU"])
    if gpus == 0:
        raise UsageError(f"the world {seat.spec} needs a GPU and torch sees none; use device='cpu'")
    if seat.spec.backend == "nccl" and ranks > gpus:
        raise UsageError(
            f"nccl takes one GPU a rank: {ranks} ranks, {gpus} GPU{'s' if gpus > 1 else ''} on "
            "this machine; use fewer ranks or backend='gloo', which can share one"
        )
    if seat.spec.backend == "nccl" and first + ranks > gpus:
        raise UsageError(
            f"xdist's worker {seat.environ.get('PYTEST_XDIST_WORKER')} would need GPUs {first}-"
            f"{first + ranks - 1} of {gpus}, and nccl cannot share one; use a smaller -n"
        )
    return (first + seat.local_rank) % gpus
