"""Large results: laid out once in memory that the controller maps, never sent.

The memory is the rank's; it keeps it until the next call, which comes only when the controller
has mapped it. From then on the data is the controller's own, whatever becomes of the rank.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfgate.world.record import anonymous_file

#: Below this, bytes in the message are as fast.
LARGE_BYTES = 1 << 16
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Parcel:
    """Where large buffers lie: a descriptor of a process, and each one's offset and length."""

    pid: int
    descriptor: int
    extents: tuple[tuple[int, int], ...]


def lay_out(buffers: Sequence[pickle.PickleBuffer]) -> Parcel:
    """Copy buffers, one after the other, to memory of their own."""
    descriptor = anonymous_file("perfgate-result")
    extents, end = [], 0
    for buffer in buffers:
        data = buffer.raw()
        extents.append((end, data.nbytes))
        _write(descriptor, data, end)
        end += -(-data.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return Parcel(os.getpid(), descriptor, tuple(extents))


def take(parcel: Parcel) -> list[memoryview]:
    """Map what another process of this machine has laid out; it may be written to.

    :raises OSError: when that process is gone.
    """
    descriptor = os.open(f"/proc/{parcel.pid}/fd/{parcel.descriptor}", os.O_RDONLY)
    try:
        memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(descriptor)
    return [memory[start : start + length] for start, length in parcel.extents]


def discard(parcel: Parcel | None) -> None:
    """Give up, in the process that laid it out, what has been mapped elsewhere by now."""
    if parcel is not None:
        os.close(parcel.descriptor)


def reduce_tensor(tensor: Any) -> Any:
    """Reduce a plain tensor to a buffer; any other as torch does."""
    import torch

    if not _is_plain(tensor):
        return NotImplemented
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return rebuild_tensor, (
        pickle.PickleBuffer(data),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.requires_grad,
    )


def rebuild_tensor(data: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:
    """Return the tensor over a buffer, without a copy where that may be written to."""
    import torch

    writable = memoryview(data)
    if writable.readonly:
        writable = memoryview(bytearray(writable))
    return torch.frombuffer(writable, dtype=dtype).view(shape).requires_grad_(requires_grad)


def _is_plain(tensor: Any) -> bool:
    import torch

    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and tensor.dim() > 0
        and not tensor.is_quantized
        and tensor.grad_fn is None
        and not (tensor.is_conj() or tensor.is_neg())
        and not tensor.__dict__
    )


def _write(descriptor: int, data: memoryview, start: int) -> None:
    done = 0
    while done < data.nbytes:
        done += os.pwrite(descriptor, data[done:], start + done)
